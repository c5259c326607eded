"""The ledger: what it keeps, what it refuses, and who may write it."""

import multiprocessing
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from kingpost.errors import KingpostError, UsageError
from kingpost.study import FORMAT, Site, open_study, read_ledger, write_ledger

PROVENANCE = {
    "format": FORMAT,
    "model": "m",
    "n_parameters": 1234,
    "n_blocks": 2,
    "text": "t",
    "length": 3,
    "dtype": "float32",
}
IDS = np.array([[1, 2, 3], [4, 5, 6], [7, 8, 9]])


def fill(folder: Path) -> None:
    with write_ledger(folder) as ledger:
        ledger.start(PROVENANCE)
        ledger.add_session("kingpost scan", {"python": "3"})
        ledger.add_sequences(IDS, ["a", "a", "b"])
        ledger.set_batches({0: 0, 1: 0, 2: 1})
        ledger.set_base_losses([0, 1, 2], [2.0, 3.0, 4.0])
        ledger.set_base_losses([0, 1], [2.5, 3.0], other_layout=True)
        # In an order that is not the table's.
        ledger.add_observations(
            [0, 1, 2], {Site(1, "block", "ablation", "skip"): np.array([3, 4, 8.0])}
        )
        ledger.add_observations(
            [0, 1, 2], {Site(0, "block", "ablation", "skip"): np.array([1, 2, 6.0])}
        )
        ledger.add_observations([0, 1], {Site(0, "block", "influence"): np.array([0.5, 0.25])})


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    fill(tmp_path / "run")
    study = open_study(tmp_path / "run")
    assert study.provenance == PROVENANCE
    assert study.sessions[0]["command"] == "kingpost scan"
    assert study.batches() == [[0, 1], [2]]
    sequences = study.sequences()
    assert list(sequences.columns) == ["sequence", "document", "token_ids", "base_loss"]
    assert np.array_equal(np.stack(sequences["token_ids"]), IDS)
    assert sequences["base_loss"].tolist() == [2.0, 3.0, 4.0]
    observations = study.observations()
    assert len(observations) == 8
    row = observations.query("block == 1 and sequence == 2").iloc[0]
    assert (row["value"], row["document"], row["n_tokens"]) == (8.0, "b", 2)


def test_table_has_the_contract_s_columns_and_one_row_a_site_in_a_fixed_order(
    tmp_path: Path,
) -> None:
    fill(tmp_path)
    table = open_study(tmp_path).table()
    assert ",".join(table.columns) == (
        "block,component,measure,ablation,value,se,ci_low,ci_high,n_sequences,n_tokens,note"
    )
    assert table[["block", "measure"]].values.tolist() == [
        [0, "ablation"],
        [1, "ablation"],
        [0, "influence"],
    ]
    assert table["value"].tolist() == [3.0, 5.0, 0.375]
    # two documents with means 1.5 (two sequences) and 6: se² = 2 · ((2·1.5)² + 3²) / 3²
    assert table["se"][0] == pytest.approx(2.0)
    assert table["n_sequences"].tolist() == [3, 3, 2]
    assert table["n_tokens"].tolist() == [6, 6, 4]


def test_an_effect_below_the_noise_floor_is_marked(tmp_path: Path) -> None:
    fill(tmp_path)
    study = open_study(tmp_path)
    # differences 0.5 and 0: mean 0.25, half width 12.706 · 0.25
    assert study.noise_floor == pytest.approx(0.25 + 12.7062 * 0.25, rel=1e-4)
    assert study.table()["note"].str.contains("below the noise floor").tolist() == [
        True,
        False,
        False,
    ]


def test_values_that_are_not_finite_are_kept_and_said(tmp_path: Path) -> None:
    fill(tmp_path)
    with write_ledger(tmp_path) as ledger:
        site = Site(1, "block", "ablation", "zero")
        ledger.add_observations([0, 1, 2], {site: np.array([np.nan, 1.0, np.inf])})
    study = open_study(tmp_path)
    kept = study.observations().query("ablation == 'zero'")["value"].to_numpy()
    assert np.array_equal(kept, [np.nan, 1.0, np.inf], equal_nan=True)
    row = study.table().query("ablation == 'zero'").iloc[0]
    assert np.isnan(row["se"])
    assert row["note"] == "not finite in 2 of 3 sequences"


def test_measuring_again_changes_nothing(tmp_path: Path) -> None:
    fill(tmp_path)
    before = open_study(tmp_path).table()
    with write_ledger(tmp_path) as ledger:
        ledger.start(PROVENANCE)
        ledger.add_sequences(IDS, ["a", "a", "b"])
        ledger.add_observations([0, 1, 2], {Site(0, "block", "ablation", "skip"): np.zeros(3)})
    assert open_study(tmp_path).table().equals(before)


def test_another_study_is_refused_with_what_differs(tmp_path: Path) -> None:
    fill(tmp_path)
    other = PROVENANCE | {"model": "another", "length": 5}
    with (
        write_ledger(tmp_path) as ledger,
        pytest.raises(
            KingpostError, match="model 'm' there and 'another' here; length 3 there and 5 here"
        ),
    ):
        ledger.start(other)


def _try_to_write(folder: Path, answer: "multiprocessing.Queue[str]") -> None:
    try:
        with write_ledger(folder):
            answer.put("wrote")
    except KingpostError as error:
        answer.put(str(error))


def test_two_processes_cannot_write_one_folder(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    answer = context.Queue()
    with write_ledger(tmp_path):
        process = context.Process(target=_try_to_write, args=(tmp_path, answer))
        process.start()
        assert "Another scan is writing" in answer.get(timeout=60)
        process.join()
    with write_ledger(tmp_path) as ledger:  # and after it is free again, anybody can
        assert not ledger.has_begun


def test_reading_goes_on_while_another_writes(tmp_path: Path) -> None:
    fill(tmp_path)
    with write_ledger(tmp_path) as ledger:
        ledger.add_observations([0, 1, 2], {Site(1, "block", "angular"): np.ones(3)})
        assert len(open_study(tmp_path).table()) == 4


def test_a_folder_without_a_study_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="There is no study in"), read_ledger(tmp_path):
        pass


def test_a_ledger_that_was_killed_before_its_first_transaction_starts_again(tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "ledger.sqlite").close()
    with pytest.raises(UsageError, match="stopped before it began"):
        open_study(tmp_path)
    fill(tmp_path)
    assert len(open_study(tmp_path).table()) == 3


def test_a_damaged_ledger_is_named(tmp_path: Path) -> None:
    (tmp_path / "ledger.sqlite").write_bytes(b"no database at all " * 100)
    with pytest.raises(KingpostError, match="it is damaged"):
        open_study(tmp_path)


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    with write_ledger(tmp_path) as ledger:
        ledger.start(PROVENANCE | {"format": FORMAT + 1})
    with pytest.raises(KingpostError, match=f"has format {FORMAT + 1}"):
        open_study(tmp_path)
