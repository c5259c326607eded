import hashlib
import os
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
from made_up_studies import three_components
from PIL import Image

from kingpost.errors import KingpostError, UsageError
from kingpost.figures import plot_bars, save_figure


@pytest.fixture
def figure():
    return plot_bars(three_components(8))[0].figure


@pytest.mark.parametrize("suffix", ["png", "pdf", "svg", "SVG"])
def test_saving_twice_gives_the_same_bytes(figure, tmp_path, suffix):
    first, second = tmp_path / f"a.{suffix}", tmp_path / f"b.{suffix}"
    save_figure(figure, first)
    save_figure(plot_bars(three_components(8))[0].figure, second)
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize("suffix", ["pdf", "svg"])
def test_another_process_gives_the_same_bytes(figure, tmp_path, suffix):
    path = tmp_path / f"figure.{suffix}"
    script = (
        "import matplotlib; matplotlib.use('Agg')\n"
        "from made_up_studies import three_components\n"
        "from kingpost.figures import plot_bars, save_figure\n"
        f"save_figure(plot_bars(three_components(8))[0].figure, {str(path)!r})\n"
    )
    places = [str(Path(__file__).parent), *sys.path]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(places), "PYTHONHASHSEED": "7"}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment)
    save_figure(figure, tmp_path / f"here.{suffix}")
    digests = {hashlib.sha256(file.read_bytes()).hexdigest() for file in tmp_path.iterdir()}
    assert len(digests) == 1


def test_no_date_in_the_metadata(figure, tmp_path):
    for name in ("a.svg", "a.pdf"):
        save_figure(figure, tmp_path / name)
        content = (tmp_path / name).read_bytes()
        assert b"dc:date" not in content
        assert b"CreationDate" not in content


def test_text_in_svg_stays_text(figure, tmp_path):
    save_figure(figure, tmp_path / "figure.svg")
    svg = (tmp_path / "figure.svg").read_text(encoding="utf-8")
    for text in ("SmolLM2-135M-Instruct (135M)", "ΔLoss (nats per token)", "Q-projection"):
        assert f">{text}</text>" in svg


def test_text_in_pdf_stays_text(figure, tmp_path):
    plt.rcParams["pdf.compression"], before = 0, plt.rcParams["pdf.compression"]
    try:
        save_figure(figure, tmp_path / "figure.pdf")
    finally:
        plt.rcParams["pdf.compression"] = before
    pdf = (tmp_path / "figure.pdf").read_bytes()
    assert b"/Subtype /Type0" in pdf or b"/FontFile2" in pdf
    assert b"/Subtype /Type3" not in pdf


def test_png_has_300_dots_per_inch(figure, tmp_path):
    save_figure(figure, tmp_path / "figure.png")
    with Image.open(tmp_path / "figure.png") as image:
        assert image.width == pytest.approx(300 * figure.get_figwidth(), abs=1)
        assert image.info["dpi"] == pytest.approx((300, 300), abs=0.1)


@pytest.mark.parametrize("name", ["figure.jpg", "figure", "figure.png.gz"])
def test_another_suffix_is_refused_with_the_three(figure, tmp_path, name):
    with pytest.raises(UsageError, match=r"\.png, \.pdf or \.svg"):
        save_figure(figure, tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_a_missing_folder_is_named(figure, tmp_path):
    with pytest.raises(KingpostError, match=r"nowhere.* does not exist, create it first"):
        save_figure(figure, tmp_path / "nowhere" / "figure.png")


@pytest.mark.parametrize("place", ["file/figure.png", "folder.png"])
def test_an_unwritable_place_is_named(figure, tmp_path, place):
    (tmp_path / "file").touch()
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(KingpostError, match=r"cannot write .*png.*choose a file in a folder"):
        save_figure(figure, tmp_path / place)


def test_a_string_will_do_as_a_path(figure, tmp_path):
    save_figure(figure, str(tmp_path / "figure.svg"))
    assert (tmp_path / "figure.svg").stat().st_size > 1000
