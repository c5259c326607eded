"""Figure 1 as drawn: positions, marks, texts, and that nothing covers anything."""

import itertools
import math

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest
from made_up_studies import SMOLLM2_SKIP, decaying, rows, study, three_components
from matplotlib.image import AxesImage

from kingpost.errors import UsageError
from kingpost.figures import plot_bars, save_figure

D8 = {"model_name": "D8", "n_parameters": 30_440_416}
D12 = {"model_name": "D12", "n_parameters": 92_777_496}
D16 = {"model_name": "D16", "n_parameters": 284_838_280}


def the_published_three():
    sizes = ((8, D8), (12, D12), (16, D16))
    return [three_components(n_blocks, **named) for n_blocks, named in sizes]


def smollm2(**settings):
    return study(rows("block", SMOLLM2_SKIP, ablation="skip"), n_blocks=30, **settings)


def awkward():
    """Every kind of cell at once."""
    values = decaying(12, 6.0) | {3: -0.012, 5: -0.2, 7: 1e-5, 9: math.nan, 10: math.inf, 11: 3e-4}
    return study(rows("block", values, ablation="skip"), n_blocks=12, **D12)


def hybrid():
    linear = {block: v for block, v in decaying(24, 2.0).items() if block % 4 != 3}
    return study(
        rows("q_proj", decaying(24, 5.0)), rows("alpha", linear), rows("beta", linear), n_blocks=24
    )


def dense_marks():
    values = {block: v if block % 3 else -v / 10 for block, v in decaying(80, 2.0).items()}
    return study(
        rows("q_proj", values),
        rows("alpha", {block: -v for block, v in values.items()}),
        rows("beta", values),
        n_blocks=80,
        **D16,
    )


CASES = {
    "8 blocks": lambda: three_components(8, **D8),
    "three panels": the_published_three,
    "30 blocks": smollm2,
    "80 blocks": lambda: study(rows("block", decaying(80, 7.0)), n_blocks=80),
    "80 blocks, 3 components": lambda: three_components(80),
    "every mark": awkward,
    "80 blocks with marks": dense_marks,
    "hybrid": hybrid,
    "one cell": lambda: study(rows("block", {0: 0.5}, ablation="skip"), n_blocks=1),
    "different studies": lambda: [
        three_components(8, provenance={"text": "wikitext", "length": 512, "dtype": "float32"}),
        awkward(),
        smollm2(),
    ],
    "nine series": lambda: study(
        *(rows(f"mlp.part_{n}_proj", decaying(12, 2.0 - n / 10)) for n in range(9)), n_blocks=12
    ),
}


@pytest.fixture(scope="module", params=CASES.values(), ids=CASES.keys())
def panels(request):
    axes = plot_bars(request.param())
    axes[0].figure.draw_without_rendering()
    return axes


def extents(texts):
    return [text.get_window_extent() for text in texts if text.get_text()]


def overlapping(boxes):
    return [(a, b) for a, b in itertools.combinations(boxes, 2) if a.overlaps(b)]


def test_tick_labels_do_not_touch(panels):
    for axes in panels:
        assert not overlapping(extents(axes.get_xticklabels()))
        assert not overlapping(extents(axes.get_yticklabels()))
    assert not overlapping([box for axes in panels for box in extents(axes.get_xticklabels())])


def test_every_text_stands_clear_of_the_others_and_inside_the_figure(panels):
    figure = panels[0].figure
    labels = [box for axes in panels for box in extents(axes.get_xticklabels())]
    small_print = extents([figure._supxlabel, *(axes.xaxis.label for axes in panels)])
    titles = extents([axes.title for axes in panels])
    legends = [legend.get_window_extent() for legend in figure.legends]
    assert legends
    for box in small_print:
        assert not any(box.overlaps(label) for label in labels)
    assert not overlapping([*small_print, *titles, *legends])
    for box in [*labels, *small_print, *titles, *legends]:
        assert box.x0 >= 0
        assert box.y0 >= 0
        assert box.x1 <= figure.bbox.x1
        assert box.y1 <= figure.bbox.y1


def test_the_legend_covers_no_panel(panels):
    (legend,) = panels[0].figure.legends
    for axes in panels:
        assert not legend.get_window_extent().overlaps(axes.get_window_extent())


