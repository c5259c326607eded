"""A text becomes a tokenizer, a stream of tokens to train on, and held-out documents."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from kingpost.errors import KingpostError
from kingpost.reference.family import END_OF_TEXT, VOCABULARY
from kingpost.texts import Document, Encoder, read_documents

MAX_BYTES = 2**30
"""The most text that is read, in bytes of UTF-8; it is held in memory while it is tokenized."""
_HELD_OUT = 50
"""One document in so many is held out."""
_TAIL = 20
"""Of a text that is a single document, the last one in so many parts is held out."""
_END = "<|endoftext|>"


@dataclass(frozen=True, eq=False)
class Corpus:
    """What a model is trained and validated on."""

    tokenizer: PreTrainedTokenizerFast
    train: npt.NDArray[np.uint16]
    """uint16 [n]: the documents one after the other, each with an end-of-text token behind it."""
    validation: npt.NDArray[np.uint16]
    """uint16 [m]: the held-out documents likewise."""
    held_out: tuple[Document, ...]
    n_documents: int
    """Documents trained on."""
    notes: tuple[str, ...]
    digest: str
    """SHA-256, hex, of all tokens."""


def load_corpus(source: str, tokenizer: PreTrainedTokenizerFast | None = None) -> Corpus:
    """Read a text, hold out some of its documents, and turn all into tokens.

    One document in fifty is held out, by a hash of its name, so that it is the same one whatever
    else the text has; of a text that is a single document, its last twentieth.

    Args:
        source: As for `kingpost.load_text`; at most 1 GiB of text is read.
        tokenizer: The one to use; without it, one is trained on what is not held out.

    Raises:
        UsageError: There is no such source.
        KingpostError: The source cannot be read, or has no text.
    """
    notes: list[str] = []
    documents = list(read_documents(source, notes, max_bytes=MAX_BYTES))
    if not documents:
        raise KingpostError(f"{source!r} has no text in it: give a file, folder or dataset")
    train, held_out = _split(documents)
    if tokenizer is None:
        tokenizer = train_tokenizer(document.text for document in train)
    train_ids, held_out_ids = _encode(train, tokenizer), _encode(held_out, tokenizer)
    return Corpus(
        tokenizer=tokenizer,
        train=train_ids,
        validation=held_out_ids,
        held_out=tuple(held_out),
        n_documents=len(train),
        notes=tuple(notes),
        digest=hashlib.sha256(train_ids.tobytes() + b"|" + held_out_ids.tobytes()).hexdigest(),
    )


def train_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer of at most 12,160 entries; the same texts give the same one.

    Byte-level BPE is that of GPT-2 (Radford et al. 2019): every text can be written in it.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    assert tokenizer.token_to_id(_END) == END_OF_TEXT
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=_END)


def write_documents(documents: Iterable[Document], file: Path) -> None:
    """Write documents as JSON Lines, which `--text` reads."""
    with file.open("w", encoding="utf-8") as lines:
        for document in documents:
            record = {"text": document.text, "name": document.name}
            lines.write(json.dumps(record, ensure_ascii=False) + "\n")


def _split(documents: list[Document]) -> tuple[list[Document], list[Document]]:
    """What is trained on and what is held out, both in the order of the text."""
    if len(documents) == 1:
        (only,) = documents
        middle = len(only.text) - len(only.text) // _TAIL
        return [replace(only, text=only.text[:middle])], [replace(only, text=only.text[middle:])]
    draws = {document.name: _draw(document.name) for document in documents}
    # Where the draw hits none, the one nearest to being drawn.
    most = max(2**64 // _HELD_OUT, min(draws.values()))
    held_out = [document for document in documents if draws[document.name] <= most]
    return [document for document in documents if draws[document.name] > most], held_out


def _draw(name: str) -> int:
    """A number below 2⁶⁴ that depends on the name alone."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")


def _encode(documents: list[Document], tokenizer: Any) -> npt.NDArray[np.uint16]:
    encoder = Encoder(tokenizer)
    end = np.array([END_OF_TEXT], dtype=np.uint16)
    pieces = [
        piece for _, ids in encoder.encode_all(documents) for piece in (ids.astype(np.uint16), end)
    ]
    return np.concatenate(pieces)
