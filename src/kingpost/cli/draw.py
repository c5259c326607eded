"""kingpost bars: figures."""

from pathlib import Path
from typing import Annotated

import typer
from matplotlib import pyplot

import kingpost


def bars(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, one panel each.")],
    output: Annotated[Path, typer.Option(help="The figure: .png, .pdf or .svg.")],
) -> None:
    """Draw ΔLoss by layer, one panel for each run."""
    axes = kingpost.plot_bars([kingpost.open_study(run) for run in runs])
    figure = axes[0].get_figure(root=True)
    assert figure is not None
    kingpost.save_figure(figure, output)
    pyplot.close(figure)
