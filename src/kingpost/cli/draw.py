"""kingpost bars and kingpost heatmap: figures."""

from pathlib import Path
from typing import Annotated

import typer
from matplotlib import pyplot
from matplotlib.axes import Axes

import kingpost

_OUTPUT = typer.Option(help="The figure: .png, .pdf or .svg.")


def bars(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, one panel each.")],
    output: Annotated[Path, _OUTPUT],
) -> None:
    """Draw ΔLoss by layer, one panel for each run."""
    axes = kingpost.plot_bars([kingpost.open_study(run) for run in runs])
    _save(axes[0], output)


def heatmap(
    run: Annotated[Path, typer.Argument(help="The run folder.")],
    output: Annotated[Path, _OUTPUT],
    measure: Annotated[str, typer.Option(help="The measure that is drawn.")] = "taylor",
    ablation: Annotated[
        str | None, typer.Option(help="For the measure ablation: which, if there are several.")
    ] = None,
    scale: Annotated[str, typer.Option(help="Colours: linear or log.")] = "linear",
    normalize: Annotated[
        str, typer.Option(help="By the largest of what cells are divided: all, column or row.")
    ] = "all",
) -> None:
    """Draw a measure by layer and parameter."""
    axes = kingpost.plot_heatmap(
        kingpost.open_study(run), measure, ablation=ablation, scale=scale, normalize=normalize
    )
    _save(axes, output)


def _save(axes: Axes, output: Path) -> None:
    figure = axes.get_figure(root=True)
    assert figure is not None
    kingpost.save_figure(figure, output)
    pyplot.close(figure)
