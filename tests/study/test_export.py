"""What leaves a study can be read without Kingpost and gives the same numbers."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import kingpost
from kingpost.errors import KingpostError


@pytest.fixture
def study(tiny_model: kingpost.Model, tiny_text: kingpost.Text, tmp_path: Path) -> kingpost.Study:
    return kingpost.scan(
        tiny_model, tiny_text, tmp_path / "run", measures=["ablation", "influence", "angular"]
    )


def test_csv_reads_back_to_the_last_bit(study: kingpost.Study, tmp_path: Path) -> None:
    kingpost.write_csv(study, tmp_path / "t.csv")
    back = pd.read_csv(tmp_path / "t.csv", keep_default_na=False)
    table = study.table()
    assert list(back.columns) == list(table.columns)
    for name in ("value", "se", "ci_low", "ci_high"):
        assert back[name].astype(float).tolist() == table[name].tolist()


def test_json_reads_back_to_the_last_bit(study: kingpost.Study, tmp_path: Path) -> None:
    kingpost.write_json(study, tmp_path / "t.json")
    rows = json.loads((tmp_path / "t.json").read_text())
    assert [r["value"] for r in rows] == study.table()["value"].tolist()
    assert list(rows[0]) == list(study.table().columns)


def test_parquet_lets_anyone_compute_the_cells_again(study: kingpost.Study, tmp_path: Path) -> None:
    kingpost.write_parquet(study, tmp_path / "p")
    cells, observations, sequences = (
        pd.read_parquet(tmp_path / "p" / f"{name}.parquet")
        for name in ("cells", "observations", "sequences")
    )
    assert list(sequences.columns) == ["sequence", "document", "token_ids", "base_loss"]
    for cell in cells.itertuples():
        mine = observations.query(
            "block == @cell.block and measure == @cell.measure and ablation == @cell.ablation"
        )
        assert mine["value"].mean() == pytest.approx(cell.value, rel=1e-12)
        assert mine["n_tokens"].sum() == cell.n_tokens
    assert {len(ids) for ids in sequences["token_ids"]} == {24}
    assert np.isfinite(sequences["base_loss"]).all()
    came_from = json.loads((tmp_path / "p" / "provenance.json").read_text())
    assert {name: came_from[name] for name in study.provenance} == study.provenance
    assert came_from["sessions"] == study.sessions


def test_a_file_that_cannot_be_written_is_named(study: kingpost.Study, tmp_path: Path) -> None:
    with pytest.raises(KingpostError, match=r"nowhere/t\.csv cannot be written"):
        kingpost.write_csv(study, tmp_path / "nowhere" / "t.csv")
