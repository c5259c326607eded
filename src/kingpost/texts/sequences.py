"""Cut documents into sequences, join the short ones, and draw."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from kingpost.errors import KingpostError, UsageError
from kingpost.texts.documents import Document
from kingpost.texts.sources import PYTHON_DOCS, counted, read_documents
from kingpost.texts.tokens import Encoder, Ids

BLANK_LINE = "\n\n"
_BETWEEN = 2
"""The most tokens of a blank line: tokenizers give one token or two, depending on what follows."""


class TokenizedModel(Protocol):
    """What a text needs of a `kingpost.models.Model`."""

    @property
    def tokenizer(self) -> Any:
        """A transformers tokenizer, or None."""

    @property
    def vocabulary_size(self) -> int:
        """Rows of the input embedding."""

    @property
    def max_length(self) -> int | None:
        """The most positions the model has, where it has a most."""


@dataclass(frozen=True, eq=False)
class Text:
    """Sequences drawn from a source, and where they came from."""

    source: str
    """As the user named it."""
    token_ids: npt.NDArray[np.int64]
    """int64 [n, T]: in the order drawn, each with the tokenizer's prefix (BOS) if it has one."""
    documents: tuple[str, ...]
    """n names: the document that each sequence belongs to."""
    length: int
    """T, the prefix included."""
    seed: int
    n_available: int
    """How many sequences the source could give."""
    notes: tuple[str, ...]
    """What was joined or left out, a sentence each."""
    digest: str
    """SHA-256, hex, of all available sequences with their documents and of the length.

    The same for every n_sequences and seed.
    """

    @property
    def n_sequences(self) -> int:
        """How many sequences were drawn."""
        return len(self.token_ids)


def load_text(
    source: str = PYTHON_DOCS,
    *,
    model: TokenizedModel,
    n_sequences: int = 16,
    length: int = 256,
    seed: int = 0,
) -> Text:
    """Draw sequences of tokens from a text.

    A sequence belongs to one document and is never padded. A document too short for one is joined,
    in order and with a blank line between, with the following short ones of the same file. A larger
    `n_sequences` extends a smaller one with the same seed.

    Args:
        source: `python-docs` (the help topics of this Python), `python-library` (its standard
            library's sources, texts and help topics), a text, `.jsonl` or `.parquet` file, a folder
            of these, or `hf:NAME[/CONFIG][@SPLIT]`; a local folder may stand for NAME.
            At most 16 MiB of text and 250,000 documents are read.
        model: Whose tokenizer is used.
        n_sequences: How many to draw; all, with a note, where there are fewer.
        length: Tokens of a sequence, the tokenizer's BOS included.
        seed: Of the draw, which is without replacement.

    Returns:
        The sequences with their documents, and notes on what was joined or left out.

    Raises:
        UsageError: There is no such source, or a number is out of range for the model.
        KingpostError: The source cannot be read or is too short, or the model has no tokenizer, or
            one that is not its own.
    """
    encoder = Encoder(model.tokenizer)
    _check_request(model, n_sequences, length, seed, len(encoder.prefix))
    notes: list[str] = []
    encoded = encoder.encode_all(read_documents(source, notes))
    cutter = _Cutter(encoder, content=length - len(encoder.prefix))
    pool = _pool(cutter, encoded, source)
    _check_ids(pool.ids, model.vocabulary_size)
    drawn = np.random.default_rng(seed).permutation(len(pool.ids))[:n_sequences]
    specials = encoder.spelled_specials(pool.ids[:, len(encoder.prefix) :])
    notes += cutter.notes() + _pool_notes(len(pool.ids), n_sequences, specials)
    return Text(
        source=source,
        token_ids=pool.ids[drawn].astype(np.int64),
        documents=tuple(pool.documents[pool.owner[i]] for i in drawn),
        length=length,
        seed=seed,
        n_available=len(pool.ids),
        notes=tuple(notes),
        digest=_digest(pool, length),
    )


def _check_request(
    model: TokenizedModel, n_sequences: int, length: int, seed: int, n_prefix: int
) -> None:
    """Refuse numbers that no text could satisfy."""
    least = max(2, n_prefix + 1)
    if length < least:
        raise UsageError(
            f"a sequence needs at least {least} tokens to have one to predict, "
            f"but the length is {length}: give --length {least} or more"
        )
    if model.max_length is not None and length > model.max_length:
        raise UsageError(
            f"the length {length} is more than the {model.max_length} positions of the model: "
            f"give --length {model.max_length} or less"
        )
    if n_sequences < 1:
        raise UsageError(f"at least 1 sequence is needed, but --sequences is {n_sequences}")
    if seed < 0:
        raise UsageError(f"a seed is 0 or more, but --seed is {seed}")


def _check_ids(ids: Ids, vocabulary_size: int) -> None:
    """Refuse ids for which the model has no embedding."""
    largest = int(ids.max())
    if largest >= vocabulary_size:
        raise KingpostError(
            f"the tokenizer gives the token id {largest}, but the model's embedding has "
            f"{vocabulary_size} rows: the tokenizer does not belong to this model, use its own"
        )


