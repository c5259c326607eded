"""The scan as a whole: right numbers, and resumed to the last bit."""

from pathlib import Path

import numpy as np
import pytest
import torch

import kingpost
from kingpost.engine import Engine
from kingpost.errors import KingpostError, UsageError
from kingpost.scanning import conductor
from kingpost.scanning.provenance import provenance as provenance_of
from tests_support import N_BLOCKS, save, tiny_llama


def plain_delta(model: kingpost.Model, ids: np.ndarray, block: int) -> np.ndarray:
    """ΔLoss of each sequence by removing the block from a plain PyTorch forward pass."""

    def mean_losses() -> torch.Tensor:
        with torch.no_grad():
            logits = model.hf(torch.from_numpy(ids)).logits.double()
        chosen = logits[:, :-1].log_softmax(-1).gather(-1, torch.from_numpy(ids)[:, 1:, None])
        return -chosen.squeeze(-1).mean(1)

    baseline = mean_losses()
    handle = model.blocks[block].register_forward_hook(lambda _, args, output: args[0])
    try:
        return (mean_losses() - baseline).numpy()
    finally:
        handle.remove()


def test_every_cell_equals_a_plain_hooked_forward(
    tiny_model: kingpost.Model, tiny_text: kingpost.Text, tmp_path: Path
) -> None:
    study = kingpost.scan(tiny_model, tiny_text, tmp_path, batch=4)
    observed = study.observations().pivot(index="block", columns="sequence", values="value")
    for block in range(N_BLOCKS):
        expected = plain_delta(tiny_model, tiny_text.token_ids, block)
        np.testing.assert_allclose(observed.loc[block], expected, atol=1e-6, rtol=0)
    table = study.table()
    assert table["value"].to_numpy() == pytest.approx(observed.mean(axis=1).to_numpy(), rel=1e-12)
    assert (table["n_sequences"] == 6).all()
    assert (table["n_tokens"] == 6 * 23).all()


def test_verify_agrees_and_notices_a_wrong_number(
    tiny_model: kingpost.Model, tiny_text: kingpost.Text, tmp_path: Path
) -> None:
    kingpost.scan(tiny_model, tiny_text, tmp_path)
    checked = kingpost.verify(tmp_path, sites=N_BLOCKS)
    assert checked["block"].tolist() == list(range(N_BLOCKS))
    assert checked["difference"].max() < 1e-5
    import sqlite3

    with sqlite3.connect(tmp_path / "ledger.sqlite") as connection:
        connection.execute("UPDATE observations SET value = value + 0.01 WHERE sequence = 3")
    assert kingpost.verify(tmp_path)["difference"].min() == pytest.approx(0.01, abs=1e-4)


def test_verify_refuses_another_model(
    tiny_model: kingpost.Model, tiny_text: kingpost.Text, tmp_path: Path
) -> None:
    kingpost.scan(tiny_model, tiny_text, tmp_path)
    with pytest.raises(KingpostError, match="other weights than the model"):
        kingpost.verify(tmp_path, model=kingpost.load_model(tiny_llama(seed=1)))


@pytest.mark.parametrize(
    "asked",
    [
        {"measures": ["ablation", "influence"]},
        {"where": ["components"], "measures": ["ablation", "taylor", "wanda", "magnitude"]},
        {"where": ["parameters", "blocks"], "measures": ["fisher", "angular"]},
        {"where": ["attn", "mlp"], "ablation": "mean"},
        {"where": ["q_proj", "down_proj"], "ablation": "resample"},
        {"where": ["mlp.*"], "ablation": "noise:0.5"},
    ],
)
def test_a_stopped_scan_goes_on_and_ends_with_the_same_bytes(
    tiny_model: kingpost.Model, tiny_text: kingpost.Text, tmp_path: Path, asked: dict[str, object]
) -> None:
    def table(folder: Path) -> bytes:
        kingpost.write_csv(kingpost.open_study(folder), folder / "t.csv")
        return (folder / "t.csv").read_bytes()

    whole = {"batch": 2, **asked}
    kingpost.scan(tiny_model, tiny_text, tmp_path / "undisturbed", **whole)

    def stop_after(share: float) -> None:
        def progress(at: kingpost.ScanProgress) -> None:
            if at.done >= share * at.total:
                raise KeyboardInterrupt

        kingpost.scan(tiny_model, tiny_text, tmp_path / "stopped", **whole, progress=progress)

    for share in (0.1, 0.3, 0.7):  # of what is left
        with pytest.raises(KeyboardInterrupt):
            stop_after(share)
    measured = len(kingpost.open_study(tmp_path / "stopped").observations())
    kingpost.scan(tiny_model, tiny_text, tmp_path / "stopped", **whole)
    assert 0 < measured < len(kingpost.open_study(tmp_path / "stopped").observations())
    assert table(tmp_path / "stopped") == table(tmp_path / "undisturbed")


