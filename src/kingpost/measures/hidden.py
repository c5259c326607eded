"""influence and angular: how far a block turns the hidden state. Free with a recording.

Both come from the unit vectors û and v̂ of the hidden state before and after the block, hooked at
the block itself: `hidden_states[-1]` of transformers is after the final norm. With d = ‖û − v̂‖,
1 − cos = d²/2, and the angle is 2·atan2(d, ‖û + v̂‖); both stay exact where cos is close to 1.
"""

import numpy as np
import numpy.typing as npt
import torch

from kingpost.errors import KingpostError

HIDDEN_MEASURES = ("influence", "angular")


class HiddenStates:
    """Collects influence and angular distance of every block during one recording.

    influence: 1 − mean over tokens of cos(h_in, h_out), ShortGPT (arXiv 2403.03853).
    angular: mean over tokens of arccos(cos(h_in, h_out))/π, Gromov et al. (arXiv 2403.17887) with
    n = 1, so that the input of block i + n is the output of block i.

    A block that is called several times gets the mean over its calls; a hidden state of several
    streams the mean over the streams.

    Args:
        n_blocks: Number of blocks.
        n_sequences: Sequences of the batch, B.
        length: Tokens of a sequence, T.
    """

    def __init__(self, n_blocks: int, *, n_sequences: int, length: int) -> None:
        self._shape = (n_sequences, length)
        self._sums = {m: np.zeros((n_blocks, n_sequences)) for m in HIDDEN_MEASURES}
        self._calls = np.zeros((n_blocks, 1))

    def __call__(self, block: int, before: torch.Tensor, after: torch.Tensor) -> None:
        """Take the hidden states before and after one call of a block, [..., d]."""
        u = torch.nn.functional.normalize(before.float(), dim=-1)
        v = torch.nn.functional.normalize(after.float(), dim=-1)
        apart, together = (u - v).norm(dim=-1), (u + v).norm(dim=-1)
        self._calls[block] += 1
        self._sums["influence"][block] += self._per_sequence(apart.square() / 2)
        self._sums["angular"][block] += self._per_sequence(
            2 * torch.atan2(apart, together) / torch.pi
        )

    def values(self, measure: str) -> npt.NDArray[np.float64]:
        """Values of a measure, float64 [blocks, B]; NaN for a block that was never called."""
        with np.errstate(invalid="ignore"):
            return self._sums[measure] / self._calls

    def _per_sequence(self, values: torch.Tensor) -> npt.NDArray[np.float64]:
        n_sequences = self._shape[0]
        if values.shape[:2] == self._shape:
            flat = values.reshape(n_sequences, -1)
        elif values.shape[-2:] == self._shape:  # several streams, stacked in front
            flat = values.reshape(-1, *self._shape).transpose(0, 1).reshape(n_sequences, -1)
        else:
            raise KingpostError(
                f"influence and angular are not defined for this model: its blocks pass on hidden "
                f"states of shape {list(values.shape)} and not one for each token; "
                "leave both out of --measure."
            )
        return flat.double().mean(dim=1).cpu().numpy()
