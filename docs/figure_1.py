"""The numbers of docs/figure-1.md: python docs/figure_1.py RUN..., smallest model first."""

import sys
from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd
from claims import report, show

import kingpost

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
    studies = [kingpost.open_study(run) for run in sys.argv[1:]]
    tables = []
    for study in studies:
        observed = study.observations()
        wanted = observed["component"].isin(COMPONENTS) & (observed["ablation"] == "zero")
        tables.append(observed[wanted].assign(model=study.model_name))
        if study.n_blocks > EARLY:
            claims = of_one_model(study.n_blocks)
            show(study.model_name, report(tables[-1], ["component", "block"], claims))
    names = [study.model_name for study in studies]
    if len(studies) > 1:
        claims = between(names[0], names[-1])
        index = ["model", "component", "block"]
        show(f"{names[0]} and {names[-1]}", report(pd.concat(tables), index, claims))


if __name__ == "__main__":
    main()
