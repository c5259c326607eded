"""The heatmap's numbers, order, labels and marks, by hand."""

import itertools
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from made_up_studies import COLUMNS, MadeUpStudy
from matplotlib.axes import Axes

import kingpost
from kingpost.errors import KingpostError, UsageError
from kingpost.figures.heatmap_data import _sum

FIGURE_2 = [
    *("mlp.down_proj", "mlp.up_proj", "mlp.gate_proj", "self_attn.o_proj", "self_attn.q_proj"),
    *("self_attn.v_proj", "self_attn.k_proj", "input_layernorm", "post_attention_layernorm"),
    *("self_attn.k_norm", "self_attn.q_norm"),
]


@dataclass
class Anatomy(MadeUpStudy):
    """A study that also knows what the model is made of."""

    parts: list = field(default_factory=list)

    def components(self) -> pd.DataFrame:
        names = ["block", "component", "kind", "n_parameters", "parameters"]
        return pd.DataFrame(self.parts, columns=names)


def study(
    values: dict[tuple[int, str], float],
    *,
    measure: str = "taylor",
    ablation: str = "",
    skip: dict[int, float] | None = None,
    unmeasured: tuple[tuple[int, str], ...] = (),
    n_blocks: int = 3,
    n_sequences: int = 16,
    **settings: object,
) -> Anatomy:
    cells = [(b, c, measure, ablation, v) for (b, c), v in values.items()]
    cells += [(b, "block", "ablation", "skip", v) for b, v in (skip or {}).items()]
    rows = [(*c, 0.1, c[-1] - 0.2, c[-1] + 0.2, n_sequences, n_sequences * 255, "") for c in cells]
    parts = [(b, c, "parameter", 10, (c,)) for b, c in (*values, *unmeasured)]
    return Anatomy(pd.DataFrame(rows, columns=COLUMNS), n_blocks, parts=parts, **settings)


def drawn(axes: Axes) -> tuple[np.ndarray, list[str]]:
    """What the image of some axes holds, and its columns' names."""
    (image,) = axes.get_images()
    values = np.ma.filled(image.get_array().astype(float), np.nan)
    return values, [label.get_text() for label in axes.get_xticklabels()]


def beside(axes: Axes) -> dict[str, np.ndarray]:
    """The layer columns that stand beside the grid."""
    panels = [a for a in axes.figure.axes[0].child_axes if a is not axes and a.get_images()]
    named = {tuple(drawn(a)[1]): drawn(a)[0][:, 0] for a in panels}
    return {names[0]: column for names, column in named.items() if len(names) == 1}


@pytest.fixture(autouse=True)
def closed() -> object:
    yield
    plt.close("all")


VALUES = {
    **{(0, "a"): 1.0, (1, "a"): 2.0, (2, "a"): 3.0},
    **{(0, "b"): 8.0, (1, "b"): 4.0, (2, "b"): 0.0},
}


def test_columns_are_ordered_by_their_mean_and_divided_by_the_largest() -> None:
    axes = kingpost.plot_heatmap(study(VALUES, skip={0: 5.0, 1: 1.0, 2: 0.5}))
    values, names = drawn(axes)
    assert names == ["b", "a"]
    np.testing.assert_allclose(values, [[1, 1 / 8], [1 / 2, 2 / 8], [0, 3 / 8]])
    columns = beside(axes)
    np.testing.assert_allclose(columns["Layer Importance"], np.array([9, 6, 3]) / 9)
    np.testing.assert_allclose(columns["exact ΔLoss"], [1, 0.2, 0.1])
    (image,) = axes.get_images()
    assert image.origin == "lower"
    assert image.get_clim() == (0, 1)
    assert image.get_cmap().name == "GnBu"


@pytest.mark.parametrize(
    ("normalize", "expected"),
    [
        ("column", [[1, 1 / 3], [1 / 2, 2 / 3], [0, 1]]),
        ("row", [[1, 1 / 8], [1, 1 / 2], [0, 1]]),
    ],
)
def test_other_normalisations(normalize: str, expected: list[list[float]]) -> None:
    values, _ = drawn(kingpost.plot_heatmap(study(VALUES), normalize=normalize))
    np.testing.assert_allclose(values, expected)


