"""The page's handlers, called as gradio calls them."""

from __future__ import annotations

import pytest

pytest.importorskip("gradio", reason="the extra 'explore' is not installed: pip install 'capsroute[explore]'")

from types import SimpleNamespace

import gradio as gr
from PIL import Image

from capsroute.errors import CapsrouteError
from capsroute.explore import page
from capsroute.explore.gallery import Gallery, starting_network
from capsroute.explore.inspect import Shown
from capsroute.explore.screenshots import free_port
from capsroute.explore.tabs.inspect import NOBODY, UNTRAINED, InspectTab
from capsroute.explore.tabs.playground import PlaygroundTab

FIRST = "digits-run"


@pytest.fixture
def gallery(digits_run):
    return Gallery(str(digits_run), digits_run.parent)


@pytest.fixture
def tab(gallery):
    with gr.Blocks(analytics_enabled=False):
        return InspectTab(gallery)


def event(**sent):
    return SimpleNamespace(_data=sent)


def test_one_network_or_two(tab):
    message, one, two = tab.view(Shown(number=2), FIRST, NOBODY, 3)
    assert message == ""
    assert "taken for" in one
    assert two["visible"] is False
    message, one, two = tab.view(Shown(number=2), FIRST, UNTRAINED, 3)
    assert two["visible"] is True
    assert "untrained" in two["value"]


def test_an_image_number_that_does_not_exist(tab):
    shown, message, one, _ = tab.numbered(100_000, FIRST, NOBODY, 3)
    assert shown.number == 100_000
    assert "has 0 to 358" in message
    assert one == ""


def test_files_good_and_bad(tab, tmp_path):
    good, bad = tmp_path / "good.png", tmp_path / "bad.png"
    Image.effect_mandelbrot((90, 60), (-2, -1, 1, 1), 20).save(good)
    bad.write_text("words")
    shown, message, one, _ = tab.uploaded(str(good), False, FIRST, NOBODY, 3)
    assert (message, shown.invert) == ("", False)
    assert "taken for" in one
    _, turned, other, _ = tab.uploaded(str(good), True, FIRST, NOBODY, 3)
    assert turned == ""
    assert other != one
    shown, message, one, _ = tab.uploaded(str(bad), False, FIRST, NOBODY, 3)
    assert "bad.png is no picture" in message
    assert one == ""
    assert "upload" in tab.uploaded(None, False, FIRST, NOBODY, 3)[1]


def test_a_drawing_that_is_none(tab):
    assert "role='alert'" in tab.drawn(event(png="x"), FIRST, NOBODY, 3)[1]
    assert "role='alert'" in tab.drawn(SimpleNamespace(_data=None), FIRST, NOBODY, 3)[1]


def test_the_slider_has_as_many_iterations_as_the_network(tab):
    assert tab.reach(FIRST)["maximum"] == 3


def test_votes_are_dragged_and_drawn_anew():
    with gr.Blocks(analytics_enabled=False):
        tab = PlaygroundTab()
    settings = [control.value for control in tab.settings]
    shapes = [control.value for control in tab.shapes]
    seed, toy, plot, told = tab.resample(0, *shapes, *settings)
    assert seed == 1
    assert len(toy.votes) == 2 * shapes[-1]
    moved, other, _ = tab.dragged(event(moves=[[1, -2.0, 2.0]]), toy, *settings)
    assert moved.votes[1].tolist() == [-2.0, 2.0]
    assert other != plot
    assert "objective" in told


def test_the_page_is_built_for_this_machine_alone(gallery):
    built = page.build(gallery)
    port = free_port()
    try:
        address = page.launch(built, "127.0.0.1", port)
        assert address.startswith(f"http://127.0.0.1:{port}")
        with pytest.raises(CapsrouteError, match=f"port {port} of 127.0.0.1 cannot be used"):
            page.launch(page.build(gallery), "127.0.0.1", port)
    finally:
        built.close(verbose=False)


def test_what_the_page_opens_with(digits_run, tmp_path):
    told = []
    assert starting_network("mine", tmp_path, told.append) == "mine"
    # runs that are there are used before anything is trained
    assert starting_network(None, digits_run.parent, told.append) is None
    assert told == []
