"""Sources as large as they come, read in a process of their own to see its time and memory."""

import json
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kingpost.texts import load_text
from kingpost.texts import tokens as tokens_module
from kingpost.texts.documents import MAX_BYTES

MEASURE = """
import json, resource, sys, time
sys.path.insert(0, sys.argv[2])
from text_models import byte_level, model_of
from kingpost.texts import load_text
import pyarrow.parquet
model = model_of(byte_level())
before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
text = load_text(sys.argv[1], model=model)
mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
print(json.dumps([time.monotonic() - start, mib, text.n_available, text.notes]))
"""


def measure(path, folder):
    run = subprocess.run(
        [sys.executable, "-c", MEASURE, str(path), str(folder)],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    return json.loads(run.stdout)


def write_200_mb(path, words, head=b"", foot=b""):
    with path.open("wb") as file:
        file.write(head)
        for _ in range(200):
            file.write((words * (10**6 // len(words) + 1))[: 10**6])
        file.write(foot)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("words.txt", b"the quick brown fox "),
        ("one_word.txt", b"kingpost"),
        ("a.jsonl", b"a roof "),
    ],
)
def test_a_line_of_200_mb(tmp_path, request, name, words):
    jsonl = name.endswith("jsonl")
    write_200_mb(tmp_path / name, words, b'{"text": "' if jsonl else b"", b'"}\n' if jsonl else b"")
    seconds, mib, available, notes = measure(tmp_path / name, request.path.parent)
    assert seconds < 60
    assert mib < 1000
    assert available > MAX_BYTES // 8 // 256
    assert "more than is read, 16 MiB of text" in notes[0]


@pytest.mark.parametrize("character", ["x", "漢", "\n", "a b"])
def test_cutting_does_not_hang_on_what_has_no_place_to_cut(tmp_path, plain_model, character):
    (tmp_path / "a.txt").write_text("." + character * 1_000_000 + ".", newline="")
    start = time.monotonic()
    text = load_text(str(tmp_path / "a.txt"), model=plain_model, length=20)
    assert time.monotonic() - start < 30
    assert text.n_available > 1000


def test_a_text_in_pieces_has_the_tokens_of_the_whole(tmp_path, plain_model, monkeypatch):
    words = np.random.default_rng(0).choice(["the", "fox", "king", "post\n", "load,"], 3000)
    whole = " ".join(words)
    (tmp_path / "a.txt").write_text(whole)
    expected = plain_model.tokenizer(whole, verbose=False)["input_ids"]
    monkeypatch.setattr(tokens_module, "PIECE", 100)
    monkeypatch.setattr(tokens_module, "_BATCH", 350)
    text = load_text(str(tmp_path / "a.txt"), model=plain_model, n_sequences=10**6, length=7)
    order = np.random.default_rng(0).permutation(text.n_available)
    got = text.token_ids[np.argsort(order)].ravel().tolist()
    assert got == expected[: len(expected) // 7 * 7]


def test_the_tokenizer_is_never_given_more_than_a_piece(tmp_path, plain_model):
    given: list[int] = []

    class Spy:
        all_special_ids: tuple[int, ...] = ()

        def __call__(self, texts, **options):
            given.extend(map(len, texts))
            return plain_model.tokenizer(texts, **options)

        def convert_ids_to_tokens(self, ids):
            return plain_model.tokenizer.convert_ids_to_tokens(ids)

    model = type(plain_model)(Spy(), plain_model.vocabulary_size)
    (tmp_path / "a.txt").write_text("king post " * 50_000)
    load_text(str(tmp_path / "a.txt"), model=model)
    assert max(given) <= 100_000
    assert sum(given) >= 500_000


@settings(deadline=None)
@given(st.text(st.sampled_from("ab \n\t漢"), max_size=300), st.integers(1, 40))
def test_the_pieces_are_the_text(text, piece):
    size, tokens_module.PIECE = tokens_module.PIECE, piece
    try:
        pieces = list(tokens_module.cut(text))
    finally:
        tokens_module.PIECE = size
    assert "".join(pieces) == text
    assert max(map(len, pieces)) <= piece
    assert all(pieces) or not text
