"""Where the program prints: results on standard output, everything else on standard error."""

import sys

from rich.console import Console

# A pipe has no width of its own: wide enough for every table.
out = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
err = Console(stderr=True, highlight=False, soft_wrap=True)


SOURCES = (
    "python-docs (help topics), python-library (the standard library), a text, JSONL or Parquet "
    "file, a folder of them, or hf:NAME[/CONFIG][@SPLIT]."
)
"""What an option `--text` takes."""


def complain(message: str) -> None:
    """Print an error on standard error; text from outside is never taken for markup."""
    err.print("error:", style="bold red", end=" ")
    err.print(message, markup=False)


def clock(seconds: float) -> str:
    """Seconds as minutes or hours and minutes, for instance 3:05 or 1:03:05."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
