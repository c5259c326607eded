"""kingpost train as a user types it."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest


def train(out: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "kingpost", "train", "D2", "--out", str(out), *more]


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["D3", "--out", "{}/a"], 2, "error: There is no size 'D3': give D2, D8, D12, D16."),
        (["D2", "--out", "{}"], 2, "is not empty and no training: give another --out."),
        (["D2", "--out", "{}/a", "--text", "{}/none"], 2, "error: there is no file or folder"),
        (["D2", "--out", "{}/a", "--text", "{}/short.txt"], 1, "too few for one sequence of 256"),
        (["D2", "--out", "{}/short.txt/a", "--text", "python-docs"], 1, "cannot be written"),
        (["D2", "--out", "{}/a", "--tokens", "0"], 2, "greater than or equal to 1"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    arguments: list[str], status: int, message: str, tmp_path: Path
) -> None:
    (tmp_path / "short.txt").write_text("a short text\n")
    command = [a.replace("{}", str(tmp_path)) for a in arguments]
    done = subprocess.run(
        [sys.executable, "-m", "kingpost", "train", *command], capture_output=True, text=True
    )
    assert done.returncode == status, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_ctrl_c_says_how_to_go_on(tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = subprocess.Popen(
        train(out, "--text", "python-docs", "--device", "cpu"),
        stderr=subprocess.PIPE,
        text=True,
        # A shell without job control starts what is in its background deaf to Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    for _ in range(600):
        if (out / "tensorboard").exists():
            break
        time.sleep(0.1)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert said.splitlines()[-2] == "Stopped. Go on from the last checkpoint with:"
    again = f"kingpost train D2 --out {out} --text python-docs --device cpu --resume"
    assert said.splitlines()[-1] == again
    assert "Traceback" not in said
