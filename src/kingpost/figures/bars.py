"""Figure 1: ΔLoss of every block and component as bars on a log axis, one panel per study."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import LogLocator, NullFormatter

from kingpost.errors import UsageError
from kingpost.figures.bars_data import BarsData, Panel, bars_data
from kingpost.figures.caption import captions, full_captions
from kingpost.figures.fitting import label_blocks, wrap_to_width
from kingpost.figures.labels import parameter_count
from kingpost.figures.legend import draw_legend
from kingpost.figures.marks import draw_bars, draw_marks
from kingpost.figures.styles import GREY, PAPER_STYLE

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.text import Text

    from kingpost.study import Study

Y_LABEL = "ΔLoss (nats per token)"

# Inches. A block needs room for its bars and a gap; 3.4 is one column of a paper, 7 the page.
_BAR_PITCH, _BLOCK_GAP, _SIDE = 0.04, 0.06, 0.52
_NARROWEST, _WIDEST_PANEL, _AXES_HEIGHT = 3.4, 7.0, 1.75
# Blocks. The x axis of a model with fewer is as long as this, so that a bar stays a bar.
_FEWEST_BLOCKS = 4

_SMALL_PRINT: Any = {"fontsize": "small", "color": GREY, "parse_math": False}


def plot_bars(
    studies: "Sequence[Study] | Study", *, axes: "Sequence[Axes] | Axes | None" = None
) -> "list[Axes]":
    """Draw the exact ΔLoss of each block and component, one panel per study.

    All panels share a log axis in nats per token. Whiskers are 95% intervals. A ΔLoss that is not
    positive or that does not exceed the study's noise floor has no bar but a hollow marker on the
    axis with its value beside it; a result that is not finite is marked with a cross.

    Args:
        studies: One study or several.
        axes: Where to draw, one for each study; figure size and style are then left as they are
            and the caption becomes the label of the x axis. Without it, a figure made for print.

    Returns:
        The axes of the panels, in the order of the studies.

    Raises:
        UsageError: There is no study, or not as many axes as studies.
        KingpostError: A study has no cells of the measure `ablation`.
    """
    data = bars_data(list(studies) if isinstance(studies, Sequence) else [studies])
    if axes is None:
        with mpl.rc_context(PAPER_STYLE):
            return _draw_figure(data)
    given = list(np.ravel(np.asarray(axes, dtype=object)))
    if len(given) != len(data.panels):
        raise UsageError(
            f"{len(data.panels)} studies need {len(data.panels)} axes, one each, "
            f"but {len(given)} were given"
        )
    return _draw_into(given, data)


def _draw_figure(data: BarsData) -> "list[Axes]":
    """Draw into a new figure: legend, panels, caption from top to bottom."""
    ratios = [_blocks_shown(panel) for panel in data.panels]
    figure, grid = plt.subplots(
        1, len(ratios), squeeze=False, sharey=True, width_ratios=ratios,
        layout=ConstrainedLayoutEngine(w_pad=0.02, h_pad=0.02, wspace=0.02),
        figsize=(_figure_width(data), _AXES_HEIGHT),
    )  # fmt: skip
    panels = list(grid[0])
    common, single = captions(data)
    _draw_panels(panels, data)
    panels[0].set_ylabel(Y_LABEL)
    room = 0.97 * figure.bbox.width
    legend = draw_legend(figure, data, width=room, loc="outside upper center")
    caption = figure.supxlabel(common, **_SMALL_PRINT)
    wrap_to_width(caption, room)
    figure.draw_without_rendering()
    small_print = [_small_print(*pair) for pair in zip(panels, single, strict=True)]
    _wrap_titles(panels)
    # What is written takes its height from the page, not from the panels.
    written = _height(legend) + _height(caption)
    written += max(map(_height, small_print)) + max(_height(axes.title) for axes in panels)
    figure.set_figheight(_AXES_HEIGHT + 0.3 + written / figure.dpi)
    _finish(panels, data)
    return panels


def _draw_into(panels: "list[Axes]", data: BarsData) -> "list[Axes]":
    """Draw into axes that the caller arranged, with the legend inside the widest."""
    _draw_panels(panels, data)
    for axes in panels:
        place = axes.get_subplotspec()
        if place is None or place.is_first_col():
            axes.set_ylabel(Y_LABEL)
    _caption_given(panels, data)
    _wrap_titles(panels)
    widest = max(panels, key=lambda axes: axes.get_window_extent().width)
    box = widest.get_window_extent()
    legend = draw_legend(widest, data, width=0.98 * box.width, loc="upper right", fontsize="small")
    # The legend covers no bar: all bars end below it.
    share = min(_height(legend) / box.height + 0.04, 0.9)
    top = data.floor * (data.top / data.floor) ** (1 / (1 - share))
    for axes in panels:
        axes.set_ylim(data.floor, top)
    _finish(panels, data)
    return panels


def _figure_width(data: BarsData) -> float:
    inner = [
        min(_blocks_shown(panel) * _pitch(panel), _WIDEST_PANEL - _SIDE) for panel in data.panels
    ]
    return max(_NARROWEST, _SIDE + sum(inner))


def _pitch(panel: Panel) -> float:
    return _BLOCK_GAP + _BAR_PITCH * len(panel.series)


def _blocks_shown(panel: Panel) -> int:
    return max(panel.n_blocks, _FEWEST_BLOCKS)


def _draw_panels(panels: "list[Axes]", data: BarsData) -> None:
    for axes, panel in zip(panels, data.panels, strict=True):
        axes.set_yscale("log")
        middle, half = (panel.n_blocks - 1) / 2, _blocks_shown(panel) / 2
        axes.set_xlim(middle - half, middle + half)
        axes.set_ylim(data.floor, data.top)
        draw_bars(axes, panel, data)
        axes.yaxis.set_major_locator(LogLocator(numticks=10))
        axes.yaxis.set_minor_formatter(NullFormatter())
        size = parameter_count(panel.n_parameters)
        axes.set_title(f"{panel.model_name} ({size})", parse_math=False)


def _caption_given(panels: "list[Axes]", data: BarsData) -> None:
    """Write the caption below given axes: once along a row of them, or below each."""
    common, single = captions(data)
    boxes = [axes.get_window_extent() for axes in panels]
    in_a_row = max(box.y0 for box in boxes) - min(box.y0 for box in boxes) < 1
    # The margins are the caller's: what fits below tick labels by default is little.
    small: Any = {**_SMALL_PRINT, "fontsize": "x-small", "labelpad": 1}
    if in_a_row:
        named = zip(data.panels, single, strict=True)
        differing = [f"{panel.model_name}: {text}" for panel, text in named if text]
        left = min(panels, key=lambda axes: axes.get_window_extent().x0)
        label = left.set_xlabel("; ".join([common, *differing]), x=0, ha="left", **small)
        wrap_to_width(label, max(box.x1 for box in boxes) - min(box.x0 for box in boxes))
        return
    for axes, text in zip(panels, full_captions(data), strict=True):
        _small_print(axes, text)


def _small_print(axes: "Axes", text: str) -> "Text":
    label = axes.set_xlabel(text, **_SMALL_PRINT)
    wrap_to_width(label, axes.get_window_extent().width)
    return label


def _height(artist: "Artist") -> float:
    """The height of something drawn, in pixels."""
    return float(artist.get_window_extent().height)


def _wrap_titles(panels: "list[Axes]") -> None:
    for axes in panels:
        wrap_to_width(axes.title, axes.get_window_extent().width)


def _finish(panels: "list[Axes]", data: BarsData) -> None:
    """Draw what depends on how large the panels have become."""
    panels[0].figure.canvas.figure.draw_without_rendering()
    for axes, panel in zip(panels, data.panels, strict=True):
        label_blocks(axes, panel.n_blocks)
        draw_marks(axes, panel, data)
