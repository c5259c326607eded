"""Read `hf:NAME[/CONFIG][@SPLIT]` through the package datasets (an optional extra)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from kingpost.errors import KingpostError, UsageError
from kingpost.texts.documents import Document, text_field, text_value


class HubName(NamedTuple):
    """What `hf:NAME[/CONFIG][@SPLIT]` asks for."""

    readings: list[tuple[str, str | None]]
    """(name, config), the likelier first: of `a/b`, b may be a dataset of a or a config of it."""
    split: str | None


def parse(source: str) -> HubName:
    """Parse a source that starts with `hf:`.

    After the last `@` stands the split, unless a slash follows (then the `@` belongs to a path).
    A local folder is taken as one, with or without a config after it. Else one part is a name,
    two are `owner/name` or, where the Hub has none such, `name/config`, and three are
    `owner/name/config`.

    Raises:
        UsageError: There is no name, or a name of more than three parts that is no local folder.
    """
    name, at, split = source.removeprefix("hf:").rpartition("@")
    if not at or "/" in split:
        name, split = source.removeprefix("hf:"), ""
    owner, _, last = name.rpartition("/")
    parts = name.split("/")
    readings: list[tuple[str, str | None]]
    if name and Path(name).is_dir():
        readings = [(name, None)]
    elif name.startswith(("/", ".")) and owner and Path(owner).is_dir():
        readings = [(owner, last)]
    elif not all(parts) or len(parts) > 3:
        raise UsageError(
            f"{source!r} names no dataset and no local folder: write hf:NAME[/CONFIG][@SPLIT], "
            "for instance hf:Salesforce/wikitext/wikitext-2-raw-v1@test"
        )
    else:
        readings = [(name, None)] if len(parts) < 3 else []
        readings += [(owner, last)] if owner else []
    return HubName(readings, split or None)


def read_hub(source: str) -> Iterator[Document]:
    """Yield one document for each row of a dataset, streamed; no code of the dataset is run.

    Raises:
        UsageError: The name cannot be parsed, or there is no such split.
        KingpostError: datasets is not installed, or cannot open the dataset.
    """
    wanted = parse(source)
    try:
        import datasets
    except ImportError as error:
        raise KingpostError(
            f"{source!r} needs the package datasets: pip install 'kingpost[datasets]'"
        ) from error
    try:
        name, splits = _open(datasets, wanted.readings)
        yield from _rows(name, splits[_split(source, wanted.split, list(splits))])
    except KingpostError:
        raise
    except Exception as error:  # datasets passes on what a dozen libraries below it raise
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise KingpostError(
            f"{source!r} could not be read ({lines[0].rstrip('.')}): check the name, the config "
            "and the connection, or give a local file"
        ) from error


def _open(datasets: Any, readings: list[tuple[str, str | None]]) -> tuple[str, dict[str, Any]]:
    """Return the dataset's name and its streamed splits, by the first reading that exists."""
    errors = []
    for name, config in readings:
        try:
            return name, datasets.load_dataset(name, config, streaming=True)
        except datasets.exceptions.DatasetNotFoundError as error:
            errors.append(error)
    raise errors[0]


def _split(source: str, wanted: str | None, there: list[str]) -> str:
    """Return the split asked for, else train, else the only one."""
    if wanted is None and len(there) == 1:
        return there[0]
    if (wanted or "train") not in there:
        asked = f"no split {wanted!r}" if wanted else "no split 'train'"
        raise UsageError(
            f"{source!r} has {asked}, only {', '.join(there)}: add one of them as @SPLIT"
        )
    return wanted or "train"


def _rows(name: str, rows: Any) -> Iterator[Document]:
    """Yield the rows' texts, under the name of the dataset or of the local folder."""
    name = Path(name).resolve().name if Path(name).is_dir() else name
    field = None
    for number, row in enumerate(rows):
        where = f"{name}:{number}"
        if field is None:
            field = text_field(_fields(rows, row), name)
        yield Document(where, text_value(row, field, where), name)


def _fields(rows: Any, first: dict[str, object]) -> dict[str, bool]:
    """Return which fields hold strings, as the dataset declares it or its first row has it."""
    if rows.features is None:
        return {key: isinstance(value, str) for key, value in first.items()}
    return {
        key: getattr(kind, "dtype", None) in ("string", "large_string")
        for key, kind in rows.features.items()
    }
