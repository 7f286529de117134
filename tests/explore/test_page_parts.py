"""What the page shows, without a browser: the pieces, their speed, and what happens to wrong input."""

from __future__ import annotations

import re
import time
from statistics import median

import numpy as np
import pytest
import torch

from capsroute.errors import RunError
from capsroute.explore import equivariance, inspect, markup, playground, runs
from capsroute.explore.gallery import Gallery
from capsroute.explore.inspect import Looker, Shown
from capsroute.explore.playground import Settings, Shape


@pytest.fixture
def gallery(digits_run):
    return Gallery(str(digits_run), digits_run.parent)


def test_the_playground_answers_in_200_ms():
    """With the most votes and iterations that the sliders allow."""
    toy = playground.make_toy(Shape(votes=60))
    seconds = []
    for step in range(15):
        began = time.perf_counter()
        settings = Settings("gaussian", 1.0, 2.0, 0.1 + 0.01 * step, 0.1, 20)
        found = playground.route(toy, settings)
        assert len(playground.draw(toy, found) + playground.report(found, settings)) > 1000
        seconds.append(time.perf_counter() - began)
    assert median(seconds) < 0.2


def test_bubbles_stand_where_the_votes_are_and_are_as_large_as_their_couplings():
    toy = playground.make_toy(Shape(votes=4))
    found = playground.route(toy, Settings())
    drawn = playground.draw(toy, found)
    places = re.findall(r"translate\(([\d.-]+) ([\d.-]+)\)", drawn)
    radii = [float(r) for r in re.findall(rf"<circle r='([\d.]+)' fill='{playground.BLUE}'", drawn)]
    assert len(places) == len(radii) == 8
    for (x, y), vote in zip(places, toy.votes, strict=True):
        assert float(x) / playground.SCALE + playground.LEFT == pytest.approx(vote[0], abs=0.01)
        assert playground.HIGH - float(y) / playground.SCALE == pytest.approx(vote[1], abs=0.01)
    areas = np.square(radii)
    np.testing.assert_allclose(areas / areas.sum(), found.couplings[-1], atol=0.01)


def test_the_objective_is_told_at_every_iteration():
    toy = playground.make_toy(Shape())
    settings = Settings(iterations=4)
    found = playground.route(toy, settings)
    told = playground.report(found, settings)
    assert told.count("<circle") == 5
    assert f"{found.objective[-1]:.4f}" in told


def test_a_dragged_vote_moves_and_stays_in_sight():
    toy = playground.make_toy(Shape(votes=3))
    moved = playground.drag(toy, [[2, 1.5, 100]])
    assert moved.votes[2].tolist() == [1.5, playground.HIGH]
    np.testing.assert_array_equal(moved.votes[[0, 1, 3]], toy.votes[[0, 1, 3]])
    np.testing.assert_array_equal(moved.activations, toy.activations)


@pytest.mark.parametrize(
    "sent",
    [
        None,
        3,
        [3],
        [[99, 0, 0]],
        [[-1, 0, 0]],
        [["1", 0, 0]],
        [[1, "x", 0]],
        [[1, 0]],
        [[1, float("nan"), 2]],
        [[0.5, 1, 2]],
    ],
)
def test_nonsense_from_a_page_moves_nothing(sent):
    toy = playground.make_toy(Shape(votes=3))
    np.testing.assert_array_equal(playground.drag(toy, sent).votes, toy.votes)


def test_both_lambdas_may_be_pushed_to_zero():
    found = playground.route(playground.make_toy(Shape()), Settings(lambda1=0, lambda2=0))
    assert np.isfinite(found.objective).all()


def test_names_from_files_cannot_become_markup(gallery):
    wicked = "<script>alert(1)</script>"
    made = [
        markup.bars([wicked], [0.5]),
        markup.table([wicked], [[wicked]]),
        markup.lines({wicked: ([0, 1], [0, 1]), "b": ([0], [1])}, wicked, wicked),
        markup.alert(wicked),
        markup.picture(np.zeros((2, 2), dtype=np.uint8), "' onerror='alert(1)"),
    ]
    for text in made:
        assert "<script" not in text
        assert " onerror='" not in text


def look(gallery, shown=None, beside=False, iteration=3):
    subject = gallery.open(gallery.names[0])
    each = inspect.untrained(subject) if beside else subject
    image, labels = inspect.prepare(each, shown or Shown(number=4), subject)
    return inspect.describe(each, Looker().look(each, image), labels, iteration)


def test_an_image_is_looked_into(gallery):
    told = look(gallery)
    subject = gallery.open(gallery.names[0])
    with torch.no_grad():
        logits = subject.net(subject.images([4])).logits[0]
    assert f"taken for {int(logits.argmax())}; it is {subject.split().labels[4]}" in told
    assert f"{float(logits.softmax(0).max()):.3f}" in told
    # the image, its credit, and a map for each of two layers and four states
    assert told.count("<img") == 10
    assert told.count("class='cr-chosen'") == 2
    assert look(gallery, iteration=0) != told
    assert look(gallery, beside=True) != told


def test_nothing_on_the_page_has_an_address_outside(gallery):
    toy = playground.make_toy(Shape())
    found = playground.route(toy, Settings())
    subject = gallery.open(gallery.names[0])
    image = subject.images([0])
    rest = equivariance.at_rest(subject, image, "rotation")
    parts = [
        markup.CSS,
        playground.draw(toy, found) + playground.report(found, Settings()) + playground.SCRIPT,
        inspect.PAD + inspect.PAD_SCRIPT + look(gallery),
        equivariance.describe(subject, image, equivariance.Change(), "rotation", rest),
        runs.describe(gallery.runs, runs.names(gallery.runs)),
    ]
    for part in parts:
        assert not re.search(r"(https?:)?//[a-z0-9-]+\.", part)


def test_the_changed_image_moves_the_pose(gallery):
    subject = gallery.open(gallery.names[0])
    image = subject.images([3])
    rest = equivariance.at_rest(subject, image, "shift")
    still = equivariance.describe(subject, image, equivariance.Change(), "shift", rest)
    moved = equivariance.describe(subject, image, equivariance.Change(rotation=30), "shift", rest)
    assert "has moved by 0 %" in still
    assert int(re.search(r"has moved by (\d+) %", moved).group(1)) > 5


def test_runs_are_compared(gallery, tmp_path):
    told = runs.describe(gallery.runs, ["digits-run", "../../etc"])
    assert "digits-run" in told
    assert "3 of 3" in told
    assert "coupling entropy" in told
    assert "etc" not in told
    assert "choose a run" in runs.describe(gallery.runs, [])
    assert "no runs in" in runs.describe(tmp_path, ["x"])


def test_only_listed_networks_are_opened(gallery):
    with pytest.raises(RunError, match="no network"):
        gallery.open("/etc")


def test_two_runs_of_one_name_are_told_apart(digits_run, tmp_path):
    names = Gallery(str(digits_run), tmp_path).names
    assert names[0] == "digits-run"
    assert len(set(Gallery(str(digits_run / ".." / "digits-run"), digits_run.parent).names)) == len(
        Gallery(str(digits_run / ".." / "digits-run"), digits_run.parent).names
    )


def test_a_line_that_never_moves_can_be_drawn():
    told = markup.lines({"flat": ([1.0, 2.0], [0.0, 0.0])}, "x", "y", from_zero=True)
    assert "nan" not in told
    assert markup.lines({"none": ([], [])}, "x", "y") == markup.note("nothing to draw yet")
