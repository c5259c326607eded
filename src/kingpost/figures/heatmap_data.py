"""The numbers of Figure 2: layer × parameter, normalised, before any drawing."""

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kingpost.errors import KingpostError, UsageError
from kingpost.study import cover

if TYPE_CHECKING:
    import pandas as pd

    from kingpost.study import Study

Grid = npt.NDArray[np.float64]
NORMALIZATIONS = ("all", "column", "row")
_KINDS = ("parameter", "role", "sublayer")
# A normalisation by its name, which is all that a study knows of it: q_norm, input_layernorm, ln_1.
_NORM = re.compile(r"(norm\d*|(^|\.)ln(_?\w+)?)(\.bias)?$", re.IGNORECASE)


class HeatmapData(NamedTuple):
    """What is drawn; NaN where there is no number.

    Attributes:
        components: The columns, most important first.
        values: The measure as measured, [blocks, columns].
        shown: The same normalised, -1 to 1.
        there: Whether the block has the component, bool [blocks, columns].
        layer: Layer Importance, the sum over columns that do not overlap, normalised by its own
            maximum, [blocks].
        exact: Exact skip ΔLoss of the blocks, likewise; None where the study has none.
        signed: Whether negative values are shown.
        largest: What 1 stands for under the normalisation `all`.
        apart: Columns left out of the sum; with the normalisation `all` on a scale of their own.
    """

    components: tuple[str, ...]
    values: Grid
    shown: Grid
    there: npt.NDArray[np.bool_]
    layer: Grid
    exact: Grid | None
    signed: bool
    largest: float
    apart: tuple[str, ...]


def heatmap_data(
    study: "Study", measure: str, ablation: str, normalize: str = "all"
) -> HeatmapData:
    """Turn a study into what is drawn.

    Args:
        study: A study with the measure on components.
        measure: The measure.
        ablation: What was done; empty for measures other than `ablation`.
        normalize: By what cells are divided: the largest of `all`, of the `column` or of the `row`.

    Raises:
        UsageError: The normalisation is not one of the three.
    """
    if normalize not in NORMALIZATIONS:
        raise UsageError(
            f"unknown normalisation {normalize!r}: there is {', '.join(NORMALIZATIONS)}"
        )
    table = study.table()
    cells = table[(table["measure"] == measure) & (table["ablation"] == ablation)]
    known = study.components()
    columns = _columns(cells, known)
    values = _grid(cells, columns, study.n_blocks)
    if measure == "ablation":
        _drop_noise(values, study.noise_floor)
    norms = [measure == "ablation" and is_norm(c) for c in columns]
    norms = [False] * len(columns) if all(norms) else norms
    # Most important first; what has a scale of its own, last.
    order = sorted(range(len(columns)), key=lambda i: (norms[i], -_mean_size(values[:, i])))
    components, values = tuple(columns[i] for i in order), values[:, order]
    apart = [place for place, i in enumerate(order) if norms[i]]
    shown, largest = _normalised(values, normalize, apart)
    summed = [c for i, c in enumerate(components) if i not in apart]
    sums = [
        _sum(values[b], components, known[known["block"] == b], summed) for b in range(len(values))
    ]
    exact = _exact(table, study)
    return HeatmapData(
        components=components,
        values=values,
        shown=shown,
        there=_there(known, components, study.n_blocks),
        layer=_by_largest(np.array(sums)),
        exact=exact,
        signed=bool((values < 0).any() or (exact is not None and (exact < 0).any())),
        largest=largest,
        apart=tuple(components[i] for i in apart),
    )


def chosen_ablation(study: "Study", measure: str, ablation: str | None) -> str:
    """The ablation to draw: the one asked for, or the only one that there is on components.

    It matters for the measure `ablation` alone; the others have none.

    Raises:
        UsageError: There are several, and none was asked for.
        KingpostError: The study does not have the measure, or the ablation, on components.
    """
    cells = study.table().query("component != 'block'")
    found = list(dict.fromkeys(cells.loc[cells["measure"] == measure, "ablation"]))
    if not found:
        measures = ", ".join(dict.fromkeys(cells["measure"])) or "none"
        raise KingpostError(
            f"the study of {study.model_name} has no {measure} of components (it has {measures}): "
            f"run `kingpost scan` on it with --where parameters --measure {measure}"
        )
    if measure != "ablation":
        return str(found[0])
    if ablation is not None and ablation not in found:
        raise KingpostError(
            f"the study of {study.model_name} has no {measure} ({ablation}) of components: "
            f"it has {', '.join(found)}"
        )
    if ablation is None and len(found) > 1:
        raise UsageError(f"the study has several ablations, {', '.join(found)}: name one of them")
    return found[0] if ablation is None else ablation


