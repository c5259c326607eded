"""Kingpost's exact grids against a scan of skips and against a plain loop of forward hooks.

    python -m benchmarks.grid [--dtype bfloat16] [--sequences 4] [--rounds 1]

Same process, same model, same tokens, same batches; the contestants take turns in every round.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import kingpost
from benchmarks.contestants import sequence_losses

LENGTH, BATCH = 256, 4
GRID = ["blocks", "attn", "mlp", "q_proj"]
MODULES = {"attn": "self_attn", "mlp": "mlp", "q_proj": "self_attn.q_proj"}
MODULES |= {f"{x}_proj": f"self_attn.{x}_proj" for x in "kvo"}
MODULES |= {f"{x}_proj": f"mlp.{x}_proj" for x in ("gate", "up", "down")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--sequences", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    model = kingpost.load_model(dtype=options.dtype)
    text = kingpost.load_text(model=model, n_sequences=options.sequences, length=LENGTH)
    ids = torch.from_numpy(text.token_ids)
    grid_sites = [(b, name) for name in GRID for b in range(len(model.blocks))]
    all_sites = [(b, name) for name in MODULES for b in range(len(model.blocks))]
    contestants: dict[str, Callable[[], dict]] = {
        "skips": lambda: scan(model, text, ["blocks"]),
        "grid": lambda: scan(model, text, GRID),
        "hooks, grid": lambda: hooks(model, ids, grid_sites),
        "components": lambda: scan(model, text, list(MODULES)),
        "hooks, components": lambda: hooks(model, ids, all_sites),
    }
    times: dict[str, list[float]] = {name: [] for name in contestants}
    values: dict[str, dict] = {}
    scan(model, kingpost.load_text(model=model, n_sequences=1, length=LENGTH), ["blocks"])
    for _ in range(options.rounds):
        for name, run in contestants.items():
            start = time.perf_counter()
            values[name] = run()
            times[name].append(time.perf_counter() - start)
    seconds = {name: statistics.median(taken) for name, taken in times.items()}
    print(f"{options.sequences} x {LENGTH} tokens, {options.dtype}, medians of {options.rounds}")
    for name, taken in seconds.items():
        print(f"{name:20} {taken:8.1f} s")
    for ours in ("grid", "components"):
        other = f"hooks, {ours}"
        apart = max(abs(values[ours][s] - values[other][s]) for s in values[other])
        ratio = seconds[other] / seconds[ours]
        print(f"{ours}: hooks take {ratio:.2f} times as long, largest difference {apart:.1e} nats")
    print(f"the grid takes {seconds['grid'] / seconds['skips']:.2f} times a scan of skips")


def scan(model: kingpost.Model, text: kingpost.Text, where: list[str]) -> dict:
    """ΔLoss of each (block, component), by a scan into a folder that is thrown away."""
    with tempfile.TemporaryDirectory() as folder:
        table = kingpost.scan(model, text, Path(folder) / "run", where, batch=BATCH).table()
    return {(r.block, r.component.replace("block", "blocks")): r.value for r in table.itertuples()}


@torch.no_grad()
def hooks(model: kingpost.Model, ids: torch.Tensor, sites: list[tuple[int, str]]) -> dict:
    """ΔLoss of each site by a forward hook that returns zeros, or of a block its input."""

    def losses() -> np.ndarray:
        parts = [
            sequence_losses(model.hf(input_ids=part, use_cache=False).logits, part)
            for part in ids.split(BATCH)
        ]
        return torch.cat(parts).double().numpy()

    def zeros(_: Any, __: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return (torch.zeros_like(output[0]), *output[1:])
        return torch.zeros_like(output)

    baseline, found = losses(), {}
    for block, name in sites:
        layer = model.blocks[block]
        if name == "blocks":
            handle = layer.register_forward_hook(lambda _, args, __: args[0])
        else:
            handle = layer.get_submodule(MODULES[name]).register_forward_hook(zeros)
        found[block, name] = float((losses() - baseline).mean())
        handle.remove()
    return found


if __name__ == "__main__":
    main()
