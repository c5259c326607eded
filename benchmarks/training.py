"""What a training step of the reference family costs, by batch and length.

    python -m benchmarks.training [--size D8] [--rounds 3]

The first contestant is the plain way: 32 sequences of 128 tokens, and memory that is freed goes
back to the system. Each runs in a process of its own; they take turns in every round.
"""

import argparse
import multiprocessing
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple
from unittest import mock

import torch
from transformers.models.olmo_hybrid import modeling_olmo_hybrid

from kingpost.reference import build
from kingpost.reference.memory import keep_freed_memory

STEPS = 4


class Contestant(NamedTuple):
    """How a step is made."""

    batch: int
    length: int
    keeps_memory: bool = True
    solves: bool = True
    """The chunked rule by a triangular solve, as transformers does; else row by row."""

    def __str__(self) -> str:
        memory = "kept" if self.keeps_memory else "given back"
        rule = "" if self.solves else ", row by row"
        return f"{self.batch} x {self.length}, memory {memory}{rule}"


CONTESTANTS = [
    Contestant(32, 128, keeps_memory=False),
    Contestant(32, 128),
    Contestant(16, 128),
    Contestant(8, 128),
    Contestant(16, 256),
    Contestant(8, 256),
    Contestant(4, 256),
    Contestant(4, 256, keeps_memory=False),
    Contestant(4, 256, solves=False),
    Contestant(2, 512),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="D8")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    speeds: dict[Contestant, list[float]] = {contestant: [] for contestant in CONTESTANTS}
    for _ in range(options.rounds):
        for contestant in CONTESTANTS:
            speeds[contestant].append(in_own_process(options.size, contestant))
    plain = statistics.median(speeds[CONTESTANTS[0]])
    for contestant, found in speeds.items():
        speed = statistics.median(found)
        print(f"{contestant!s:40} {speed:6.0f} tokens/s, {speed / plain:.2f} times the first")


def in_own_process(size: str, contestant: Contestant) -> float:
    """Tokens per second, measured where no other contestant has left its memory."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(measure, size, contestant).result()


def measure(size: str, contestant: Contestant) -> float:
    """Tokens per second over some steps, after one that is not counted."""
    if contestant.keeps_memory:
        keep_freed_memory()
    model = build(size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    ids = torch.randint(model.config.vocab_size, (contestant.batch, contestant.length))
    rows = mock.patch.object(
        modeling_olmo_hybrid, "is_torchdynamo_exporting", return_value=not contestant.solves
    )
    with rows:
        step(model, optimizer, ids)
        start = time.perf_counter()
        for _ in range(STEPS):
            step(model, optimizer, ids)
        return STEPS * ids.numel() / (time.perf_counter() - start)


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, ids: torch.Tensor) -> None:
    """One step of training."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


if __name__ == "__main__":
    main()