def is_norm(component: str) -> bool:
    """Whether a component is a normalisation, judged by its name."""
    return bool(_NORM.search(component))


def _columns(cells: "pd.DataFrame", known: "pd.DataFrame") -> list[str]:
    """Components that show each weight once: parameters, else roles, else sub-layers."""
    measured = set(zip(cells["block"], cells["component"], strict=True))
    chosen: dict[str, None] = {}
    covered: set[tuple[int, str]] = set()
    for kind in _KINDS:
        parts: dict[str, set[tuple[int, str]]] = {}
        for row in known[known["kind"] == kind].itertuples():
            if (row.block, row.component) in measured:
                parts.setdefault(row.component, set()).update(
                    (row.block, name) for name in row.parameters
                )
        new = {c: weights for c, weights in parts.items() if not weights <= covered}
        chosen |= dict.fromkeys(new)
        covered |= set[tuple[int, str]]().union(*new.values())
    return list(chosen)


def _grid(cells: "pd.DataFrame", columns: list[str], n_blocks: int) -> Grid:
    pivot = cells.pivot(index="block", columns="component", values="value")
    grid: Grid = pivot.reindex(index=range(n_blocks), columns=columns).to_numpy(dtype=np.float64)
    return grid.copy()


def _drop_noise(values: Grid, noise_floor: float) -> None:
    """Set to zero what rounding alone could have made negative: it has no sign."""
    if np.isfinite(noise_floor):
        values[(values < 0) & (values >= -noise_floor)] = 0.0


def _mean_size(column: Grid) -> float:
    known = np.abs(column[np.isfinite(column)])
    return float(known.mean()) if len(known) else -1.0


def _normalised(values: Grid, normalize: str, apart: list[int]) -> tuple[Grid, float]:
    """Values over the largest of their kind, and the largest of all."""
    size = np.abs(np.where(np.isfinite(values), values, np.nan))
    together = [i for i in range(values.shape[1]) if i not in apart]
    largest = _largest(size[:, together])
    if normalize == "all":
        divisor = np.full(values.shape, largest)
        divisor[:, apart] = _largest(size[:, apart])
    elif normalize == "column":
        divisor = np.array([[_largest(size[:, i]) for i in range(values.shape[1])]])
    else:
        divisor = np.array([[_largest(row)] for row in size])
    return np.where(np.isfinite(values), values / divisor, np.nan), largest


def _largest(sizes: Grid) -> float:
    known = sizes[np.isfinite(sizes)]
    largest = float(known.max()) if known.size else 1.0
    return largest if largest > 0 else 1.0


def _by_largest(values: Grid) -> Grid:
    scaled: Grid = values / _largest(np.abs(values))
    return scaled


def _sum(row: Grid, components: tuple[str, ...], known: "pd.DataFrame", summed: list[str]) -> float:
    """The sum over a block's components that do not overlap; NaN where none has a number."""
    values = dict(zip(components, row, strict=True))
    measured = [c for c in summed if np.isfinite(values[c])]
    rows = list(known[known["component"].isin(measured)].itertuples())
    return sum(values[c.component] for c in cover(rows)) if rows else np.nan


def _there(known: "pd.DataFrame", components: Iterable[str], n_blocks: int) -> Any:
    pairs = set(zip(known["block"], known["component"], strict=True))
    return np.array([[(b, c) in pairs for c in components] for b in range(n_blocks)])


def _exact(table: "pd.DataFrame", study: "Study") -> Grid | None:
    skips = table.query("component == 'block' and measure == 'ablation' and ablation == 'skip'")
    if skips.empty:
        return None
    column = skips.set_index("block")["value"].reindex(range(study.n_blocks))
    values: Grid = column.to_numpy(dtype=np.float64, copy=True)
    _drop_noise(values, study.noise_floor)
    return _by_largest(values)