def test_without_exact_numbers_there_is_no_second_column() -> None:
    assert list(beside(kingpost.plot_heatmap(study(VALUES)))) == ["Layer Importance"]


def hatched(axes: Axes) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
    """(block, column) of cells that are hatched, and of those that are plain grey."""
    cells = {
        (round(p.get_y() + 0.5), round(p.get_x() + 0.5)): bool(p.get_hatch()) for p in axes.patches
    }
    return {c for c, h in cells.items() if h}, {c for c, h in cells.items() if not h}


def legend(axes: Axes) -> list[str]:
    found = axes.get_legend()
    return [t.get_text() for t in found.get_texts()] if found else []


def test_what_is_missing_is_marked_and_never_coloured() -> None:
    values = {k: v for k, v in VALUES.items() if k not in ((1, "a"), (2, "b"))}
    values[0, "a"] = np.nan
    axes = kingpost.plot_heatmap(study(values, unmeasured=((1, "a"),)))
    shown, names = drawn(axes)
    assert names == ["b", "a"]
    assert np.isnan([shown[0, 1], shown[1, 1], shown[2, 0]]).all()
    assert hatched(axes) == ({(0, 1), (1, 1)}, {(2, 0)})
    assert legend(axes) == ["no number", "not in this layer"]
    assert legend(kingpost.plot_heatmap(study(VALUES))) == []
    np.testing.assert_allclose(beside(axes)["Layer Importance"], np.array([8, 4, 3]) / 8)


def test_negative_values_get_a_symmetric_scale() -> None:
    axes = kingpost.plot_heatmap(
        study(VALUES | {(0, "b"): -8.0}, measure="taylor_signed"), "taylor_signed"
    )
    (image,) = axes.get_images()
    assert image.get_clim() == (-1, 1)
    assert image.get_cmap().name == "RdBu"
    assert drawn(axes)[0][0, 0] == -1
    axes = kingpost.plot_heatmap(
        study(VALUES | {(0, "b"): -8.0}, measure="taylor_signed"), "taylor_signed", scale="log"
    )
    norm = axes.get_images()[0].norm
    assert norm(0.0) == pytest.approx(0.5)
    assert norm(0.3) + norm(-0.3) == pytest.approx(1)


def test_a_negative_loss_within_the_noise_floor_is_zero() -> None:
    within = study(VALUES | {(2, "b"): -1e-4}, measure="ablation", ablation="zero")
    axes = kingpost.plot_heatmap(within, "ablation")
    assert axes.get_images()[0].get_clim() == (0, 1)
    assert drawn(axes)[0][2, 0] == 0
    beyond = study(VALUES | {(2, "b"): -1e-3}, measure="ablation", ablation="zero")
    assert kingpost.plot_heatmap(beyond, "ablation").get_images()[0].get_clim() == (-1, 1)


def test_norms_have_their_own_scale_under_ablation() -> None:
    values = VALUES | {(0, "input_layernorm"): 40.0, (1, "self_attn.q_norm"): 10.0}
    made = study(values, measure="ablation", ablation="ones")
    axes = kingpost.plot_heatmap(made, "ablation")
    shown, names = drawn(axes)
    assert shown[0, names.index("b")] == 1
    assert shown[0, names.index("input_layernorm")] == 1
    assert shown[1, names.index("self_attn.q_norm")] == 0.25
    np.testing.assert_allclose(beside(axes)["Layer Importance"], np.array([9, 6, 3]) / 9)
    assert "norms (input_layernorm, self_attn.q_norm) by their own largest" in caption(axes)
    shown, names = drawn(kingpost.plot_heatmap(study(values)))
    assert shown[0, names.index("b")] == 8 / 40


@pytest.mark.parametrize(
    "name",
    ["input_layernorm", "self_attn.q_norm", "ln_1", "ln_1.bias", "norm1", "attn.ln", "LayerNorm"],
)
def test_norms_are_known_by_their_names(name: str) -> None:
    from kingpost.figures.heatmap_data import is_norm

    assert is_norm(name)
    assert not is_norm("mlp.down_proj")
    assert not is_norm("normal.proj")


