"""What is trained on: a tokenizer that loses nothing, and documents that are held out."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from kingpost.errors import KingpostError
from kingpost.reference.corpus import load_corpus, train_tokenizer, write_documents
from kingpost.texts import read_documents

DOCUMENTS = {d.name: d.text for d in read_documents("python-docs", [])}


def test_tokens_are_the_documents_with_an_end_behind_each() -> None:
    corpus = load_corpus("python-docs")
    held_out = {document.name for document in corpus.held_out}
    assert corpus.n_documents + len(held_out) == len(DOCUMENTS)
    for ids, names in (
        (corpus.train, sorted(set(DOCUMENTS) - held_out)),
        (corpus.validation, sorted(held_out)),
    ):
        assert ids.dtype == np.uint16
        ends = np.flatnonzero(ids == corpus.tokenizer.eos_token_id)
        pieces = np.split(ids, ends + 1)[:-1]
        decoded = [corpus.tokenizer.decode(piece[:-1]) for piece in pieces]
        assert decoded == [DOCUMENTS[name] for name in names]


def test_a_document_is_held_out_by_its_name_alone(tmp_path: Path) -> None:
    names = [f"{i}.txt" for i in range(300)]
    for name in names:
        (tmp_path / name).write_text(f"text of {name}")
    held_out = {document.name for document in load_corpus(str(tmp_path)).held_out}
    drawn = {n for n in names if int(hashlib.sha256(n.encode()).hexdigest(), 16) * 50 < 2**256}
    assert held_out == drawn
    assert 1 <= len(drawn) <= 15
    for name in names[::2]:
        (tmp_path / name).unlink()
    assert {d.name for d in load_corpus(str(tmp_path)).held_out} == drawn - set(names[::2])


def test_of_few_documents_one_is_held_out_and_of_one_its_end(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt", "c.txt"):
        (tmp_path / name).write_text(f"text of {name}")
    corpus = load_corpus(str(tmp_path))
    assert (corpus.n_documents, len(corpus.held_out)) == (2, 1)
    text = "".join(chr(97 + i % 26) for i in range(1000))
    (tmp_path / "a.txt").write_text(text)
    corpus = load_corpus(str(tmp_path / "a.txt"))
    assert corpus.tokenizer.decode(corpus.train[:-1]) == text[:950]
    assert corpus.tokenizer.decode(corpus.validation[:-1]) == text[950:]


def test_the_tokenizer_writes_every_text_and_is_the_same_each_time() -> None:
    texts = list(DOCUMENTS.values())
    tokenizer = train_tokenizer(texts)
    again = train_tokenizer(texts)
    assert tokenizer.backend_tokenizer.to_str() == again.backend_tokenizer.to_str()
    assert 1000 < len(tokenizer) <= 12_160
    strange = "\tnaïve 🙂 \u202edlrow\x00\n  漢字"
    assert tokenizer.decode(tokenizer(strange)["input_ids"]) == strange
    assert tokenizer.decode([0]) == tokenizer.eos_token == "<|endoftext|>"


def test_held_out_documents_are_a_text_that_can_be_scanned(tmp_path: Path) -> None:
    corpus = load_corpus("python-docs")
    write_documents(corpus.held_out, tmp_path / "held-out.jsonl")
    read = [d.text for d in read_documents(str(tmp_path / "held-out.jsonl"), [])]
    assert read == [document.text for document in corpus.held_out]
    first = json.loads((tmp_path / "held-out.jsonl").read_text().splitlines()[0])
    assert first["name"] == corpus.held_out[0].name


def test_no_text_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(KingpostError, match=r"has no text in it: give a file, folder or dataset"):
        load_corpus(str(tmp_path))
