"""Agreement: whether two measures put blocks and sites in the same order, and how sure that is."""

import itertools
import json
import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats

from kingpost.errors import KingpostError, UsageError
from kingpost.study.cover import cover
from kingpost.study.export import _known, _write
from kingpost.study.study import Study

AGREEMENT_COLUMNS = (
    "over",
    "measure",
    "other",
    "n",
    "spearman",
    "spearman_low",
    "spearman_high",
    "kendall",
    "kendall_low",
    "kendall_high",
    "top",
    "overlap",
)
# A measure may be trusted where the lower end of Spearman's interval reaches the first of these,
# and used with care where it reaches the second.
TRUSTED, WITH_CARE = 0.8, 0.5

_EXACT = "ablation"
# The measures of a block may be the sum over its components; for all others that means nothing.
_SUMS = (_EXACT, "taylor", "taylor_signed", "fisher", "wanda")
# A rank correlation of fewer says nothing: two are always in the same order or in the reverse.
_FEWEST = 3
_INTERVAL = (0.025, 0.975)

_Floats = npt.NDArray[np.float64]


def agreement(study: Study, *, top: int = 5, replicates: int = 1000, seed: int = 0) -> pd.DataFrame:
    """Compare the order in which every two measures of a study put the blocks and the sites.

    A measure is a measure with its ablation, such as `ablation (skip)` or `taylor`. Large is
    first in the order, and a sign counts. Every pair with at least three blocks or sites in common
    has a row; the exact measure comes first in it.

    Over blocks, a measure's value of a block is its own row of the component `block`, if the study
    has that for every block it measured. Else it is the sum, sequence by sequence, over measured
    components that do not overlap: parameters, or roles, or sub-layers, whichever leave the least
    of the block out, the finer ones where that is equal. A component where the measure is undefined
    adds nothing, and a block of which something is not measured that is measured in others is left
    out. The ΔLoss of components does not add up exactly, so a sum of `ablation` is itself only
    a measure of the block. Measures that are no sums over elements (influence, angular, magnitude,
    snr, quantization_error ...) have only their own rows.

    Over sites, the components other than `block` are compared; a role that is one whole parameter
    is the same site as that parameter. Sites that are marked "the same as"
    another carry its number and are kept: they are ties, and draw agreement towards what the model
    has several times.

    A pair is compared on the sequences that all of its sites have for both measures; sites with a
    value that is not finite are left out of it. In a finished scan the values are those of
    `Study.table`. The 95% intervals are percentiles of a bootstrap: documents are drawn with
    replacement, the same for both measures, and token-weighted means and ranks computed again;
    with a single document its sequences are drawn. Measures of the weights alone stay as they are.
    The interval is about the text, not about other models: the blocks are not drawn. Drawing again
    adds noise, and noise lowers a strong agreement, so the interval lies low and may even end below
    the number itself: whoever trusts its lower end errs on the safe side.

    Args:
        study: The study.
        top: How many of the largest to compare. Ties go to the lower block.
        replicates: Bootstrap replicates.
        seed: Seed of the draw; every pair draws the same.

    Returns:
        One row for each pair: over (`blocks` or `sites`), measure, other, n (how many are
        compared), spearman and kendall (tau-b) with the ends of their intervals, top (the number
        asked for, or n), and overlap (how many of the top of one are among the top of the other).
        A correlation is NaN where one measure is the same everywhere; an interval is NaN with fewer
        than two documents or sequences to draw.

    Raises:
        UsageError: `top` or `replicates` is less than 1.
        KingpostError: No two measures have three blocks or sites in common.
    """
    if min(top, replicates) < 1:
        raise UsageError("Give top and replicates of at least 1.")
    values = _values(study)
    sequences = _sequences(study)
    over = {
        "blocks": {label: _blocks(study, label, value) for label, value in values.items()},
        "sites": {label: _sites(value) for label, value in values.items()},
    }
    rows = [
        {"over": name, "measure": one, "other": other, **compared}
        for name, measures in over.items()
        for one, other in itertools.combinations(measures, 2)
        for compared in _compare(
            measures[one], measures[other], sequences, top=top, replicates=replicates, seed=seed
        )
    ]
    if not rows:
        raise KingpostError(_nothing_to_compare(study, list(values)))
    return pd.DataFrame(rows, columns=list(AGREEMENT_COLUMNS))


def verdicts(table: pd.DataFrame) -> list[str]:
    """Say of every measure whether it may stand in for an exact one.

    The lower end of Spearman's interval decides: at least `TRUSTED`, yes; at least `WITH_CARE`,
    with care; below, no. Without an interval it cannot be told.

    Args:
        table: What `agreement` returns.

    Returns:
        One sentence for each row that compares an exact measure with one that is not.
    """
    return [
        _verdict(row)
        for row in table.itertuples()
        if _is_exact(row.measure) and not _is_exact(row.other)
    ]


