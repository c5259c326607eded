"""kill -9 at any moment, then the same command again: the table has the same bytes."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import kingpost

# CI kills five times; KINGPOST_KILLS=20 is what a release is tried with.
KILLS = int(os.environ.get("KINGPOST_KILLS", "5"))
SEQUENCES = 60


def command(folder: str, out: Path) -> list[str]:
    options = f"--sequences {SEQUENCES} --length 100 --batch 2 --dtype float32 --device cpu"
    measures = "--measure ablation,influence,angular"
    return [
        *(sys.executable, "-m", "kingpost", "scan", folder, "--out", str(out)),
        *options.split(),
        *measures.split(),
    ]


def table(run: Path, name: str) -> bytes:
    file = run.parent / name
    kingpost.write_csv(kingpost.open_study(run), file)
    return file.read_bytes()


def test_killed_and_resumed_equals_undisturbed(tiny_folder: str, tmp_path: Path) -> None:
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    start = time.monotonic()
    subprocess.run(command(tiny_folder, undisturbed), check=True, capture_output=True)
    whole = time.monotonic() - start
    dice = random.Random(0)
    states = []
    for _ in range(KILLS):
        process = subprocess.Popen(command(tiny_folder, killed), stderr=subprocess.DEVNULL)
        time.sleep(dice.uniform(0.3, 1.0) * whole)
        process.send_signal(signal.SIGKILL)
        process.wait()
        states.append(_measured(killed))
    subprocess.run(command(tiny_folder, killed), check=True, capture_output=True)
    assert table(killed, "killed.csv") == table(undisturbed, "undisturbed.csv")
    assert states == sorted(states)  # nothing measured was lost
    sequences = [kingpost.open_study(run).sequences() for run in (killed, undisturbed)]
    assert sequences[0]["base_loss"].tolist() == sequences[1]["base_loss"].tolist()


def _measured(run: Path) -> int:
    try:
        return len(kingpost.open_study(run).observations())
    except kingpost.UsageError:  # killed before it began
        return 0


def test_killed_within_every_phase(tiny_folder: str, tmp_path: Path) -> None:
    """Killed by its own hand right after the n-th commit, so that no phase is left to chance."""
    undisturbed = tmp_path / "undisturbed"
    subprocess.run(command(tiny_folder, undisturbed), check=True, capture_output=True)
    expected = table(undisturbed, "undisturbed.csv")
    killer = (
        "import os, signal, sys\n"
        "from kingpost.study import Ledger\n"
        "commit, left = Ledger._transaction, [int(sys.argv.pop(1))]\n"
        "def counted(self):\n"
        "    left[0] -= 1\n"
        "    if left[0] < 0: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return commit(self)\n"
        "Ledger._transaction = counted\n"
        "from kingpost.cli import main\n"
        "main()\n"
    )
    killed = tmp_path / "killed"
    for commits in (0, 3, 5):
        arguments = command(tiny_folder, killed)[3:]
        process = subprocess.run(
            [sys.executable, "-c", killer, str(commits), *arguments], capture_output=True
        )
        assert process.returncode == -signal.SIGKILL
    subprocess.run(command(tiny_folder, killed), check=True, capture_output=True)
    assert table(killed, "killed.csv") == expected
