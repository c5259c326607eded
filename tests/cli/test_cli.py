"""The command line as a user types it: real processes, exit statuses, one sentence for an error."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

import kingpost


def run(*arguments: object, **kwargs: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kingpost", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, **kwargs)


def scan(folder: str, out: Path, *more: object) -> subprocess.CompletedProcess[str]:
    return run(
        "scan", folder, "--out", out, "--sequences", 6, "--length", 24, "--dtype", "float32", *more
    )


@pytest.fixture(scope="module")
def finished(tiny_folder: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "tiny"
    done = scan(tiny_folder, out, "--measure", "ablation,influence", "--measure", "angular")
    assert done.returncode == 0, done.stderr
    return out


def test_scan_says_what_it_will_do_and_stays_quiet_in_a_pipe(
    tiny_folder: str, tmp_path: Path
) -> None:
    done = scan(tiny_folder, tmp_path / "run")
    assert done.returncode == 0
    assert done.stdout == ""
    assert "4 blocks" in done.stderr
    assert (
        "6 sequences × 24 tokens of python-docs; 4 measurements to make, about 0:0" in done.stderr
    )
    assert "\x1b" not in done.stderr
    assert len(done.stderr.splitlines()) < 12


def test_table_prints_every_cell_with_its_error(finished: Path) -> None:
    printed = run("table", finished)
    assert printed.returncode == 0
    lines = [line for line in printed.stdout.splitlines() if "L0" in line]
    assert len(lines) == 3
    table = kingpost.open_study(finished).table()
    first = table.iloc[0]
    assert any("ablation (skip)" in line and f"{first.value:.3f}"[:5] in line for line in lines)


def test_table_files(finished: Path, tmp_path: Path) -> None:
    assert run("table", finished, "--csv", tmp_path / "t.csv").returncode == 0
    assert run("table", finished, "--json", tmp_path / "t.json").returncode == 0
    assert run("table", finished, "--parquet", tmp_path / "p").returncode == 0
    table = kingpost.open_study(finished).table()
    assert pd.read_csv(tmp_path / "t.csv")["value"].tolist() == table["value"].tolist()
    assert [r["value"] for r in json.loads((tmp_path / "t.json").read_text())] == table[
        "value"
    ].tolist()
    assert len(pd.read_parquet(tmp_path / "p" / "observations.parquet")) == 3 * 4 * 6
    both = run("table", finished, "--csv", "a.csv", "--json", "b.json")
    assert both.returncode == 2
    assert "Give one of" in both.stderr


@pytest.mark.parametrize("kind", ["png", "pdf", "svg"])
def test_bars_writes_a_figure(finished: Path, tmp_path: Path, kind: str) -> None:
    file = tmp_path / f"figure.{kind}"
    assert run("bars", finished, finished, "--output", file).returncode == 0
    magic = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}[kind]
    assert file.read_bytes().startswith(magic)


def test_verify_prints_the_largest_difference(finished: Path) -> None:
    done = run("verify", finished, "--sites", 3)
    assert done.returncode == 0
    *sites, last = done.stdout.splitlines()
    assert len(sites) == 3
    assert last.startswith("largest difference")
    assert float(last.split()[2]) < 1e-5


def test_parts_of_blocks_from_scan_to_figure(tiny_folder: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = scan(tiny_folder, out, "--where", "blocks,attn", "--where", "mlp.*", "--measure",
                "ablation,taylor")  # fmt: skip
    assert done.returncode == 0, done.stderr
    # The weights alone: added to the same study without loading them.
    more = scan(tiny_folder, out, "--where", "parameters", "--measure", "snr,magnitude")
    assert more.returncode == 0, more.stderr
    assert f"{4 * 9 * 2} measurements to make" in more.stderr
    table = kingpost.open_study(out).table()
    exact = table[table["measure"] == "ablation"]
    assert set(zip(exact["component"], exact["ablation"], strict=True)) == {
        ("block", "skip"),
        ("attn", "zero"),
        *((f"mlp.{x}_proj", "zero") for x in ("gate", "up", "down")),
    }
    assert len(table[table["measure"] == "snr"]) == 4 * 9
    figure = tmp_path / "heatmap.pdf"
    assert run("heatmap", out, "--output", figure, "--normalize", "column").returncode == 0
    assert figure.read_bytes().startswith(b"%PDF")
    agreement = run("table", out, "--agreement")
    assert "rank blocks like the exact ΔLoss (skip)" in " ".join(agreement.stdout.split())
    checked = run("verify", out, "--sites", 20)
    assert checked.returncode == 0, checked.stderr
    assert "mlp.up_proj zero:" in checked.stdout


def test_inspect_shows_blocks_components_and_counts(tiny_folder: str) -> None:
    done = run("inspect", tiny_folder)
    assert done.returncode == 0
    assert "4 blocks at model.layers" in done.stdout
    assert "L0–L3: LlamaDecoderLayer" in done.stdout
    assert "self_attn.k_proj" in done.stdout
    assert "16 × 32" in done.stdout


def test_inspect_says_what_is_shared_and_fused(tmp_path: Path) -> None:
    import torch
    import transformers

    from tests_support import save

    torch.manual_seed(0)
    gpt2 = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=256, n_embd=16, n_layer=2, n_head=2, n_positions=64)
    )
    done = run("inspect", save(gpt2, tmp_path / "gpt2"))
    assert "tied to the input embedding" in done.stdout
    fused = next(line for line in done.stdout.splitlines() if "attn.c_attn " in line)
    assert "q_proj, k_proj, v_proj" in fused
    assert fused.rstrip(" │").endswith("fused")
    assert "sub-layers: attn (1,088 parameters), mlp (2,128 parameters)" in done.stdout


def test_versions() -> None:
    printed = run("--version").stdout
    assert all(f"{name} " in printed for name in ("kingpost", "torch", "transformers"))
    assert kingpost.__version__ in printed


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (
            ["scan", "no-such-folder/", "--out", "R"],
            2,
            "There is no folder no-such-folder/",
        ),
        (["scan", "{tiny}", "--out", "R", "--length", "24", "--text", "no.txt"], 2, "no.txt"),
        (
            ["scan", "{tiny}", "--out", "R", "--length", "24", "--where", "heads"],
            2,
            "Nothing in the blocks is called 'heads'",
        ),
        (["scan", "{tiny}", "--out", "R", "--batch", "many"], 2, "--batch many is no number"),
        (["scan", "{tiny}", "--out", "R", "--length", "4096"], 2, "4096"),
        (["scan", "{tiny}"], 2, "--out"),
        (["table", "no-run"], 2, "There is no study in no-run"),
        (["bars", "no-run", "--output", "f.png"], 2, "There is no study in no-run"),
        (["frobnicate"], 2, "frobnicate"),
    ],
)
def test_errors_are_one_sentence_with_the_right_status(
    tiny_folder: str, tmp_path: Path, arguments: list[str], status: int, message: str
) -> None:
    done = run(*(a.replace("{tiny}", tiny_folder) for a in arguments), cwd=tmp_path)
    assert done.returncode == status
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    done = run("table", "no-run", "--debug", cwd=tmp_path)
    assert done.returncode == 2
    assert "Traceback" in done.stderr


def test_a_figure_of_an_unknown_kind(finished: Path, tmp_path: Path) -> None:
    done = run("bars", finished, "--output", tmp_path / "figure.bmp")
    assert done.returncode == 2
    assert ".png, .pdf or .svg" in done.stderr


def test_ctrl_c_keeps_what_was_measured_and_says_how_to_go_on(
    tiny_folder: str, tmp_path: Path
) -> None:
    command = [
        sys.executable, "-m", "kingpost", "scan", tiny_folder, "--out", str(tmp_path / "run"),
        "--sequences", "2000", "--length", "120", "--batch", "1", "--dtype", "float32",
    ]  # fmt: skip
    # Where the tests themselves run in the background of a shell, the signal is ignored.
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    ledger = tmp_path / "run" / "ledger.sqlite"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not _observations(ledger):
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "kingpost scan" in said
    assert "--sequences 2000" in said
    assert "Traceback" not in said
    assert 0 < _observations(ledger) < 4 * 2000


def _observations(ledger: Path) -> int:
    if not ledger.exists():
        return 0
    try:
        return len(kingpost.open_study(ledger.parent).observations())
    except kingpost.KingpostError:
        return 0


@pytest.mark.parametrize(
    "command", ["scan", "table", "bars", "heatmap", "verify", "inspect", "train"]
)
def test_every_command_explains_itself(command: str) -> None:
    done = run(command, "-h")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"Usage: kingpost {command} ")
    if command in ("scan", "train"):
        assert "hf:NAME[/CONFIG][@SPLIT]" in done.stdout