def test_every_case_renders(panels, tmp_path):
    save_figure(panels[0].figure, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000


def test_bars_have_the_values_as_heights_and_stand_in_groups():
    (axes,) = plot_bars(three_components(8, **D8))
    q, alpha, beta = axes.containers
    assert [bar.get_height() for bar in q] == pytest.approx(
        list(decaying(8, 6, slope=0.9).values())
    )
    for container, offset in ((q, -1), (alpha, 0), (beta, 1)):
        centres = [bar.get_x() + bar.get_width() / 2 for bar in container]
        assert centres == pytest.approx([block + offset * 0.8 / 3 for block in range(8)])
    assert beta[0].get_hatch()
    assert axes.get_yscale() == "log"


def test_the_orange_bars_are_a_gradient_cut_out_by_the_bars():
    (axes,) = plot_bars(three_components(8))
    (image,) = [artist for artist in axes.images if isinstance(artist, AxesImage)]
    clip, to_display = image.get_clip_path().get_transformed_path_and_affine()
    outline = to_display.transform_path(clip).get_extents()
    left, right = axes.transData.transform([(-0.8 / 6, 1), (7 + 0.8 / 6, 1)])[:, 0]
    assert (outline.x0, outline.x1) == pytest.approx((left, right))


def test_a_hybrid_model_keeps_the_places_of_what_it_lacks():
    (axes,) = plot_bars(hybrid())
    q, alpha, _ = axes.containers
    assert len(q) == 24
    blocks = [round(bar.get_x() + bar.get_width() / 2) for bar in alpha]
    assert blocks == [block for block in range(24) if block % 4 != 3]
    assert q[3].get_x() + q[3].get_width() / 2 == pytest.approx(3 - 0.8 / 3)


def test_titles_and_labels():
    axes = plot_bars(the_published_three())
    assert [a.get_title() for a in axes] == ["D8 (30.4M)", "D12 (92.8M)", "D16 (285M)"]
    assert [a.get_ylabel() for a in axes] == ["ΔLoss (nats per token)", "", ""]
    assert [label.get_text() for label in axes[0].get_xticklabels()] == [f"L{n}" for n in range(8)]
    (legend,) = axes[0].figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["Q-projection", "α", "β"]
    assert {a.get_ylim() for a in axes} == {axes[0].get_ylim()}


def test_panels_are_as_wide_as_their_models_are_deep():
    axes = plot_bars(the_published_three())
    axes[0].figure.draw_without_rendering()
    widths = [a.get_window_extent().width for a in axes]
    assert [width / widths[0] for width in widths] == pytest.approx([1, 1.5, 2], rel=0.01)


@pytest.mark.parametrize(("n_blocks", "low", "high"), [(8, 3.4, 3.4), (30, 3.4, 4), (80, 6.9, 7)])
def test_the_figure_grows_from_a_column_to_a_page(n_blocks, low, high):
    (axes,) = plot_bars(study(rows("block", decaying(n_blocks, 5.0)), n_blocks=n_blocks))
    assert low <= axes.figure.get_figwidth() <= high


def test_the_published_figure_fits_a_page():
    assert plot_bars(the_published_three())[0].figure.get_figwidth() == pytest.approx(7)


def marks_of(axes):
    return {round(line.get_xdata()[0]): line for line in axes.lines}


def test_cells_without_a_bar_are_marked_and_their_values_written():
    (axes,) = plot_bars(awkward())
    marks = marks_of(axes)
    assert {block: line.get_marker() for block, line in marks.items()} == {
        3: "v", 5: "v", 7: "o", 9: "x", 10: "x", 11: "s",
    }  # fmt: skip
    floor, top = axes.get_ylim()
    ends = {block: line.get_ydata()[0] for block, line in marks.items()}
    assert ends == pytest.approx({3: floor, 5: floor, 7: floor, 9: floor, 10: top, 11: floor})
    written = {round(text.get_position()[0]): text.get_text() for text in axes.texts}
    assert written == {3: "−0.012", 5: "−0.2", 7: "1e−5", 11: "3e−4"}
    assert len(axes.containers[0]) == 6


def test_marks_are_hollow_and_explained():
    (axes,) = plot_bars(awkward())
    for line in axes.lines:
        assert line.get_markerfacecolor() == axes.get_facecolor()
    (legend,) = axes.figure.legends
    assert {text.get_text() for text in legend.get_texts()} == {
        "block (skip)", "within noise floor", "negative", "not finite", "positive, below axis",
    }  # fmt: skip


def test_only_the_marks_that_occur_are_explained():
    (legend,) = plot_bars(smollm2())[0].figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["block (skip)"]


def test_whiskers_reach_over_the_interval_and_not_below_the_axis():
    wide = study(rows("block", {0: 1.0}, se=0.9), rows("block", {1: 2.0}, se=0.1), n_blocks=2)
    (axes,) = plot_bars(wide)
    first, second = axes.collections[0].get_segments()
    assert first[:, 1] == pytest.approx([axes.get_ylim()[0], 1 + 0.9 * 2.13])
    assert second[:, 1] == pytest.approx([2 * (1 - 0.213), 2 * (1 + 0.213)])


def test_a_single_study_needs_no_list():
    assert len(plot_bars(smollm2())) == len(plot_bars([smollm2()])) == 1


def test_names_with_dollars_are_not_taken_for_formulas(tmp_path):
    odd = smollm2(
        model_name="a$b_c$d", provenance={"text": "x$y^{z$", "length": 9, "dtype": "bfloat16"}
    )
    (axes,) = plot_bars(odd)
    save_figure(axes.figure, tmp_path / "figure.svg")
    svg = (tmp_path / "figure.svg").read_text(encoding="utf-8")
    assert "a$b_c$d (135M)" in svg
    assert "x$y^{z$" in svg


def test_settings_are_left_as_they_were():
    before = dict(mpl.rcParams)
    plot_bars(the_published_three())
    _, axes = plt.subplots()
    plot_bars(smollm2(), axes=axes)
    assert dict(mpl.rcParams) == before


def test_given_axes_keep_their_figure_and_style():
    with mpl.rc_context({"font.size": 13, "axes.titlesize": 17}):
        figure, grid = plt.subplots(1, 3, figsize=(11, 4), sharey=True)
        axes = plot_bars(the_published_three(), axes=grid)
    assert axes == list(grid)
    assert tuple(figure.get_size_inches()) == (11, 4)
    assert axes[0].title.get_fontsize() == 17
    assert figure.legends == []
    assert [a.get_ylabel() for a in axes] == ["ΔLoss (nats per token)", "", ""]


@pytest.mark.parametrize("case", ["8 blocks", "30 blocks", "every mark", "hybrid"])
def test_in_given_axes_the_legend_covers_no_bar_and_the_caption_is_clear(case):
    figure, axes = plt.subplots()
    plot_bars(CASES[case](), axes=axes)
    figure.draw_without_rendering()
    legend = axes.get_legend().get_window_extent()
    bars = [bar.get_window_extent() for container in axes.containers for bar in container]
    whiskers = [segment[1][1] for segment in axes.collections[0].get_segments()]
    assert all(bar.y1 < legend.y0 for bar in bars)
    assert max(axes.transData.transform([(0, y) for y in whiskers])[:, 1]) < legend.y0
    caption = axes.xaxis.label.get_window_extent()
    assert not any(caption.overlaps(box) for box in extents(axes.get_xticklabels()))
    assert caption.y0 >= 0


def test_a_row_of_given_axes_says_what_differs_by_name():
    _, grid = plt.subplots(1, 2, figsize=(14, 4))
    noisy = study(rows("block", {0: 1.0, 1: 1e-5}, ablation="skip"), n_blocks=2, **D8)
    axes = plot_bars([smollm2(), noisy], axes=grid)
    assert axes[0].get_xlabel().endswith("; D8: noise floor 2e−4 nats per token")
    assert axes[1].get_xlabel() == ""


def test_given_axes_one_above_the_other_have_a_caption_each():
    _, grid = plt.subplots(2, 1, layout="constrained")
    axes = plot_bars([smollm2(), smollm2()], axes=list(grid))
    assert all("16 sequences" in a.get_xlabel() for a in axes)
    assert all(a.get_ylabel() for a in axes)


def test_as_many_axes_as_studies():
    _, grid = plt.subplots(1, 3)
    with pytest.raises(UsageError, match="2 studies need 2 axes, one each, but 3 were given"):
        plot_bars([smollm2(), smollm2()], axes=grid)


def test_no_study():
    with pytest.raises(UsageError, match="no study to draw"):
        plot_bars([])
