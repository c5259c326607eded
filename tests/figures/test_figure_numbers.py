"""What Figure 1 shows, before any drawing."""

import math

import pytest
from made_up_studies import SMOLLM2_SKIP, decaying, rows, study, three_components

from kingpost.errors import KingpostError, UsageError
from kingpost.figures.bars_data import Kind, bars_data, kind_of
from kingpost.figures.caption import captions, full_captions
from kingpost.figures.fitting import tick_step


def cells_of(data, panel=0, series=0):
    return {cell.block: cell for cell in data.panels[panel].series[series].cells}


def test_a_study_becomes_cells_with_its_own_numbers():
    data = bars_data([study(rows("block", SMOLLM2_SKIP, ablation="skip"), n_blocks=30)])
    cells = cells_of(data)
    assert {block: cell.value for block, cell in cells.items()} == SMOLLM2_SKIP
    assert all(cell.kind is Kind.BAR for cell in cells.values())
    assert cells[0].low == pytest.approx(7.52 * (1 - 2.13 * 0.08))
    assert cells[0].high == pytest.approx(7.52 * (1 + 2.13 * 0.08))
    assert data.keys == (("block", "skip"),)


def test_only_the_exact_measure_is_drawn():
    mixed = study(
        rows("q_proj", {0: 1.0}),
        rows("q_proj", {0: 500.0}, measure="taylor", ablation=""),
        n_blocks=1,
    )
    assert [cell.value for cell in bars_data([mixed]).panels[0].series[0].cells] == [1.0]


def test_series_stand_in_the_agreed_order_and_others_as_they_come():
    names = ["beta", "q_proj", "mlp", "alpha", "attn", "block"]
    data = bars_data([study(*(rows(name, {0: 1.0}) for name in names), n_blocks=1)])
    assert [key[0] for key in data.keys] == ["block", "attn", "mlp", "q_proj", "beta", "alpha"]


def test_two_ablations_of_one_component_are_two_series():
    both = study(
        rows("mlp", {0: 1.0}, ablation="zero"), rows("mlp", {0: 2.0}, ablation="mean"), n_blocks=1
    )
    assert bars_data([both]).keys == (("mlp", "zero"), ("mlp", "mean"))


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (0.5, Kind.BAR),
        (2.2e-3, Kind.BAR),
        (1.5e-3, Kind.BELOW_AXIS),
        (1e-3, Kind.NOISE),
        (0.0, Kind.NOISE),
        (-1e-3, Kind.NOISE),
        (-2e-3, Kind.NEGATIVE),
        (math.inf, Kind.NOT_FINITE),
        (-math.inf, Kind.NOT_FINITE),
        (math.nan, Kind.NOT_FINITE),
    ],
)
def test_every_value_has_its_mark(value, kind):
    assert kind_of(value, noise_floor=1e-3, axis_floor=2e-3) is kind


def test_an_exact_zero_is_noise_even_where_no_floor_is_known():
    data = bars_data([study(rows("block", {0: 1.0, 1: 0.0}), n_blocks=2, noise_floor=math.nan)])
    assert cells_of(data)[1].kind is Kind.NOISE


def test_axis_starts_a_half_decade_or_decade_below_the_least_bar():
    data = bars_data([study(rows("block", SMOLLM2_SKIP, ablation="skip"), n_blocks=30)])
    assert data.floor == pytest.approx(10**-1.5)
    assert data.top == pytest.approx(1.5 * 7.52 * (1 + 2.13 * 0.08))


@pytest.mark.parametrize("value", [1e-5, 0.02, 0.5, 0.99, 1.0, 3.0, 7.52, 1000.0])
def test_axis_of_a_single_value_has_two_ticked_decades(value):
    data = bars_data([study(rows("block", {0: value}, se=0), n_blocks=1, noise_floor=0.0)])
    decades = [10.0**n for n in range(-9, 9) if data.floor <= 10.0**n <= data.top]
    assert len(decades) >= 2
    assert data.floor < value < data.top


def test_one_tiny_value_does_not_stretch_the_axis():
    tiny = study(rows("block", {0: 10.0, 1: 1.0, 2: 1e-9}), n_blocks=3, noise_floor=1e-12)
    data = bars_data([tiny])
    assert data.floor == pytest.approx(10**-3.5)
    assert cells_of(data)[2].kind is Kind.BELOW_AXIS


def test_the_axis_is_shared_by_all_panels():
    large = study(rows("block", {0: 10.0}, se=0), n_blocks=1)
    small = study(rows("block", {0: 0.02}, se=0), n_blocks=1)
    data = bars_data([large, small])
    assert data.floor == pytest.approx(0.01)
    assert data.top == pytest.approx(15)


