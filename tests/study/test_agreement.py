"""Agreement of measures against scipy, plain loops and orders known beforehand."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from scipy import stats
from typer.testing import CliRunner

from kingpost.errors import KingpostError, UsageError
from kingpost.study import (
    FORMAT,
    ComponentRow,
    Site,
    Study,
    agreement,
    open_study,
    verdicts,
    write_agreement,
    write_ledger,
)
from kingpost.study.agreement import _means

Values = Mapping[Site, Sequence[float] | npt.NDArray[np.float64]]
SKIP, ZERO = ("ablation", "skip"), ("ablation", "zero")
COLUMNS = (
    "over,measure,other,n,spearman,spearman_low,spearman_high,"
    "kendall,kendall_low,kendall_high,top,overlap"
)


def make(
    folder: Path,
    values: Values,
    *,
    documents: Sequence[str],
    lengths: Sequence[int] | None = None,
    constants: Mapping[Site, float] | None = None,
    components: Sequence[ComponentRow] = (),
) -> Study:
    """A study as a scan leaves it; a site with fewer values has those of the first sequences."""
    provenance = {
        "format": FORMAT, "model": "org/m", "n_parameters": 9, "n_blocks": 4,
        "text": "t", "length": 5, "dtype": "float32", "device": "cpu",
    }  # fmt: skip
    lengths = lengths or [5] * len(documents)
    with write_ledger(folder) as ledger:
        ledger.start(provenance)
        ledger.add_components(components)
        ledger.add_sequences([np.arange(n) for n in lengths], documents)
        for site, row in values.items():
            ledger.add_observations(range(len(row)), {site: np.asarray(row, dtype=np.float64)})
        ledger.add_constants(constants or {})
    return open_study(folder)


def blocks(measure: tuple[str, str], rows: npt.ArrayLike) -> Values:
    """Whole-block rows, from values [blocks, sequences]."""
    return {Site(i, "block", *measure): row for i, row in enumerate(np.asarray(rows))}


def row_of(table: pd.DataFrame, over: str, measure: str, other: str) -> pd.Series:
    (row,) = (
        r
        for _, r in table.iterrows()
        if (r["over"], r["measure"], r["other"]) == (over, measure, other)
    )
    return row


@pytest.fixture
def study(tmp_path: Path) -> Study:
    """Four measures of 6 blocks and 48 sites, sequences of unequal length in 5 documents."""
    rng = np.random.default_rng(7)
    documents = [f"d{i % 5}" for i in range(11)]
    true = rng.gamma(1.0, size=(6, 8, 1))
    values: dict[Site, npt.NDArray[np.float64]] = {}
    components = []
    for measure, noise in ((ZERO, 0.3), (("taylor", ""), 0.8), (("wanda", ""), 3.0)):
        seen = true + noise * rng.normal(size=(6, 8, 11))
        seen[:, 3] = seen[:, 6]  # measured once: ties that must stay ties
        values |= {Site(b, f"p{j}", *measure): seen[b, j] for b in range(6) for j in range(8)}
    components = [
        ComponentRow(b, f"p{j}", "parameter", 4, (f"p{j}",)) for b in range(6) for j in range(8)
    ]
    values |= blocks(SKIP, true.sum(axis=1) + rng.normal(size=(6, 11)))
    return make(
        tmp_path / "run",
        values,
        documents=documents,
        lengths=[int(n) for n in rng.integers(3, 40, size=11)],
        components=components,
    )


def table_values(
    study: Study, over: str, measure: str, ablation: str = ""
) -> npt.NDArray[np.float64]:
    """Values of the study's own table, by block and component; of blocks the sums if need be."""
    cells = study.table()
    cells = cells[(cells["measure"] == measure) & (cells["ablation"] == ablation)]
    if over == "blocks":
        return cells.groupby("block")["value"].sum().to_numpy()
    return cells.sort_values(["block", "component"])["value"].to_numpy()


