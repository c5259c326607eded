"""Figure 2: a measure by layer and parameter as a heatmap, beside the importance of the layers."""

from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import LogNorm, Normalize, SymLogNorm
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch, Rectangle
from matplotlib.transforms import Affine2D

from kingpost.errors import UsageError
from kingpost.figures.fitting import tick_step, wrap_to_width
from kingpost.figures.heatmap_caption import heatmap_caption, measure_label
from kingpost.figures.heatmap_data import Grid, HeatmapData, chosen_ablation, heatmap_data
from kingpost.figures.styles import GREY, PAPER_STYLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage
    from matplotlib.transforms import Transform

    from kingpost.study import Study

SCALES = ("linear", "log")
LAYER_COLUMN, EXACT_COLUMN = "Layer Importance", "exact ΔLoss"

# Inches. Rows and columns shrink with their number, so that a page holds them.
_ROW, _COLUMN, _TALLEST, _WIDEST, _LOWEST, _NARROWEST = 0.17, 0.34, 4.6, 5.2, 1.0, 2.6
# In widths of a column: the exact ΔLoss is narrower than the importance it stands beside.
_EXACT_WIDTH, _GAP, _BAR_WIDTH = 0.55, 0.35, 0.4
_DECADES = 4
# Of given axes at least this share of the height is left to the cells.
_LEAST_HEIGHT = 0.3
# Inches between what is written and the edge of the page.
_MARGIN = 0.03
# Up to so many layers each one has a label, then every second one.
_EVERY_LAYER = 20
_COLORS, _SIGNED_COLORS = "GnBu", "RdBu"
_HATCH: Any = {"facecolor": "white", "edgecolor": "#a8a8a8", "hatch": "//////", "linewidth": 0}
_ABSENT: Any = {"facecolor": "#efefef", "edgecolor": "none", "linewidth": 0}
_SMALL_PRINT: Any = {"fontsize": "small", "color": GREY, "parse_math": False}


def plot_heatmap(
    study: "Study",
    measure: str = "taylor",
    *,
    ablation: str | None = None,
    scale: str = "linear",
    normalize: str = "all",
    axes: "Axes | None" = None,
) -> "Axes":
    """Draw a measure of every component of every block; layer 0 is at the bottom.

    The first column, Layer Importance, is the sum over the other columns; where the study has the
    exact skip ΔLoss of the blocks, that stands beside it. Both are divided by their own largest
    value. Columns are the components measured, each weight once, most important first. A cell that
    has no number is hatched, a component that a block does not have is grey. Where values are
    negative the colours are symmetric around zero; a negative ΔLoss within the noise floor counts
    as zero. Under `ablation` the norms are far off the scale of everything else: they are left out
    of the sum, and with the normalisation `all` divided by their own largest value.

    Args:
        study: The study.
        measure: The measure.
        ablation: For the measure `ablation`, which one; None for the only one. Other measures
            have none, and it does not matter for them.
        scale: `linear` or `log`arithmic colours, over four decades at most.
        normalize: By what cells are divided: the largest of `all`, of the `column` or of the `row`.
        axes: The place to draw in, with the columns' names and the caption; figure size and style
            are then left as they are. Without it, a figure made for print.

    Returns:
        The axes of the components' columns.

    Raises:
        UsageError: An argument is not understood, or the study has several ablations.
        KingpostError: The study does not have the measure on components.
    """
    if scale not in SCALES:
        raise UsageError(f"unknown scale {scale!r}: there is {', '.join(SCALES)}")
    chosen = chosen_ablation(study, measure, ablation)
    data = heatmap_data(study, measure, chosen, normalize)
    caption = heatmap_caption(
        study, data, measure=measure, ablation=chosen, normalize=normalize, scale=scale
    )
    label = _color_label(data, measure_label(measure, chosen), measure, normalize)
    if axes is not None:
        return _draw_into(axes, data, scale, caption, label)
    with mpl.rc_context({**PAPER_STYLE, **_FRAMED}):
        return _draw_figure(data, scale, caption, label)


_FRAMED: Any = {"axes.grid": False, "axes.spines.top": True, "axes.spines.right": True}


