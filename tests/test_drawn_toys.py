"""Toys drawn by a program: the same for the same seed, whole in the picture, different from one camera to the other."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "draw_toys.py"


@pytest.fixture(scope="module")
def toys():
    spec = importlib.util.spec_from_file_location("draw_toys", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def camera(toys, tmp_path_factory):
    if shutil.which("g++") is None:
        pytest.skip("no g++ to compile draw_toys.cpp with")
    return toys.Camera(tmp_path_factory.mktemp("camera"))


def test_a_ball_is_round_and_its_shadow_lies_away_from_the_light(toys, camera):
    ball = toys.Toy()
    ball.ball((0, 0, 0.5), (0.5, 0.5, 0.5))
    parts = np.array(ball.parts)
    above, around = (0, -0.001, 6, 0, 0, 0, 0.2, 0, 0), (0, 0, 0.5, 0.52)
    seen = camera.take(parts, (0, 1), above, np.zeros((0, 4)), (1, 1, 0, 0, 1), around, 64) > 0
    # a sphere of radius r whose centre is d away is seen under r / sqrt(d² - r²); 0.2 is the picture's half width
    radius = 0.5 / np.sqrt(5.5**2 - 0.25) / 0.2 * 32
    assert seen.sum() == pytest.approx(np.pi * radius**2, rel=0.03)
    low_light = np.array([[np.cos(0.9), 0, np.sin(0.9), 1.0]])
    lit = camera.take(parts, (0, 1), above, low_light, (0.3, 1, 1, 0, 3), around, 64)
    middle = slice(28, 36)
    left, right = lit[middle, 6:14].mean(), lit[middle, 50:58].mean()
    assert abs(left - right) > 0.1, "one side of the ground lies in its shadow"
    shadow, open_ground = (left, right) if left < right else (right, left)
    assert shadow < 0.9 * open_ground


def test_every_pair_shows_a_whole_toy_from_two_sides(toys, camera):
    images, labels = toys.drawn(3, 20, camera, 48)
    assert images.shape == (20, 2, 48, 48)
    assert images.dtype == np.uint8
    assert labels.tolist() == [0, 1, 2, 3, 4] * 4
    edges = np.abs(np.diff(images.astype(float), axis=-1)) > 8
    assert (edges.sum((1, 2, 3)) > 20).all(), "there is something to see"
    border = np.concatenate([edges[..., :2, :], edges[..., -2:, :]], -2)
    assert border.mean() < 0.02, "and it is not cut off"
    assert (np.abs(images[:, 0].astype(float) - images[:, 1]).mean((1, 2)) > 0.5).all(), "the cameras differ"


def test_a_seed_decides_all(toys, camera):
    first, again, other = (toys.drawn(seed, 5, camera, 48)[0] for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_all_pixels_are_those_that_are_halved(toys, camera):
    small, large = (toys.drawn(1, 5, camera, side)[0] for side in (48, 96))
    assert large.shape == (5, 2, 96, 96)
    assert np.abs(toys.halved(large.astype(float)) - small).max() <= 1


def test_the_file_fits_beside_smallnorb(toys, tmp_path, monkeypatch):
    if shutil.which("g++") is None:
        pytest.skip("no g++ to compile draw_toys.cpp with")
    path = tmp_path / "drawn-toys.npz"
    monkeypatch.setattr(sys, "argv", ["draw_toys.py", str(path), "--pairs", "5"])
    toys.main()
    with np.load(path) as file:
        assert file["images"].shape == (5, 2, 48, 48)
        assert file["labels"].tolist() == [0, 1, 2, 3, 4]
        assert len(np.unique(file["instance"])) == 5


def test_without_a_compiler_it_says_so(toys, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match=r"install g\+\+"):
        toys.Camera(tmp_path)
