"""Draw the cells of one panel: bars with whiskers, and markers where a log axis has no bar."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.image import AxesImage
from matplotlib.path import Path
from matplotlib.transforms import ScaledTranslation

from kingpost.figures.bars_data import BarsData, Cell, Key, Kind, Panel
from kingpost.figures.labels import short_value
from kingpost.figures.styles import Style, style_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.transforms import Transform

MARKERS = {Kind.BELOW_AXIS: "s", Kind.NOISE: "o", Kind.NEGATIVE: "v", Kind.NOT_FINITE: "x"}
"""Marker of each kind of cell that has no bar."""

_GROUP_WIDTH = 0.8
_WHISKER_COLOR = "#1a1a1a"
_POINTS = 72.0
# Of a digit, as shares of the font size.
_DIGIT_HEIGHT, _DIGIT_WIDTH = 0.73, 0.62


class _Mark(NamedTuple):
    """A cell without a bar: where it stands (in blocks) and in whose colour."""

    x: float
    cell: Cell
    color: str


def draw_bars(axes: "Axes", panel: Panel, data: BarsData) -> None:
    """Draw every bar of a panel with its whisker; the axes must be log-scaled already."""
    width = bar_width(panel)
    # Thin bars get thin whiskers, or nothing but whiskers would be seen.
    line = min(max(0.2 * width * points_per_block(axes), 0.35), 0.7)
    for series, offset in zip(panel.series, panel.offsets(width), strict=True):
        cells = [cell for cell in series.cells if cell.kind is Kind.BAR]
        style = series_style(data, series.key)
        x = [cell.block + offset for cell in cells]
        bars = axes.bar(
            x,
            [cell.value for cell in cells],
            width,
            facecolor="none" if style.face_low else style.face,
            edgecolor=style.edge,
            hatch=style.hatch or None,
            linewidth=0.4,
            zorder=2.5,
        )
        if style.face_low and cells:
            boxes = [(bar.get_x(), bar.get_x() + width, bar.get_height()) for bar in bars]
            _fill_with_gradient(axes, boxes, data.floor, style)
        _draw_whiskers(axes, x, cells, floor=data.floor, linewidth=line)


def bar_width(panel: Panel) -> float:
    """The width of one bar of the panel, where the distance between two blocks is 1."""
    return _GROUP_WIDTH / len(panel.series)


def series_style(data: BarsData, key: Key) -> Style:
    """The style of a series, the same in all panels."""
    return style_of(data.keys.index(key))


def gradient(style: Style) -> "Colormap":
    """The colours of a graded fill, from the axis's lower end upwards."""
    return LinearSegmentedColormap.from_list("graded", [style.face_low, style.face])


def _fill_with_gradient(
    axes: "Axes", boxes: Sequence[tuple[float, float, float]], floor: float, style: Style
) -> None:
    # One image over the whole axes, cut out by all bars at once: the edges stay vectors in pdf
    # and svg, and a colour stands for the same height in every bar.
    image = AxesImage(
        axes, cmap=gradient(style), origin="lower", extent=(0, 1, 0, 1), interpolation="bilinear"
    )
    image.set_data(np.linspace(0, 1, 256)[:, np.newaxis])
    image.set_clim(0, 1)
    image.set_transform(axes.transAxes)
    image.set_zorder(2.4)
    axes.add_image(image)
    outlines = [
        Path([(left, floor), (left, top), (right, top), (right, floor), (left, floor)], closed=True)
        for left, right, top in boxes
    ]
    image.set_clip_path(Path.make_compound_path(*outlines), axes.transData)


def _draw_whiskers(
    axes: "Axes", x: Sequence[float], cells: Sequence[Cell], *, floor: float, linewidth: float
) -> None:
    whiskers = [(at, cell.whisker(floor)) for at, cell in zip(x, cells, strict=True)]
    known = [(at, ends) for at, ends in whiskers if ends is not None]
    axes.vlines(
        [at for at, _ in known],
        [low for _, (low, _) in known],
        [high for _, (_, high) in known],
        colors=_WHISKER_COLOR,
        linewidth=linewidth,
        zorder=2.6,
    )


