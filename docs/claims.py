"""Ratios of a study's cells with intervals, for the readings of the two published figures."""

from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd

REPLICATES = 1000


def report(
    rows: pd.DataFrame, index: list[str], claims: Mapping[str, Callable[[pd.Series], float]]
) -> pd.DataFrame:
    """Each ratio with the 95% percentile interval of drawing the documents again.

    Where all sequences are of one document, they are drawn instead.

    Args:
        rows: Observations, one for each cell and sequence.
        index: The columns that name a cell.
        claims: Functions of the cells' means.
    """
    cells = rows.pivot_table(index=index, columns="sequence", values="value")
    units = rows.drop_duplicates("sequence").set_index("sequence")["document"][cells.columns]
    if units.nunique() == 1:
        units = pd.Series(units.index, index=units.index)
    names, random = units.unique(), np.random.default_rng(0)
    weights = []
    for _ in range(REPLICATES):
        drawn = pd.Series(random.choice(names, len(names))).value_counts()
        weights.append(units.map(drawn).fillna(0).to_numpy())
    found = []
    for claim, ratio in claims.items():
        replicates = [ratio((cells * w).sum(axis=1) / w.sum()) for w in weights]
        low, high = np.quantile(replicates, [0.025, 0.975])
        found.append((claim, ratio(cells.mean(axis=1)), low, high))
    return pd.DataFrame(found, columns=["claim", "value", "low", "high"])


def show(title: str, found: pd.DataFrame) -> None:
    """Print the ratios."""
    print(title)
    for row in found.itertuples():
        print(f"  {row.claim}: {row.value:.2f} [{row.low:.2f}, {row.high:.2f}]")