def _pool_notes(n_available: int, n_sequences: int, specials: list[str]) -> list[str]:
    notes = []
    if specials:
        notes.append(
            "Among the text's tokens are special tokens of the tokenizer, kept as they are: "
            f"{', '.join(specials)}."
        )
    if n_available < n_sequences:
        notes.append(
            f"The text gives {n_available:,} sequences, fewer than the {n_sequences:,} asked for: "
            "all were taken."
        )
    return notes


class _Pool(NamedTuple):
    """All sequences that a source can give, in its order."""

    ids: Ids
    """int32 [n_available, T], with the prefix."""
    documents: list[str]
    owner: npt.NDArray[np.intp]
    """[n_available]: which of the documents each belongs to, never decreasing."""


def _pool(cutter: "_Cutter", encoded: Iterable[tuple[Document, Ids]], source: str) -> _Pool:
    """Cut all documents, and refuse a source that gives no sequence."""
    names: list[str] = []
    blocks: list[Ids] = []
    for name, block in cutter.cut_all(encoded):
        names.append(name)
        blocks.append(block)
    if not blocks:
        raise KingpostError(cutter.nothing(source))
    content = np.concatenate(blocks)
    prefix = np.tile(np.asarray(cutter.encoder.prefix, dtype=np.int32), (len(content), 1))
    owner = np.repeat(np.arange(len(names)), [len(block) for block in blocks])
    return _Pool(np.concatenate([prefix, content], axis=1), names, owner)


def _digest(pool: _Pool, length: int) -> str:
    """Hash a line of JSON, [length, [[document, its sequences], ...]], then the ids as int32."""
    counts = np.bincount(pool.owner).tolist()
    head = json.dumps([length, list(zip(pool.documents, counts, strict=True))])
    digest = hashlib.sha256(head.encode() + b"\n")
    digest.update(pool.ids.astype("<i4").tobytes())
    return digest.hexdigest()


@dataclass
class _Cutter:
    """Cuts documents into rows of `content` tokens, joins short ones, and counts what is left."""

    encoder: Encoder
    content: int
    """Tokens of a sequence without the prefix."""
    n_joined: int = 0
    n_joins: int = 0
    n_tail_tokens: int = 0
    left_out: list[tuple[int, int]] = field(default_factory=list)
    """(documents, tokens) of each file's last short ones, which joined gave no sequence."""

    def cut_all(self, encoded: Iterable[tuple[Document, Ids]]) -> Iterator[tuple[str, Ids]]:
        """Yield each document's name and its sequences' tokens, int32 [n, content], n > 0."""
        for name, ids in self._joined(encoded):
            n = len(ids) // self.content
            self.n_tail_tokens += len(ids) - n * self.content
            yield name, ids[: n * self.content].reshape(n, self.content)

    def _joined(self, encoded: Iterable[tuple[Document, Ids]]) -> Iterator[tuple[str, Ids]]:
        """Yield name and ids of the documents that are long enough, of themselves or joined."""
        waiting: list[Document] = []
        have = 0
        for document, ids in encoded:
            if waiting and document.file != waiting[0].file:
                self._leave_out(waiting)
                waiting = []
            if len(ids) >= self.content:
                yield document.name, ids
                continue
            have = len(ids) + (have + _BETWEEN if waiting else 0)
            waiting.append(document)
            if have < self.content:
                continue
            # The sum only says when to try: tokens may merge across the blank line.
            joined = self._join(waiting)
            have = len(joined)
            if have >= self.content:
                self.n_joined += len(waiting)
                self.n_joins += 1
                yield f"{waiting[0].name}+{len(waiting) - 1}", joined
                waiting = []
        if waiting:
            self._leave_out(waiting)

    def _join(self, documents: list[Document]) -> Ids:
        return self.encoder.encode(BLANK_LINE.join(document.text for document in documents))

    def _leave_out(self, documents: list[Document]) -> None:
        self.left_out.append((len(documents), len(self._join(documents))))

    def notes(self) -> list[str]:
        """Say what was joined and what was left out."""
        notes = []
        if self.n_joins:
            notes.append(
                f"{self.n_joined:,} documents shorter than one sequence were joined into "
                f"{self.n_joins:,}, with a blank line between."
            )
        if self.left_out:
            documents, tokens = (sum(column) for column in zip(*self.left_out, strict=True))
            notes.append(
                f"{counted(documents, 'document')} left out: too short for one sequence, also when "
                f"joined ({tokens:,} tokens)."
            )
        if self.n_tail_tokens:
            tokens_were = counted(self.n_tail_tokens, "token")
            notes.append(f"{tokens_were} left out, in tails shorter than one sequence.")
        return notes

    def nothing(self, source: str) -> str:
        """Say why a source gave no sequence at all."""
        if not self.left_out:
            return f"{source!r} has no text in it: give a file, folder or dataset with text"
        n_prefix = len(self.encoder.prefix)
        most = max(tokens for _, tokens in self.left_out)
        has = (
            f"{most:,} tokens" if len(self.left_out) == 1 else f"at most {most:,} tokens in a file"
        )
        shorter = f", or --length {most + n_prefix} or less" if most > 1 else ""
        return (
            f"{source!r} has {has}, too few for one sequence of {self.content + n_prefix}: "
            f"give a longer text{shorter}"
        )
