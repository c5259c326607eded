"""kingpost table: the numbers."""

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

import kingpost
from kingpost.cli.agreement import print_agreement
from kingpost.cli.console import err, out
from kingpost.errors import UsageError
from kingpost.study import agreement as compare_measures
from kingpost.study import write_agreement


def table(
    run: Annotated[Path, typer.Argument(help="The run folder.")],
    csv: Annotated[Path | None, typer.Option(help="Write the table to this csv file.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write the table to this JSON file.")] = None,
    parquet: Annotated[
        Path | None, typer.Option(help="Write cells, observations, sequences and provenance here.")
    ] = None,
    agreement: Annotated[
        bool, typer.Option("--agreement", help="Compare the measures with each other instead.")
    ] = False,
    top: Annotated[
        int, typer.Option(min=1, help="With --agreement: how many of the largest to compare.")
    ] = 5,
) -> None:
    """Print the table of a study, or write it to a file."""
    if sum(target is not None for target in (csv, json, parquet)) > 1:
        raise UsageError("Give one of --csv, --json and --parquet.")
    if agreement and parquet is not None:
        raise UsageError("--agreement goes to --csv or --json; give --parquet without it.")
    study = kingpost.open_study(run)
    if agreement:
        _agreement(study, top, csv, json)
    elif csv is not None:
        kingpost.write_csv(study, csv)
    elif json is not None:
        kingpost.write_json(study, json)
    elif parquet is not None:
        kingpost.write_parquet(study, parquet)
    else:
        _print(study)


def _agreement(study: "kingpost.Study", top: int, csv: Path | None, json: Path | None) -> None:
    compared = compare_measures(study, top=top)
    if csv is not None:
        write_agreement(compared, csv, form="csv")
    elif json is not None:
        write_agreement(compared, json, form="json")
    else:
        print_agreement(compared)


def _print(study: "kingpost.Study") -> None:
    cells = study.table()
    if cells.empty:
        err.print("Nothing is measured yet.")
        return
    p = study.provenance
    shown = Table(
        title=f"{study.model_name}, {p['dtype']}, {p['text']}, {p['length']} tokens a sequence",
        caption=f"noise floor {study.noise_floor:.2g} nats per token",
        title_justify="left",
        caption_justify="left",
    )
    for name in ("block", "component", "measure", "value", "se", "95% interval", "n", "note"):
        numeric = name not in ("component", "measure", "note")
        shown.add_column(name, justify="right" if numeric else "left")
    for row in cells.itertuples():
        shown.add_row(*_texts(row))
    out.print(shown)


def _texts(row: Any) -> list[str]:
    measure = f"{row.measure} ({row.ablation})" if row.ablation else row.measure
    digits = _digits(row.se)
    return [
        f"L{row.block}",
        row.component,
        measure,
        f"{row.value:.{digits}f}",
        f"{row.se:.{digits}f}",
        f"{row.ci_low:.{digits}f} .. {row.ci_high:.{digits}f}",
        str(row.n_sequences),
        row.note,
    ]


def _digits(se: float) -> int:
    """Decimals to show: two digits of the standard error."""
    return int(np.clip(1 - np.floor(np.log10(se)), 2, 9)) if np.isfinite(se) and se > 0 else 4