def _draw_figure(data: HeatmapData, scale: str, caption: str, label: str) -> "Axes":
    n_blocks, n_columns = data.shown.shape
    column = min(_COLUMN, _WIDEST / n_columns)
    height = min(max(n_blocks * _ROW, _LOWEST), _TALLEST)
    width = max(column * _units(data), _NARROWEST)
    figure, place = plt.subplots(
        layout=ConstrainedLayoutEngine(w_pad=0.03, h_pad=0.03), figsize=(width + 0.9, height + 1.6)
    )
    axes = _draw_into(place, data, scale, caption, label)
    for _ in range(2):  # the page grows by what is written, and then the text moves with it
        figure.draw_without_rendering()
        drawn = place.get_window_extent()
        figure.set_size_inches(
            figure.get_figwidth() + width - drawn.width / figure.dpi,
            figure.get_figheight() + height - drawn.height / figure.dpi,
        )
    return axes


def _draw_into(place: "Axes", data: HeatmapData, scale: str, caption: str, label: str) -> "Axes":
    """Draw into the place of axes that the caller arranged."""
    place.set_axis_off()
    panels, left, unit, lift = [], 0.0, 1 / _units(data), Affine2D()
    raised = lift + place.transAxes
    for width, gap in _widths(data):
        bounds = (left * unit, 0.0, width * unit, 1.0)
        panels.append(place.inset_axes(bounds, transform=raised))
        left += width + gap
    *cells, bar = panels
    image = _draw(cells, data, scale)
    place.figure.colorbar(image, cax=bar, label=label)
    bar.tick_params(length=2)
    if handles := _legend(data):
        cells[-1].legend(
            handles=handles, loc="lower right", bbox_to_anchor=(1, 1), ncols=len(handles),
            frameon=False, fontsize="small", borderaxespad=0.2, handlelength=1.3, handleheight=1.0,
        )  # fmt: skip
    figure = place.figure.canvas.figure
    figure.draw_without_rendering()
    _turn_labels(cells[-1], cells)
    lowest = _write_caption(place, cells, caption, raised)
    if figure.get_layout_engine() is None:
        # Nobody else makes room: the cells are raised until all that is written has its place.
        missing = max(_room_below(place) - lowest, 0.0)
        share = min(missing / place.get_window_extent().height, 1 - _LEAST_HEIGHT)
        lift.scale(1, 1 - share).translate(0, share)
        figure.draw_without_rendering()
    _label_layers(cells[0], data.shown.shape[0])
    return cells[-1]


def _write_caption(place: "Axes", panels: "list[Axes]", caption: str, raised: "Transform") -> float:
    """Write the small print under the longest label; where it ends, in pixels."""
    labels = [label for axes in panels for label in axes.get_xticklabels()]
    longest = max(label.get_window_extent().height for label in labels)
    points = 72 / place.figure.dpi
    text = place.annotate(
        caption, (0, 0), (0, -longest * points - 8), xycoords=raised,
        textcoords="offset points", va="top", ha="left", annotation_clip=False, **_SMALL_PRINT,
    )  # fmt: skip
    wrap_to_width(text, place.get_window_extent().width)
    return float(text.get_window_extent().y0)


def _room_below(place: "Axes") -> float:
    """Down to where given axes may write, in pixels: the page's edge, or a row below them."""
    spec = place.get_subplotspec()
    alone_below = spec is None or spec.is_last_row()
    edge = 0.0 if alone_below else float(place.get_window_extent().y0)
    return edge + _MARGIN * place.figure.dpi


def _turn_labels(axes: "Axes", panels: "list[Axes]") -> None:
    """Slanted labels, or upright ones where slanted ones would touch."""
    pitch = axes.get_window_extent().width / len(axes.get_xticks())
    size = float(axes.xaxis.label.get_fontsize())
    if pitch < 1.5 * size * axes.figure.dpi / 72:
        size = min(size, 68 * pitch / axes.figure.dpi)
        for label in (label for panel in panels for label in panel.get_xticklabels()):
            label.set(rotation=90, va="center", size=size)


def _units(data: HeatmapData) -> float:
    """The width of everything in columns."""
    return sum(width + gap for width, gap in _widths(data))


