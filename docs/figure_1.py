"""The numbers of docs/figure-1.md from tables, smallest model first.

python docs/figure_1.py results/figure-1/D8 results/figure-1/D12 results/figure-1/D16
"""

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from claims import report, show

EARLY = 3
"""Blocks L0 to L2 are what the figure's description calls early."""
GATES = ["alpha", "beta"]
COMPONENTS = ["q_proj", *GATES]

Claims = Mapping[str, Callable[[pd.Series], float]]


def of_one_model(n_blocks: int) -> Claims:
    """What the description says of every panel; cells are indexed by component and block."""
    early, later = slice(0, EARLY - 1), slice(EARLY, n_blocks)

    def mean(cells: pd.Series, component: str, blocks: slice) -> float:
        return float(cells[component].loc[blocks].mean())

    def gates(cells: pd.Series, blocks: slice) -> float:
        """Mean of the higher of α and β, over the blocks that have them."""
        higher = pd.concat([cells[gate].loc[blocks] for gate in GATES], axis=1).max(axis=1)
        return float(higher.mean())

    def query_with_gates(cells: pd.Series, blocks: slice) -> float:
        """Mean of the Q-projection over the same blocks."""
        return float(cells["q_proj"].loc[cells["alpha"].loc[blocks].index].mean())

    claims: dict[str, Callable[[pd.Series], float]] = {}
    for component in COMPONENTS:
        claims[f"{component}: mean of L0-L2 / mean of the later"] = lambda c, name=component: (
            mean(c, name, early) / mean(c, name, later)
        )
    claims["L0-L2: Q / higher of α and β"] = lambda c: query_with_gates(c, early) / gates(c, early)
    claims["L3 and later: higher of α and β / Q"] = lambda c: (
        gates(c, later) / query_with_gates(c, later)
    )
    claims["β: last gated delta block / median of the later ones"] = lambda c: float(
        c["beta"].iloc[-1] / np.median(c["beta"].loc[later])
    )
    return claims


def between(first: str, last: str) -> Claims:
    """How much more gradually ΔLoss declines in the larger of two models."""

    def share(cells: pd.Series, model: str, component: str) -> float:
        of = cells[model][component]
        return float(of.loc[: EARLY - 1].sum() / of.sum())

    return {
        f"{component}: share of L0-L2 in {first} / in {last}": lambda c, name=component: (
            share(c, first, name) / share(c, last, name)
        )
        for component in COMPONENTS
    }


def main() -> None:
    """Print, for every claim, a number with its 95% interval."""
    tables = {}
    for folder in map(Path, sys.argv[1:]):
        provenance = json.loads((folder / "provenance.json").read_text(encoding="utf-8"))
        name, n_blocks = provenance["model"], provenance["n_blocks"]
        observed = pd.read_parquet(folder / "observations.parquet")
        wanted = observed["component"].isin(COMPONENTS) & (observed["ablation"] == "zero")
        tables[name] = observed[wanted].assign(model=name)
        if n_blocks > EARLY:
            claims = of_one_model(n_blocks)
            show(name, report(tables[name], ["component", "block"], claims))
    if len(tables) > 1:
        first, *_, last = tables
        index = ["model", "component", "block"]
        rows = pd.concat(tables.values())
        show(f"{first} and {last}", report(rows, index, between(first, last)))


if __name__ == "__main__":
    main()
