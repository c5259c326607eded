"""The ledger: one SQLite file, the only source of truth of a study.

One row for each site and sequence, committed as soon as it is measured. A scan that is killed at
any moment leaves a ledger that the same command goes on from.
"""

import contextlib
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import filelock
import numpy as np
import numpy.typing as npt

from kingpost.errors import KingpostError, UsageError

FORMAT = 2
_FILE, _LOCK = "ledger.sqlite", "ledger.lock"

_SCHEMA = """
CREATE TABLE provenance (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE sessions (
    session INTEGER PRIMARY KEY, started TEXT NOT NULL, command TEXT NOT NULL, context TEXT NOT NULL
);
CREATE TABLE sequences (
    sequence INTEGER PRIMARY KEY, document TEXT NOT NULL, token_ids BLOB NOT NULL,
    n_tokens INTEGER NOT NULL, batch INTEGER, base_loss REAL, other_layout_loss REAL
);
CREATE TABLE components (
    block INTEGER NOT NULL, component TEXT NOT NULL, kind TEXT NOT NULL,
    n_parameters INTEGER NOT NULL, parameters TEXT NOT NULL, PRIMARY KEY (block, component)
);
CREATE TABLE sites (
    site INTEGER PRIMARY KEY, block INTEGER NOT NULL, component TEXT NOT NULL,
    measure TEXT NOT NULL, ablation TEXT NOT NULL, same_as TEXT NOT NULL DEFAULT '',
    UNIQUE (block, component, measure, ablation)
);
CREATE TABLE constants (site INTEGER PRIMARY KEY REFERENCES sites, value REAL);
CREATE TABLE observations (
    site INTEGER NOT NULL REFERENCES sites, sequence INTEGER NOT NULL REFERENCES sequences,
    value REAL, PRIMARY KEY (site, sequence)
) WITHOUT ROWID;
"""

# What went wrong, for the SQLite error names that a user can do something about.
_CAUSES = {
    "SQLITE_FULL": "the disk is full; make room and run the same command again",
    "SQLITE_IOERR": "the disk refuses to write; check it and run the same command again",
    "SQLITE_READONLY": "it is read-only; make it writable or give another --out",
    "SQLITE_CANTOPEN": "it cannot be opened; check the folder's permissions",
    "SQLITE_CORRUPT": "it is damaged; restore it from a copy or scan into a new folder",
    "SQLITE_NOTADB": "it is damaged; restore it from a copy or scan into a new folder",
    "SQLITE_BUSY": "another program holds it; wait for that to end",
}


class Site(NamedTuple):
    """What is measured: one measure of one component of one block."""

    block: int
    component: str
    measure: str
    ablation: str = ""


class ComponentRow(NamedTuple):
    """One component of a model, as a study remembers it.

    Attributes:
        block: Its block.
        component: Its name.
        kind: `block`, `sublayer` (several tensors with one purpose), `role` (weight and bias of one
            projection) or `parameter`.
        n_parameters: Number of elements.
        parameters: The parameters that it is made of, wholly or in part, by name.
    """

    block: int
    component: str
    kind: str
    n_parameters: int
    parameters: tuple[str, ...]


@dataclass(frozen=True)
class SequenceRow:
    """One sequence of a study.

    Attributes:
        sequence: Its number, from 0 in the order drawn.
        document: The document it belongs to.
        token_ids: int32 [T].
        n_tokens: Number of predicted tokens.
        batch: The batch it is measured in; None before the scan laid the batches out.
        base_loss: Baseline loss, nats per token; None before it was measured.
        other_layout_loss: The same in another batch layout, for the noise floor; mostly None.
    """

    sequence: int
    document: str
    token_ids: npt.NDArray[np.int32]
    n_tokens: int
    batch: int | None
    base_loss: float | None
    other_layout_loss: float | None


