"""What can be read off a forward pass that is run anyway: influence, angular and wanda."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from kingpost.engine import OnBlock
from kingpost.measures import HIDDEN_MEASURES, HiddenStates, InputNorms
from kingpost.models import Model
from kingpost.scanning.request import Target
from kingpost.study import Site


class Watch:
    """Collects the measures of one forward pass.

    Args:
        model: The model.
        pending: What is to be measured; other measures in it are left alone.
        n_sequences: Sequences of the batch, B.
        length: Tokens of a sequence, T.
    """

    def __init__(
        self, model: Model, pending: Sequence[Target], *, n_sequences: int, length: int
    ) -> None:
        self._of_hidden = [t for t in pending if t.family in HIDDEN_MEASURES]
        self._of_inputs = [t for t in pending if t.family == "wanda"]
        shape = {"n_sequences": n_sequences, "length": length}
        self._hidden = HiddenStates(len(model.blocks), **shape)
        self._norms = InputNorms(model, [t.component for t in self._of_inputs], **shape)

    @property
    def on_block(self) -> OnBlock | None:
        """What is to be called with the hidden states of each block; None if nothing is."""
        return self._hidden if self._of_hidden else None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Within the context the inputs of linear layers are watched."""
        with self._norms.watching():
            yield

    def values(self) -> dict[Site, npt.NDArray[np.float64]]:
        """What was measured, float64 [B] for each site."""
        found = {t.site: self._hidden.values(t.site.measure)[t.site.block] for t in self._of_hidden}
        if self._of_inputs:
            rows = self._norms.values()
            found |= {t.site: row for t, row in zip(self._of_inputs, rows, strict=True)}
        return found
