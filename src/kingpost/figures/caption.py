"""What the small print under Figure 1 says, once for all panels or panel by panel."""

import math
from collections.abc import Sequence

from kingpost.figures.bars_data import BarsData, Kind, Panel
from kingpost.figures.labels import shared_ablation, short_value


def captions(data: BarsData) -> tuple[str, list[str]]:
    """The caption that holds for the whole figure, and what holds for single panels only.

    Returns:
        The common caption, and one text per panel: empty where the common caption says it all.
    """
    columns = list(zip(*(_facts(panel) for panel in data.panels), strict=True))
    same = [len(set(column)) == 1 for column in columns]
    common = [column[0] for column, is_same in zip(columns, same, strict=True) if is_same]
    ablation = shared_ablation(data.keys)
    if ablation is not None:
        common.insert(0, f"ablation: {ablation}")
    differing = [column for column, is_same in zip(columns, same, strict=True) if not is_same]
    single = [_sentence([column[i] for column in differing]) for i in range(len(data.panels))]
    return _sentence(common), single


def full_captions(data: BarsData) -> list[str]:
    """One caption per panel that says everything, for panels that stand on their own."""
    return [captions(data._replace(panels=(panel,)))[0] for panel in data.panels]


def _facts(panel: Panel) -> list[str]:
    """What is to be said of a panel; the same place always holds the same subject."""
    noise = Kind.NOISE in panel.kinds()
    return [
        f"{_sequences(panel)} × {panel.length} tokens of {panel.text}, {panel.dtype}",
        f"bars: mean, {_whiskers(panel)}",
        f"noise floor {short_value(panel.noise_floor)} nats per token" if noise else "",
    ]


def _sequences(panel: Panel) -> str:
    fewest, most = panel.n_sequences
    if fewest == most == 1:
        return "1 sequence"
    return f"{most} sequences" if fewest == most else f"{fewest} to {most} sequences"


def _whiskers(panel: Panel) -> str:
    cells = [cell for series in panel.series for cell in series.cells]
    known = any(math.isfinite(cell.low) and math.isfinite(cell.high) for cell in cells)
    return "whiskers: 95% interval" if known else "no interval known"


def _sentence(facts: Sequence[str]) -> str:
    return "; ".join(fact for fact in facts if fact)
