"""kingpost verify: some numbers once more, by a plain hooked forward pass."""

from pathlib import Path
from typing import Annotated

import typer

import kingpost
from kingpost.cli.console import out
from kingpost.errors import KingpostError

# Largest difference of one sequence's ΔLoss, nats per token, that rounding explains.
_TOLERANCE = {"float32": 1e-4, "bfloat16": 0.05}


def verify(
    run: Annotated[Path, typer.Argument(help="The run folder.")],
    sites: Annotated[int, typer.Option(min=1, help="Sites to recompute.")] = 5,
) -> None:
    """Recompute some sites with plain forward passes and print the largest difference."""
    study = kingpost.open_study(run)
    checked = kingpost.verify(study, sites)
    for row in checked.itertuples():
        out.print(
            f"L{row.block} {row.component} {row.ablation}: {row.value:.6f} in the study, "
            f"{row.plain:.6f} by a plain forward pass, at most {row.difference:.1e} apart on a "
            "sequence",
            markup=False,
        )
    worst, dtype = float(checked["difference"].max()), study.provenance["dtype"]
    out.print(f"largest difference {worst:.2e} nats per token ({dtype})", markup=False)
    if not worst <= _TOLERANCE[dtype]:
        raise KingpostError(
            f"The study differs from plain forward passes by {worst:.2e} nats per token, more "
            f"than rounding in {dtype} explains; scan again on this machine and report it."
        )
