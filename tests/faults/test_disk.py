"""Disks that are full or read-only, as real file systems where the test may mount one."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import kingpost
from kingpost.errors import KingpostError


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB of its own."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk], check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a file system needs root")
    yield disk
    subprocess.run(["umount", disk], check=True)


def _scan(folder: str, out: Path) -> subprocess.CompletedProcess[str]:
    options = "--sequences 120 --length 100 --batch 2 --dtype float32"
    return subprocess.run(
        [sys.executable, "-m", "kingpost", "scan", folder, "--out", str(out), *options.split()],
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_full_disk_is_said_and_the_scan_goes_on_when_there_is_room(
    tiny_folder: str, small_disk: Path, tmp_path: Path
) -> None:
    done = _scan(tiny_folder, small_disk / "run")
    assert done.returncode == 1
    assert "the disk is full; make room and run the same command again" in done.stderr
    assert "Traceback" not in done.stderr
    kept = len(kingpost.open_study(small_disk / "run").observations())
    subprocess.run(["mount", "-o", "remount,size=20m", small_disk], check=True)
    assert _scan(tiny_folder, small_disk / "run").returncode == 0
    study = kingpost.open_study(small_disk / "run")
    assert kept < len(study.observations()) == 4 * 120
    _scan(tiny_folder, tmp_path / "undisturbed")
    assert study.table().equals(kingpost.open_study(tmp_path / "undisturbed").table())


def test_a_read_only_disk_is_refused_for_writing_and_fine_for_reading(
    tiny_folder: str, small_disk: Path, tmp_path: Path, tiny_model: kingpost.Model
) -> None:
    text = kingpost.load_text(model=tiny_model, n_sequences=3, length=24)
    table = kingpost.scan(tiny_model, text, tmp_path / "run").table()
    shutil.copytree(tmp_path / "run", small_disk / "run")
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    assert kingpost.open_study(small_disk / "run").table().equals(table)
    for out in (small_disk / "run", small_disk / "new"):
        with pytest.raises(KingpostError, match=r"Read-only file system.*give another --out"):
            kingpost.scan(tiny_model, text, out)


def test_a_file_in_the_place_of_the_folder(tiny_model: kingpost.Model, tmp_path: Path) -> None:
    text = kingpost.load_text(model=tiny_model, n_sequences=3, length=24)
    (tmp_path / "run").write_text("not a folder")
    with pytest.raises(KingpostError, match=r"run cannot be written \(File exists\)"):
        kingpost.scan(tiny_model, text, tmp_path / "run")


def test_two_scans_cannot_write_one_folder(tiny_folder: str, tmp_path: Path) -> None:
    from kingpost.study import write_ledger

    with write_ledger(tmp_path / "run"):
        done = _scan(tiny_folder, tmp_path / "run")
    assert done.returncode == 1
    assert "Another scan is writing" in done.stderr