def test_logarithmic_colours() -> None:
    values = VALUES | {(0, "a"): 8e-3, (1, "a"): 8e-6, (2, "a"): -0.0}
    norm = kingpost.plot_heatmap(study(values), scale="log").get_images()[0].norm
    assert (norm.vmin, norm.vmax) == (1e-4, 1.0)  # four decades and no more
    assert float(norm(1e-2)) == pytest.approx(0.5)
    assert float(norm(1e-6)) == 0


def caption(axes: Axes) -> str:
    texts = [t.get_text() for t in axes.figure.axes[0].texts]
    return " ".join(" ".join(texts).split())


def test_the_caption_says_how_it_was_measured() -> None:
    text = caption(kingpost.plot_heatmap(study(VALUES, skip={0: 1.0}), scale="log"))
    for part in (
        "taylor = Σ|w·∂L/∂w|, mean over sequences",
        "divided by the largest of all cells",
        "logarithmic colours",
        "Layer Importance: sum over the columns / its largest",
        "exact ΔLoss: skip of the block",
        "SmolLM2-135M-Instruct (135M), bfloat16",
        "16 sequences × 256 tokens of python-docs",
    ):
        assert part in text
    made = study(VALUES, measure="quantization_error:3:64", n_sequences=0)
    text = caption(kingpost.plot_heatmap(made, "quantization_error:3:64"))
    assert "quantization_error:3:64 = ‖W − Q(W)‖ / ‖W‖ at 3 bits" in text
    assert "from the weights alone" in text


def test_each_weight_is_shown_once() -> None:
    made = study({})
    cells, parts = [], []
    weights = {"attn.qkv": 30, "attn.o": 10, "mlp.up": 20}
    pieces = {
        **{name: ("parameter", n, (name,)) for name, n in weights.items()},
        **{f"{x}_proj": ("role", 10, ("attn.qkv",)) for x in "qkv"},
        "o_proj": ("role", 10, ("attn.o",)),
        "attn": ("sublayer", 40, ("attn.qkv", "attn.o")),
        "mlp": ("sublayer", 20, ("mlp.up",)),
        "block": ("block", 60, tuple(weights)),
    }
    qkv = ["q_proj", "k_proj", "v_proj"]
    for measured, expected, total in (
        (list(pieces), set(weights), 3),
        # The sum takes what does not overlap: attention as a whole, not three quarters of it.
        ([*qkv, "mlp", "attn"], {*qkv, "attn", "mlp"}, 2),
        (["attn", "mlp", "block"], {"attn", "mlp"}, 2),
        (["attn.o", *qkv, "o_proj", "attn"], {"attn.o", *qkv}, 4),
    ):
        cells = [(0, c, "taylor", "", 1.0, 0, 0, 0, 4, 100, "") for c in measured]
        parts = [(0, c, kind, n, names) for c, (kind, n, names) in pieces.items()]
        made = Anatomy(pd.DataFrame(cells, columns=COLUMNS), 1, parts=parts)
        assert set(drawn(kingpost.plot_heatmap(made))[1]) == expected
        known = made.components()
        summed = [c for c in measured if c in expected]
        names = tuple(summed)
        assert _sum(np.ones(len(names)), names, known, summed) == total


def big(n_blocks: int, names: list[str]) -> Anatomy:
    values = {(b, c): 1.0 + (b * 7 + i) % 5 for b in range(n_blocks) for i, c in enumerate(names)}
    return study(values, n_blocks=n_blocks, skip=dict.fromkeys(range(n_blocks), 1.0))


