"""Which sequences a model is trained and validated on, and in which order."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from kingpost.reference.record import Recipe

_SCORED = 32


def training_sequences(ids: npt.NDArray[np.uint16], recipe: Recipe) -> "Sequences":
    """All pieces of a stream once in a drawn order, then again in another, as many as are needed.

    Args:
        ids: uint16 [n].
        recipe: Of the training; its seed draws the order.
    """
    pieces, needed = _pieces(ids, recipe.length), recipe.steps * recipe.batch
    rng = np.random.default_rng(recipe.seed)
    passes = [rng.permutation(len(pieces)) for _ in range(-(-needed // len(pieces)))]
    return Sequences(pieces, np.concatenate(passes)[:needed])


def validation_sequences(ids: npt.NDArray[np.uint16], length: int) -> "Sequences":
    """The 32 held-out pieces that are scored, the same ones for every seed."""
    pieces = _pieces(ids, length)
    return Sequences(pieces, np.random.default_rng(0).permutation(len(pieces))[:_SCORED])


class Sequences(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Pieces of a stream of tokens in a given order, which may repeat.

    Args:
        pieces: uint16 [n, length].
        order: int64 [m], rows of `pieces`.
    """

    def __init__(self, pieces: npt.NDArray[np.uint16], order: npt.NDArray[np.int64]) -> None:
        self._pieces, self._order = pieces, order

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        """Token ids, int64 [length], which are also what is to be predicted."""
        piece = torch.from_numpy(self._pieces[self._order[index]].astype(np.int64))
        return {"input_ids": piece, "labels": piece}


def _pieces(ids: npt.NDArray[np.uint16], length: int) -> Any:
    """A stream in pieces of equal length, [n, length]; what is left at its end is left out."""
    return ids[: len(ids) // length * length].reshape(-1, length)