def _widths(data: HeatmapData) -> list[tuple[float, float]]:
    """The width of each panel and of the gap behind it, in columns."""
    exact = [] if data.exact is None else [(_EXACT_WIDTH, _GAP)]
    bar = max(_BAR_WIDTH, data.shown.shape[1] / 40)
    return [(1.0, _GAP / 2), *exact, (float(data.shown.shape[1]), _GAP), (bar, 0.0)]


def _draw(panels: "list[Axes]", data: HeatmapData, scale: str) -> "AxesImage":
    """Draw the layer columns and the grid; returns the grid's image for the colour bar."""
    columns: list[tuple[Grid, tuple[str, ...]]] = [(data.layer[:, None], (LAYER_COLUMN,))]
    if data.exact is not None:
        columns.append((data.exact[:, None], (EXACT_COLUMN,)))
    columns.append((data.shown, data.components))
    for axes, (values, names) in zip(panels, columns, strict=True):
        image = _draw_cells(axes, values, data, scale)
        axes.set_xticks(
            range(len(names)), names, rotation=45, ha="right", rotation_mode="anchor",
            parse_math=False,
        )  # fmt: skip
        axes.tick_params(axis="y", labelleft=axes is panels[0], left=axes is panels[0])
        axes.tick_params(axis="x", length=1.5, pad=1)
    _mark_missing(panels[-1], data)
    panels[0].set_ylabel("Layer")
    return image


def _draw_cells(axes: "Axes", values: Grid, data: HeatmapData, scale: str) -> "AxesImage":
    image = axes.imshow(
        np.ma.masked_invalid(values),
        aspect="auto",
        origin="lower",
        interpolation="nearest",
        cmap=_SIGNED_COLORS if data.signed else _COLORS,
        norm=_norm(data.shown, signed=data.signed, scale=scale),
    )
    axes.set_xlim(-0.5, values.shape[1] - 0.5)
    for block in np.flatnonzero(~np.isfinite(values[:, 0])) if values.shape[1] == 1 else ():
        axes.add_patch(Rectangle((-0.5, block - 0.5), 1, 1, **_HATCH))
    return image


def _norm(shown: Grid, *, signed: bool, scale: str) -> Normalize:
    sizes = np.abs(shown[np.isfinite(shown) & (shown != 0)])
    low = 10.0 ** np.clip(np.floor(np.log10(sizes.min())) if sizes.size else -1, -_DECADES, -1)
    if scale == "linear":
        return Normalize(-1.0 if signed else 0.0, 1.0)
    if signed:
        return SymLogNorm(linthresh=float(low), vmin=-1.0, vmax=1.0, base=10)
    # Clipped: what is zero or lower is drawn at the bottom end.
    return LogNorm(float(low), 1.0, clip=True)


def _mark_missing(axes: "Axes", data: HeatmapData) -> None:
    for block, column in zip(*np.nonzero(~np.isfinite(data.shown)), strict=True):
        style = _HATCH if data.there[block, column] else _ABSENT
        axes.add_patch(Rectangle((column - 0.5, block - 0.5), 1, 1, **style))


def _legend(data: HeatmapData) -> list[Patch]:
    missing = ~np.isfinite(data.shown)
    beside = [column for column in (data.layer, data.exact) if column is not None]
    unmeasured = bool((missing & data.there).any() or ~np.isfinite(beside).all())
    absent = bool((missing & ~data.there).any())
    kinds = [(unmeasured, _HATCH, "no number"), (absent, _ABSENT, "not in this layer")]
    return [Patch(**style, label=label) for wanted, style, label in kinds if wanted]


def _label_layers(axes: "Axes", n_blocks: int) -> None:
    """Label every layer, every second one if there are many, or as many as fit."""
    least = 1 if n_blocks <= _EVERY_LAYER else 2
    axes.set_yticks(range(0, n_blocks, least))
    needed = 1.2 * max(label.get_window_extent().height for label in axes.get_yticklabels())
    pitch = axes.get_window_extent().height / n_blocks
    step = max(least, tick_step(n_blocks, pitch=pitch, label_width=needed))
    axes.set_yticks(range(0, n_blocks, step))


def _color_label(data: HeatmapData, label: str, measure: str, normalize: str) -> str:
    if normalize != "all":
        return f"{label} / largest of the {'column' if normalize == 'column' else 'layer'}"
    unit = " nats per token" if measure == "ablation" else ""
    return f"{label} / largest ({data.largest:.3g}{unit})"
