"""Make text fit: wrap it to a width, thin out tick labels, arrange a legend."""

import math
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.legend import Legend
    from matplotlib.text import Text

_STEPS = (1, 2, 5, 10, 20, 50, 100)


def wrap_to_width(text: "Text", width: float) -> None:
    """Break a text into lines no wider than `width` pixels, where its words allow it.

    There are as few lines as possible, of about the same length; they end behind a semicolon if
    that is enough, else between words or behind a hyphen.
    """
    whole = text.get_text()
    for pieces in (re.findall(r"[^;]+;? ?", whole), re.findall(r"[^ -]*[ -]?", whole)):
        wrapped = list(dict.fromkeys(_fill(pieces, n) for n in range(len(whole), 0, -1)))
        fitting = [lines for lines in wrapped if _width(text, lines) <= width]
        if fitting:
            fewest = fitting[0].count("\n")
            text.set_text([lines for lines in fitting if lines.count("\n") == fewest][-1])
            return


def _fill(pieces: Sequence[str], columns: int) -> str:
    lines = [""]
    for piece in pieces:
        if lines[-1] and len(lines[-1] + piece.rstrip()) > columns:
            lines.append("")
        lines[-1] += piece
    return "\n".join(line.rstrip() for line in lines)


def _width(text: "Text", lines: str) -> float:
    text.set_text(lines)
    return float(text.get_window_extent().width)


def tick_step(n_blocks: int, *, pitch: float, label_width: float) -> int:
    """Every how many blocks a tick is labelled.

    Args:
        n_blocks: Blocks of the model.
        pitch: Distance of two blocks.
        label_width: Width of the widest label with the gap it needs, in the same unit.
    """
    fitting = (step for step in _STEPS if step * pitch >= label_width)
    return next(fitting, max(n_blocks, 1))


def label_blocks(axes: "Axes", n_blocks: int) -> None:
    """Tick every block and label as many as fit: L0, L1, ... or L0, L5, ..."""
    axes.set_xticks(range(n_blocks), [f"L{block}" for block in range(n_blocks)])
    widths = [label.get_window_extent().width for label in axes.get_xticklabels()]
    left, right = axes.get_xlim()
    pitch = axes.get_window_extent().width / (right - left)
    gap = 0.5 * max(label.get_window_extent().height for label in axes.get_xticklabels())
    step = tick_step(n_blocks, pitch=pitch, label_width=max(widths) + gap)
    labelled = range(0, n_blocks, step)
    axes.set_xticks(labelled, [f"L{block}" for block in labelled])
    axes.set_xticks([block for block in range(n_blocks) if block % step], minor=True)


def widest_legend(make: Callable[[int], "Legend"], n_entries: int, width: float) -> "Legend":
    """A legend with as few rows as `width` pixels allow, and no more columns than these need.

    Args:
        make: Makes the legend for a number of columns.
        n_entries: Entries of the legend.
        width: The room, in pixels.
    """
    for columns in range(n_entries, 0, -1):
        legend = make(columns)
        if legend.get_window_extent().width <= width or columns == 1:
            break
        legend.remove()
    rows = math.ceil(n_entries / columns)
    legend.remove()
    return make(math.ceil(n_entries / rows))
