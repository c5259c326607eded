"""The numbers of Figure 1: what each bar, whisker and marker stands for, before any drawing."""

import math
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from kingpost.errors import KingpostError, UsageError

if TYPE_CHECKING:
    import pandas as pd

    from kingpost.study import Study

Key = tuple[str, str]
"""(component, ablation): what one series of bars shows."""

_FIRST_COMPONENTS = ("block", "attn", "mlp", "q_proj")
_DECADES_BELOW_LARGEST = 4
_EMPTY_RANGE = (1e-3, 1e1)


class Kind(Enum):
    """How a cell is drawn; the value is its wording in the legend."""

    BAR = "bar"
    BELOW_AXIS = "positive, below axis"
    NOISE = "within noise floor"
    NEGATIVE = "negative"
    NOT_FINITE = "not finite"


class Cell(NamedTuple):
    """One ΔLoss; `value`, `low` and `high` (the 95% interval) in nats per token, NaN if unknown."""

    block: int
    value: float
    low: float
    high: float
    kind: Kind

    def whisker(self, floor: float) -> tuple[float, float] | None:
        """Both ends of the interval, the lower one not below `floor`; None without an interval."""
        if not (math.isfinite(self.low) and math.isfinite(self.high)):
            return None
        return max(self.low, floor), self.high


class Series(NamedTuple):
    """The cells of one component under one ablation; blocks without the component have none."""

    key: Key
    cells: tuple[Cell, ...]


class Panel(NamedTuple):
    """One study: its bars and what the caption says about how they were measured."""

    model_name: str
    n_parameters: int
    n_blocks: int
    noise_floor: float
    """Nats per token."""
    n_sequences: tuple[int, int]
    """The fewest and the most sequences that a cell rests on."""
    length: int
    """Tokens per sequence."""
    text: str
    dtype: str
    series: tuple[Series, ...]

    def kinds(self) -> set[Kind]:
        """The kinds of cells that the panel shows."""
        return {cell.kind for series in self.series for cell in series.cells}

    def offsets(self, width: float) -> list[float]:
        """Where each series stands beside the block's tick, in blocks, for bars of `width`."""
        middle = (len(self.series) - 1) / 2
        return [(index - middle) * width for index in range(len(self.series))]


class BarsData(NamedTuple):
    """All panels, the series they hold in the legend's order, and the y axis they share."""

    panels: tuple[Panel, ...]
    keys: tuple[Key, ...]
    floor: float
    """Lower end of the axis, nats per token."""
    top: float
    """Upper end of the axis, nats per token."""


def bars_data(studies: Sequence["Study"]) -> BarsData:
    """Turn studies into what is drawn.

    Args:
        studies: At least one study, each with cells of the measure `ablation`.

    Raises:
        UsageError: There is no study.
        KingpostError: A study has no cells of the measure `ablation`.
    """
    if not studies:
        raise UsageError("there is no study to draw: give plot_bars at least one")
    tables = [_ablation_cells(study) for study in studies]
    floor, top = _axis_range(_bar_values(studies, tables), _upper_ends(tables))
    panels = tuple(
        _panel(study, table, floor) for study, table in zip(studies, tables, strict=True)
    )
    keys = _ordered(series.key for panel in panels for series in panel.series)
    return BarsData(panels, keys, floor, top)


def kind_of(value: float, *, noise_floor: float, axis_floor: float) -> Kind:
    """How a ΔLoss (nats per token) is drawn, given the noise floor and the axis's lower end."""
    if not math.isfinite(value):
        return Kind.NOT_FINITE
    if abs(value) <= noise_floor:
        return Kind.NOISE
    if value < 0:
        return Kind.NEGATIVE
    # A bar that rises by less than a hairline from the axis would look like a missing one.
    return Kind.BAR if value > 1.05 * axis_floor else Kind.BELOW_AXIS


def _ablation_cells(study: "Study") -> "pd.DataFrame":
    table = study.table()
    cells: pd.DataFrame = table[table["measure"] == "ablation"]
    if cells.empty:
        raise KingpostError(
            f"the study of {study.model_name} has no exact ΔLoss to draw: "
            "run `kingpost scan MODEL --out RUN --measure ablation` on it first"
        )
    return cells


def _noise_floor(study: "Study") -> float:
    # Where no floor could be measured, only an exact zero cannot be told from rounding.
    floor = study.noise_floor
    return floor if math.isfinite(floor) else 0.0


def _bar_values(studies: Sequence["Study"], tables: Sequence["pd.DataFrame"]) -> list[float]:
    values: list[float] = []
    for study, table in zip(studies, tables, strict=True):
        noise_floor = _noise_floor(study)
        values += (float(v) for v in table["value"] if math.isfinite(v) and v > noise_floor)
    return values


def _upper_ends(tables: Sequence["pd.DataFrame"]) -> list[float]:
    return [float(high) for table in tables for high in table["ci_high"] if math.isfinite(high)]


def _axis_range(values: Sequence[float], upper_ends: Sequence[float]) -> tuple[float, float]:
    """The ends of the log axis: a half decade or a decade below the least, some room above.

    One tiny value does not stretch the axis: it reaches no further than four decades (and what
    rounding to a half decade adds) below the largest value. At least two decades are ticked.
    """
    if not values:
        return _EMPTY_RANGE
    largest = max(values)
    least = max(min(values), largest * 10.0**-_DECADES_BELOW_LARGEST)
    floor = 10.0 ** (math.floor(2 * math.log10(least / 1.25)) / 2)
    top = 1.5 * max([largest, *upper_ends])
    if math.floor(math.log10(top)) <= math.ceil(math.log10(floor)):
        floor = 10.0 ** math.floor(math.log10(floor))
        top = max(top, 10 * floor)
    return floor, top


def _panel(study: "Study", table: "pd.DataFrame", axis_floor: float) -> Panel:
    noise_floor = _noise_floor(study)
    cells: dict[Key, list[Cell]] = {}
    columns = ("component", "ablation", "block", "value", "ci_low", "ci_high")
    for row in zip(*(table[column] for column in columns), strict=True):
        component, ablation, block, value, low, high = row
        kind = kind_of(value, noise_floor=noise_floor, axis_floor=axis_floor)
        cell = Cell(int(block), float(value), float(low), float(high), kind)
        cells.setdefault((str(component), str(ablation)), []).append(cell)
    return Panel(
        model_name=study.model_name,
        n_parameters=study.n_parameters,
        n_blocks=study.n_blocks,
        noise_floor=noise_floor,
        n_sequences=_range(table),
        length=int(study.provenance["length"]),
        text=str(study.provenance["text"]),
        dtype=str(study.provenance["dtype"]),
        series=tuple(Series(key, tuple(cells[key])) for key in _ordered(cells)),
    )


def _range(table: "pd.DataFrame") -> tuple[int, int]:
    """The fewest and the most sequences of a cell; cells without a result count if all are so."""
    counts = [int(count) for count in table["n_sequences"]]
    finite = [n for n, value in zip(counts, table["value"], strict=True) if math.isfinite(value)]
    return min(finite or counts), max(finite or counts)


def _ordered(keys: Iterable[Key]) -> tuple[Key, ...]:
    """Each key once: whole blocks, attn, mlp and q_proj first, the others as they come."""

    def rank(key: Key) -> int:
        first = _FIRST_COMPONENTS
        return first.index(key[0]) if key[0] in first else len(first)

    return tuple(sorted(dict.fromkeys(keys), key=rank))