class Ledger:
    """An open ledger. `write_ledger` and `read_ledger` open one."""

    def __init__(self, connection: sqlite3.Connection, file: Path) -> None:
        self._connection, self._file = connection, file

    @property
    def has_begun(self) -> bool:
        """Whether the tables and the provenance are there."""
        return bool(self._rows("SELECT name FROM sqlite_master WHERE name = 'provenance'"))

    @property
    def provenance(self) -> dict[str, Any]:
        """What was measured on what, by name."""
        rows = self._rows("SELECT key, value FROM provenance ORDER BY key")
        return {key: json.loads(value) for key, value in rows}

    def start(self, provenance: Mapping[str, Any]) -> None:
        """Write the tables and the provenance of a new ledger, or compare with an old one's.

        Raises:
            KingpostError: The ledger belongs to another model, text or setting; says which.
        """
        if self.has_begun:
            self._compare(provenance)
            return
        with self._transaction():
            for statement in _SCHEMA.split(";"):
                self._connection.execute(statement)
            self._connection.executemany(
                "INSERT INTO provenance VALUES (?, ?)",
                [(k, json.dumps(v)) for k, v in provenance.items()],
            )

    def _compare(self, provenance: Mapping[str, Any]) -> None:
        recorded = self.provenance
        differing = [
            f"{key} {recorded.get(key)!r} there and {value!r} here"
            for key, value in provenance.items()
            if recorded.get(key) != json.loads(json.dumps(value))
        ]
        if differing:
            raise KingpostError(
                f"{self._file.parent} holds another study: {'; '.join(differing)}; "
                "give another --out, or the same model, text and settings."
            )

    def add_session(self, command: str, context: Mapping[str, Any]) -> None:
        """Note that a command works on this study, with versions and machine in `context`."""
        started = datetime.now(UTC).isoformat(timespec="seconds")
        with self._transaction():
            self._connection.execute(
                "INSERT INTO sessions (started, command, context) VALUES (?, ?, ?)",
                (started, command, json.dumps(context)),
            )

    def sessions(self) -> list[dict[str, Any]]:
        """Every command that worked on this study, oldest first."""
        rows = self._rows("SELECT started, command, context FROM sessions ORDER BY session")
        return [{"started": s, "command": c, **json.loads(context)} for s, c, context in rows]

    def add_components(self, components: Iterable[ComponentRow]) -> None:
        """Note what the model is made of, as far as it is not there yet."""
        rows = [(*c[:4], json.dumps(c.parameters)) for c in components]
        with self._transaction():
            self._connection.executemany(
                "INSERT OR IGNORE INTO components VALUES (?, ?, ?, ?, ?)", rows
            )

    def components(self) -> list[ComponentRow]:
        """What the model is made of, in the order in which it was noted."""
        rows = self._rows("SELECT * FROM components ORDER BY rowid")
        return [
            ComponentRow(block, component, kind, n, tuple(json.loads(parameters)))
            for block, component, kind, n, parameters in rows
        ]

    def add_sequences(self, token_ids: npt.NDArray[np.int64], documents: Sequence[str]) -> None:
        """Add the sequences [n, T] that are not there yet; the first of them is number 0."""
        rows = [
            (i, document, ids.astype("<i4").tobytes(), len(ids) - 1)
            for i, (ids, document) in enumerate(zip(token_ids, documents, strict=True))
        ]
        with self._transaction():
            self._connection.executemany(
                "INSERT OR IGNORE INTO sequences (sequence, document, token_ids, n_tokens) "
                "VALUES (?, ?, ?, ?)",
                rows,
            )

    def sequences(self) -> list[SequenceRow]:
        """All sequences, by number."""
        rows = self._rows(
            "SELECT sequence, document, token_ids, n_tokens, batch, base_loss, other_layout_loss "
            "FROM sequences ORDER BY sequence"
        )
        return [
            SequenceRow(number, document, np.frombuffer(ids, dtype="<i4"), *rest)
            for number, document, ids, *rest in rows
        ]

    def set_batches(self, batches: Mapping[int, int]) -> None:
        """Lay sequences out in batches: sequence number -> batch number."""
        with self._transaction():
            self._connection.executemany(
                "UPDATE sequences SET batch = ? WHERE sequence = ?",
                [(batch, sequence) for sequence, batch in batches.items()],
            )

    def set_base_losses(
        self, sequences: Sequence[int], losses: Iterable[float], *, other_layout: bool = False
    ) -> None:
        """Baseline losses of sequences, nats per token; of the other batch layout if asked."""
        column = "other_layout_loss" if other_layout else "base_loss"
        with self._transaction():
            self._connection.executemany(
                f"UPDATE sequences SET {column} = ? WHERE sequence = ?",
                [(float(x), s) for s, x in zip(sequences, losses, strict=True)],
            )

    def add_observations(
        self, sequences: Sequence[int], values: Mapping[Site, npt.NDArray[np.float64]]
    ) -> None:
        """Commit values of sites for sequences, all in one transaction.

        Args:
            sequences: Sequence numbers, [B].
            values: For each site one number for each sequence, [B].
        """
        with self._transaction():
            for site, row in values.items():
                number = self._number(site)
                self._connection.executemany(
                    "INSERT OR IGNORE INTO observations VALUES (?, ?, ?)",
                    [(number, s, float(x)) for s, x in zip(sequences, row, strict=True)],
                )

    def add_constants(self, values: Mapping[Site, float]) -> None:
        """Commit values of sites that depend on the weights alone and on no sequence."""
        with self._transaction():
            for site, value in values.items():
                self._connection.execute(
                    "INSERT OR IGNORE INTO constants VALUES (?, ?)", (self._number(site), value)
                )

    def mark_same(self, sites: Mapping[Site, str]) -> None:
        """Note that sites were not measured themselves: site -> the component that was."""
        with self._transaction():
            self._connection.executemany(
                "UPDATE sites SET same_as = ? WHERE site = ?",
                [(component, self._number(site)) for site, component in sites.items()],
            )

    def _number(self, site: Site) -> int:
        self._connection.execute(
            "INSERT OR IGNORE INTO sites (block, component, measure, ablation) VALUES (?, ?, ?, ?)",
            site,
        )
        ((number,),) = self._connection.execute(
            "SELECT site FROM sites WHERE (block, component, measure, ablation) = (?, ?, ?, ?)",
            site,
        )
        return int(number)

    def observations(self) -> list[tuple[int, str, str, str, int, float]]:
        """Every observation: block, component, measure, ablation, sequence, value."""
        rows = self._rows(
            "SELECT block, component, measure, ablation, sequence, value "
            "FROM observations JOIN sites USING (site) "
            "ORDER BY measure, ablation, component, block, sequence"
        )
        # SQLite has no NaN and keeps NULL for it.
        return [(*row[:-1], np.nan if row[-1] is None else row[-1]) for row in rows]

    def constants(self) -> dict[Site, float]:
        """Every value that depends on the weights alone."""
        rows = self._rows(
            "SELECT block, component, measure, ablation, value FROM constants JOIN sites "
            "USING (site) ORDER BY measure, ablation, component, block"
        )
        return {Site(*row[:4]): np.nan if row[4] is None else row[4] for row in rows}

    def same(self) -> dict[Site, str]:
        """Sites that were not measured themselves: site -> the component that was."""
        rows = self._rows(
            "SELECT block, component, measure, ablation, same_as FROM sites WHERE same_as != ''"
        )
        return {Site(*row[:4]): row[4] for row in rows}

    def measured(self) -> set[tuple[Site, int]]:
        """Which site is measured on which sequence."""
        return {(Site(*row[:4]), row[4]) for row in self.observations()}

    def _rows(self, query: str) -> list[tuple[Any, ...]]:
        with _explained(self._file):
            return self._connection.execute(query).fetchall()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        with _explained(self._file), self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            yield


