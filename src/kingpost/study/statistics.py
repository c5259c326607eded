"""From observations of sequences to an estimate with its uncertainty."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import stats

_LEVEL = 0.95


class Estimate(NamedTuple):
    """The mean of a measure over sequences, and how sure it is.

    Attributes:
        value: Token-weighted mean.
        se: Its standard error; NaN with fewer than two sequences or values that are not finite.
        ci_low: Lower end of the 95% interval.
        ci_high: Upper end.
        n_sequences: Number of sequences.
        n_tokens: Number of predicted tokens.
        n_clusters: Number of independent units the error was computed from.
    """

    value: float
    se: float
    ci_low: float
    ci_high: float
    n_sequences: int
    n_tokens: int
    n_clusters: int


def estimate(
    values: npt.ArrayLike, *, n_tokens: npt.ArrayLike, documents: npt.ArrayLike
) -> Estimate:
    """Token-weighted mean with a standard error that is robust to dependence inside documents.

    The variance is the cluster-robust one of a weighted mean (Liang and Zeger 1986) with the usual
    factor G/(G − 1): with weights w, mean m and G documents,
    se² = G/(G − 1) · Σ_g (Σ_{s in g} w_s (x_s − m))² / (Σ w)². The interval is Student's with G − 1
    degrees of freedom. With a single document the sequences themselves are the units, and the
    interval speaks of that document only.

    Args:
        values: One number for each sequence, [n].
        n_tokens: Its predicted tokens, [n]: the weights.
        documents: The document of each, [n].
    """
    x = np.asarray(values, dtype=np.float64)
    w = np.asarray(n_tokens, dtype=np.float64)
    _, cluster = np.unique(np.asarray(documents), return_inverse=True)
    if len(x) and cluster.max() == 0:
        cluster = np.arange(len(x))
    n_clusters = int(cluster.max()) + 1 if len(x) else 0
    mean = float((w * x).sum() / w.sum()) if len(x) else np.nan
    se = _standard_error(x, w, cluster, mean)
    half = stats.t.ppf(0.5 + _LEVEL / 2, n_clusters - 1) * se if n_clusters > 1 else np.nan
    return Estimate(mean, se, mean - half, mean + half, len(x), int(w.sum()), n_clusters)


def _standard_error(
    x: npt.NDArray[np.float64],
    w: npt.NDArray[np.float64],
    cluster: npt.NDArray[np.intp],
    mean: float,
) -> float:
    n_clusters = int(cluster.max()) + 1 if len(x) else 0
    if n_clusters < 2 or not np.isfinite(x).all():
        return np.nan
    totals = np.bincount(cluster, weights=w * (x - mean))
    return float(np.sqrt(n_clusters / (n_clusters - 1) * (totals**2).sum()) / w.sum())


def noise_floor(differences: npt.ArrayLike) -> float:
    """The largest mean shift that rounding alone plausibly makes.

    Args:
        differences: Mean loss of the same baseline sequences in two batch layouts, one minus the
            other, [n], nats per token.

    Returns:
        The end of the 95% Student interval of the mean difference that is farther from zero;
        NaN with fewer than two sequences.
    """
    d = np.asarray(differences, dtype=np.float64)
    if len(d) < 2:
        return float("nan")
    e = estimate(d, n_tokens=np.ones(len(d)), documents=np.arange(len(d)))
    return max(abs(e.ci_low), abs(e.ci_high))
