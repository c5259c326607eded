"""The commands, and how the program ends: 0 done, 1 the work failed, 2 the command was wrong."""

import sys
import traceback
from typing import Annotated

import typer

from kingpost.cli.console import complain
from kingpost.cli.draw import bars, heatmap
from kingpost.cli.inspect import inspect
from kingpost.cli.scan import scan
from kingpost.cli.table import table
from kingpost.cli.train import train
from kingpost.cli.verify import verify
from kingpost.errors import KingpostError, UsageError, first_line

app = typer.Typer(
    name="kingpost",
    help="Which layers and which parameters of a transformer language model carry the load?",
    no_args_is_help=True,
    rich_markup_mode=None,  # brackets in the help are brackets
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (scan, table, bars, heatmap, verify, inspect, train):
    app.command()(command)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        names = ("kingpost", "torch", "transformers")
        print(", ".join(f"{name} {version(name)}" for name in names))
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Versions.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
) -> None:
    """Find out which layers and parameters of a language model carry the load."""


def main() -> None:
    """Run the command line and end the process with its status."""
    arguments = sys.argv[1:]
    debug = "--debug" in arguments
    sys.exit(_run([a for a in arguments if a != "--debug"], debug=debug))


def _run(arguments: list[str], *, debug: bool) -> int:
    """Run a command; one that typer itself cannot read ends the process with status 2."""
    try:
        app(args=arguments, prog_name="kingpost")
        return 0
    except KingpostError as error:
        _show(str(error), debug=debug)
        return 2 if isinstance(error, UsageError) else 1
    except Exception as error:
        # Whatever this is, it is no fault of the user's, and the sentence says so.
        reason = first_line(error)
        _show(
            f"Kingpost failed: {type(error).__name__}: {reason}; see it with --debug.", debug=debug
        )
        return 1


def _show(message: str, *, debug: bool) -> None:
    if debug:
        traceback.print_exc()
    complain(message)
