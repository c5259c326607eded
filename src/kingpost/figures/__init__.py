"""Figures of a finished study, drawn with matplotlib where no model can be loaded."""

from kingpost.figures.bars import plot_bars
from kingpost.figures.heatmap import plot_heatmap
from kingpost.figures.save import save_figure

__all__ = ["plot_bars", "plot_heatmap", "save_figure"]
