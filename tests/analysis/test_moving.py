"""Affine maps against what is known of them, and the measures on paths made to order."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from capsroute.analysis import Path, affine, affine_frames, follow, measure, open_subject, viewpoints
from capsroute.analysis.equivariance import walk
from capsroute.data import Split
from capsroute.errors import DataError


def turn(angle):
    cos, sin = np.cos(angle), np.sin(angle)
    matrix = np.eye(4)
    matrix[:2, :2] = [[cos, -sin], [sin, cos]]
    return matrix


def path_of(poses, values):
    return Path(values, poses.astype(np.float32), np.full(poses.shape[:2], 0.9), np.ones(poses.shape[:2], dtype=bool))


def test_maps_that_are_known():
    images = torch.rand(2, 3, 9, 9)
    torch.testing.assert_close(affine(images), images)
    torch.testing.assert_close(affine(images, rotation=90), torch.rot90(images, 1, (2, 3)), atol=1e-5, rtol=0)
    moved = affine(images, shift=(2 / 9, 1 / 9))
    torch.testing.assert_close(moved[:, :, 1:, 2:], images[:, :, :-1, :-2], atol=1e-5, rtol=0)
    twice = affine(torch.kron(images, torch.ones(2, 2)), scale=0.5)
    torch.testing.assert_close(twice[:, :, 5:14, 5:14].mean(), images.mean(), atol=0.05, rtol=0)


def test_a_turn_is_a_turn_on_images_that_are_not_square():
    images = torch.zeros(1, 1, 8, 16)
    images[0, 0, 4, 8] = 1.0  # beside the centre, half a pixel right and down
    turned = affine(images, rotation=90)
    assert turned.amax() > 0.9
    assert divmod(int(turned.flatten().argmax()), 16) == (3, 8)  # up by as many pixels as it was right


def test_outside_is_background():
    images = torch.full((1, 1, 6, 6), 0.7)
    images[0, 0, 2:4, 2:4] = 0.1
    torch.testing.assert_close(affine(images, shift=(0.5, 0.0))[0, 0, :, 0], torch.full((6,), 0.7))


def test_a_scale_must_be_positive():
    with pytest.raises(ValueError, match="positive"):
        affine(torch.rand(1, 1, 4, 4), scale=0)


def test_a_pose_that_turns_with_the_input_is_equivariant():
    random = np.random.default_rng(0)
    start = random.normal(size=(40, 4, 4)) + 3 * np.eye(4)
    angles = np.linspace(-0.7, 0.7, 9)
    poses = np.stack([start @ turn(angle) for angle in angles])
    found = measure(path_of(poses, angles), reference=4)
    assert found.carried > 0.999
    assert found.readout > 0.5
    assert found.moved > 0.1
    assert found.won == 1
    assert found.steady == pytest.approx(1)


def test_a_pose_that_stays_is_invariant():
    random = np.random.default_rng(0)
    poses = np.repeat(random.normal(size=(1, 30, 4, 4)), 7, axis=0)
    found = measure(path_of(poses, np.arange(7.0)))
    assert found.moved == 0
    assert found.readout < 0.05


def test_a_pose_that_jumps_about_is_neither():
    random = np.random.default_rng(0)
    found = measure(path_of(random.normal(size=(7, 60, 4, 4)), np.arange(7.0)))
    assert found.moved > 1
    assert found.carried < 0.6
    assert found.readout < 0.2


def test_a_full_turn_is_read_off_as_an_angle():
    random = np.random.default_rng(0)
    start = 0.3 * random.normal(size=(40, 4, 4)) + 3 * np.eye(4)
    degrees = np.arange(0.0, 360, 20)
    poses = np.stack([start @ turn(np.deg2rad(d)) for d in degrees])
    assert measure(path_of(poses, degrees), period=360).readout > 0.95
    # as a plain number, 340 and 0 are far apart, and cannot be
    assert measure(path_of(poses, degrees)).readout < 0.9


def test_measures_need_enough_to_hold_out():
    with pytest.raises(ValueError, match="4 images at 3 values"):
        measure(path_of(np.zeros((3, 4, 4, 4)), np.arange(3.0)))


def views(order):
    """Two classes, two toys each, two lightings, at three azimuths and two elevations, in any order."""
    cells = np.array(np.meshgrid([0, 1], [4, 7], [0, 1], [0, 20, 40], [30, 35])).reshape(5, -1).T[order]
    names = ("instance", "lighting", "azimuth", "elevation")
    meta = {name: cells[:, n + 1] for n, name in enumerate(names)}
    return Split.of(np.zeros((len(cells), 1, 4, 4), dtype=np.uint8), cells[:, 0], meta)


def test_viewpoints_change_nothing_else():
    split = views(np.random.default_rng(0).permutation(48))
    values, rows = viewpoints(split, "azimuth", count=100)
    assert values.tolist() == [0, 20, 40]
    assert rows.shape == (3, 16)
    assert len(np.unique(rows)) == 48
    for step, value in enumerate(values):
        assert np.all(split.meta["azimuth"][rows[step]] == value)
    for name in ("instance", "lighting", "elevation"):
        assert np.all(split.meta[name][rows] == split.meta[name][rows[0]])
    assert np.all(split.labels[rows] == split.labels[rows[0]])


def test_viewpoints_of_one_class_start_with_the_object_asked_for():
    split = views(np.arange(48))
    image = int(np.flatnonzero((split.labels == 1) & (split.meta["elevation"] == 35))[-1])
    values, rows = viewpoints(split, "elevation", count=5, label=1, first=image)
    assert values.tolist() == [30, 35]
    assert rows.shape == (2, 5)
    assert image in rows[:, 0]
    assert np.all(split.labels[rows] == 1)


def test_viewpoints_need_labels_and_whole_sets():
    with pytest.raises(DataError, match="have no azimuth"):
        viewpoints(Split.of(np.zeros((2, 1, 4, 4), dtype=np.uint8), [0, 1]), "azimuth")
    with pytest.raises(DataError, match="not every object"):
        viewpoints(views(np.arange(47)), "azimuth")


def test_the_path_of_a_trained_network(digits_run):
    subject = open_subject(digits_run)
    walked = walk(subject, "rotation", image=5, count=20, steps=7)
    assert walked.frames.shape == (7, 1, 8, 8)
    assert walked.label == subject.split().labels[5]
    torch.testing.assert_close(walked.frames[3], subject.images([5])[0])
    found = measure(walked.path, reference=walked.reference)
    assert 0.05 < found.moved < 3
    assert found.readout > 0.3  # the pose tells how far a digit is turned
    upright = follow(subject.net, affine_frames(subject.images([5]), "rotation", [0.0]), [0.0])
    torch.testing.assert_close(walked.path.poses[3, 0], upright.poses[0, 0], atol=1e-4, rtol=1e-3)


def test_changes_are_named(digits_run):
    subject = open_subject(digits_run)
    with pytest.raises(DataError, match="choose one of rotation"):
        walk(subject, "colour")
    with pytest.raises(DataError, match="have no azimuth"):
        walk(subject, "azimuth")