def write_agreement(
    table: pd.DataFrame, file: str | os.PathLike[str], *, form: Literal["csv", "json"]
) -> None:
    """Write what `agreement` returns; see `write_csv` and `write_json`.

    Raises:
        KingpostError: The file cannot be written.
    """
    if form == "csv":
        _write(Path(file), table.to_csv(index=False))
        return
    rows = [
        {name: _known(value) for name, value in row.items()}
        for row in table.to_dict(orient="records")
    ]
    _write(Path(file), json.dumps(rows, indent=1, ensure_ascii=False) + "\n")


def _values(study: Study) -> dict[str, pd.DataFrame]:
    """The values of each measure, sites × sequences; exact measures first.

    NaN where nothing is measured, and inf where what was measured is not finite. Constants have
    their value for every sequence.
    """
    table = study.table()
    columns = ["block", "component", "measure", "ablation", "value"]
    constants = table.loc[table["n_sequences"] == 0, columns].merge(
        study.sequences()[["sequence"]], how="cross"
    )
    rows = pd.concat([study.observations(), constants], join="inner", ignore_index=True)
    rows["value"] = rows["value"].where(np.isfinite(rows["value"]), np.inf)
    names = _own_names(study)
    keys = zip(rows["block"], rows["component"], strict=True)
    rows["component"] = [names.get(key, key[1]) for key in keys]
    rows = rows.drop_duplicates([*columns[:-1], "sequence"])
    found = {
        _label(measure, ablation): part.pivot(
            index=["block", "component"], columns="sequence", values="value"
        ).sort_index()
        for (measure, ablation), part in rows.groupby(["measure", "ablation"])
    }
    return dict(sorted(found.items(), key=lambda item: (not _is_exact(item[0]), item[0])))


def _own_names(study: Study) -> dict[tuple[int, str], str]:
    """For each role that is one whole parameter, the parameter's name: both are one site."""
    components = study.components()
    parameters = components[components["kind"] == "parameter"]
    sizes = {(p.block, p.component): p.n_parameters for p in parameters.itertuples()}
    return {
        (r.block, r.component): r.parameters[0]
        for r in components[components["kind"] == "role"].itertuples()
        if len(r.parameters) == 1 and sizes.get((r.block, r.parameters[0])) == r.n_parameters
    }


def _label(measure: str, ablation: str) -> str:
    return f"{measure} ({ablation})" if ablation else measure


def _family(label: str) -> str:
    """The measure of a label without its argument or its ablation."""
    return label.partition(" ")[0].partition(":")[0]


def _is_exact(label: str) -> bool:
    return _family(label) == _EXACT


def _sequences(study: Study) -> pd.DataFrame:
    """Document and predicted tokens of each sequence, by its number."""
    sequences = study.sequences().set_index("sequence")
    return pd.DataFrame(
        {"document": sequences["document"], "n_tokens": sequences["token_ids"].map(len) - 1}
    )


def _sites(values: pd.DataFrame) -> pd.DataFrame:
    return values[values.index.get_level_values("component") != "block"]


def _blocks(study: Study, label: str, values: pd.DataFrame) -> pd.DataFrame:
    """The values of whole blocks, (block, "block") × sequences."""
    own = values[values.index.get_level_values("component") == "block"]
    if _family(label) not in _SUMS or len(own) == values.index.get_level_values("block").nunique():
        return own
    parts = _sites(values).copy()
    if not _is_exact(label):
        parts.loc[~np.isfinite(parts).any(axis=1)] = 0.0  # undefined: adds nothing
    measured = set(parts.index.get_level_values("component"))
    sums = {
        (block, "block"): _sum(parts, block, [c for c in components if c.component in measured])
        for block, components in itertools.groupby(_components(study), key=lambda c: c.block)
    }
    return pd.DataFrame(sums, index=values.columns).T.dropna(how="all")


def _components(study: Study) -> list[Any]:
    return list(study.components().sort_values("block", kind="stable").itertuples())


def _sum(parts: pd.DataFrame, block: int, components: list[Any]) -> pd.Series:
    """The sum over components of a block, [sequences]; NaN where one is not measured."""
    sites = [(block, c.component) for c in cover(components)]
    return parts.reindex(sites).sum(axis=0, skipna=False, min_count=1)


def _compare(
    one: pd.DataFrame,
    other: pd.DataFrame,
    sequences: pd.DataFrame,
    *,
    top: int,
    replicates: int,
    seed: int,
) -> Iterator[dict[str, Any]]:
    """The numbers of one pair; none if it has too little in common."""
    x, y, shared = _in_common(one, other)
    if len(x) < _FEWEST:
        return
    scored = sequences.loc[shared]
    weights = _weights(scored["n_tokens"], scored["document"], replicates=replicates, seed=seed)
    first, second = _means(x, weights), _means(y, weights)
    k = min(top, len(x))
    yield {
        "n": len(x),
        **_with_interval("spearman", _spearman(first, second)),
        **_with_interval("kendall", _kendall(first, second)),
        "top": k,
        "overlap": len(_top(first[0], k) & _top(second[0], k)),
    }