@pytest.mark.parametrize(
    ("n_blocks", "names", "step"),
    [
        (36, FIGURE_2, 2),
        (80, [f"mlp.part_{i}.proj" for i in range(20)], 2),
        (20, FIGURE_2, 1),
        (4, ["a", "b"], 1),
    ],
)
def test_labels_do_not_overlap_each_other_or_the_caption(
    n_blocks: int, names: list[str], step: int
) -> None:
    axes = kingpost.plot_heatmap(big(n_blocks, names))
    figure = axes.figure
    figure.draw_without_rendering()
    panels = [a for a in figure.axes[0].child_axes if a.get_images()]
    layers = panels[0].get_yticklabels()
    shown = [int(t.get_text()) for t in layers]
    assert shown == list(range(0, n_blocks, shown[1] - shown[0]))
    assert shown[1] - shown[0] >= step
    assert n_blocks != 36 or shown[1] == 2
    boxes = [t.get_window_extent() for t in layers]
    assert all(low.y1 <= high.y0 for low, high in itertools.pairwise(boxes))
    (text,) = figure.axes[0].texts
    top = text.get_window_extent().y1
    grids = [a for a in panels if len(drawn(a)[1]) == len(names)]
    assert len(grids) == 1
    labels = [t for a in panels for t in a.get_xticklabels()]
    assert {t.get_text() for t in labels} >= {*names, "Layer Importance", "exact ΔLoss"}
    assert all(t.get_window_extent().y0 >= top for t in labels)
    # Slanted labels run side by side: their ends must be a line apart.
    ends = sorted(t.get_window_extent().x1 for t in labels)
    assert min(np.diff(ends)) > 0.9 * labels[0].get_fontsize() * figure.dpi / 72
    inside = figure.bbox
    for artist in (*labels, *layers, text):
        box = artist.get_window_extent()
        assert box.x0 >= inside.x0
        assert box.y0 >= inside.y0
        assert box.x1 <= inside.x1
        assert box.y1 <= inside.y1


def test_given_axes_are_drawn_in_and_their_figure_is_left_as_it_is() -> None:
    figure, places = plt.subplots(1, 2, figsize=(9, 4))
    axes = kingpost.plot_heatmap(study(VALUES), axes=places[1])
    assert tuple(figure.get_size_inches()) == (9, 4)
    assert axes.figure is figure
    assert axes in places[1].child_axes
    assert not places[0].child_axes


def test_what_cannot_be_drawn_is_said_so() -> None:
    made = study(VALUES, skip={0: 1.0})
    with pytest.raises(KingpostError, match=r"has no fisher of components \(it has taylor\): run"):
        kingpost.plot_heatmap(made, "fisher")
    with pytest.raises(KingpostError, match="has no ablation of components"):
        kingpost.plot_heatmap(made, "ablation")
    with pytest.raises(UsageError, match="unknown scale 'cubic': there is linear, log"):
        kingpost.plot_heatmap(made, scale="cubic")
    with pytest.raises(UsageError, match="unknown normalisation 'x': there is all, column, row"):
        kingpost.plot_heatmap(made, normalize="x")
    both = study(VALUES, measure="ablation", ablation="zero")
    other = study(VALUES, measure="ablation", ablation="mean").cells
    both.cells = pd.concat([both.cells, other])
    with pytest.raises(UsageError, match="several ablations, zero, mean: name one"):
        kingpost.plot_heatmap(both, "ablation")
    with pytest.raises(KingpostError, match=r"no ablation \(pin:1\) of components: it has zero"):
        kingpost.plot_heatmap(both, "ablation", ablation="pin:1")
    assert drawn(kingpost.plot_heatmap(both, "ablation", ablation="mean"))[1] == ["b", "a"]


def test_the_command_draws(
    tiny_model: kingpost.Model, tiny_text: kingpost.Text, tmp_path: Path
) -> None:
    from typer.testing import CliRunner

    from kingpost.cli.app import app

    run = tmp_path / "run"
    kingpost.scan(tiny_model, tiny_text, run, ["parameters"], measures=["taylor"])
    for suffix in ("png", "pdf", "svg"):
        figure = tmp_path / f"figure.{suffix}"
        done = CliRunner().invoke(app, ["heatmap", str(run), "--output", str(figure)])
        assert done.exit_code == 0, done.output
        assert figure.stat().st_size > 5000
    svg = (tmp_path / "figure.svg").read_text()
    assert "self_attn.q_proj" in svg
    assert "Layer Importance" in svg
