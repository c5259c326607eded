"""The conductor: a request becomes units of work, they are run, and what they give is committed.

A unit is one site on one batch of sequences. Batches are laid out once and kept in the ledger, so
that a scan which was killed goes on with the same ones and ends with the same numbers.
"""

import math
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kingpost.ablations import Setting
from kingpost.engine import (
    auto_batch,
    backward,
    checked_engine,
    is_out_of_memory,
    why_not_finite,
)
from kingpost.errors import KingpostError, UsageError
from kingpost.measures import (
    GRADIENT_MEASURES,
    WEIGHT_MEASURES,
    GradientSums,
    delta_loss,
    mean_loss,
    weight_values,
)
from kingpost.models import Component, Model, machine
from kingpost.scanning.progress import Clock, ScanProgress
from kingpost.scanning.provenance import provenance
from kingpost.scanning.replacements import Replacements
from kingpost.scanning.request import Target, needs_weights_only, targets
from kingpost.scanning.same import same_sites
from kingpost.scanning.watch import Watch
from kingpost.study import ComponentRow, Ledger, Site, Study, open_study, write_ledger
from kingpost.texts import Text

# Sequences that are measured in a second batch layout, for the noise floor.
_NOISE_SEQUENCES = 8


def scan(
    model: Model,
    text: Text,
    out: str | os.PathLike[str],
    where: Sequence[str] = ("blocks",),
    ablation: str = "auto",
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
        where: Which components: `blocks`, `components` (sub-layers, projections by role, and every
            parameter without a role), `parameters`, `norms`, a role such as `attn`, `mlp` or
            `q_proj`, or a glob pattern on the names of parameters inside a block.
        ablation: What is done to a component: `skip`, `zero`, `mean`, `resample`, `identity`,
            `noise:σ`, `quantize:bits[:group]`, `shrink:fraction`, `pin:0`, `pin:1` or `ones`; under
            `auto` it is taken away, by `skip` if it is a block and else by `zero`.
        measures: Any of `ablation` (exact ΔLoss, nats per token), `influence`, `angular`, `taylor`,
            `taylor_signed`, `fisher`, `wanda`, `magnitude`, `magnitude_mean`, `snr` and
            `quantization_error:bits[:group]`.
        batch: Sequences per forward pass, or `auto`: as many as are fast and fit the memory. A
            study that has begun keeps its own.
        resume: Go on with a study that is in `out`; else refuse a folder that holds one.
        progress: Called at the start and after every unit of work.

    Raises:
        UsageError: An argument is not understood, matches nothing or makes no sense where it is
            asked for, or `out` holds a study and `resume` is off.
        KingpostError: `out` holds another study or cannot be written, another scan is writing it,
            or the model's loss is not finite.
    """
    wanted = targets(model, where, ablation, measures)
    if model.files is not None and not needs_weights_only(measures):
        raise UsageError(
            f"{model.name} was loaded without its weights (device meta), which serves for measures "
            "of the weights alone; load it on a device."
        )
    with write_ledger(Path(out)) as ledger:
        if ledger.has_begun and not resume:
            raise UsageError(f"{out} already holds a study; give another folder or resume it.")
        ledger.start(provenance(model, text))
        _check_replaceable(ledger, wanted, len(text.token_ids))
        ledger.add_session(_command(), machine(model.target))
        ledger.add_components(map(_row, model.everything()))
        ledger.add_sequences(text.token_ids, text.documents)
        _Scan(model, text, ledger, wanted, progress).run(batch)
    return open_study(out)


def _row(c: Component) -> ComponentRow:
    return ComponentRow(c.block, c.name, c.kind, c.n_parameters, c.parameters)


def _check_replaceable(ledger: Ledger, wanted: Sequence[Target], n: int) -> None:
    """Raise a UsageError where `mean` or `resample` would draw on other sequences than before."""
    names = {t.site.ablation for t in wanted if t.ablation is not None and t.ablation.replaces_by}
    before = len(ledger.sequences())
    if not names:
        drawn = {site.ablation for site, _ in ledger.measured()}
        names = drawn.intersection(("mean", "resample")) if n > before else names
    if names and n == 1:
        raise UsageError(f"{min(names)} draws on other sequences: give at least two.")
    if names and before not in (0, n):
        raise UsageError(
            f"{min(names)} draws on all sequences of a study, of which there were {before} and "
            f"now are {n}: give the same number, or another folder."
        )


class _Scan:
    """One run of `scan`, with the ledger open."""

    def __init__(
        self,
        model: Model,
        text: Text,
        ledger: Ledger,
        wanted: list[Target],
        progress: Callable[[ScanProgress], None] | None,
    ) -> None:
        self.model, self.ledger, self.seed = model, ledger, text.seed
        self.ids = torch.from_numpy(text.token_ids)
        self.of_weights = [t for t in wanted if t.family in WEIGHT_MEASURES]
        self.wanted = [t for t in wanted if t.family not in WEIGHT_MEASURES]
        self.exact = [t for t in self.wanted if t.ablation is not None]
        self.progress = progress
        self.notes: list[str] = []
        self.first = {t.site: t.site for t in self.exact}
        self.clock = Clock(len(model.blocks))

    def run(self, batch: int | str) -> None:
        """Measure what is left: the weights, then batch by batch, and then the noise floor."""
        batches = self._lay_out(batch) if self.wanted else []
        todo = self._todo(batches)
        self._expect(todo)
        self._measure_weights()
        if not todo and not (self.exact and self._noise_batches()):
            return
        if not all(_by_gradients(pending) for _, pending in todo) or self.exact:
            self.engine, self.notes = checked_engine(self.model, self.ids)
            self.clock.replays = self.engine.replays
        self._find_same()
        self._expect(todo)
        self.replacements = Replacements(self.model, self.ids, self.seed)
        self.replacements.take_means(_pending_exact(todo), batches)
        while todo:
            sequences, pending = todo.pop(0)
            try:
                self._run_batch(sequences, pending)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                todo[:0] = self._todo(self._halve(sequences, error))
                self._expect(todo)
        for sequences in self._noise_batches() if self.exact else []:
            self._measure_noise(sequences)

    def _find_same(self) -> None:
        """Which sites of the exact measure give the same number, and note it."""
        if self.exact:
            self.first = same_sites(self.engine, self.ids, self.exact, self.seed)
        copies = {site: _called(first, site) for site, first in self.first.items() if site != first}
        self.ledger.mark_same(copies)

    def _todo(self, batches: list[list[int]]) -> list[tuple[list[int], list[Target]]]:
        """The batches in which something is left to measure, and what."""
        done = self.ledger.measured()
        pending = [
            [t for t in self.wanted if any((t.site, s) not in done for s in b)] for b in batches
        ]
        return [(b, left) for b, left in zip(batches, pending, strict=True) if left]

    def _expect(self, todo: list[tuple[list[int], list[Target]]]) -> None:
        exact, recordings, gradients = [], 0, 0
        for sequences, pending in todo:
            exact += list(self._distinct(pending))
            recordings += not _by_gradients(pending)
            if any(t.family in GRADIENT_MEASURES for t in pending):
                gradients += len(sequences)
        units = len(self._weights_left()) + sum(len(pending) for _, pending in todo)
        self.clock.expect(units, exact, recordings=recordings, gradients=gradients)

    def _distinct(self, pending: list[Target]) -> dict[Site, list[Site]]:
        """The sites to run, and for each those that it gives the number of."""
        distinct: dict[Site, list[Site]] = {}
        for target in pending:
            if target.ablation is not None:
                distinct.setdefault(self.first[target.site], []).append(target.site)
        return distinct

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

    def _weights_left(self) -> list[Target]:
        done = self.ledger.constants()
        return [t for t in self.of_weights if t.site not in done]

    def _measure_weights(self) -> None:
        """The measures that need no text, block by block."""
        left = self._weights_left()
        if left:
            self._report(0, None, None)
        for block in dict.fromkeys(t.site.block for t in left):
            here = [t for t in left if t.site.block == block]
            components = {t.site.component: t.component for t in here}
            measures = list(dict.fromkeys(t.site.measure for t in here))
            names, values = list(components), {}
            for i, measure, value in weight_values(self.model, list(components.values()), measures):
                values[Site(block, names[i], measure)] = value
            self.ledger.add_constants({t.site: values[t.site] for t in here})
            self._report(len(here), None, None)

    def _run_batch(self, sequences: list[int], pending: list[Target]) -> None:
        gradients = [t for t in pending if t.family in GRADIENT_MEASURES]
        if _by_gradients(pending):
            self._run_gradients(sequences, pending)
            return
        self._run_recorded(sequences, [t for t in pending if t not in gradients])
        if gradients:
            self._run_gradients(sequences, gradients)

    def _run_recorded(self, sequences: list[int], pending: list[Target]) -> None:
        """The baseline, what can be read off it, and the exact measure."""
        ids = self.ids[sequences].to(self.model.device)
        watch = Watch(self.model, pending, n_sequences=len(ids), length=ids.shape[1])
        with self.clock.timed("recording"), watch.watching():
            recording = self.engine.record(ids, on_block=watch.on_block)
        with self.clock.timed("head"):
            baseline = self.engine.token_losses(recording)
        self._check_finite(mean_loss(baseline), sequences)
        self.ledger.set_base_losses(sequences, mean_loss(baseline))
        self._commit(sequences, watch.values())
        by_site = {t.site: t for t in self.exact}
        for site, members in self._distinct(pending).items():
            target = by_site[site]
            setting = Setting(self.seed, self.replacements.of(target, sequences, pending))
            assert target.ablation is not None
            with self.clock.unit(site):
                change = target.ablation.change(self.model, target.component, setting)
                deltas = delta_loss(self.engine.token_losses(recording, change), baseline)
            self.ledger.add_observations(sequences, dict.fromkeys(members, deltas))
            self._report(len(members), site, float(deltas.mean()))

    def _run_gradients(self, sequences: list[int], pending: list[Target]) -> None:
        """One forward and backward pass for each sequence, and what can be read off it."""
        measured = [t for t in pending if t.family in GRADIENT_MEASURES]
        components = list({(t.site.block, t.site.component): t.component for t in measured}.items())
        for sequence in sequences:
            ids = self.ids[[sequence]].to(self.model.device)
            sums = GradientSums(self.model, [c for _, c in components])
            watch = Watch(self.model, pending, n_sequences=1, length=ids.shape[1])
            with self.clock.timed("gradient"), watch.watching():
                loss = backward(self.model, ids, sums.parameters, sums, on_block=watch.on_block)
            self._check_finite([loss], [sequence])
            if self.ledger.sequences()[sequence].base_loss is None:
                self.ledger.set_base_losses([sequence], [loss])
            values = watch.values()
            for measure in dict.fromkeys(t.site.measure for t in measured):
                row = zip(components, sums.values(measure), strict=True)
                values |= {Site(*key, measure): np.array([x]) for (key, _), x in row}
            wanted = {t.site for t in pending}
            self._commit([sequence], {s: v for s, v in values.items() if s in wanted})
        self._report(0, None, None)

    def _commit(self, sequences: list[int], values: Mapping[Site, Any]) -> None:
        self.ledger.add_observations(sequences, values)
        self._report(len(values) if len(sequences) else 0, None, None)

    def _check_finite(self, losses: Iterable[float], sequences: list[int]) -> None:
        for loss, sequence in zip(losses, sequences, strict=True):
            if not math.isfinite(loss):
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


def _command() -> str:
    """What was called, by name: where a program lies says nothing about a study."""
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])


def _by_gradients(pending: Iterable[Target]) -> bool:
    """Whether gradients are taken and all else can be read off the same forward pass."""
    families = {t.family for t in pending}
    return bool(families.intersection(GRADIENT_MEASURES)) and "ablation" not in families


def _pending_exact(todo: list[tuple[list[int], list[Target]]]) -> list[Target]:
    exact = {t.site: t for _, pending in todo for t in pending if t.ablation is not None}
    return list(exact.values())


def _called(first: Site, site: Site) -> str:
    """How a site is pointed at from another one."""
    return first.component if first.block == site.block else f"L{first.block} {first.component}"