def test_nothing_is_measured_twice(
    tiny_model: kingpost.Model,
    tiny_text: kingpost.Text,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kingpost.scan(tiny_model, tiny_text, tmp_path)
    recorded = []
    monkeypatch.setattr(Engine, "record", lambda self, ids, **_: recorded.append(ids))
    kingpost.scan(tiny_model, tiny_text, tmp_path)
    assert recorded == []


def test_measures_and_sequences_are_added_to_a_study(
    tiny_model: kingpost.Model, tiny_text: kingpost.Text, tmp_path: Path
) -> None:
    few = kingpost.load_text(model=tiny_model, n_sequences=4, length=24)
    first = kingpost.scan(tiny_model, few, tmp_path, batch=2).table()
    study = kingpost.scan(
        tiny_model, tiny_text, tmp_path, batch=2, measures=["ablation", "angular"]
    )
    table = study.table()
    assert set(table["measure"]) == {"ablation", "angular"}
    assert (table["n_sequences"] == 6).all()
    kept = study.observations().query("measure == 'ablation' and sequence < 4")
    assert kept.groupby("block")["value"].mean().tolist() == pytest.approx(first["value"].tolist())


def test_the_baseline_in_the_ledger_is_the_model_s_own_loss(
    tiny_model: kingpost.Model, tiny_text: kingpost.Text, tmp_path: Path
) -> None:
    study = kingpost.scan(tiny_model, tiny_text, tmp_path)
    for row in study.sequences().itertuples():
        ids = torch.from_numpy(row.token_ids.astype(np.int64))[None]
        with torch.no_grad():
            loss = tiny_model.hf(ids, labels=ids).loss
        assert row.base_loss == pytest.approx(float(loss), abs=1e-6)
        assert row.token_ids.tolist() == tiny_text.token_ids[row.sequence].tolist()


def test_a_folder_of_another_model_or_text_is_refused(
    tiny_model: kingpost.Model, tiny_text: kingpost.Text, tmp_path: Path
) -> None:
    kingpost.scan(tiny_model, tiny_text, tmp_path / "run")
    before = kingpost.open_study(tmp_path / "run").table()
    other = kingpost.load_model(save(tiny_llama(seed=1), tmp_path / "other"), dtype="float32")
    with pytest.raises(KingpostError, match=r"holds another study: model .*weights_sha256"):
        kingpost.scan(other, tiny_text, tmp_path / "run")
    (tmp_path / "mine.txt").write_text("something else " * 100)
    text = kingpost.load_text(str(tmp_path / "mine.txt"), model=tiny_model, length=24)
    with pytest.raises(KingpostError, match=r"text 'python-docs' there and .*mine\.txt' here"):
        kingpost.scan(tiny_model, text, tmp_path / "run")
    with pytest.raises(UsageError, match="already holds a study"):
        kingpost.scan(tiny_model, tiny_text, tmp_path / "run", resume=False)
    assert kingpost.open_study(tmp_path / "run").table().equals(before)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"where": ["heads"]}, "Nothing in the blocks is called 'heads'; there are blocks"),
        ({"ablation": "burn"}, "Unknown ablation 'burn': there is skip"),
        ({"measures": ["guess"]}, "Unknown measure 'guess': there is ablation, influence, angular"),
    ],
)
def test_unknown_requests_name_what_there_is(
    tiny_model: kingpost.Model,
    tiny_text: kingpost.Text,
    tmp_path: Path,
    asked: dict[str, object],
    message: str,
) -> None:
    with pytest.raises(UsageError, match=message):
        kingpost.scan(tiny_model, tiny_text, tmp_path / "run", **asked)
    assert not (tmp_path / "run").exists()


