"""The legend of Figure 1: one swatch per series, one marker per kind of cell without a bar."""

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.image import BboxImage
from matplotlib.legend_handler import HandlerPatch
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.transforms import Bbox, TransformedBbox

from kingpost.figures.bars_data import BarsData, Kind
from kingpost.figures.fitting import widest_legend
from kingpost.figures.labels import series_labels
from kingpost.figures.marks import MARKERS, gradient, series_style
from kingpost.figures.styles import GREY, Style

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend
    from matplotlib.transforms import Transform


class _GradedPatch(HandlerPatch):
    """Draws the swatch of a graded fill: the gradient, then the outline over it."""

    def __init__(self, style: Style) -> None:
        super().__init__()
        self._style = style

    def create_artists(
        self,
        legend: "Legend",
        orig_handle: "Artist",
        xdescent: float,
        ydescent: float,
        width: float,
        height: float,
        fontsize: float,
        trans: "Transform",
    ) -> list["Artist"]:
        box = Bbox.from_bounds(-xdescent, -ydescent, width, height)
        image = BboxImage(
            TransformedBbox(box, trans),
            cmap=gradient(self._style),
            origin="lower",
            interpolation="bilinear",
        )
        image.set_data(np.linspace(0, 1, 64)[:, np.newaxis])
        image.set_clim(0, 1)
        outline = super().create_artists(
            legend, orig_handle, xdescent, ydescent, width, height, fontsize, trans
        )
        return [image, *outline]


def draw_legend(
    owner: "Axes | Figure", data: BarsData, *, width: float, loc: Any, fontsize: str | None = None
) -> "Legend":
    """Draw the legend in as few rows as `width` pixels allow, in matplotlib's own size if None."""
    handles, labels, handlers = _entries(data)

    def make(columns: int) -> "Legend":
        # Matplotlib fills columns; in this order the entries read from left to right.
        order = [i for column in range(columns) for i in range(column, len(handles), columns)]
        return owner.legend(
            [handles[i] for i in order], [labels[i] for i in order], handler_map=handlers,
            ncols=columns, loc=loc, frameon=False, fontsize=fontsize,
            handlelength=1.6, handleheight=0.8, columnspacing=1.4, borderaxespad=0.3,
        )  # fmt: skip

    return widest_legend(make, len(handles), width)


def _entries(data: BarsData) -> tuple[list["Artist"], list[str], dict[Any, HandlerPatch]]:
    handles: list[Artist] = []
    handlers: dict[Any, HandlerPatch] = {}
    for key in data.keys:
        style = series_style(data, key)
        patch = Patch(
            facecolor="none" if style.face_low else style.face,
            edgecolor=style.edge,
            hatch=style.hatch or None,
            linewidth=0.4,
        )
        if style.face_low:
            handlers[patch] = _GradedPatch(style)
        handles.append(patch)
    present = set[Kind]().union(*(panel.kinds() for panel in data.panels))
    kinds = [kind for kind in MARKERS if kind in present]
    handles += [_marker(MARKERS[kind]) for kind in kinds]
    return handles, series_labels(data.keys) + [kind.value for kind in kinds], handlers


def _marker(marker: str) -> Line2D:
    return Line2D(
        [], [], linestyle="none", marker=marker, markersize=4, markerfacecolor="none",
        markeredgecolor=GREY, markeredgewidth=0.8,
    )  # fmt: skip
