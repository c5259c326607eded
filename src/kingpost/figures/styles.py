"""How Figure 1 looks: the fill of each series and the settings for a figure of our own."""

from typing import Any, NamedTuple

# Any, because matplotlib's types name every setting in one version and none in another.
PAPER_STYLE: Any = {
    "font.size": 7.5,
    "axes.titlesize": 8,
    "axes.labelsize": 7.5,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7.5,
    "axes.linewidth": 0.6,
    "axes.titlepad": 4,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.grid.which": "major",
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.5,
    "hatch.linewidth": 0.7,
    "xtick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "xtick.minor.width": 0.4,
    "xtick.minor.size": 1.5,
    "ytick.major.width": 0.6,
    "ytick.major.size": 2.5,
    "ytick.minor.width": 0.4,
    "ytick.minor.size": 1.5,
}
"""Matplotlib settings for print at its own size, applied only while the figure is made."""

GREY = "#666666"


class Style(NamedTuple):
    """The look of one series; lightness differs between neighbours, so that grey print works."""

    face: str
    edge: str
    hatch: str = ""
    face_low: str = ""
    """Colour at the axis's lower end where the fill is a gradient, else empty."""


_STYLES = (
    Style("#a31621", "#7d0f18"),
    Style("#e8590c", "#c2460a", face_low="#ffd8b0"),
    Style("#ffe169", "#1d2f6f", "/////"),
    Style("#4a86b8", "#2c5f8a"),
    Style("#e3eef6", "#0b6e4f", "\\\\\\\\\\"),
    Style("#2e2a3b", "#15131c"),
    Style("#bfe3b4", "#3b6b2e", "....."),
    Style("#ffffff", "#6a3d9a", "xxxxx"),
)
_MORE_HATCHES = ("", "---", "|||", "+++", "ooo")


def style_of(index: int) -> Style:
    """The style of the series at this place in the legend: 40 of them before one comes again."""
    style = _STYLES[index % len(_STYLES)]
    extra = _MORE_HATCHES[index // len(_STYLES) % len(_MORE_HATCHES)]
    # On a dark fill the extra hatching shows only in a light colour, and it takes the edge's.
    edge = "#f2f2f2" if extra and not style.hatch else style.edge
    return style._replace(hatch=style.hatch + extra, edge=edge)