@pytest.mark.parametrize(
    ("over", "one", "other"),
    [
        ("blocks", SKIP, ("taylor", "")),
        ("blocks", SKIP, ZERO),
        ("blocks", ("taylor", ""), ("wanda", "")),
        ("sites", ZERO, ("taylor", "")),
        ("sites", ("taylor", ""), ("wanda", "")),
    ],
)
def test_numbers_are_scipy_s_of_the_table_s_values(
    study: Study, over: str, one: tuple[str, str], other: tuple[str, str]
) -> None:
    table = agreement(study, replicates=1)
    x, y = table_values(study, over, *one), table_values(study, over, *other)
    names = [f"{m} ({a})" if a else m for m, a in (one, other)]
    row = row_of(table, over, *names)
    assert row["n"] == len(x) == {"blocks": 6, "sites": 48}[over]
    assert row["spearman"] == pytest.approx(stats.spearmanr(x, y).statistic, rel=1e-12)
    assert row["kendall"] == pytest.approx(stats.kendalltau(x, y).statistic, rel=1e-12)
    best, others = (set(np.argsort(v)[-5:]) for v in (x, y))
    assert (row["top"], row["overlap"]) == (5, len(best & others))


def test_rows_are_every_pair_once_with_the_exact_measure_first(study: Study) -> None:
    table = agreement(study, replicates=1)
    assert ",".join(table.columns) == COLUMNS
    exact = ["ablation (skip)", "ablation (zero)"]
    over_sites = [(exact[1], "taylor"), (exact[1], "wanda"), ("taylor", "wanda")]
    over_blocks = [tuple(exact), (exact[0], "taylor"), (exact[0], "wanda"), *over_sites]
    pairs = list(table[["over", "measure", "other"]].itertuples(index=False, name=None))
    assert pairs == [("blocks", *p) for p in over_blocks] + [("sites", *p) for p in over_sites]
    assert table["overlap"].dtype.kind == table["n"].dtype.kind == "i"


def test_intervals_are_those_of_a_plain_loop_over_drawn_documents(study: Study) -> None:
    row = row_of(agreement(study, replicates=40, seed=3), "sites", "ablation (zero)", "taylor")
    observations = study.observations()
    observations = observations[observations["component"] != "block"]
    documents = sorted(observations["document"].unique())
    drawn = np.random.default_rng(3).multinomial(5, [0.2] * 5, size=40)
    rho, tau = [], []
    for counts in drawn:
        times = observations["document"].map(dict(zip(documents, counts, strict=True)))
        again = observations.loc[observations.index.repeat(times)]
        means = [
            again[again["measure"] == measure]
            .groupby(["block", "component"])
            .apply(lambda g: np.average(g["value"], weights=g["n_tokens"]), include_groups=False)
            for measure in ("ablation", "taylor")
        ]
        rho.append(stats.spearmanr(*means).statistic)
        tau.append(_tau_b(*(m.to_numpy() for m in means)))
    for name, replicates in (("spearman", rho), ("kendall", tau)):
        low, high = np.percentile(replicates, [2.5, 97.5])
        assert (row[f"{name}_low"], row[f"{name}_high"]) == pytest.approx((low, high), rel=1e-9)
        assert low < high


def _tau_b(x: npt.NDArray[np.float64], y: npt.NDArray[np.float64]) -> float:
    """Kendall's tau-b by its definition."""
    a, b = (np.sign(v[:, None] - v) for v in (x, y))
    return float((a * b).sum() / np.sqrt((a != 0).sum() * (b != 0).sum()))


def test_same_seed_same_numbers_and_another_seed_other_intervals(study: Study) -> None:
    first, again, other = (agreement(study, replicates=50, seed=s) for s in (1, 1, 2))
    pd.testing.assert_frame_equal(first, again, check_exact=True)
    assert (first["spearman"] == other["spearman"]).all()
    assert (first["spearman_low"] != other["spearman_low"]).any()


def test_equal_and_reversed_orders(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(5, 6))
    study = make(
        tmp_path,
        {
            **blocks(SKIP, x),
            **blocks(("influence", ""), 3 * x + 1),
            **blocks(("aaa", ""), -x),
        },
        documents=list("abcdef"),
    )
    table = agreement(study, top=2, replicates=200)
    numbers = [c for c in COLUMNS.split(",") if c.startswith(("spearman", "kendall"))]
    same = row_of(table, "blocks", "ablation (skip)", "influence")
    assert same[numbers].tolist() == pytest.approx([1.0] * 6, abs=1e-12)
    assert (same["top"], same["overlap"]) == (2, 2)
    reverse = row_of(table, "blocks", "ablation (skip)", "aaa")
    assert reverse[numbers].tolist() == pytest.approx([-1.0] * 6, abs=1e-12)
    assert reverse["overlap"] == 0
    assert list(table["over"].unique()) == ["blocks"]