@contextlib.contextmanager
def write_ledger(folder: Path) -> Iterator[Ledger]:
    """Open the ledger of a run folder for writing, and make the folder if it is not there.

    Raises:
        KingpostError: The folder cannot be written, or another scan is writing it.
    """
    file = folder / _FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(folder / _LOCK, timeout=0)
        lock.acquire()
    except filelock.Timeout as error:
        raise KingpostError(
            f"Another scan is writing {folder}; wait for it to end or give another --out."
        ) from error
    except OSError as error:
        raise KingpostError(
            f"{folder} cannot be written ({error.strerror}); give another --out."
        ) from error
    try:
        with _explained(file), contextlib.closing(_connect(str(file))) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            yield Ledger(connection, file)
    finally:
        lock.release()


@contextlib.contextmanager
def read_ledger(folder: Path) -> Iterator[Ledger]:
    """Open the ledger of a run folder for reading; a folder that is read-only will do.

    Raises:
        UsageError: There is no study in the folder.
        KingpostError: The ledger is damaged or was written by a newer Kingpost.
    """
    file = folder / _FILE
    if not file.is_file():
        raise UsageError(f"There is no study in {folder}; make one with kingpost scan --out.")
    with _explained(file), contextlib.closing(_connect_for_reading(file)) as connection:
        ledger = Ledger(connection, file)
        if not ledger.has_begun:
            raise UsageError(
                f"The study in {folder} was stopped before it began; run its scan again."
            )
        if (found := ledger.provenance.get("format")) != FORMAT:
            raise KingpostError(
                f"{file} has format {found}, and this Kingpost reads format {FORMAT}; "
                "install the Kingpost that wrote it."
            )
        yield ledger


def _connect(target: str, *, uri: bool = False) -> sqlite3.Connection:
    return sqlite3.connect(target, uri=uri, isolation_level=None)


def _connect_for_reading(file: Path) -> sqlite3.Connection:
    uri = file.resolve().as_uri() + "?mode=ro"
    connection = _connect(uri, uri=True)
    try:
        connection.execute("SELECT 1 FROM sqlite_master").fetchall()
    except sqlite3.OperationalError:
        # A ledger in WAL mode wants to write beside itself. In a folder where it cannot, nobody
        # else can write either, so the file may be taken as it is.
        connection.close()
        connection = _connect(uri + "&immutable=1", uri=True)
    return connection


@contextlib.contextmanager
def _explained(file: Path) -> Iterator[None]:
    """Turn what SQLite says into one sentence."""
    try:
        yield
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", "")
        cause = next((text for key, text in _CAUSES.items() if name.startswith(key)), str(error))
        raise KingpostError(f"The ledger {file} failed: {cause}.") from error
