"""kingpost scan: measure."""

import contextlib
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

import kingpost
from kingpost.cli.console import SOURCES, clock, err
from kingpost.errors import KingpostError, UsageError

_WHERE = (
    "Which components: blocks, components, parameters, norms, a role (attn, mlp, q_proj, ...) or a "
    "glob pattern on parameter names; may be given more than once."
)
_ABLATION = (
    "What is done to them: skip, zero, mean, resample, identity, noise:σ, quantize:bits, "
    "shrink:fraction, pin:0, pin:1, ones; auto takes a component away."
)
_MEASURE = (
    "ablation, influence, angular, taylor, taylor_signed, fisher, wanda, magnitude, "
    "magnitude_mean, snr, quantization_error; may be given more than once."
)


def scan(
    model: Annotated[
        str | None,
        typer.Argument(help="Hub id, folder or .gguf file; without it SmolLM2-135M-Instruct."),
    ] = None,
    out: Annotated[Path, typer.Option(help="The run folder.")] = ...,  # type: ignore[assignment]
    text: Annotated[
        str,
        typer.Option(help=SOURCES),
    ] = "python-docs",
    sequences: Annotated[int, typer.Option(min=1, help="Sequences to score.")] = 16,
    length: Annotated[int, typer.Option(min=2, help="Tokens of a sequence.")] = 256,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draw of sequences.")] = 0,
    where: Annotated[list[str], typer.Option(help=_WHERE)] = ["blocks"],  # noqa: B006
    ablation: Annotated[str, typer.Option(help=_ABLATION)] = "auto",
    measure: Annotated[list[str], typer.Option(help=_MEASURE)] = ["ablation"],  # noqa: B006
    dtype: Annotated[str, typer.Option(help="auto, float32 or bfloat16.")] = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    batch: Annotated[str, typer.Option(help="Sequences per forward pass, or auto.")] = "auto",
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run code that the checkpoint brings.")
    ] = False,
) -> None:
    """Take one component away at a time and measure how much worse the model gets."""
    size, measures = _batch(batch), _names(measure)
    loaded = _load(model, dtype, device, trust_remote_code, measures)
    drawn = kingpost.load_text(text, model=loaded, n_sequences=sequences, length=length, seed=seed)
    for note in (*loaded.notes, *drawn.notes):
        err.print(note, style="dim", markup=False)
    with _Screen(loaded, drawn) as screen:
        try:
            kingpost.scan(
                loaded,
                drawn,
                out,
                _names(where),
                ablation,
                measures,
                size,
                progress=screen.show,
            )
        except KeyboardInterrupt:
            screen.stop()
            err.print(f"Stopped; what was measured is kept in {out}. Go on with:", markup=False)
            err.print(shlex.join(["kingpost", *sys.argv[1:]]), markup=False)
            raise typer.Exit(1) from None
    err.print(f"Done. kingpost table {shlex.quote(str(out))} shows the numbers.", markup=False)


def _load(
    model: str | None, dtype: str, device: str, trust_remote_code: bool, measures: list[str]
) -> "kingpost.Model":
    """Load the model; without its weights where they can be read one by one."""
    from kingpost.scanning import needs_weights_only

    if needs_weights_only(measures):
        # Where this fails, loading the whole model works or says what is wrong.
        with contextlib.suppress(KingpostError):
            return kingpost.load_model(model, dtype, "meta", trust_remote_code=trust_remote_code)
    return kingpost.load_model(model, dtype, device, trust_remote_code=trust_remote_code)


def _names(options: list[str]) -> list[str]:
    """Names of a repeatable option; each may also hold several with commas between."""
    return [name for option in options for name in option.split(",") if name]


def _batch(batch: str) -> int | str:
    if batch == "auto" or (batch.isdigit() and int(batch) > 0):
        return batch if batch == "auto" else int(batch)
    raise UsageError(f"--batch {batch} is no number of sequences: give 1 or more, or auto.")


class _Screen:
    """What a user sees while a scan runs; on something that is no terminal, only its start."""

    def __init__(self, model: "kingpost.Model", text: "kingpost.Text") -> None:
        self._model, self._text = model, text
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]} left"),
            TextColumn("{task.fields[last]}"),
            console=err,
            disable=not err.is_terminal,
        )
        self._task = self._bar.add_task("scan", total=None, left="?", last="", visible=False)

    def __enter__(self) -> "_Screen":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Leave the bar as it is."""
        self._bar.stop()

    def show(self, at: "kingpost.ScanProgress") -> None:
        """Show how far the scan is; the first time, also what it will do."""
        left = clock(at.seconds_left) if at.seconds_left else "?"
        if self._bar.tasks[0].total is None:
            self._announce(at, left)
        self._bar.update(self._task, total=at.total, completed=at.done, left=left, visible=True)
        if at.site is not None and at.value is not None:
            last = f"L{at.site.block} {at.site.component} ΔLoss {at.value:+.3f}"
            self._bar.update(self._task, last=last)

    def _announce(self, at: "kingpost.ScanProgress", left: str) -> None:
        m, t = self._model, self._text
        n, length = t.token_ids.shape
        dtype = str(m.dtype).removeprefix("torch.")
        err.print(
            f"{m.name}: {len(m.blocks)} blocks, {m.n_parameters:,} parameters, {dtype} on "
            f"{m.target.type}; {n} sequences × {length} tokens of {t.source}; "
            f"{at.total - at.done} measurements to make{'' if left == '?' else f', about {left}'}.",
            markup=False,
        )
        for note in at.notes:
            err.print(note, style="yellow", markup=False)
