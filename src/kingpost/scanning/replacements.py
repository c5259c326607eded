"""What the ablations `mean` and `resample` put in place of an output."""

from collections.abc import Sequence

import numpy as np
import torch

from kingpost.engine import mean_outputs, outputs_of
from kingpost.models import Model
from kingpost.scanning.request import Target
from kingpost.study import Site

# Bytes of outputs of other sequences that are held at once.
_ROOM = 2**28


class Replacements:
    """Means over the text and outputs of other sequences.

    Args:
        model: The model.
        ids: Token ids of the scan, int64 [N, T].
        seed: Seed of the derangement that says from which sequence another one's output comes.
    """

    def __init__(self, model: Model, ids: torch.Tensor, seed: int) -> None:
        self._model, self._ids = model, ids
        self._donors = derangement(len(ids), seed)
        self._means: dict[Site, list[torch.Tensor]] = {}
        self._held: dict[Site, list[torch.Tensor]] = {}
        self._held_for: list[int] = []

    def take_means(self, targets: Sequence[Target], batches: Sequence[list[int]]) -> None:
        """Run the text once, batch by batch, for the means that targets need."""
        wanted = [t for t in targets if _needs(t) == "mean"]
        if wanted:
            ids = (self._ids[sequences] for sequences in batches)
            means = mean_outputs(self._model, ids, [t.component for t in wanted])
            self._means = {t.site: mean for t, mean in zip(wanted, means, strict=True)}

    def of(
        self, target: Target, sequences: list[int], pending: Sequence[Target]
    ) -> list[torch.Tensor]:
        """What replaces the outputs of a target, for a batch of sequences.

        Args:
            target: The target.
            sequences: The batch.
            pending: All targets that are to be run on it, of which some are prepared together.
        """
        if _needs(target) == "mean":
            return self._means[target.site]
        if _needs(target) == "another":
            if self._held_for != sequences or target.site not in self._held:
                self._hold(target, sequences, pending)
            return self._held[target.site]
        return []

    def _hold(self, target: Target, sequences: list[int], pending: Sequence[Target]) -> None:
        ids = self._ids[self._donors[sequences]].to(self._model.device)
        width = 4 * int(self._model.embedding.weight.shape[-1])  # type: ignore[index]
        n = max(1, _ROOM // (ids.numel() * width * 4))
        wanted = [t for t in pending if _needs(t) == "another"]
        start = wanted.index(target)
        chosen = wanted[start : start + n]
        outputs = outputs_of(self._model, ids, [t.component for t in chosen])
        self._held = {t.site: found for t, found in zip(chosen, outputs, strict=True)}
        self._held_for = list(sequences)


def derangement(n: int, seed: int) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """A permutation of n numbers that leaves none in its place, drawn from a seed (Sattolo 1986).

    One number alone stays where it is.
    """
    random = np.random.default_rng(seed)
    order = np.arange(n)
    for i in range(n - 1, 0, -1):
        j = int(random.integers(i))
        order[[i, j]] = order[[j, i]]
    return order


def _needs(target: Target) -> str:
    return target.ablation.replaces_by if target.ablation is not None else ""
