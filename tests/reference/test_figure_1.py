"""`make figure1` with a tiny budget: from nothing to the figure, and nothing is done twice."""

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from PIL import Image

ROOT = Path(__file__).parents[2]
SIZES = {"D2": 2, "D8": 8}


def make_figure(folder: Path) -> str:
    """Run it with the interpreter of the tests, which has what a checkout's .venv would have."""
    options = {
        "BIN": Path(sys.executable).parent,
        "FIGURE1": folder,
        "SIZES": " ".join(SIZES),
        "TOKENS": 3072,
        "TEXT": "python-docs",
        "SEQUENCES": 4,
    }
    done = subprocess.run(
        ["make", "figure1", "-o", ".venv/kingpost", *(f"{k}={v}" for k, v in options.items())],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.usefixtures("one_thread")
def test_from_nothing_to_the_figure(tmp_path: Path) -> None:
    folder = tmp_path / "figure"
    make_figure(folder)
    results = folder / "results"
    for size, n_blocks in SIZES.items():
        cells = pd.read_csv(results / size / "cells.csv")
        found = set(zip(cells["component"], cells["block"], strict=True))
        gated = [i for i in range(n_blocks) if i % 4 != 3 and i != n_blocks - 1]
        assert found == {("q_proj", i) for i in range(n_blocks)} | {
            (gate, i) for gate in ("alpha", "beta") for i in gated
        }
        provenance = json.loads((results / size / "provenance.json").read_text())
        assert provenance["model"] == size
        assert provenance["text"] == f"{folder}/D2/validation.jsonl"
        assert json.loads((results / size / "training.json").read_text())["result"]["steps"] == 3
        assert len(pd.read_csv(results / size / "history.csv")) == 6
    assert provenance["n_parameters"] == 30_440_416
    with Image.open(results / "figure-1.png") as picture:
        assert picture.width > picture.height > 300
    assert (results / "figure-1.pdf").read_bytes().startswith(b"%PDF")
    assert "q_proj: share of L0-L2 in D2 / in D8" in (results / "claims.txt").read_text()
    before = (results / "D8" / "cells.csv").read_bytes()
    weights = (folder / "D8" / "model.safetensors").stat().st_mtime_ns
    said = make_figure(folder)
    assert "tokens/s" not in said
    assert (folder / "D8" / "model.safetensors").stat().st_mtime_ns == weights
    assert (results / "D8" / "cells.csv").read_bytes() == before
