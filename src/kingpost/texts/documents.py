"""What a document is, and which field of a record holds its text."""

from collections.abc import Mapping
from dataclasses import dataclass

from kingpost.errors import KingpostError

MAX_BYTES = 16 * 2**20
"""The most text that is read of one source, in bytes of UTF-8.

SmolLM2's tokenizer was measured at 0.8 (mixed scripts) to 2.5 MB/s (ASCII) on two cores, so that a
full 16 MiB takes 7 to 20 seconds.
"""
MAX_DOCUMENTS = 250_000
"""The most documents that are read of one source: each costs some 50 µs, however short it is."""


@dataclass(frozen=True)
class Document:
    """One text; no sequence reaches from one document into another."""

    name: str
    """Topic, path in the folder, `file.jsonl:LINE` (from 1), `file.parquet:ROW` (from 0)..."""
    text: str
    file: str
    """Where it was read from: documents too short for a sequence are joined inside one file."""


def text_field(fields: Mapping[str, bool], where: str) -> str:
    """Choose the field that holds the text: `text`, else the only one with strings.

    Args:
        fields: For each field's name whether it holds strings.
        where: The file or dataset, for the error.

    Raises:
        KingpostError: `text` holds no strings, or there is no `text` and not exactly one string.
    """
    strings = ["text"] if "text" in fields else list(fields)
    strings = [name for name in strings if fields[name]]
    if len(strings) != 1:
        raise KingpostError(
            f"{where} needs a field 'text' with strings, or only one field with strings, but its "
            f"fields are {', '.join(fields) or 'none'}: rename the one to read to 'text'"
        )
    return strings[0]


def text_value(record: Mapping[str, object], field: str, where: str) -> str:
    """Return the text of one record; a null is an empty text.

    Raises:
        KingpostError: The record has no such field, or something other than a string in it.
    """
    value = record.get(field)
    if value is None and field in record:
        return ""
    if not isinstance(value, str):
        raise KingpostError(
            f"{where} has no string in the field {field!r} (fields: {', '.join(record) or 'none'}):"
            " every record needs one, or null"
        )
    return value
