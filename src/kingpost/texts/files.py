"""Read one file, text, JSON Lines or Parquet, into documents."""

import codecs
import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow
import pyarrow.parquet

from kingpost.errors import KingpostError
from kingpost.texts.documents import Document, text_field, text_value

MAX_LINE = 256 * 2**20
"""The longest line of a JSON Lines file: a line is parsed whole, three copies of it at most."""
_READ = 2**20
_BOM = "\ufeff"


class NotTextError(KingpostError):
    """A file is not UTF-8 text: an error for a file that was named, a note for one in a folder."""


def read_file(path: Path, name: str, max_bytes: int) -> Iterator[Document]:
    """Yield the documents of one file, by its suffix: `.jsonl`, `.parquet`, else text.

    Args:
        path: The file.
        name: What its documents are called after.
        max_bytes: Of a text hardly more than this many bytes are read.

    Raises:
        NotTextError: The file is no UTF-8 text; raised before the first document.
        KingpostError: The file cannot be read, or a record in it is broken.
    """
    reader = {".jsonl": _read_jsonl, ".parquet": _read_parquet}.get(path.suffix.lower())
    try:
        yield from reader(path, name) if reader else _read_text(path, name, max_bytes)
    except OSError as error:
        raise KingpostError(f"{path} could not be read: {error}; check the file") from error


def _read_text(path: Path, name: str, max_bytes: int) -> Iterator[Document]:
    """Yield the whole file as one document, or a little more of it than will be kept."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    pieces: list[str] = []
    position = 0
    with path.open("rb") as file:
        # As long as what is decoded may not show that there is more.
        while position <= max_bytes + 3:
            read = file.read(_READ)
            held = len(decoder.getstate()[0])  # bytes of a character that the last piece cut
            pieces.append(_decode(decoder, read, path, position - held))
            position += len(read)
            if not read:
                break
    yield Document(name, "".join(pieces).removeprefix(_BOM), name)


def _decode(decoder: codecs.IncrementalDecoder, read: bytes, path: Path, start: int) -> str:
    """Decode the next piece of a file; `start` is the file's offset of what the decoder sees."""
    if b"\0" in read:
        raise NotTextError(_binary(path))
    try:
        return decoder.decode(read, final=not read)
    except UnicodeDecodeError as error:
        raise NotTextError(_invalid(path, start + error.start)) from error


def _binary(path: Path) -> str:
    return (
        f"{path} has NUL bytes, so it is binary or UTF-16, not UTF-8 text: give a text file, "
        "or convert it (iconv -f UTF-16 -t UTF-8)"
    )


def _invalid(path: Path, offset: int) -> str:
    return (
        f"{path} is not UTF-8 at byte {offset}: convert it, for instance with "
        "iconv -f LATIN1 -t UTF-8"
    )


def _read_jsonl(path: Path, name: str) -> Iterator[Document]:
    """Yield one document for each line that is not blank."""
    field = None
    offset = 0
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(MAX_LINE + 1), b""), start=1):
            where = f"{path}:{number}"
            text = _decode_line(line, path, offset, where)
            offset += len(line)
            if not text.strip():
                continue
            record = _parse(text, where)
            if field is None:
                field = text_field(
                    {
                        k: isinstance(v, str) or (k == "text" and v is None)
                        for k, v in record.items()
                    },
                    where,
                )
            yield Document(f"{name}:{number}", text_value(record, field, where), name)


def _decode_line(line: bytes, path: Path, offset: int, where: str) -> str:
    """Decode one line that starts at byte `offset`; what ails a later line is that line's error."""
    if len(line) > MAX_LINE:
        raise KingpostError(f"{where} is longer than {MAX_LINE // 2**20} MiB: split the record")
    if b"\0" in line:
        raise (NotTextError if offset == 0 else KingpostError)(_binary(path))
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        kind = NotTextError if offset == 0 else KingpostError
        raise kind(_invalid(path, offset + error.start)) from error
    return text.removeprefix(_BOM) if offset == 0 else text


def _parse(text: str, where: str) -> dict[str, object]:
    """Return the JSON object of one line."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise KingpostError(f"{where} is not JSON ({error}): mend or remove the line") from error
    if not isinstance(record, dict):
        raise KingpostError(
            f'{where} is JSON, but not an object: write each line as {{"text": "..."}}'
        )
    return record


def _read_parquet(path: Path, name: str) -> Iterator[Document]:
    """Yield one document for each row, in batches, so that no row group is held whole."""
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            schema = file.schema_arrow
            field = text_field(
                {key: _holds_strings(schema.field(key).type) for key in schema.names}, str(path)
            )
            row = 0
            for batch in file.iter_batches(batch_size=256, columns=[field]):
                for value in batch.column(0):
                    yield Document(f"{name}:{row}", value.as_py() or "", name)
                    row += 1
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:
        raise KingpostError(f"{path} could not be read as Parquet: {error}") from error


def _holds_strings(kind: pyarrow.DataType) -> bool:
    if pyarrow.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        pyarrow.types.is_string(kind)
        or pyarrow.types.is_large_string(kind)
        or pyarrow.types.is_string_view(kind)
    )
