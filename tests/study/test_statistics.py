"""The estimate against statsmodels and hand calculations."""

import numpy as np
import pytest
import statsmodels.api as sm
from scipy import stats

from kingpost.study import estimate
from kingpost.study.statistics import noise_floor


def test_equal_weights_one_sequence_a_document_is_the_textbook_mean() -> None:
    x = np.array([1.0, 2.0, 4.0, 8.0])
    e = estimate(x, n_tokens=[10] * 4, documents=list("abcd"))
    assert e.value == pytest.approx(3.75, rel=1e-15)
    assert e.se == pytest.approx(x.std(ddof=1) / 2, rel=1e-12)
    low, high = stats.t.interval(0.95, 3, loc=x.mean(), scale=stats.sem(x))
    assert (e.ci_low, e.ci_high) == pytest.approx((low, high), rel=1e-12)
    assert (e.n_sequences, e.n_tokens, e.n_clusters) == (4, 40, 4)


def test_clustered_error_equals_that_of_statsmodels() -> None:
    rng = np.random.default_rng(3)
    documents = rng.integers(0, 7, size=40)
    weights = rng.integers(20, 300, size=40)
    x = rng.normal(size=40) + documents
    e = estimate(x, n_tokens=weights, documents=documents)
    fit = sm.WLS(x, np.ones(40), weights=weights).fit(
        cov_type="cluster", cov_kwds={"groups": documents, "df_correction": True}, use_t=True
    )
    # statsmodels multiplies by (n − 1)/(n − k) = 1 for a mean as well as by G/(G − 1).
    assert e.value == pytest.approx(fit.params[0], rel=1e-12)
    assert e.se == pytest.approx(fit.bse[0], rel=1e-12)
    assert (e.ci_low, e.ci_high) == pytest.approx(tuple(fit.conf_int()[0]), rel=1e-10)


def test_repeating_two_documents_does_not_shrink_the_interval() -> None:
    few = estimate([1.0, 2.0], n_tokens=[5, 5], documents=["a", "b"])
    many = estimate([1.0, 2.0] * 50, n_tokens=[5] * 100, documents=["a", "b"] * 50)
    assert many.se == pytest.approx(few.se, rel=1e-12)
    assert many.ci_high - many.ci_low == pytest.approx(few.ci_high - few.ci_low, rel=1e-12)


def test_one_document_falls_back_to_its_sequences() -> None:
    e = estimate([1.0, 2.0, 4.0], n_tokens=[5] * 3, documents=["a"] * 3)
    assert e.se == pytest.approx(np.std([1, 2, 4], ddof=1) / np.sqrt(3), rel=1e-12)
    assert e.n_clusters == 3


def test_what_is_not_known_stays_not_known() -> None:
    one = estimate([1.5], n_tokens=[5], documents=["a"])
    assert one.value == 1.5
    assert np.isnan([one.se, one.ci_low, one.ci_high]).all()
    overflown = estimate([1.0, np.inf], n_tokens=[5, 5], documents=["a", "b"])
    assert overflown.value == np.inf
    assert np.isnan(overflown.se)


def test_noise_floor_is_the_far_end_of_the_interval_of_the_mean() -> None:
    d = np.array([1e-3, -2e-3, 4e-3, 0.0])
    low, high = stats.t.interval(0.95, 3, loc=d.mean(), scale=stats.sem(d))
    assert noise_floor(d) == pytest.approx(max(-low, high), rel=1e-12)
    assert noise_floor(-d) == pytest.approx(noise_floor(d), rel=1e-12)
    assert np.isnan(noise_floor([1e-3]))
    assert noise_floor([0.0, 0.0, 0.0]) == 0.0
