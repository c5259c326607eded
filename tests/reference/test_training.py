"""Training as a user starts it; killed and resumed, it ends with the same weights."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import kingpost
from kingpost.reference import build, train
from kingpost.texts import read_documents

TOKENS = 200_000

pytestmark = pytest.mark.usefixtures("one_thread")


def start(out: Path, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "kingpost", "train", "D2", "--out", str(out)]
    return subprocess.Popen(
        [*command, "--tokens", str(TOKENS), "--device", "cpu", *more],
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained") / "D2"
    process = start(out)
    _, said = process.communicate(timeout=600)
    assert process.returncode == 0, said
    lines = said.splitlines()
    assert any("tokens/s" in line and "left" in line for line in lines), said
    assert lines[-1].startswith("Done: 200,704 tokens, validation loss ")
    return out


def test_loss_falls_on_documents_that_were_held_out(undisturbed: Path) -> None:
    record = json.loads((undisturbed / "training.json").read_text())
    result = record["result"]
    assert result["first_loss"] == pytest.approx(np.log(12_160), abs=0.2)
    assert result["last_loss"] < result["first_loss"] - 2
    assert result["validation_loss"] < result["first_loss"] - 2
    # The same number from the folder by a plain forward pass.
    model = kingpost.load_model(str(undisturbed), dtype="float32", device="cpu")
    held_out = list(read_documents(str(undisturbed / "validation.jsonl"), []))
    assert len(held_out) == record["corpus"]["held_out_documents"]
    encoded = [model.tokenizer(document.text)["input_ids"] + [0] for document in held_out]
    stream = torch.tensor([token for ids in encoded for token in ids])
    assert len(stream) == record["corpus"]["held_out_tokens"]
    pieces = stream[: len(stream) // 256 * 256].view(-1, 256)
    ids = pieces[np.random.default_rng(0).permutation(len(pieces))[:32]]
    with torch.no_grad():
        loss = model.hf(input_ids=ids, labels=ids).loss.item()
    assert result["validation_loss"] == pytest.approx(loss, abs=0.02)  # it was bfloat16


def test_the_folder_has_a_model_a_curve_and_events(undisturbed: Path) -> None:
    names = {file.name for file in undisturbed.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "validation.jsonl"} <= names
    assert not any(file.suffix in (".bin", ".pt", ".pth") for file in undisturbed.iterdir())
    history = pd.read_csv(undisturbed / "history.csv")
    assert history["step"].max() == 196
    assert history["validation_loss"].count() == 10
    assert history["seconds"].is_monotonic_increasing
    assert history["learning_rate"].max() == pytest.approx(1e-3 * 512 / 128)
    with Image.open(undisturbed / "loss.png") as picture:
        assert len(picture.getcolors(maxcolors=2**20)) > 20
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(undisturbed / "tensorboard")).Reload()
    logged = [event.value for event in events.Scalars("train/loss")]
    assert logged == pytest.approx(history["loss"].dropna().tolist(), rel=1e-5)


def test_killed_and_resumed_it_ends_with_the_same_weights(
    undisturbed: Path, tmp_path: Path
) -> None:
    killed = tmp_path / "D2"
    for kill in range(2):
        process = start(killed, "--resume")
        _wait_for_checkpoint(killed, 1 + 4 * kill, process)
        time.sleep(random.Random(kill).uniform(0, 2))
        process.send_signal(signal.SIGKILL)
        process.communicate()
    done = start(killed, "--resume")
    _, said = done.communicate(timeout=600)
    assert done.returncode == 0, said
    assert "1,024 of" not in said  # it did not begin again
    expected, found = (load_file(run / "model.safetensors") for run in (undisturbed, killed))
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    histories = [pd.read_csv(run / "history.csv") for run in (undisturbed, killed)]
    known = ["step", "loss", "validation_loss", "learning_rate", "gradient_norm"]
    pd.testing.assert_frame_equal(histories[0][known], histories[1][known])


def _wait_for_checkpoint(run: Path, n: int, process: subprocess.Popen[str]) -> None:
    """Wait until so many tenths are trained and saved."""
    for _ in range(6000):
        steps = [int(f.name.rpartition("-")[2]) for f in run.glob("checkpoints/checkpoint-*")]
        if max(steps, default=0) >= 20 * n:
            return
        assert process.poll() is None, process.stderr.read() if process.stderr else ""
        time.sleep(0.1)
    raise AssertionError("no checkpoint came")


@pytest.fixture(scope="module")
def short_text(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("text") / "text.txt"
    file.write_text("".join(f"{i} squared is {i * i}.\n" for i in range(3000)))
    return str(file)


def test_a_torn_checkpoint_and_a_torn_end_are_passed_over(short_text: str, tmp_path: Path) -> None:
    options = {"tokens": 4096, "length": 64, "device": "cpu"}
    whole = train("D2", tmp_path / "whole", short_text, **options)
    torn = tmp_path / "torn"
    train("D2", torn, short_text, **options)
    checkpoints = sorted(torn.glob("checkpoints/checkpoint-*"), key=os.path.getmtime)
    (checkpoints[-1] / "trainer_state.json").write_text('{"best_gl')
    (torn / "model.safetensors").write_bytes(b"torn")
    record = json.loads((torn / "training.json").read_text())
    del record["result"]
    (torn / "training.json").write_text(json.dumps(record))
    again = train("D2", torn, short_text, resume=True, **options)
    assert again["result"]["validation_loss"] == whole["result"]["validation_loss"]
    expected, found = (load_file(run / "model.safetensors") for run in (tmp_path / "whole", torn))
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    # All was saved, but the result was not written.
    record = json.loads((torn / "training.json").read_text())
    del record["result"]
    (torn / "training.json").write_text(json.dumps(record))
    again = train("D2", torn, short_text, resume=True, **options)
    assert again["result"]["last_loss"] == whole["result"]["last_loss"]


def test_what_is_done_is_not_done_again(short_text: str, tmp_path: Path) -> None:
    options = {"tokens": 1024, "length": 64, "device": "cpu"}
    record = train("D2", tmp_path / "run", short_text, **options)
    seen: list[object] = []
    again = train("D2", tmp_path / "run", short_text, resume=True, progress=seen.append, **options)
    assert again == record
    assert seen == []


def test_a_text_is_read_again_when_it_is_too_short(short_text: str, tmp_path: Path) -> None:
    record = train("D2", tmp_path / "run", short_text, tokens=60_000, length=64, device="cpu")
    assert record["corpus"]["tokens"] < record["result"]["tokens"] == 60_160


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": "D9"}, r"There is no size 'D9'"),
        ({"resume": False}, r"run has a training: go on with --resume, or give another --out\."),
        ({"tokens": 2048}, r"run was begun with tokens 1024, not 2048: give the same options"),
        ({"text": "other.txt"}, r"run was begun with text '.*text\.txt', not 'other\.txt'"),
        ({"out": "full"}, r"full is not empty and no training: give another --out\."),
        ({"out": "new", "length": 2048}, r"tokens, too few for one sequence of 2048"),
        ({"out": "new", "length": 1}, r"length is 1: give from 2 to 2048\."),
        ({"out": "new", "tokens": 0}, r"tokens is 0: give 1 or more\."),
        ({"out": "new", "batch": -1}, r"batch is -1: give 1 or more\."),
        ({"out": "new", "text": "nothing.txt"}, r"there is no file or folder 'nothing\.txt'"),
        ({"out": "new", "device": "tpu9"}, r"Device 'tpu9' cannot be used here"),
    ],
)
def test_wrong_requests_are_a_sentence(
    options: dict[str, object], message: str, short_text: str, tmp_path: Path
) -> None:
    given = {"size": "D2", "text": short_text, "tokens": 1024, "length": 64, "device": "cpu"}
    train(**given, out=tmp_path / "run")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    out = tmp_path / str(options.pop("out", "run"))
    with pytest.raises(kingpost.KingpostError, match=message) as error:
        train(**{**given, "resume": True, **options}, out=out)
    assert "\n" not in str(error.value)


def test_other_tokens_of_the_same_name_are_refused(short_text: str, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(Path(short_text).read_text())
    options = {"tokens": 1024, "length": 64, "device": "cpu"}
    train("D2", tmp_path / "run", str(text), **options)
    record = json.loads((tmp_path / "run" / "training.json").read_text())
    del record["result"]
    (tmp_path / "run" / "training.json").write_text(json.dumps(record))
    text.write_text(text.read_text().replace("squared", "cubed"))
    with pytest.raises(kingpost.UsageError, match=r"was begun when '.*text\.txt' was another text"):
        train("D2", tmp_path / "run", str(text), resume=True, **options)


def test_norms_and_decays_have_no_weight_decay() -> None:
    from kingpost.reference.trainer import _optimizer

    model = build("D2")
    names = {id(p): name for name, p in model.named_parameters()}
    spared = {
        names[id(p)]
        for group in _optimizer(model, 1e-3).param_groups
        if group["weight_decay"] == 0
        for p in group["params"]
    }
    ends = ("norm.weight", "A_log", "dt_bias")
    assert spared == {n for n in names.values() if n.endswith(ends)}
