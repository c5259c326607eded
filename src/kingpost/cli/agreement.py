"""What `kingpost table --agreement` prints."""

from typing import Any

import pandas as pd
from rich.table import Table

from kingpost.cli.console import out
from kingpost.study import verdicts


def print_agreement(table: pd.DataFrame) -> None:
    """Print what `kingpost.study.agreement` returns, and what follows from it."""
    for over, rows in table.groupby("over", sort=False):
        out.print(_shown(str(over), rows))
    for sentence in verdicts(table):
        out.print(sentence, markup=False)


def _shown(over: str, rows: pd.DataFrame) -> Table:
    shown = Table(
        title=f"Agreement over {over}",
        caption="95% intervals from drawing the documents again",
        title_justify="left",
        caption_justify="left",
    )
    for name in ("measure", "other"):
        shown.add_column(name)
    for name in ("n", "Spearman", "95% interval", "Kendall", "95% interval", "top shared"):
        shown.add_column(name, justify="right")
    for row in rows.itertuples():
        shown.add_row(*_texts(row))
    return shown


def _texts(row: Any) -> list[str]:
    return [
        row.measure,
        row.other,
        str(row.n),
        f"{row.spearman:.2f}",
        f"{row.spearman_low:.2f} .. {row.spearman_high:.2f}",
        f"{row.kendall:.2f}",
        f"{row.kendall_low:.2f} .. {row.kendall_high:.2f}",
        f"{row.overlap} of {row.top}",
    ]
