"""taylor, taylor_signed and fisher: what w·∂ℓ/∂w predicts, for all parameters from one backward.

With ℓ the mean loss of one sequence and the sum over the elements of a component:
taylor Σ|w·∂ℓ/∂w| and taylor_signed −Σ w·∂ℓ/∂w, the first-order prediction of zeroing it (Molchanov
et al. 2019, arXiv 1906.10771); fisher ½ Σ (w·∂ℓ/∂w)², its diagonal second-order prediction (optimal
brain damage, LeCun et al. 1989; Theis et al. 2018, arXiv 1801.05787). A study reports their mean
over sequences: the gradient is that of one sequence at a time, not a mean gradient.
"""

from collections.abc import Sequence

import torch
from torch import nn

from kingpost.models import Component, Model, Slice

GRADIENT_MEASURES = ("taylor", "taylor_signed", "fisher")


class GradientSums:
    """Sums of w·∂ℓ/∂w over components, made while a backward pass gives the gradients away.

    Args:
        model: The model.
        components: What to sum over; they may overlap.
    """

    def __init__(self, model: Model, components: Sequence[Component]) -> None:
        self._uses: dict[int, list[tuple[int, Slice]]] = {}
        self._parameters: dict[int, nn.Parameter] = {}
        for i, component in enumerate(components):
            for s in component.slices:
                parameter = model.blocks[component.block].get_parameter(s.parameter)
                self._parameters[id(parameter)] = parameter
                self._uses.setdefault(id(parameter), []).append((i, s))
        self._sums = torch.zeros(len(GRADIENT_MEASURES), len(components), dtype=torch.float64)
        self._reached = torch.zeros(len(components), dtype=torch.bool)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The parameters whose gradients are needed."""
        return list(self._parameters.values())

    def __call__(self, parameter: nn.Parameter, gradient: torch.Tensor) -> None:
        """Take the gradient of one parameter; it is overwritten."""
        uses = self._uses[id(parameter)]
        # Slices of one parameter lie along the same axis; for a whole one any axis will do.
        axis = next((s.axis for _, s in uses if s.index is not None), 0)
        rows = _row_sums(_product(parameter, gradient), axis)
        for component, s in uses:
            chosen = rows if s.index is None else rows[:, s.index]
            self._sums[:, component] += chosen.sum(1)
            self._reached[component] = True

    def values(self, measure: str) -> list[float]:
        """A measure of each component; NaN where no gradient reached any of its parameters."""
        row = self._sums[GRADIENT_MEASURES.index(measure)]
        return row.where(self._reached, torch.nan).tolist()


def _product(parameter: nn.Parameter, gradient: torch.Tensor) -> torch.Tensor:
    if gradient.dtype == torch.float32:  # in place: a fresh tensor costs more than the arithmetic
        return gradient.mul_(parameter)
    return gradient.float().mul_(parameter)


def _row_sums(product: torch.Tensor, axis: int) -> torch.Tensor:
    """taylor, taylor_signed and fisher of each output feature, float64 [3, features], CPU."""
    rows = product.movedim(axis, 0).flatten(1) if product.ndim > 1 else product[:, None]
    absolute = torch.linalg.vector_norm(rows, 1, dim=1).double()
    square = torch.linalg.vector_norm(rows, 2, dim=1).double().square()
    return torch.stack([absolute, -rows.sum(1).double(), square / 2]).cpu()