def test_weights_that_are_not_finite_are_named(tiny_text: kingpost.Text, tmp_path: Path) -> None:
    hf = tiny_llama()
    with torch.no_grad():
        hf.model.layers[2].mlp.up_proj.weight[0, 0] = float("nan")
    with pytest.raises(
        KingpostError, match=r"not finite .* model\.layers\.2\.mlp\.up_proj\.weight"
    ):
        kingpost.scan(kingpost.load_model(hf), tiny_text, tmp_path)


def test_an_overflow_is_traced_to_its_block(tiny_text: kingpost.Text, tmp_path: Path) -> None:
    hf = tiny_llama()
    with torch.no_grad():
        hf.model.layers[1].mlp.down_proj.weight.fill_(3e38)
    with pytest.raises(KingpostError, match="block L1 is the first whose output is not finite"):
        kingpost.scan(kingpost.load_model(hf), tiny_text, tmp_path)


def test_out_of_memory_halves_the_batch_and_goes_on(
    tiny_model: kingpost.Model,
    tiny_text: kingpost.Text,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = kingpost.scan(tiny_model, tiny_text, tmp_path / "roomy", batch=6).table()
    token_losses = Engine.token_losses

    def cramped(self: Engine, recording, change=None):
        # Room for two sequences; the first site of a larger batch still gets through.
        if len(recording.ids) > 2 and change is not None and min(change.touched) > 0:
            raise torch.OutOfMemoryError("no room")
        return token_losses(self, recording, change)

    monkeypatch.setattr(Engine, "token_losses", cramped)
    study = kingpost.scan(tiny_model, tiny_text, tmp_path / "cramped", batch=6)
    assert max(map(len, study.batches())) <= 2
    assert study.table()["value"].tolist() == pytest.approx(expected["value"].tolist(), abs=1e-6)

    def hopeless(self: Engine, recording, change=None):
        raise RuntimeError(
            "DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 byte"
        )

    monkeypatch.setattr(Engine, "token_losses", hopeless)
    with pytest.raises(KingpostError, match="One sequence of 24 tokens does not fit the memory"):
        kingpost.scan(tiny_model, tiny_text, tmp_path / "hopeless")


def test_the_noise_floor_of_float32_is_rounding(
    tiny_model: kingpost.Model, tiny_text: kingpost.Text, tmp_path: Path
) -> None:
    study = kingpost.scan(tiny_model, tiny_text, tmp_path, batch=3)
    assert 0 <= study.noise_floor < 1e-5


def test_progress_counts_up_to_the_end_and_its_time_left_down_to_zero(
    tiny_model: kingpost.Model, tiny_text: kingpost.Text, tmp_path: Path
) -> None:
    seen: list[kingpost.ScanProgress] = []
    kingpost.scan(
        tiny_model,
        tiny_text,
        tmp_path,
        batch=3,
        measures=["ablation", "influence"],
        progress=seen.append,
    )
    assert (seen[0].site, seen[0].value) == (None, None)
    assert seen[-1].done == seen[-1].total == 2 * 2 * N_BLOCKS
    assert seen[-1].seconds_left == 0
    assert [s.done for s in seen] == sorted(s.done for s in seen)


def test_the_way_of_working_is_recorded(
    tiny_model: kingpost.Model, tiny_text: kingpost.Text, tmp_path: Path
) -> None:
    study = kingpost.scan(tiny_model, tiny_text, tmp_path)
    provenance = study.provenance
    assert provenance["weights_sha256"] == tiny_model.weights_hash
    assert provenance["text_sha256"] == tiny_text.digest
    assert (provenance["dtype"], provenance["seed"], provenance["length"]) == ("float32", 0, 24)
    assert study.sessions[0]["kingpost"] == kingpost.__version__
    assert provenance_of(tiny_model, tiny_text) == provenance


def test_a_scan_killed_before_its_noise_floor_measures_that_later(
    tiny_model: kingpost.Model,
    tiny_text: kingpost.Text,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def killed(self: object, sequences: list[int]) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(conductor._Scan, "_measure_noise", killed)
        with pytest.raises(KeyboardInterrupt):
            kingpost.scan(tiny_model, tiny_text, tmp_path)
    assert np.isnan(kingpost.open_study(tmp_path).noise_floor)
    assert np.isfinite(kingpost.scan(tiny_model, tiny_text, tmp_path).noise_floor)
