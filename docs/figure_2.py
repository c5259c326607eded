"""The numbers of docs/figure-2.md from a run: python docs/figure_2.py RUN."""

import sys
from collections.abc import Callable

import numpy as np
import pandas as pd

import kingpost

MLP = ["mlp.down_proj", "mlp.up_proj", "mlp.gate_proj"]
ATTENTION = [f"self_attn.{x}_proj" for x in "qkvo"]
NORMS = ["input_layernorm", "post_attention_layernorm"]
LOWER, UPPER, REPLICATES = range(15), range(15, 30), 1000


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
        report(f"{measure} {ablation}", observed[wanted & named], ["block", "component"], CLAIMS)
    report("skip", observed[observed["ablation"] == "skip"], ["block"], BLOCK_CLAIMS)


def report(
    title: str, rows: pd.DataFrame, index: list[str], claims: dict[str, Callable[..., float]]
) -> None:
    """Print each ratio with the 95% percentile interval of drawing the documents again."""
    cells = rows.pivot_table(index=index, columns="sequence", values="value")
    documents = rows.drop_duplicates("sequence").set_index("sequence")["document"][cells.columns]
    names, random = documents.unique(), np.random.default_rng(0)
    weights = []
    for _ in range(REPLICATES):
        drawn = pd.Series(random.choice(names, len(names))).value_counts()
        weights.append(documents.map(drawn).fillna(0).to_numpy())
    print(title)
    for claim, ratio in claims.items():
        replicates = [ratio((cells * w).sum(axis=1) / w.sum()) for w in weights]
        low, high = np.quantile(replicates, [0.025, 0.975])
        print(f"  {claim}: {ratio(cells.mean(axis=1)):.2f} [{low:.2f}, {high:.2f}]")


if __name__ == "__main__":
    main()