def _in_common(one: pd.DataFrame, other: pd.DataFrame) -> tuple[_Floats, _Floats, pd.Index]:
    """What two measures can be compared on: values [sites, sequences] of each, the sequences."""
    sites = one.index[one.index.isin(other.index)]
    columns = one.columns[one.columns.isin(other.columns)]
    both = np.stack([frame.loc[sites, columns].to_numpy(np.float64) for frame in (one, other)])
    shared = ~np.isnan(both).any(axis=(0, 1))
    both = both[:, :, shared]
    both = both[:, np.isfinite(both).all(axis=(0, 2)) & shared.any()]
    return both[0], both[1], columns[shared]


def _weights(
    n_tokens: npt.ArrayLike, documents: npt.ArrayLike, *, replicates: int, seed: int
) -> _Floats:
    """Weights of the sequences: as they are, and in each replicate, [1 + replicates, sequences].

    With one document the sequences are drawn; with one sequence there is nothing to draw, and no
    replicate.
    """
    tokens = np.asarray(n_tokens, dtype=np.float64)
    _, unit = np.unique(np.asarray(documents), return_inverse=True)
    if unit.max() == 0:
        unit = np.arange(len(tokens))
    n_units = int(unit.max()) + 1
    rng = np.random.default_rng(seed)
    size = replicates if n_units > 1 else 0
    drawn = rng.multinomial(n_units, np.full(n_units, 1 / n_units), size=size)
    return tokens * np.vstack([np.ones((1, len(tokens))), drawn[:, unit]])


def _means(values: _Floats, weights: _Floats) -> _Floats:
    """Weighted means of values [sites, sequences], [1 + replicates, sites]."""
    # Equal rows are computed once: a matrix product may round each differently, which ends a tie.
    rows, place = np.unique(values, axis=0, return_inverse=True)
    means: _Floats = (weights @ rows.T) / weights.sum(axis=1, keepdims=True)
    return means[:, place.ravel()]


def _spearman(x: _Floats, y: _Floats) -> _Floats:
    """Spearman's correlation of each row: Pearson's of the ranks, [rows]."""
    a, b = (_centred_ranks(values) for values in (x, y))
    with np.errstate(invalid="ignore"):  # 0/0 where all are tied: NaN
        correlation: _Floats = (a * b).sum(axis=1) / np.sqrt(
            (a * a).sum(axis=1) * (b * b).sum(axis=1)
        )
    return correlation


def _centred_ranks(values: _Floats) -> _Floats:
    ranks: _Floats = stats.rankdata(values, axis=1) - (values.shape[1] + 1) / 2
    return ranks


def _kendall(x: _Floats, y: _Floats) -> _Floats:
    """Kendall's tau-b of each row, [rows]."""
    # `asymptotic` only keeps scipy from computing an exact p-value that nobody reads.
    return np.array(
        [stats.kendalltau(a, b, method="asymptotic").statistic for a, b in zip(x, y, strict=True)]
    )


def _with_interval(name: str, values: _Floats) -> dict[str, float]:
    """A number and the interval of its replicates, which follow it; NaN if there are none."""
    replicates = values[1:]
    low, high = np.quantile(replicates, _INTERVAL) if len(replicates) else (np.nan, np.nan)
    return {name: float(values[0]), f"{name}_low": float(low), f"{name}_high": float(high)}


def _top(values: _Floats, k: int) -> set[int]:
    return set(np.argsort(-values, kind="stable")[:k].tolist())


def _verdict(row: Any) -> str:
    exact = f"the exact ΔLoss {row.measure.removeprefix(_EXACT).strip()}"
    tops = f"{row.overlap} of its top {row.top} are in the exact top {row.top}"
    if not np.isfinite(row.spearman_low):
        return (
            f"Whether {row.other} ranks {row.over} like {exact} cannot be told: "
            f"Spearman {row.spearman:.2f} without an interval, {tops}."
        )
    numbers = f"Spearman {row.spearman:.2f} [{row.spearman_low:.2f}, {row.spearman_high:.2f}]"
    if row.spearman_low >= TRUSTED:
        claim, advice = "ranks", "trust it"
    elif row.spearman_low >= WITH_CARE:
        claim, advice = "ranks", "use it with care"
    else:
        claim, advice = "does not surely rank", "do not rely on it"
    return f"{row.other} {claim} {row.over} like {exact}: {numbers}, {tops}: {advice}."


def _nothing_to_compare(study: Study, labels: Sequence[str]) -> str:
    if len(labels) < 2:
        found = f"{study.folder} has {labels[0] if labels else 'no measure'} and no other measure"
    else:
        found = (
            f"The measures of {study.folder} ({', '.join(labels)}) have no {_FEWEST} blocks or "
            "sites in common"
        )
    return f"{found} to compare; scan another, for example with {_command(study)}."


def _command(study: Study) -> str:
    """The scan that adds two measures of the blocks to a study, with the study's own settings."""
    p = study.provenance
    options: dict[str, Any] = {"out": study.folder, "measure": f"{_EXACT},influence"}
    options |= {k: p[k] for k in ("text", "length", "seed", "dtype", "device") if k in p}
    options["sequences"] = len(study.sequences())
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return shlex.join(["kingpost", "scan", str(p.get("model_source", p["model"])), *words])
