"""Every figure by its command: a file of the right kind, what it must show, and one-line errors."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from capsroute.analysis import consensus, sample
from capsroute.errors import DataError, RunError
from capsroute.figures import style
from capsroute.figures.commands import app
from capsroute.figures.style import FigureError

FREE = ("toy", "samples", "routing1d", "lstm", "architecture")
OF_A_RUN = ("curves", "confusion", "kernels", "couplings", "credit", "poses", "architecture")
HEADS = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


def figure(*arguments):
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


def ink(path):
    """Share of pixels that are not white."""
    return float((np.asarray(Image.open(path).convert("L")) < 250).mean())


@pytest.mark.parametrize("name", FREE)
def test_figures_that_need_nothing(name, tmp_path):
    path = tmp_path / "deep" / f"{name}.png"
    figure(name, "-o", path)
    assert ink(path) > 0.01
    width = Image.open(path).width / 200
    assert width == pytest.approx(style.COLUMN, abs=0.02) or width == pytest.approx(style.PAGE, abs=0.02)


@pytest.mark.parametrize("name", OF_A_RUN)
def test_figures_of_a_run(name, digits_run, tmp_path):
    path = tmp_path / f"{name}.png"
    figure(name, digits_run, "-o", path)
    assert ink(path) > 0.01


@pytest.mark.parametrize("suffix", HEADS)
def test_files_are_what_their_names_say(suffix, tmp_path):
    path = tmp_path / f"figure{suffix}"
    figure("routing1d", "-o", path)
    assert path.read_bytes().startswith(HEADS[suffix])
    again = tmp_path / f"again{suffix}"
    figure("routing1d", "-o", again)
    assert again.read_bytes() == path.read_bytes()


def test_letters_stay_letters_in_svg(digits_run, tmp_path):
    figure("confusion", digits_run, "-o", tmp_path / "c.svg")
    text = (tmp_path / "c.svg").read_text()
    assert "taken for</text>" in text


def test_without_a_name_the_file_is_named_after_the_figure(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert figure("lstm", "--layer", 3).output.strip() == "lstm.png"
    assert (tmp_path / "lstm.png").is_file()


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (["picture"], FigureError, r"there is no figure 'picture'; the figures are toy, samples, .*poses"),
        (["toy", "-o", "x.jpg"], FigureError, r"ends in '.jpg'; figures are written as .png, .svg, .pdf"),
        (["toy", "-o", "plain"], FigureError, "has no ending"),
        (["toy", "--kernel", "round"], FigureError, "choose one of"),
        (["toy", "--lambda1", "a,b"], FigureError, "write numbers with commas"),
        (["toy", "--lambda1", "0", "--lambda2", "0"], FigureError, "nor both zero"),
        (["routing1d", "--length", "2"], FigureError, "smaller than the kernel"),
        (["architecture", "--routing", "none"], FigureError, "unknown routing"),
        (["samples", "nothing"], DataError, "no data set 'nothing'"),
        (["samples", "--part", "all"], FigureError, "choose train or test"),
        (["curves", "nowhere"], RunError, "nowhere holds no run"),
        (["credit", "nowhere"], RunError, "no network at nowhere"),
    ],
)
def test_what_cannot_be_drawn_is_said_in_one_line(arguments, kind, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kind, match=message) as caught:
        figure(*arguments)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_images_and_changes_that_a_run_does_not_have(digits_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="image 999"):
        figure("credit", digits_run, "--image", 999)
    with pytest.raises(DataError, match="have no azimuth"):
        figure("poses", digits_run, "--by", "azimuth")


def test_a_file_that_cannot_be_written(tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(FigureError, match="cannot be written"):
        figure("routing1d", "-o", tmp_path / "taken" / "x.png")


def test_the_commands_import_nothing_heavy():
    code = (
        "import sys, capsroute.figures.commands, capsroute.explore.commands;"
        "heavy = {'torch', 'numpy', 'matplotlib', 'sklearn', 'gradio', 'PIL'} & set(sys.modules);"
        "sys.exit(', '.join(sorted(heavy)) or 0)"
    )
    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert asked.returncode == 0, asked.stderr


def test_bubbles_have_the_areas_of_the_couplings():
    from capsroute.figures.toy import draw_toy

    toy = sample(size=6)
    found = {
        (first, second): consensus(toy.votes, toy.activations, lambda1=first, lambda2=second)
        for first in (0.1, 1.0)
        for second in (0.2, 0.5, 2.0)
    }
    drawn = draw_toy(toy, (0.1, 1.0), (0.2, 0.5, 2.0), found)
    assert len(drawn.axes) == 7
    for axes, state in zip(drawn.axes, found.values(), strict=False):
        bubbles = axes.collections[0]
        np.testing.assert_allclose(bubbles.get_offsets(), toy.votes)
        areas = bubbles.get_sizes()
        np.testing.assert_allclose(areas / areas.sum(), state.couplings[-1], rtol=1e-6)
        origin, pose = (line.get_xydata()[0] for line in axes.lines)
        np.testing.assert_array_equal(origin, 0)
        np.testing.assert_allclose(pose, state.poses[-1])
    activations = drawn.axes[-1].collections[0].get_sizes()
    np.testing.assert_allclose(activations / activations.sum(), toy.activations)


@pytest.mark.parametrize(("length", "kernel", "stride", "padding"), [(7, 3, 2, 0), (6, 3, 1, 1), (5, 2, 3, 0)])
def test_lines_of_the_diagram_are_entries_of_the_index_table(length, kernel, stride, padding):
    from capsroute.figures.diagrams import draw_routing1d

    axes = draw_routing1d(length, kernel, stride, padding).axes[0]
    positions = (length + 2 * padding - kernel) // stride + 1
    drawn = [line for line in axes.lines if len(line.get_xdata()) == 2]
    expected = {(p, p * stride - padding + tap) for p in range(positions) for tap in range(kernel)}
    centre = {p: p * stride - padding + (kernel - 1) / 2 for p in range(positions)}
    found = {(line.get_xdata()[1], line.get_xdata()[0]): line.get_linestyle() for line in drawn}
    assert set(found) == {(centre[p], place) for p, place in expected}
    for (_, place), look in found.items():
        assert look == ("-" if 0 <= place < length else ":")


def test_the_architecture_has_the_papers_shapes_and_counts():
    from capsroute import CapsNet
    from capsroute.figures.architecture import draw_architecture, stages

    blocks = stages(CapsNet(stem_padding=2))
    assert [(*b.space, b.types) for b in blocks] == [
        (32, 32, 1),
        (16, 16, 64),
        (16, 16, 8),
        (7, 7, 16),
        (5, 5, 16),
        (5,),
    ]
    assert [b.weights for b in stages(CapsNet())] == [0, 1792, 8840, 18432, 36864, 20480]
    drawn = draw_architecture(CapsNet())
    assert "86,408 weights" in drawn.axes[0].get_title()
    shared = draw_architecture(CapsNet("connectionist", share_routing=True))
    assert "86,408 weights" in shared.axes[0].get_title()


def test_the_cell_shows_the_sizes_of_the_layer():
    from capsroute.figures.diagrams import draw_lstm

    words = [text.get_text() for text in draw_lstm(units=8, f_hidden=(), g_hidden=(124, 124)).axes[0].texts]
    assert "8–1" in words
    assert "8–124–124–1" in words
    assert any("34 numbers" in word for word in words)
