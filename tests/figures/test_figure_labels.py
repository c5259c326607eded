import itertools

import matplotlib.colors
import pytest

from kingpost.figures.labels import parameter_count, series_labels, shared_ablation, short_value
from kingpost.figures.styles import style_of


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (30_440_416, "30.4M"),
        (92_777_496, "92.8M"),
        (284_838_280, "285M"),
        (134_515_008, "135M"),
        (4_022_468_096, "4.02B"),
        (1_000_000_000, "1.00B"),
        (999_900_000, "1.00B"),
        (70_553_706_496, "70.6B"),
        (1_040_000_000_000, "1.04T"),
        (25_600, "25.6K"),
        (900, "900"),
    ],
)
def test_parameter_counts_have_three_significant_digits(n, text):
    assert parameter_count(n) == text


def test_the_ablation_is_named_where_it_tells_series_apart():
    keys = [("block", "skip"), ("attn", "zero"), ("mlp", "zero")]
    assert series_labels(keys) == ["block (skip)", "attention (zero)", "MLP (zero)"]
    assert shared_ablation(keys) is None


def test_a_common_ablation_is_left_to_the_caption():
    keys = [("q_proj", "zero"), ("alpha", "zero"), ("beta", "zero")]
    assert series_labels(keys) == ["Q-projection", "α", "β"]
    assert shared_ablation(keys) == "zero"


def test_a_single_series_says_what_was_done():
    assert series_labels([("block", "skip")]) == ["block (skip)"]
    assert series_labels([("self_attn.q_proj", "noise:0.1")]) == ["self_attn.q_proj (noise:0.1)"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(-0.0123, "−0.012"), (0.0, "0"), (1.234, "1.2"), (4.2e-5, "4e−5"), (-1.3e-4, "−1e−4")],
)
def test_short_values(value, text):
    assert short_value(value) == text


def luminance(color):
    """Relative luminance (WCAG 2.1), 0 to 1."""
    channels = matplotlib.colors.to_rgb(color)
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(darker, lighter):
    return (luminance(lighter) + 0.05) / (luminance(darker) + 0.05)


def test_the_three_styles_of_the_published_figure_differ_in_lightness():
    red, orange, yellow = (style_of(index) for index in range(3))
    assert orange.face_low
    assert yellow.hatch
    # The darkest orange there is, at the top of the axis, against both neighbours.
    assert contrast(red.face, orange.face) > 2
    assert contrast(orange.face, yellow.face) > 2


def test_forty_styles_differ():
    looks = [style_of(index) for index in range(40)]
    assert all(a != b for a, b in itertools.combinations(looks, 2))
