"""The conductor: a request becomes units of work, they are run, and what they give is committed.

A unit is one site on one batch of sequences. Batches are laid out once and kept in the ledger, so
that a scan which was killed goes on with the same ones and ends with the same numbers.
"""

import os
import platform
import shlex
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kingpost.ablations import ABLATIONS, make_change
from kingpost.engine import (
    auto_batch,
    checked_engine,
    is_out_of_memory,
    why_not_finite,
)
from kingpost.errors import KingpostError, UsageError
from kingpost.measures import HIDDEN_MEASURES, MEASURES, HiddenStates, delta_loss, mean_loss
from kingpost.models import Model
from kingpost.progress import Clock, ScanProgress
from kingpost.study import FORMAT, Ledger, Site, Study, open_study, write_ledger
from kingpost.texts import Text

WHERE = ("blocks",)
# Sequences that are measured in a second batch layout, for the noise floor.
_NOISE_SEQUENCES = 8


def scan(
    model: Model,
    text: Text,
    out: str | os.PathLike[str],
    where: Sequence[str] = ("blocks",),
    ablation: str = "skip",
    measures: Sequence[str] = ("ablation",),
    batch: int | str = "auto",
    resume: bool = True,
    *,
    progress: Callable[[ScanProgress], None] | None = None,
) -> Study:
    """Take one site away at a time and measure how much worse the model gets.

    Every number is committed to the ledger in `out` as soon as it is measured. Running the same
    scan again goes on where it stopped; other measures of the same model and text are added.

    Args:
        model: The model.
        text: The sequences it is scored on.
        out: The run folder.
        where: Which sites: `blocks`.
        ablation: What is done to a site: `skip`.
        measures: Any of `ablation` (exact ΔLoss, nats per token), `influence` and `angular`.
        batch: Sequences per forward pass, or `auto`: as many as are fast and fit the memory. A
            study that has begun keeps its own.
        resume: Go on with a study that is in `out`; else refuse a folder that holds one.
        progress: Called at the start and after every unit of work.

    Raises:
        UsageError: An argument is not understood, or `out` holds a study and `resume` is off.
        KingpostError: `out` holds another study or cannot be written, another scan is writing it,
            or the model's loss is not finite.
    """
    sites = _sites(model, where, ablation, measures)
    with write_ledger(Path(out)) as ledger:
        if ledger.has_begun and not resume:
            raise UsageError(f"{out} already holds a study; give another folder or resume it.")
        ledger.start(_provenance(model, text))
        ledger.add_session(shlex.join(sys.argv), _context(model))
        ledger.add_sequences(text.token_ids, text.documents)
        _Scan(model, text, ledger, sites, progress).run(batch)
    return open_study(out)


