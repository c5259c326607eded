"""The tables of a study as csv, JSON and Parquet files that need no Kingpost to be read."""

import json
import math
import os
from pathlib import Path
from typing import Any

import pandas as pd

from kingpost.errors import KingpostError
from kingpost.study.study import Study


def write_csv(study: Study, file: str | os.PathLike[str]) -> None:
    """Write the table; floats in the shortest form that reads back as the same number.

    Raises:
        KingpostError: The file cannot be written.
    """
    _write(Path(file), study.table().to_csv(index=False))


def write_json(study: Study, file: str | os.PathLike[str]) -> None:
    """Write the table as a list of objects; null where a number is not known or not finite.

    Raises:
        KingpostError: The file cannot be written.
    """
    rows = [
        {name: _known(value) for name, value in row.items()}
        for row in study.table().to_dict(orient="records")
    ]
    _write(Path(file), json.dumps(rows, indent=1, ensure_ascii=False) + "\n")


def write_parquet(study: Study, folder: str | os.PathLike[str]) -> None:
    """Write cells, observations and sequences as Parquet files, and provenance.json, into a folder.

    From observations and sequences anyone can compute the cells.

    Raises:
        KingpostError: The folder cannot be written.
    """
    tables: dict[str, pd.DataFrame] = {
        "cells": study.table(),
        "observations": study.observations(),
        "sequences": study.sequences(),
    }
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        for name, table in tables.items():
            table.to_parquet(Path(folder) / f"{name}.parquet", index=False)
        came_from = {**study.provenance, "sessions": study.sessions}
        _write(
            Path(folder) / "provenance.json",
            json.dumps(came_from, indent=1, ensure_ascii=False) + "\n",
        )
    except OSError as error:
        raise KingpostError(f"{folder} cannot be written: {error.strerror or error}.") from error


def _known(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _write(file: Path, content: str) -> None:
    try:
        file.write_text(content, encoding="utf-8")
    except OSError as error:
        raise KingpostError(f"{file} cannot be written: {error.strerror or error}.") from error
