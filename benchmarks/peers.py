"""Kingpost against three other ways to skip every block, on the same tokens in one run.

    python -m benchmarks.peers [--dtype bfloat16] [--sequences 16] [--rounds 1]

Each contestant lives in a process of its own, loads the model once (not timed), finds its best
batch size on a few sequences (not timed), and then takes its turn in every round. The floor is what
replay cannot avoid: the trunk forwards at the speed of the model's own forward pass without its
head, plus the head's matrix product alone.
"""

import argparse
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

LENGTH = 256
BATCHES = (2, 4, 8)


def main() -> None:
    options = _options()
    names = ["kingpost", *options.against.split(",")]
    contestants = {name: _start(name, options) for name in names}
    times: dict[str, list[float]] = {name: [] for name in names}
    losses: dict[str, np.ndarray] = {}
    peaks: dict[str, float] = {}
    floors: list[float] = []
    for _ in range(options.rounds):
        for name, (pipe, _) in contestants.items():
            pipe.send("scan")
            seconds, losses[name], peaks[name] = pipe.recv()
            times[name].append(seconds)
        contestants["kingpost"][0].send("floor")
        floors.append(contestants["kingpost"][0].recv())
    for pipe, process in contestants.values():
        pipe.send("stop")
        process.join()
    _print(options, times, losses, peaks, floors)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--against", default="hooks,nnsight,transformer_lens")
    return parser.parse_args()


def _start(name: str, options: argparse.Namespace) -> tuple[Connection, Any]:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(name, options.dtype, options.sequences, there))
    process.start()
    there.close()  # so that a contestant that dies is noticed
    here.recv()  # it is loaded and warm
    return here, process


def _serve(name: str, dtype: str, sequences: int, pipe: Connection) -> None:
    """What a contestant's process does: wait for its turn, scan, and send time and losses."""
    scan, floor = (_kingpost if name == "kingpost" else _peer)(name, dtype, sequences)
    _reset_peak()
    pipe.send("ready")
    while (order := pipe.recv()) != "stop":
        if order == "floor":
            pipe.send(floor())
            continue
        start = time.perf_counter()
        losses = scan()
        pipe.send((time.perf_counter() - start, losses, _peak() / 2**30))


def _kingpost(
    _: str, dtype: str, sequences: int
) -> tuple[Callable[[], np.ndarray], Callable[[], float]]:
    import kingpost

    model = kingpost.load_model(dtype=dtype)
    text = kingpost.load_text(model=model, n_sequences=sequences, length=LENGTH)
    warm = kingpost.load_text(model=model, n_sequences=1, length=LENGTH)

    def scan(text: kingpost.Text = text) -> np.ndarray:
        with tempfile.TemporaryDirectory() as folder:
            study = kingpost.scan(model, text, Path(folder) / "run")
            base = float(study.sequences()["base_loss"].mean())
            return np.array([base, *(base + study.table()["value"])])

    scan(warm)
    ids = torch.from_numpy(text.token_ids)
    return scan, lambda: _floor(model, ids)


@torch.no_grad()
def _floor(model: Any, ids: torch.Tensor) -> float:
    """Seconds that no replay can avoid, for all skips over ids [N, T]."""
    hidden, head = None, model.hf.lm_head.weight
    start = time.perf_counter()
    for part in ids.split(4):
        hidden = model.hf.model(input_ids=part, use_cache=False).last_hidden_state
    trunk = time.perf_counter() - start
    assert hidden is not None
    rows = hidden[:, :-1].reshape(-1, hidden.shape[-1])
    start = time.perf_counter()
    for _ in ids.split(4):
        torch.nn.functional.linear(rows, head)
    product = time.perf_counter() - start
    blocks = len(model.blocks)
    # The recording runs every block; a skip of block i those behind it.
    return trunk * (1 + (blocks - 1) / 2) + product * (blocks + 1)


def _peer(
    name: str, dtype: str, sequences: int
) -> tuple[Callable[[], np.ndarray], Callable[[], float]]:
    import kingpost
    from benchmarks.contestants import PREPARE
    from kingpost.models.gguf import dequantised_folder
    from kingpost.models.load import _demo_file

    folder = str(dequantised_folder(_demo_file()))
    tokens = kingpost.load_text(
        model=kingpost.load_model(dtype=dtype), n_sequences=sequences, length=LENGTH
    )
    ids = torch.from_numpy(tokens.token_ids)
    scan = PREPARE[name](folder, getattr(torch, dtype))
    batch = _best_batch(scan, ids)
    return (lambda: scan(ids, batch)), lambda: float("nan")


def _best_batch(scan: Any, ids: torch.Tensor) -> int:
    seconds = {}
    for batch in BATCHES:
        few = ids[: max(BATCHES)]
        scan(few[:batch], batch, [15])  # warm
        start = time.perf_counter()
        scan(few, batch, [15])
        seconds[batch] = (time.perf_counter() - start) / len(few)
    return min(seconds, key=seconds.__getitem__)


def _reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _peak() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))


def _print(
    options: argparse.Namespace,
    times: dict[str, list[float]],
    losses: dict[str, np.ndarray],
    peaks: dict[str, float],
    floors: list[float],
) -> None:
    kingpost = statistics.median(times["kingpost"])
    own = losses["kingpost"][1:] - losses["kingpost"][0]
    print(f"{options.dtype}, {options.sequences} x {LENGTH} tokens, {options.rounds} round(s)\n")
    print("| | seconds (median) | times Kingpost | peak resident GiB | largest ΔΔLoss, nats |")
    print("|---|---|---|---|---|")
    for name, runs in times.items():
        apart = float(np.abs((losses[name][1:] - losses[name][0]) - own).max())
        seconds = statistics.median(runs)
        cells = (
            f"{seconds:.1f}",
            f"{seconds / kingpost:.2f}",
            f"{peaks[name]:.2f}",
            f"{apart:.1e}",
        )
        print(f"| {name} | {' | '.join(cells)} |")
    floor = statistics.median(floors)
    print(f"| floor | {floor:.1f} | {floor / kingpost:.2f} | | |")


if __name__ == "__main__":
    main()
