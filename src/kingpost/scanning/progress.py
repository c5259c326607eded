"""How far a scan is, and how long the rest will take."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

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

    The cost of a unit of the exact measure is counted in seconds of the first batch: a recording
    runs every block and a unit those from the site on, and each computes the losses once.

    Args:
        n_blocks: Blocks of the model.

    Attributes:
        replays: Whether the engine runs only what comes behind a site.
    """

    def __init__(self, n_blocks: int) -> None:
        self._n_blocks, self.replays = n_blocks, True
        self._done = self._total = 0
        self._left: list[Site] = []
        self._passes_left = {"recording": 0, "gradient": 0}
        self._seconds = {"recording": 0.0, "head": 0.0, "gradient": 0.0}
        self._spent = self._expected = 0.0

    def expect(self, units: int, exact: Sequence[Site], *, recordings: int, gradients: int) -> None:
        """Take what is left to do.

        Args:
            units: All units of work.
            exact: Those of the exact measure, once for each batch; no two need be different.
            recordings: Baselines to record.
            gradients: Sequences to take gradients of.
        """
        self._total = self._done + units
        self._left = list(exact)
        self._passes_left = {"recording": recordings, "gradient": gradients}

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Time one `recording`, the `head` of a recording, or one `gradient`."""
        start = time.perf_counter()
        yield
        self._seconds[what] = time.perf_counter() - start
        if what in self._passes_left:
            self._passes_left[what] -= 1

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
        baseline = self._seconds["recording"] + self._seconds["head"]
        seconds = self._passes_left["recording"] * baseline + sum(map(self._cost, self._left))
        seconds = correction * seconds + self._passes_left["gradient"] * self._seconds["gradient"]
        return ScanProgress(self._done, self._total, seconds, site, value, tuple(notes))

    def _cost(self, site: Site) -> float:
        """Seconds of one site on one batch; a part of a block needs its block run as well."""
        run = self._n_blocks - site.block - (site.component == "block")
        if not self.replays:
            run = self._n_blocks
        return self._seconds["recording"] * run / self._n_blocks + self._seconds["head"]
