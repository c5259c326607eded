"""kingpost bars: figures."""

from pathlib import Path
from typing import Annotated

import typer

import kingpost


def bars(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, one panel each.")],
    output: Annotated[Path, typer.Option(help="The figure: .png, .pdf or .svg.")],
) -> None:
    """Draw ΔLoss by layer, one panel for each run."""
    axes = kingpost.plot_bars([kingpost.open_study(run) for run in runs])
    kingpost.save_figure(axes[0].get_figure(root=True), output)
