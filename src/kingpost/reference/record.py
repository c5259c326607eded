"""What a training folder says about how its model was made."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kingpost.errors import KingpostError, UsageError

FILE = "training.json"


@dataclass(frozen=True)
class Recipe:
    """All that the trained weights depend on, but the machine."""

    size: str
    text: str
    tokens: int
    length: int
    batch: int
    learning_rate: float
    seed: int

    @property
    def steps(self) -> int:
        """Steps of the optimizer that together see at least as many tokens as were asked for."""
        return -(-self.tokens // (self.batch * self.length))


def read_record(folder: Path) -> dict[str, Any]:
    """What is written in a training folder.

    Raises:
        KingpostError: There is no record in it, or it cannot be read.
    """
    try:
        record = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise KingpostError(
            f"{folder} has no readable {FILE} ({error}): train into another folder"
        ) from error
    return dict(record)


def write_record(folder: Path, record: dict[str, Any]) -> None:
    """Write or replace the record of a training folder, whole or not at all."""
    written = folder / f"{FILE}.new"
    written.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(written, folder / FILE)


def check_recipe(folder: Path, recipe: Recipe) -> None:
    """Refuse to go on with another recipe than the one that a folder was begun with.

    Raises:
        UsageError: They differ.
        KingpostError: The folder's record cannot be read.
    """
    begun = read_record(folder).get("recipe", {})
    wanted = asdict(recipe)
    differ = [
        f"{name} {begun.get(name)!r}, not {wanted[name]!r}"
        for name in wanted
        if begun.get(name) != wanted[name]
    ]
    if differ:
        raise UsageError(
            f"{folder} was begun with {'; '.join(differ)}: give the same options, or another --out."
        )
