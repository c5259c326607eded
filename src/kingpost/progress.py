"""How far a scan is, and how long the rest will take."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from kingpost.engine import Engine
from kingpost.study import Site


@dataclass(frozen=True)
class ScanProgress:
    """How far a scan is.

    Attributes:
        done: Units of work that are measured; a unit is one site on one batch of sequences.
        total: Units that this scan will measure.
        seconds_left: What the rest will take, from the speed so far.
        site: The site that was measured last; None before the first.
        value: Its mean ΔLoss on its batch, nats per token.
        notes: What the self-check found, one sentence each.
    """

    done: int
    total: int
    seconds_left: float
    site: Site | None
    value: float | None
    notes: tuple[str, ...]


class Clock:
    """Tells the time left from the work left, since early blocks cost more than late ones.

    The cost of a unit is counted in seconds of the first batch: a recording runs every block and a
    unit those behind the site, and each computes the losses once.

    Args:
        engine: What runs the units.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._n_blocks = len(engine.model.blocks)
        self._done = self._total = self._baselines_left = 0
        self._left: list[Site] = []
        self._record_seconds = self._head_seconds = 0.0
        self._spent = self._expected = 0.0

    def expect(self, pending: Sequence[Sequence[Site]]) -> None:
        """Take what is left to do: the sites to be measured in each batch."""
        self._total = self._done + sum(len(sites) for sites in pending)
        self._baselines_left = len(pending)
        self._left = [s for sites in pending for s in sites if s.measure == "ablation"]

    @contextmanager
    def baseline(self) -> Iterator[None]:
        """Time the recording of a batch."""
        start = time.perf_counter()
        yield
        self._record_seconds = time.perf_counter() - start
        self._baselines_left -= 1

    @contextmanager
    def head(self) -> Iterator[None]:
        """Time the losses of a baseline."""
        start = time.perf_counter()
        yield
        self._head_seconds = time.perf_counter() - start

    @contextmanager
    def unit(self, site: Site) -> Iterator[None]:
        """Time one site on one batch."""
        start = time.perf_counter()
        yield
        self._spent += time.perf_counter() - start
        self._expected += self._cost(site)
        self._left.remove(site)

    def progress(
        self, n_done: int, site: Site | None, value: float | None, notes: Sequence[str]
    ) -> ScanProgress:
        """Count `n_done` more units and tell how far the scan is."""
        self._done += n_done
        # The first timings contain the warming up of the libraries; this takes it out again.
        correction = self._spent / self._expected if self._expected else 1.0
        baselines = self._baselines_left * (self._record_seconds + self._head_seconds)
        seconds = correction * (baselines + sum(self._cost(s) for s in self._left))
        return ScanProgress(self._done, self._total, seconds, site, value, tuple(notes))

    def _cost(self, site: Site) -> float:
        run = self._n_blocks - 1 - site.block if self._engine.replays else self._n_blocks
        return self._record_seconds * run / self._n_blocks + self._head_seconds
