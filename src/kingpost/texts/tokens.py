"""Turn documents into token ids, a bounded piece of text at a time."""

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from kingpost.errors import KingpostError
from kingpost.texts.documents import Document

PIECE = 100_000
"""The most characters given to the tokenizer as one string: longer ones grow slower and larger."""
_BATCH = 4 * PIECE

Ids = npt.NDArray[np.int32]


class Encoder:
    """A tokenizer, as far as sequences need it.

    Args:
        tokenizer: A transformers tokenizer.

    Attributes:
        prefix: Ids the tokenizer puts before every text by its own rule (BOS), often none.

    Raises:
        KingpostError: There is no tokenizer, or its rule cannot be found out.
    """

    def __init__(self, tokenizer: Any):
        if tokenizer is None:
            raise KingpostError(
                "the model has no tokenizer, so a text cannot be turned into tokens: "
                "put the tokenizer's files beside the model's"
            )
        self._tokenizer = tokenizer
        self.prefix = self._find_prefix()

    def _find_prefix(self) -> tuple[int, ...]:
        """Return what stands before the ids of "a" when special tokens are added."""
        (plain,) = self._encode_batch(["a"])
        (full,) = self._encode_batch(["a"], special=True)
        for start in range(len(full) - len(plain) + 1):
            if np.array_equal(full[start : start + len(plain)], plain):
                return tuple(int(token) for token in full[:start])
        raise KingpostError(
            f"the tokenizer gives 'a' the ids {plain.tolist()}, but with special tokens "
            f"{full.tolist()}, so what it puts before a text is unknown: check its post-processor"
        )

    def encode(self, text: str) -> Ids:
        """Return a text's ids, int32 [n], without special tokens added."""
        return np.concatenate([ids for _, ids in self._encoded_pieces([text])])

    def encode_all(self, documents: Iterable[Document]) -> Iterator[tuple[Document, Ids]]:
        """Yield each document with its ids, int32 [n]; short ones are tokenized together."""
        waiting: deque[Document] = deque()

        def texts() -> Iterator[str]:
            for document in documents:
                waiting.append(document)
                yield document.text

        for _, pieces in groupby(self._encoded_pieces(texts()), key=itemgetter(0)):
            ids = np.concatenate([ids for _, ids in pieces])
            yield waiting.popleft(), ids

    def _encoded_pieces(self, texts: Iterable[str]) -> Iterator[tuple[int, Ids]]:
        """Yield the ids of each piece with the number of its text."""
        owned = ((number, piece) for number, text in enumerate(texts) for piece in cut(text))
        for batch in _batches(owned):
            ids = self._encode_batch([piece for _, piece in batch])
            yield from zip((number for number, _ in batch), ids, strict=True)

    def _encode_batch(self, texts: list[str], *, special: bool = False) -> list[Ids]:
        # verbose=False: the length is bounded here, so that the tokenizer's warning is not true.
        encoded = self._tokenizer(
            texts, add_special_tokens=special, return_attention_mask=False, verbose=False
        )
        return [np.asarray(ids, dtype=np.int32) for ids in encoded["input_ids"]]

    def spelled_specials(self, ids: npt.NDArray[np.integer[Any]]) -> list[str]:
        """Return the special tokens among the ids of a text: spelled out in it, or unknown."""
        special = np.unique(ids[np.isin(ids, self._tokenizer.all_special_ids)])
        return [str(token) for token in self._tokenizer.convert_ids_to_tokens(special.tolist())]


def cut(text: str) -> Iterator[str]:
    """Yield pieces of at most `PIECE` characters that together are the text.

    A cut is made before the last space in reach, so that a byte-level tokenizer gives the same ids
    as for the whole; else before the last line end; else anywhere.
    """
    start = 0
    while len(text) - start > PIECE:
        end = start + PIECE
        spaces = (text.rfind(space, start + 1, end + 1) for space in " \n\t")
        stop = next((space for space in spaces if space > 0), end)
        yield text[start:stop]
        start = stop
    yield text[start:]


def _batches(pieces: Iterable[tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    """Group pieces to about `_BATCH` characters."""
    batch: list[tuple[int, str]] = []
    size = 0
    for piece in pieces:
        batch.append(piece)
        size += len(piece[1])
        if size >= _BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
