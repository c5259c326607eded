"""The numbers of docs/figure-2.md from a run: python docs/figure_2.py RUN."""

import sys
from collections.abc import Callable

import numpy as np
import pandas as pd
from claims import report, show

import kingpost

MLP = ["mlp.down_proj", "mlp.up_proj", "mlp.gate_proj"]
ATTENTION = [f"self_attn.{x}_proj" for x in "qkvo"]
NORMS = ["input_layernorm", "post_attention_layernorm"]
LOWER, UPPER = range(15), range(15, 30)


def mean(cells: pd.Series, components: list[str], blocks: range = range(30)) -> float:
    """Mean over cells of some components and blocks."""
    return float(cells.unstack("component").loc[list(blocks), components].to_numpy().mean())


def median(cells: pd.Series, components: list[str]) -> float:
    """Median over cells of some components."""
    return float(np.median(cells.unstack("component")[components]))


CLAIMS: dict[str, Callable[[pd.Series], float]] = {
    "MLP cell / attention cell, means": lambda c: mean(c, MLP) / mean(c, ATTENTION),
    "MLP cell / attention cell, medians": lambda c: median(c, MLP) / median(c, ATTENTION),
    "MLP, lower half / upper half": lambda c: mean(c, MLP, LOWER) / mean(c, MLP, UPPER),
    "MLP, L4-L12 / all other layers": lambda c: (
        mean(c, MLP, range(4, 13)) / ((30 * mean(c, MLP) - 9 * mean(c, MLP, range(4, 13))) / 21)
    ),
    "MLP, L4-L12 / L13-L29": lambda c: mean(c, MLP, range(4, 13)) / mean(c, MLP, range(13, 30)),
    "attention, lower half / upper half": lambda c: (
        mean(c, ATTENTION, LOWER) / mean(c, ATTENTION, UPPER)
    ),
    "attention, L2-L14 / L15-L27": lambda c: (
        mean(c, ATTENTION, range(2, 15)) / mean(c, ATTENTION, range(15, 28))
    ),
    "norm cell / attention cell, means": lambda c: mean(c, NORMS) / mean(c, ATTENTION),
    "layer sums, L2-L16 / L17-L29": lambda c: (
        mean(c, MLP + ATTENTION, range(2, 17)) / mean(c, MLP + ATTENTION, range(17, 30))
    ),
}
BLOCK_CLAIMS: dict[str, Callable[[pd.Series], float]] = {
    "share of L0 and L1": lambda c: c.loc[:1].sum() / c.sum(),
    "lower half / upper half": lambda c: c.loc[:14].sum() / c.loc[15:].sum(),
    "L2-L14 / L15-L27": lambda c: c.loc[2:14].mean() / c.loc[15:27].mean(),
}


def main() -> None:
    """Print all ratios."""
    study = kingpost.open_study(sys.argv[1])
    observed = study.observations()
    for measure, ablation in (("taylor", ""), ("ablation", "zero")):
        wanted = (observed["measure"] == measure) & (observed["ablation"] == ablation)
        named = observed["component"].isin(MLP + ATTENTION + NORMS)
        cells = observed[wanted & named]
        show(f"{measure} {ablation}", report(cells, ["block", "component"], CLAIMS))
    skips = observed[observed["ablation"] == "skip"]
    show("skip", report(skips, ["block"], BLOCK_CLAIMS))


if __name__ == "__main__":
    main()
