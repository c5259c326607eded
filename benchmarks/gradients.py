"""taylor, fisher and influence of all parameters against a plain forward and backward pass.

    python -m benchmarks.gradients [--dtype float32] [--sequences 16] [--rounds 3]

Same process, same model, same sequences one at a time; the two take turns in every round.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch

import kingpost

LENGTH = 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", default="float32", choices=["bfloat16", "float32"])
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    model = kingpost.load_model(dtype=options.dtype)
    text = kingpost.load_text(model=model, n_sequences=options.sequences, length=LENGTH)
    ids = torch.from_numpy(text.token_ids)
    plain(model, ids[:2])
    ratios = []
    for _ in range(options.rounds):
        start = time.perf_counter()
        plain(model, ids)
        middle = time.perf_counter()
        measure(model, text)
        end = time.perf_counter()
        ratios.append((end - middle) / (middle - start))
        print(
            f"plain {middle - start:.1f} s, Kingpost {end - middle:.1f} s, {ratios[-1]:.2f} times"
        )
    print(f"median ratio {statistics.median(ratios):.2f}")


def plain(model: kingpost.Model, ids: torch.Tensor) -> None:
    """Forward and backward over each sequence, gradients of all parameters."""
    model.hf.requires_grad_(True)
    for row in ids.split(1):
        model.hf(input_ids=row, labels=row, use_cache=False).loss.backward()
        model.hf.zero_grad()


def measure(model: kingpost.Model, text: kingpost.Text) -> None:
    """The same sequences measured, the ledger included."""
    where, measures = ["parameters", "blocks"], ["taylor", "fisher", "influence"]
    with tempfile.TemporaryDirectory() as folder:
        kingpost.scan(model, text, Path(folder) / "run", where, measures=measures, batch=4)


if __name__ == "__main__":
    main()
