"""kingpost train: make a model of the reference family."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kingpost.cli.console import SOURCES, clock, err

if TYPE_CHECKING:
    from kingpost.reference import TrainProgress


def train(
    size: Annotated[str, typer.Argument(help="D8, D12 or D16; D2 is for trying things out.")],
    out: Annotated[Path, typer.Option(help="The folder of the model.")],
    tokens: Annotated[int, typer.Option(min=1, help="Tokens to train on.")] = 10_000_000,
    text: Annotated[
        str,
        typer.Option(help=SOURCES),
    ] = "python-library",
    length: Annotated[int, typer.Option(min=2, max=2048, help="Tokens of a sequence.")] = 256,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Sequences of a step; 4 on a CPU, else 64.")
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option(min=0, help="The highest; 0.001 · 512 / hidden size.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of weights and order.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where the folder's training stopped.")
    ] = False,
) -> None:
    """Train a small model with gated delta layers, to scan it."""
    from kingpost import reference

    try:
        record = reference.train(
            size,
            out,
            text,
            tokens=tokens,
            length=length,
            batch=batch,
            learning_rate=learning_rate,
            seed=seed,
            device=device,
            resume=resume,
            progress=_show,
        )
    except KeyboardInterrupt:
        err.print("Stopped. Go on from the last checkpoint with:", markup=False)
        again = sys.argv[1:] if resume else [*sys.argv[1:], "--resume"]
        err.print(shlex.join(["kingpost", *again]), markup=False)
        raise typer.Exit(1) from None
    result = record["result"]
    err.print(
        f"Done: {result['tokens']:,} tokens, validation loss {result['validation_loss']:.3f} nats "
        f"per token, {clock(result['seconds'])}. The model and its figures are in {out}.",
        markup=False,
    )


def _show(at: "TrainProgress") -> None:
    validation = "" if at.validation_loss is None else f", validation {at.validation_loss:.3f}"
    err.print(
        f"{at.tokens:,} of {at.total:,} tokens, loss {at.loss:.3f}{validation}, "
        f"{at.tokens_per_second:,.0f} tokens/s, {clock(at.seconds_left)} left",
        markup=False,
    )