@pytest.mark.parametrize(("top", "used", "overlap"), [(1, 1, 0), (2, 2, 1), (3, 3, 2), (9, 4, 4)])
def test_top_by_hand(tmp_path: Path, top: int, used: int, overlap: int) -> None:
    # largest first: L0 L3 L1 L2, and with the tie going to the lower block L1 L0 L2 L3
    exact, cheap = [9.0, 2.0, 1.0, 5.0], [3.0, 4.0, 3.0, 1.0]
    study = make(
        tmp_path,
        {**blocks(SKIP, np.c_[exact]), **blocks(("influence", ""), np.c_[cheap])},
        documents=["a"],
    )
    row = agreement(study, top=top).iloc[0]
    assert (row["top"], row["overlap"]) == (used, overlap)


def _pair(folder: Path, x: npt.ArrayLike, y: npt.ArrayLike, documents: Sequence[str]) -> pd.Series:
    values = {**blocks(SKIP, x), **blocks(("influence", ""), y)}
    return agreement(make(folder, values, documents=documents), replicates=300).iloc[0]


def test_documents_are_drawn_and_not_their_sequences(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    x, y = rng.normal(size=(2, 8, 4)) + np.arange(8)[:, None]
    ends = ["spearman_low", "spearman_high", "kendall_low", "kendall_high"]
    once = _pair(tmp_path / "once", x, y, list("abcd"))
    many = _pair(tmp_path / "many", np.tile(x, 6), np.tile(y, 6), list("abcd") * 6)
    apart = _pair(tmp_path / "apart", np.tile(x, 6), np.tile(y, 6), [f"d{i}" for i in range(24)])
    assert many[ends].tolist() == pytest.approx(once[ends].tolist(), abs=1e-12)
    width, narrow = (r["spearman_high"] - r["spearman_low"] for r in (once, apart))
    assert 0 < narrow < width


def test_of_one_document_the_sequences_are_drawn_and_of_one_sequence_nothing(
    tmp_path: Path,
) -> None:
    x, y = np.random.default_rng(5).normal(size=(2, 8, 4)) + np.arange(8)[:, None]
    apart = _pair(tmp_path / "apart", x, y, list("abcd"))
    one = _pair(tmp_path / "one", x, y, ["a"] * 4)
    assert one.equals(apart)
    single = _pair(tmp_path / "single", x[:, :1], y[:, :1], ["a"])
    ends = ["spearman_low", "spearman_high", "kendall_low", "kendall_high"]
    assert single[ends].isna().all()
    assert single["spearman"] == pytest.approx(stats.spearmanr(x[:, 0], y[:, 0]).statistic)


def test_constants_stay_as_they_are(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(size=(6, 5))
    sites = [Site(i, "q_proj", "magnitude") for i in range(6)]
    numbers = [5.0, 0.1, 0.1, 0.7, 3.0, 2.0]
    constants = dict(zip(sites, numbers, strict=True))
    constants |= {s._replace(measure="snr"): -v for s, v in constants.items()}
    constants |= {Site(0, "norm", "snr"): np.nan}  # undefined
    study = make(
        tmp_path,
        {Site(i, "q_proj", *ZERO): row for i, row in enumerate(x)},
        documents=list("abcde"),
        constants=constants,
    )
    table = agreement(study, replicates=30)
    row = row_of(table, "sites", "ablation (zero)", "magnitude")
    assert row["spearman"] == pytest.approx(stats.spearmanr(x.mean(axis=1), numbers).statistic)
    drawn = np.random.default_rng(0).multinomial(5, [0.2] * 5, size=30)
    loop = [stats.spearmanr(x @ counts, numbers).statistic for counts in drawn]
    assert row["spearman_low"] == pytest.approx(np.percentile(loop, 2.5))
    assert row["spearman_high"] == pytest.approx(np.percentile(loop, 97.5))
    weights_alone = row_of(table, "sites", "magnitude", "snr")
    ends = ["n", "spearman", "spearman_low", "spearman_high"]
    assert weights_alone[ends].tolist() == pytest.approx([6, -1, -1, -1])
    assert not (table["over"] == "blocks").any()  # a magnitude is no sum


def test_a_measure_that_is_the_same_everywhere_has_no_correlation(tmp_path: Path) -> None:
    row = _pair(
        tmp_path, np.random.default_rng(0).normal(size=(4, 3)), np.ones((4, 3)), list("abc")
    )
    assert row[["spearman", "spearman_low", "kendall", "kendall_high"]].isna().all()
    assert row["n"] == 4


@pytest.mark.parametrize("n_sites", [7, 13, 49, 331])
def test_sites_with_the_same_values_stay_ties_to_the_last_bit(n_sites: int) -> None:
    # In a matrix product the place of a row decides how it is rounded, for some shapes.
    rng = np.random.default_rng(0)
    for n_sequences in range(3, 40):
        weights = rng.integers(1, 100, size=(101, n_sequences)).astype(np.float64)
        values = rng.normal(size=n_sequences)
        means = _means(np.tile(values, (n_sites, 1)), weights)
        assert (means == means[:, :1]).all()
        expected = [np.average(values, weights=w) for w in weights]
        assert means[:, 0] == pytest.approx(expected, abs=1e-12)


def test_sites_without_a_finite_value_are_left_out(tmp_path: Path) -> None:
    x, y = np.random.default_rng(4).normal(size=(2, 7, 3))
    x[1, 0], y[4, 2], y[6] = np.nan, np.inf, np.nan
    row = _pair(tmp_path, x, y, list("abc"))
    kept = [0, 2, 3, 5]
    assert row["n"] == 4
    expected = stats.spearmanr(x[kept].mean(axis=1), y[kept].mean(axis=1)).statistic
    assert row["spearman"] == pytest.approx(expected)
    assert np.isfinite(row["spearman_low"])


def test_only_sequences_that_both_have_are_compared(tmp_path: Path) -> None:
    x, y = np.random.default_rng(6).normal(size=(2, 7, 8))
    long = _pair(tmp_path / "long", x, y[:, :3], list("abcdefgh"))
    short = _pair(tmp_path / "short", x[:, :3], y[:, :3], list("abc"))
    assert long.equals(short)
    make(tmp_path / "none", blocks(SKIP, x[:, :3]), documents=list("abcdefgh"))
    with write_ledger(tmp_path / "none") as ledger:
        ledger.add_observations(range(3, 8), blocks(("influence", ""), y[:, 3:]))
    with pytest.raises(KingpostError, match="have no 3 blocks or sites in common"):
        agreement(open_study(tmp_path / "none"))


def _rows(block: int, *parts: tuple[str, str, int, tuple[str, ...]]) -> list[ComponentRow]:
    return [ComponentRow(block, *part) for part in parts]


# A block of 13 elements: attention of two projections, an MLP of one, a norm in neither.
PARTS = (
    ("attn", "sublayer", 4, ("q.weight", "v.weight")),
    ("q", "role", 2, ("q.weight",)),
    ("v", "role", 2, ("v.weight",)),
    ("mlp", "sublayer", 8, ("up.weight",)),
    ("self.q", "parameter", 2, ("q.weight",)),
    ("self.v", "parameter", 2, ("v.weight",)),
    ("self.up", "parameter", 8, ("up.weight",)),
    ("norm", "parameter", 1, ("norm.weight",)),
)


@pytest.mark.parametrize(
    ("measured", "summed"),
    [
        ([p[0] for p in PARTS], ["self.q", "self.v", "self.up", "norm"]),
        (["attn", "q", "v", "mlp", "norm"], ["q", "v", "mlp", "norm"]),  # --where components
        (["attn", "mlp"], ["attn", "mlp"]),
        (["attn", "q", "mlp"], ["attn", "mlp"]),  # q alone would lose v
        (["norm"], ["norm"]),
    ],
)
def test_a_block_is_the_sum_of_components_that_do_not_overlap(
    tmp_path: Path, measured: list[str], summed: list[str]
) -> None:
    rng = np.random.default_rng(1)
    taylor = {(b, c): rng.gamma(0.3, size=3) for b in range(12) for c in measured}
    exact = rng.normal(size=(12, 3))
    study = make(
        tmp_path,
        {**blocks(SKIP, exact), **{Site(b, c, "taylor"): v for (b, c), v in taylor.items()}},
        documents=list("abc"),
        components=[c for b in range(12) for c in _rows(b, *PARTS)],
    )
    sums = [sum(taylor[b, c].mean() for c in summed) for b in range(12)]
    row = row_of(agreement(study, replicates=9), "blocks", "ablation (skip)", "taylor")
    assert row["n"] == 12
    expected = stats.spearmanr(exact.mean(axis=1), sums).statistic
    assert row["spearman"] == pytest.approx(expected, rel=1e-12)


def test_the_whole_block_s_own_row_counts_if_all_have_one(tmp_path: Path) -> None:
    exact, own = np.array([[1.0], [2], [3], [4]]), np.array([[1.0], [2], [3], [4]])
    parts = {Site(b, "norm", "taylor"): [-float(b)] for b in range(4)}
    components = [c for b in range(4) for c in _rows(b, *PARTS)]
    values = {**blocks(SKIP, exact), **blocks(("taylor", ""), own), **parts}
    all_have = make(tmp_path / "all", values, documents=["a"], components=components)
    assert agreement(all_have).iloc[0]["spearman"] == pytest.approx(1.0)
    del values[Site(2, "block", "taylor")]
    one_lacks = make(tmp_path / "lacks", values, documents=["a"], components=components)
    assert agreement(one_lacks).iloc[0]["spearman"] == pytest.approx(-1.0)
    influence = {s._replace(measure="influence"): v for s, v in values.items() if s.ablation == ""}
    no_sum = make(
        tmp_path / "no_sum",
        {**blocks(SKIP, exact), **influence},
        documents=["a"],
        components=components,
    )
    row = agreement(no_sum).iloc[0]
    assert (row["n"], row["spearman"]) == (3, pytest.approx(1.0))


def test_what_is_undefined_adds_nothing_and_what_is_missing_is_not_guessed(tmp_path: Path) -> None:
    exact = np.array([[5.0], [4], [3], [2], [1]])
    wanda = {Site(b, "self.up", "wanda"): [float(-b)] for b in range(5)}
    wanda |= {Site(b, "norm", "wanda"): [np.nan] for b in range(5)}
    wanda |= {Site(b, "self.q", "wanda"): [1.0] for b in range(4)}  # L4 is not measured yet
    study = make(
        tmp_path,
        {**blocks(SKIP, exact), **wanda},
        documents=["a"],
        components=[c for b in range(5) for c in _rows(b, *PARTS)],
    )
    row = agreement(study).iloc[0]
    assert (row["n"], row["spearman"]) == (4, pytest.approx(1.0))


VERDICTS = [
    (0.9, 0.8, "influence ranks blocks like the exact ΔLoss (skip): Spearman 0.90 [0.80, 0.95], "
     "4 of its top 5 are in the exact top 5: trust it."),
    (0.79, 0.62, "influence ranks blocks like the exact ΔLoss (skip): Spearman 0.79 [0.62, 0.95], "
     "4 of its top 5 are in the exact top 5: use it with care."),
    (0.79, 0.49, "influence does not surely rank blocks like the exact ΔLoss (skip): "
     "Spearman 0.79 [0.49, 0.95], 4 of its top 5 are in the exact top 5: do not rely on it."),
    (0.9, np.nan, "Whether influence ranks blocks like the exact ΔLoss (skip) cannot be told: "
     "Spearman 0.90 without an interval, 4 of its top 5 are in the exact top 5."),
]  # fmt: skip


@pytest.mark.parametrize(("rho", "low", "sentence"), VERDICTS)
def test_the_verdict_is_that_of_the_lower_end(rho: float, low: float, sentence: str) -> None:
    row = ["blocks", "ablation (skip)", "influence", 9, rho, low, 0.95, 0.5, 0.4, 0.6, 5, 4]
    exact = ["blocks", "ablation (skip)", "ablation (zero)", *row[3:]]
    cheap = ["blocks", "angular", "influence", *row[3:]]
    table = pd.DataFrame([exact, row, cheap], columns=COLUMNS.split(","))
    assert verdicts(table) == [sentence]


def test_what_cannot_be_compared_is_said_with_the_scan_that_mends_it(tmp_path: Path) -> None:
    x = np.ones((4, 2))
    alone = make(tmp_path / "alone", blocks(SKIP, x), documents=list("ab"))
    with pytest.raises(KingpostError, match=r"alone has ablation \(skip\) and no other") as caught:
        agreement(alone)
    assert str(caught.value).endswith(
        f"with kingpost scan org/m --out {tmp_path / 'alone'} --measure ablation,influence "
        "--text t --length 5 --dtype float32 --device cpu --sequences 2."
    )
    parts = {Site(b, "q_proj", "influence"): [1.0, 2.0] for b in range(4)}
    apart = make(tmp_path / "apart", {**blocks(SKIP, x), **parts}, documents=list("ab"))
    with pytest.raises(KingpostError, match="have no 3 blocks or sites in common"):
        agreement(apart)
    few = {**blocks(SKIP, x[:2]), **blocks(("influence", ""), x[:2])}
    with pytest.raises(KingpostError, match="have no 3 blocks or sites in common"):
        agreement(make(tmp_path / "few", few, documents=list("ab")))
    with pytest.raises(UsageError, match="at least 1"):
        agreement(alone, top=0)


def test_files_read_back_to_the_last_bit(study: Study, tmp_path: Path) -> None:
    table = agreement(study, replicates=5)
    table.loc[0, "kendall_low"] = np.nan
    write_agreement(table, tmp_path / "a.csv", form="csv")
    write_agreement(table, tmp_path / "a.json", form="json")
    back = pd.read_csv(tmp_path / "a.csv", dtype=str)
    for name in table.columns[4:]:
        read, written = back[name].astype(float), table[name].astype(float)
        assert np.array_equal(read, written, equal_nan=True)
    assert back[["over", "measure", "other"]].equals(table[["over", "measure", "other"]])
    rows = json.loads((tmp_path / "a.json").read_text())
    assert rows[0]["kendall_low"] is None
    assert [r["spearman"] for r in rows] == table["spearman"].tolist()
    with pytest.raises(KingpostError, match=r"nowhere/a\.csv cannot be written"):
        write_agreement(table, tmp_path / "nowhere" / "a.csv", form="csv")


def test_the_command_prints_the_tables_and_the_sentences(study: Study, tmp_path: Path) -> None:
    from kingpost.cli.app import app

    run, runner = str(study.folder), CliRunner()
    table = agreement(study, top=3)
    shown = runner.invoke(app, ["table", run, "--agreement", "--top", "3"])
    assert shown.exit_code == 0
    printed = " ".join(shown.stdout.split())
    assert "Agreement over blocks" in printed
    assert "Agreement over sites" in printed
    for sentence in verdicts(table):
        assert sentence in printed
    assert len(verdicts(table)) == 6
    file = tmp_path / "a.csv"
    assert runner.invoke(app, ["table", run, "--agreement", "--csv", str(file)]).exit_code == 0
    assert len(pd.read_csv(file)) == len(table)
    refused = runner.invoke(app, ["table", run, "--agreement", "--parquet", str(tmp_path / "p")])
    assert isinstance(refused.exception, UsageError)
    assert "without" in str(refused.exception)


def test_a_role_that_is_one_whole_parameter_is_the_same_site(tmp_path: Path) -> None:
    values: dict[Site, list[float]] = {}
    components = []
    for b, x in enumerate([1.0, 2.0, 4.0, 3.0]):
        values[Site(b, "q_proj", *ZERO)] = [x, x + 0.1]
        values[Site(b, "self_attn.q_proj", "taylor")] = [10 * x, 10 * x]
        # A slice of a fused parameter is another site than the parameter.
        values[Site(b, "up_proj", *ZERO)] = [9 - x, 9 - x]
        values[Site(b, "mlp.gate_up_proj", "taylor")] = [x, x]
        components += [
            ComponentRow(b, "q_proj", "role", 8, ("self_attn.q_proj",)),
            ComponentRow(b, "self_attn.q_proj", "parameter", 8, ("self_attn.q_proj",)),
            ComponentRow(b, "up_proj", "role", 8, ("mlp.gate_up_proj",)),
            ComponentRow(b, "mlp.gate_up_proj", "parameter", 16, ("mlp.gate_up_proj",)),
        ]
    study = make(tmp_path, values, documents=["a", "b"], components=components)
    row = row_of(agreement(study), "sites", "ablation (zero)", "taylor")
    assert (row["n"], row["spearman"]) == (4, 1.0)
