"""The heatmap where something is missing, negative, left out, or short of room."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
from test_figure_heatmap import FIGURE_2, VALUES, beside, big, caption, drawn, legend, study

import kingpost

NORMS = VALUES | {(0, "input_layernorm"): 40.0, (1, "input_layernorm"): 10.0}


def panels(axes):
    return [a for a in axes.figure.axes[0].child_axes if a.get_images()]


def looks(axes):
    return {(i.get_cmap().name, i.get_clim()) for a in panels(axes) for i in a.get_images()}


def test_an_exact_loss_within_the_noise_floor_is_zero_like_a_cell():
    axes = kingpost.plot_heatmap(study(VALUES, skip={0: 5.0, 1: 1.0, 2: -1e-4}))
    np.testing.assert_allclose(beside(axes)["exact ΔLoss"], [1, 0.2, 0])
    assert looks(axes) == {("GnBu", (0.0, 1.0))}


def test_all_columns_share_the_colours_that_the_bar_explains():
    axes = kingpost.plot_heatmap(study(VALUES, skip={0: 5.0, 1: 1.0, 2: -1.0}))
    assert looks(axes) == {("RdBu", (-1.0, 1.0))}
    assert beside(axes)["exact ΔLoss"][2] == pytest.approx(-0.2)


def test_a_hatched_exact_cell_is_explained():
    axes = kingpost.plot_heatmap(study(VALUES, skip={0: 5.0, 1: 1.0}))
    assert legend(axes) == ["no number"]


@pytest.mark.parametrize("normalize", ["column", "row"])
def test_what_is_left_out_of_the_sum_is_said(normalize):
    made = study(NORMS, measure="ablation", ablation="zero")
    axes = kingpost.plot_heatmap(made, "ablation", normalize=normalize)
    left_out = np.allclose(beside(axes)["Layer Importance"], np.array([9, 6, 3]) / 9)
    with_norms = np.allclose(beside(axes)["Layer Importance"], np.array([49, 16, 3]) / 49)
    assert left_out or with_norms
    assert left_out == ("not in the sum" in caption(axes))


def test_an_ablation_does_not_matter_for_another_measure():
    values, names = drawn(kingpost.plot_heatmap(study(VALUES), ablation="zero"))
    assert names == ["b", "a"]
    np.testing.assert_allclose(values[0], [1, 1 / 8])


def test_the_caption_gives_a_range_where_cells_rest_on_different_numbers():
    made = study(VALUES)
    made.cells.loc[0, "n_sequences"] = 12
    assert "12 to 16 sequences × 256 tokens" in caption(kingpost.plot_heatmap(made))


def test_a_zero_is_drawn_at_the_bottom_end_of_logarithmic_colours():
    axes = kingpost.plot_heatmap(study(VALUES), scale="log")
    image = axes.get_images()[0]
    assert float(image.norm(0.0)) == 0
    assert image.cmap(image.norm(np.ma.array([0.0])))[0] == pytest.approx(image.cmap(0))


@pytest.mark.parametrize("size", [(6.4, 4.8), (9, 5)])
def test_labels_and_caption_stay_on_the_page_in_given_axes(size):
    figure, place = plt.subplots(figsize=size)
    axes = kingpost.plot_heatmap(big(36, FIGURE_2), axes=place)
    figure.draw_without_rendering()
    assert tuple(figure.get_size_inches()) == size
    texts = [t for a in place.child_axes for t in a.get_xticklabels() if a.get_images()]
    for text in (*texts, *place.texts):
        assert text.get_window_extent().y0 >= 0
    assert axes.get_window_extent().height > 0.25 * figure.bbox.height


def test_the_legend_stays_on_the_page_of_a_narrow_figure():
    values = {k: v for k, v in VALUES.items() if k not in ((1, "a"), (2, "b"))}
    axes = kingpost.plot_heatmap(study(values, unmeasured=((1, "a"),)))
    axes.figure.draw_without_rendering()
    box = axes.get_legend().get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= axes.figure.bbox.x1
    assert box.y1 <= axes.figure.bbox.y1


def test_given_axes_with_room_below_keep_their_height_and_those_above_others_keep_clear():
    figure, place = plt.subplots(figsize=(7, 9))
    figure.subplots_adjust(bottom=0.4)
    axes = kingpost.plot_heatmap(big(36, FIGURE_2), axes=place)
    assert axes.get_window_extent().y0 == pytest.approx(place.get_window_extent().y0)
    figure, (upper, lower) = plt.subplots(2, 1, figsize=(7, 9))
    kingpost.plot_heatmap(big(36, FIGURE_2), axes=upper)
    figure.draw_without_rendering()
    (text,) = upper.texts
    assert text.get_window_extent().y0 >= lower.get_window_extent().y1