def draw_marks(axes: "Axes", panel: Panel, data: BarsData) -> None:
    """Mark the cells that have no bar, with their values; the axes must have their final size."""
    slot = bar_width(panel) * points_per_block(axes)
    size = min(max(0.8 * slot, 2.2), 4.5)
    # Where the legend fills the upper end of the axes, the end of the other panels' bars serves.
    top = axes.get_ylim()[1] if axes.get_legend() is None else data.top
    marks = _marks(panel, data)
    for mark in marks:
        at_top = mark.cell.value == math.inf
        axes.plot(
            [mark.x],
            [top if at_top else data.floor],
            marker=MARKERS[mark.cell.kind],
            markersize=size,
            markerfacecolor=axes.get_facecolor(),
            markeredgecolor=mark.color,
            markeredgewidth=0.7,
            linestyle="none",
            transform=_raised(axes, (-1 if at_top else 1) * (size / 2 + 1)),
            clip_on=False,
            zorder=3,
        )
    _write_values(axes, [mark for mark in marks if math.isfinite(mark.cell.value)], slot, size)


def points_per_block(axes: "Axes") -> float:
    """The distance of two blocks on paper, in points."""
    left, right = axes.get_xlim()
    return width_in_points(axes) / (right - left)


def width_in_points(axes: "Axes") -> float:
    """The width of the axes on paper, in points."""
    return float(axes.get_window_extent().width * _POINTS / axes.figure.dpi)


def _marks(panel: Panel, data: BarsData) -> list[_Mark]:
    """The cells without a bar, from left to right."""
    for_series = zip(panel.series, panel.offsets(bar_width(panel)), strict=True)
    marks = [
        _Mark(cell.block + offset, cell, _ink(series_style(data, series.key)))
        for series, offset in for_series
        for cell in series.cells
        if cell.kind is not Kind.BAR
    ]
    return sorted(marks, key=lambda mark: mark.x)


def _ink(style: Style) -> str:
    """A colour of the style that shows as a thin line on white."""
    return style.face if style.edge == "#f2f2f2" else style.edge


def _raised(axes: "Axes", up: float, *, right: float = 0.0) -> "Transform":
    """Data coordinates, moved by so many points."""
    figure = axes.figure
    shift = ScaledTranslation(right / _POINTS, up / _POINTS, figure.dpi_scale_trans)
    return axes.transData + shift


def _write_values(axes: "Axes", marks: Sequence[_Mark], slot: float, marker_size: float) -> None:
    """Write each value over its marker: upright, or lying where every slot is wide enough.

    Where even upright values are wider than a slot, a value that would touch the one to its left
    moves up by a line.
    """
    texts = [short_value(mark.cell.value) for mark in marks]
    size = min(max(0.85 * slot / _DIGIT_HEIGHT, 4.2), 5.5)
    longest = _DIGIT_WIDTH * size * max(map(len, texts), default=0)
    lying = longest <= slot
    thickness = longest if lying else _DIGIT_HEIGHT * size
    ends: list[float] = []
    for mark, text in zip(marks, texts, strict=True):
        line = next((i for i, end in enumerate(ends) if end <= mark.x + 1e-9), len(ends))
        ends[line : line + 1] = [mark.x + thickness / points_per_block(axes)]
        # Upright digits stand left of their baseline: it goes right by half their height.
        right = 0 if lying else 0.5 * _DIGIT_HEIGHT * size
        written = axes.text(
            mark.x,
            axes.get_ylim()[0],
            text,
            transform=_raised(axes, marker_size + 2.5 + line * (longest + 1), right=right),
            rotation=0 if lying else 90,
            rotation_mode="anchor",
            ha="center" if lying else "left",
            va="baseline",
            fontsize=size,
            color=mark.color,
            zorder=3,
        )
        if thickness > slot:
            paper = {"facecolor": axes.get_facecolor(), "edgecolor": "none", "alpha": 0.8}
            written.set_bbox({**paper, "pad": 0})
