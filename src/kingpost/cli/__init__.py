"""The command line: a thin shell over the public API."""

from kingpost.cli.app import main as main