def test_values_within_noise_do_not_lower_the_axis():
    data = bars_data([study(rows("block", {0: 5.0, 1: 0.05, 2: 1e-4}), n_blocks=3)])
    assert data.floor == pytest.approx(10**-1.5)


@pytest.mark.parametrize("value", [-0.5, 0.0, math.nan, math.inf])
def test_a_study_without_a_single_bar_has_an_axis(value):
    data = bars_data([study(rows("block", {0: value}), n_blocks=1)])
    assert (data.floor, data.top) == (1e-3, 10.0)


def test_whiskers_end_at_the_axis_and_are_absent_where_unknown():
    wide = study(rows("block", {0: 1.0}, se=0.9), rows("mlp", {0: 1.0}, se=math.nan), n_blocks=1)
    data = bars_data([wide])
    assert cells_of(data)[0].low < 0
    assert cells_of(data)[0].whisker(data.floor) == (data.floor, pytest.approx(2.917))
    assert cells_of(data, series=1)[0].whisker(data.floor) is None


def test_offsets_belong_to_the_series_even_where_a_block_lacks_one():
    alpha = {block: 0.5 for block in range(8) if block % 4 != 3}
    hybrid = study(
        rows("q_proj", decaying(8, 5)), rows("alpha", alpha), rows("beta", alpha), n_blocks=8
    )
    panel = bars_data([hybrid]).panels[0]
    assert panel.offsets(0.25) == [-0.25, 0.0, 0.25]
    assert [len(series.cells) for series in panel.series] == [8, 6, 6]


def test_no_study_is_the_users_mistake():
    with pytest.raises(UsageError, match="no study to draw"):
        bars_data([])


def test_a_study_without_exact_results_says_which_and_what_to_run():
    cheap = study(rows("q_proj", {0: 5.0}, measure="taylor"), n_blocks=1, model_name="Tiny-7")
    with pytest.raises(
        KingpostError, match=r"Tiny-7 has no exact ΔLoss.*kingpost scan.*--measure ablation"
    ) as caught:
        bars_data([three_components(8), cheap])
    assert not isinstance(caught.value, UsageError)


def test_caption_says_how_it_was_measured():
    whole = bars_data([study(rows("block", SMOLLM2_SKIP, ablation="skip"), n_blocks=30)])
    assert captions(whole) == (
        "16 sequences × 256 tokens of python-docs, bfloat16; bars: mean, whiskers: 95% interval",
        [""],
    )


def test_caption_names_the_ablation_that_the_legend_leaves_out_and_the_noise():
    noisy = study(rows("alpha", {0: 1.0}), rows("beta", {0: 1e-5}), n_blocks=1)
    common, _ = captions(bars_data([noisy]))
    assert common.startswith("ablation: zero; 16 sequences")
    assert common.endswith("; noise floor 2e−4 nats per token")


def test_what_differs_between_studies_is_said_panel_by_panel():
    other = {"text": "wikitext", "length": 512, "dtype": "float32"}
    common, single = captions(
        bars_data([three_components(8), three_components(8, provenance=other)])
    )
    assert common == "ablation: zero; bars: mean, whiskers: 95% interval"
    assert single == [
        "16 sequences × 256 tokens of python-docs, bfloat16",
        "16 sequences × 512 tokens of wikitext, float32",
    ]


def test_full_captions_stand_on_their_own():
    data = bars_data([three_components(8), three_components(12)])
    assert full_captions(data) == [captions(bars_data([three_components(8)]))[0]] * 2


def test_caption_promises_no_interval_that_is_not_there():
    single = study(rows("block", {0: 1.0}, se=math.nan, n_sequences=1), n_blocks=1)
    common, _ = captions(bars_data([single]))
    assert (
        common == "1 sequence × 256 tokens of python-docs, bfloat16; bars: mean, no interval known"
    )


def test_caption_gives_a_range_where_cells_rest_on_different_numbers():
    uneven = study(
        rows("block", {0: 1.0}),
        rows("block", {1: 1.0}, n_sequences=12),
        rows("block", {2: math.nan}, n_sequences=0),
        n_blocks=3,
    )
    assert captions(bars_data([uneven]))[0].startswith("12 to 16 sequences × 256 tokens")


@pytest.mark.parametrize(
    ("n_blocks", "pitch", "step"), [(8, 25, 1), (30, 15, 2), (30, 7, 5), (80, 5, 5), (9, 0.01, 9)]
)
def test_ticks_are_thinned_to_what_fits(n_blocks, pitch, step):
    assert tick_step(n_blocks, pitch=pitch, label_width=22) == step
