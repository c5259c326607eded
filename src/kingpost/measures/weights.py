"""magnitude, snr and quantization_error: measures of the weights alone, one tensor at a time.

magnitude ‖W‖_F and magnitude_mean, the mean of |w|. snr: the singular values above the edge of the
Marchenko–Pastur law, summed, over those below it, summed, over the largest (Spectrum, arXiv
2406.06623); of stacked experts the mean. quantization_error:bits[:group]: ‖W − Q(W)‖_F / ‖W‖_F with
Q the round-to-nearest of the ablation `quantize`.
"""

from collections.abc import Callable, Iterator, Sequence

import torch

from kingpost.ablations import round_to_nearest, slice_values
from kingpost.errors import UsageError
from kingpost.models import Component, Model

WEIGHT_MEASURES = ("magnitude", "magnitude_mean", "snr", "quantization_error")
_BITS, _GROUP = 4, 128
# Of a normal distribution the quartiles lie this many standard deviations apart.
_QUARTILE_RANGE = 1.349

Share = Callable[[torch.Tensor], tuple[float, float]]


def weight_values(
    model: Model, components: Sequence[Component], measures: Sequence[str]
) -> Iterator[tuple[int, str, float]]:
    """Measures of components: position of the component, measure, value.

    Every parameter is read once and let go, so that a model whose weights are still in its files
    never is in memory as a whole. NaN where a measure is not defined.
    """
    shares = {measure: _share(measure) for measure in measures}
    sums = {m: torch.zeros(2, len(components), dtype=torch.float64) for m in measures}
    for name, uses in _by_parameter(model, components).items():
        parameter = model.read(name)
        for i in uses:
            component = components[i]
            for s in component.slices:
                if model.name_of(component.block, s.parameter) == name:
                    values = slice_values(parameter, s)
                    for measure, share in shares.items():
                        sums[measure][:, i] += torch.tensor(share(values), dtype=torch.float64)
    for measure, (above, below) in sums.items():
        for i, x in enumerate(_finished(measure, above, below).tolist()):
            yield i, measure, x


def check_weight_measure(measure: str) -> None:
    """Raise a UsageError for a measure of the weights whose arguments are not understood."""
    _share(measure)


def _by_parameter(model: Model, components: Sequence[Component]) -> dict[str, list[int]]:
    uses: dict[str, dict[int, None]] = {}
    for i, component in enumerate(components):
        for s in component.slices:
            uses.setdefault(model.name_of(component.block, s.parameter), {})[i] = None
    return {name: list(positions) for name, positions in uses.items()}


def _share(measure: str) -> Share:
    """What one tensor adds to the two sums that the measure is made of."""
    kind, *arguments = measure.split(":")
    if kind == "quantization_error":
        return _quantization(measure, arguments)
    if arguments:
        raise UsageError(f"Measure {measure!r} is not understood: {kind} takes no argument.")
    return {"magnitude": _frobenius, "magnitude_mean": _mean, "snr": _snr}[kind]


def _finished(measure: str, above: torch.Tensor, below: torch.Tensor) -> torch.Tensor:
    if measure == "magnitude":
        return above.sqrt()
    if measure == "snr":  # of one matrix; several have no common one
        return above.where(below == 1, torch.nan)
    share = above / below
    return share.sqrt() if measure.startswith("quantization_error") else share


def _frobenius(values: torch.Tensor) -> tuple[float, float]:
    return _square_sum(values), 0.0


def _mean(values: torch.Tensor) -> tuple[float, float]:
    return float(values.abs().sum(dtype=torch.float64)), values.numel()


def _square_sum(values: torch.Tensor) -> float:
    return float(values.square().sum(dtype=torch.float64))


def _quantization(measure: str, arguments: list[str]) -> Share:
    numbers = [*arguments, *(str(_BITS), str(_GROUP))[len(arguments) :]]
    known = len(numbers) == 2 and all(n.isdigit() for n in numbers)
    bits, group = map(int, numbers) if known else (0, 0)
    if bits < 2 or group < 1:
        raise UsageError(
            f"Measure {measure!r} is not understood: write quantization_error:bits[:group], "
            "with 2 bits or more."
        )

    def share(values: torch.Tensor) -> tuple[float, float]:
        if values.ndim < 2:
            return 0.0, 0.0
        rounded = round_to_nearest(values, bits=bits, group=group)
        return _square_sum(values - rounded), _square_sum(values)

    return share


def _snr(values: torch.Tensor) -> tuple[float, float]:
    if values.ndim < 2:
        return 0.0, 0.0
    ratios = [_matrix_snr(matrix) for matrix in values.reshape(-1, *values.shape[-2:])]
    return sum(ratios) / len(ratios), 1.0


def _matrix_snr(matrix: torch.Tensor) -> float:
    """Signal over noise of the singular values of a matrix [out, in], over the largest."""
    wide = matrix.double()
    small, large = sorted(wide.shape)
    gram = wide @ wide.T if wide.shape[0] == small else wide.T @ wide
    singular = torch.linalg.eigvalsh(gram).clamp(min=0).sqrt()
    low, high = torch.quantile(singular, torch.tensor([0.25, 0.75], dtype=torch.float64))
    sigma = (high - low) / _QUARTILE_RANGE
    edge = sigma * (1 + (small / large) ** 0.5)
    signal, noise = singular[singular > edge].sum(), singular[singular <= edge].sum()
    return float(signal / noise / singular.max())
