"""Turn what a user names, a file, folder, dataset or the built-in text, into documents."""

import contextlib
import os
import sysconfig
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

from kingpost.errors import KingpostError, UsageError
from kingpost.texts.documents import MAX_BYTES, MAX_DOCUMENTS, Document
from kingpost.texts.files import NotTextError, read_file
from kingpost.texts.hub import read_hub

PYTHON_DOCS = "python-docs"
PYTHON_LIBRARY = "python-library"
# Installed packages, compiled files, and the help topics, which come as text instead.
_NOT_THE_LIBRARY = {"site-packages", "dist-packages", "__pycache__", "pydoc_data"}


def read_documents(
    source: str, notes: list[str], *, max_bytes: int = MAX_BYTES
) -> Iterator[Document]:
    """Yield the documents of a source that are not empty, up to the cap.

    Args:
        source: `python-docs`, `python-library`, a file, a folder, or `hf:NAME[/CONFIG][@SPLIT]`.
        notes: Gets a sentence for each kind of thing that was left out.
        max_bytes: The cap, in bytes of UTF-8.

    Raises:
        UsageError: There is no such source.
        KingpostError: The source cannot be read, or holds what is no text.
    """
    empty = 0
    for document in _up_to_the_cap(_open(source, notes, max_bytes), notes, max_bytes):
        if document.text.strip():
            yield document
        else:
            empty += 1
    if empty:
        notes.append(f"{counted(empty, 'empty document')} left out.")


def counted(number: int, noun: str) -> str:
    """Return for instance `1 token was` or `3 tokens were`."""
    return f"{number:,} {noun} was" if number == 1 else f"{number:,} {noun}s were"


def _open(source: str, notes: list[str], max_bytes: int) -> Iterator[Document]:
    if source == PYTHON_DOCS:
        return _python_docs()
    if source == PYTHON_LIBRARY:
        return _python_library(max_bytes)
    if source.startswith("hf:"):
        return read_hub(source)
    path = Path(source).expanduser()
    try:
        if path.is_dir():
            return _folder(path, notes, max_bytes)
        if path.is_file():
            return read_file(path, path.name, max_bytes)
    except (OSError, ValueError):  # a name too long, or with a NUL
        pass
    raise UsageError(
        f"there is no file or folder {source!r}: give one, 'hf:NAME' for a dataset, or what Python "
        f"carries, {PYTHON_DOCS!r} for its help topics, {PYTHON_LIBRARY!r} for its whole library"
    )


def _up_to_the_cap(
    documents: Iterator[Document], notes: list[str], max_bytes: int
) -> Iterator[Document]:
    """Yield documents until the cap, the last one cut at a character."""
    left = max_bytes
    for number, document in enumerate(documents):
        text = _utf8(document, left + 1)
        if number == MAX_DOCUMENTS or len(text) > left:
            notes.append(
                f"The source has more than is read, {max_bytes / 2**20:.4g} MiB of text and "
                f"{MAX_DOCUMENTS:,} documents: it was cut at {document.name}."
            )
            if number < MAX_DOCUMENTS:
                yield replace(document, text=text[:left].decode("utf-8", "ignore"))
            return
        left -= len(text)
        yield document


def _utf8(document: Document, characters: int) -> bytes:
    """Return the first characters of a document in UTF-8."""
    try:
        return document.text[:characters].encode("utf-8")
    except UnicodeEncodeError as error:
        raise KingpostError(
            f"{document.name} has half of a surrogate pair at character {error.start}, "
            "which no tokenizer can read: remove it"
        ) from error


def _python_docs() -> Iterator[Document]:
    """Yield the help topics that every CPython carries, by name."""
    from pydoc_data.topics import topics  # half a megabyte, for this source only

    for name in sorted(topics):
        yield Document(name, topics[name], PYTHON_DOCS)


def _python_library(max_bytes: int) -> Iterator[Document]:
    """Yield the sources of the standard library, its texts and the help topics, by name."""
    library = Path(sysconfig.get_path("stdlib"))
    for path in _files(library, leave_out=_NOT_THE_LIBRARY):
        if path.suffix in (".py", ".rst", ".txt"):
            with contextlib.suppress(NotTextError):  # test data in other encodings
                yield from read_file(path, path.relative_to(library).as_posix(), max_bytes)
    yield from _python_docs()


def _folder(folder: Path, notes: list[str], max_bytes: int) -> Iterator[Document]:
    """Yield the documents of every file that is text, by path."""
    left_out = []
    for path in _files(folder):
        name = path.relative_to(folder).as_posix()
        try:
            yield from read_file(path, name, max_bytes)
        except NotTextError:
            left_out.append(name)
    if left_out:
        names = ", ".join(left_out[:5]) + (", ..." if len(left_out) > 5 else "")
        notes.append(f"{counted(len(left_out), 'file')} not UTF-8 text and left out: {names}.")


def _files(folder: Path, leave_out: Collection[str] = ()) -> list[Path]:
    """Return the files below a folder that are not hidden, nor in a hidden folder, by path."""
    found = []
    for root, folders, files in os.walk(folder):
        folders[:] = [n for n in folders if not n.startswith(".") and n not in leave_out]
        found += [Path(root, name) for name in files if not name.startswith(".")]
    files_only = [path for path in found if path.is_file()]
    return sorted(files_only, key=lambda path: path.relative_to(folder).as_posix())