class _Scan:
    """One run of `scan`, with the ledger open."""

    def __init__(
        self,
        model: Model,
        text: Text,
        ledger: Ledger,
        sites: list[Site],
        progress: Callable[[ScanProgress], None] | None,
    ) -> None:
        self.model, self.ledger, self.sites = model, ledger, sites
        self.ids = torch.from_numpy(text.token_ids)
        self.progress = progress

    def run(self, batch: int | str) -> None:
        """Measure what is left, batch by batch, and then the noise floor."""
        todo = self._todo(self._lay_out(batch))
        exact = any(s.measure == "ablation" for s in self.sites)
        if not todo and not (exact and self._noise_batches()):
            return
        self.engine, self.notes = checked_engine(self.model, self.ids)
        self.clock = Clock(self.engine)
        self.clock.expect([pending for _, pending in todo])
        while todo:
            sequences, pending = todo.pop(0)
            try:
                self._run_batch(sequences, pending)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                todo[:0] = self._todo(self._halve(sequences, error))
                self.clock.expect([pending for _, pending in todo])
        for sequences in self._noise_batches() if exact else []:
            self._measure_noise(sequences)

    def _todo(self, batches: list[list[int]]) -> list[tuple[list[int], list[Site]]]:
        """The batches in which something is left to measure, and what."""
        done = self.ledger.measured()
        pending = [[x for x in self.sites if any((x, s) not in done for s in b)] for b in batches]
        return [(b, sites) for b, sites in zip(batches, pending, strict=True) if sites]

    def _lay_out(self, batch: int | str) -> list[list[int]]:
        """Batches of sequence numbers: the ones of the ledger, and new ones for the rest."""
        rows = self.ledger.sequences()[: len(self.ids)]
        new = [r.sequence for r in rows if r.batch is None]
        if new:
            size = auto_batch(self.model, self.ids) if batch == "auto" else int(batch)
            first = 1 + max((r.batch for r in rows if r.batch is not None), default=-1)
            self.ledger.set_batches({s: first + i // size for i, s in enumerate(new)})
        batches: dict[int, list[int]] = {}
        for row in self.ledger.sequences()[: len(self.ids)]:
            batches.setdefault(int(row.batch or 0), []).append(row.sequence)
        return list(batches.values())

    def _halve(self, sequences: list[int], error: BaseException) -> list[list[int]]:
        if len(sequences) == 1:
            raise KingpostError(
                f"One sequence of {self.ids.shape[1]} tokens does not fit the memory; "
                "give a smaller --length or --dtype bfloat16."
            ) from error
        middle = len(sequences) // 2
        batch = 1 + max(r.batch or 0 for r in self.ledger.sequences())
        self.ledger.set_batches(dict.fromkeys(sequences[middle:], batch))
        return [sequences[:middle], sequences[middle:]]

    def _run_batch(self, sequences: list[int], pending: list[Site]) -> None:
        ids = self.ids[sequences].to(self.model.device)
        shape = {"n_sequences": len(sequences), "length": ids.shape[1]}
        hidden = HiddenStates(len(self.model.blocks), **shape)
        observe = any(s.measure in HIDDEN_MEASURES for s in pending)
        with self.clock.baseline():
            recording = self.engine.record(ids, on_block=hidden if observe else None)
        with self.clock.head():
            baseline = self.engine.token_losses(recording)
        self._check_finite(baseline, sequences)
        self.ledger.set_base_losses(sequences, mean_loss(baseline))
        free = {s: hidden.values(s.measure)[s.block] for s in pending if s.measure != "ablation"}
        self.ledger.add_observations(sequences, free)
        self._report(len(free), None, None)
        for site in (s for s in pending if s.measure == "ablation"):
            change = make_change(self.model, site.block, ablation=site.ablation)
            with self.clock.unit(site):
                deltas = delta_loss(self.engine.token_losses(recording, change), baseline)
            self.ledger.add_observations(sequences, {site: deltas})
            self._report(1, site, float(deltas.mean()))

    def _check_finite(self, baseline: torch.Tensor, sequences: list[int]) -> None:
        for row, sequence in zip(baseline, sequences, strict=True):
            if not bool(torch.isfinite(row).all()):
                why = why_not_finite(self.model, self.ids[[sequence]])
                raise KingpostError(
                    f"The loss of {self.model.name} on sequence {sequence} is not finite before "
                    f"anything is taken away: {why}; a damaged checkpoint or --dtype is the "
                    "likely cause."
                )

    def _noise_batches(self) -> list[list[int]]:
        """Another layout of the first sequences, alone or in twos, as far as it is not measured."""
        rows = self.ledger.sequences()[: len(self.ids)][:_NOISE_SEQUENCES]
        alone = len(rows) > 1 and rows[0].batch == rows[1].batch
        size = 1 if alone else 2
        layout = [rows[i : i + size] for i in range(0, len(rows) - size + 1, size)]
        return [
            [r.sequence for r in part]
            for part in layout
            if any(r.other_layout_loss is None for r in part)
        ]

    def _measure_noise(self, sequences: list[int]) -> None:
        recording = self.engine.record(self.ids[sequences].to(self.model.device))
        losses = mean_loss(self.engine.token_losses(recording))
        self.ledger.set_base_losses(sequences, losses, other_layout=True)

    def _report(self, n_done: int, site: Site | None, value: float | None) -> None:
        if self.progress is not None:
            self.progress(self.clock.progress(n_done, site, value, self.notes))


def _sites(
    model: Model, where: Sequence[str], ablation: str, measures: Sequence[str]
) -> list[Site]:
    for asked, known, what in (
        (where, WHERE, "place"),
        ([ablation], ABLATIONS, "ablation"),
        (measures, MEASURES, "measure"),
    ):
        for name in asked:
            if name not in known:
                raise UsageError(f"Unknown {what} {name!r}: there is {', '.join(known)}.")
    return [
        Site(block, "block", measure, ablation if measure == "ablation" else "")
        for measure in dict.fromkeys(measures)
        for block in range(len(model.blocks))
    ]


def _provenance(model: Model, text: Text) -> dict[str, Any]:
    """What must be the same for two scans to belong to one study."""
    return {
        "format": FORMAT,
        "model": model.name,
        "model_source": model.source,
        "model_notes": list(model.notes),
        "weights_sha256": model.weights_hash,
        "tokenizer_sha256": model.tokenizer_hash,
        "n_parameters": model.n_parameters,
        "n_blocks": len(model.blocks),
        "text": text.source,
        "text_sha256": text.digest,
        "length": text.length,
        "seed": text.seed,
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": model.device.type,
        "torch": torch.__version__,
        "transformers": version("transformers"),
    }


def _context(model: Model) -> dict[str, Any]:
    """What else is worth knowing about where a scan ran."""
    cuda = model.device.type == "cuda"
    return {
        "kingpost": version("kingpost"),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "platform": platform.platform(),
        "processor": torch.cuda.get_device_name(model.device) if cuda else platform.machine(),
        "threads": torch.get_num_threads(),
    }
