"""What is looked into: found by folder, with its data or a reason why not."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch

from capsroute import CapsNet
from capsroute.analysis import kernel_profiles, open_subject
from capsroute.analysis.history import find_runs, read_curve
from capsroute.errors import DataError, RunError


def test_a_run_is_opened_with_its_data(digits_run):
    subject = open_subject(digits_run)
    assert subject.name == "digits-run"
    assert subject.classes == tuple("0123456789")
    assert subject.compares
    labels = torch.from_numpy(subject.split().labels)
    with torch.no_grad():
        right = subject.net(subject.images(range(len(labels)))).logits.argmax(1) == labels
    wrong = json.loads((digits_run / "result.json").read_text())["test_error"]
    assert 100 * (1 - right.float().mean()) == pytest.approx(wrong, abs=0.3)
    # the network's folder alone does as well
    assert open_subject(digits_run / "model").dataset.name == "digits"


def test_pictures_are_prepared_like_test_images(digits_run):
    subject = open_subject(digits_run)
    stored = subject.split().images[7]
    torch.testing.assert_close(subject.picture(stored), subject.images([7]))


def test_scores_follow_the_loss(digits_run, tmp_path):
    shutil.copytree(digits_run / "model", tmp_path / "spread")
    config = json.loads((tmp_path / "spread" / "training.json").read_text())
    config["loss"] |= {"name": "spread", "smoothing": 0.0}
    (tmp_path / "spread" / "training.json").write_text(json.dumps(config))
    logits = torch.tensor([[2.0, -1.0]])
    torch.testing.assert_close(open_subject(digits_run).scores(logits), logits.softmax(1))
    torch.testing.assert_close(open_subject(tmp_path / "spread").scores(logits), logits.sigmoid())


def test_images_are_counted_from_zero(digits_run):
    with pytest.raises(DataError, match="has 0 to 358"):
        open_subject(digits_run).images([359])
    with pytest.raises(DataError, match="image -1"):
        open_subject(digits_run).images([-1])


@pytest.mark.parametrize("name", ["mnist", "smallnorb"])
def test_missing_data_are_no_obstacle_to_pictures_of_ones_own(digits_run, tmp_path, monkeypatch, name):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CAPSROUTE_DATA", raising=False)
    shutil.copytree(digits_run / "model", tmp_path / "model")
    config = json.loads((tmp_path / "model" / "training.json").read_text())
    config["data"] |= {"name": name}
    (tmp_path / "model" / "training.json").write_text(json.dumps(config))
    with pytest.raises(DataError, match=name):
        open_subject(tmp_path / "model", tmp_path).split()
    subject = open_subject(tmp_path / "model", tmp_path, need_data=False)
    with pytest.raises(DataError, match=name):
        subject.split()
    assert subject.picture(np.zeros((1, 8, 8), dtype=np.uint8)).shape == (1, 1, 8, 8)


def test_a_network_that_does_not_say_what_it_was_trained_on(tmp_path):
    CapsNet(image_size=8, stem=(4, 3, 1), primary=2, capsules=()).save_pretrained(tmp_path / "net")
    with pytest.raises(RunError, match=r"no training\.json"):
        open_subject(tmp_path / "net")
    with pytest.raises(RunError, match="no network at"):
        open_subject(tmp_path / "nowhere")


def test_curves_are_read_from_runs(digits_run, tmp_path):
    curve = read_curve(digits_run)
    assert [entry["epoch"] for entry in curve] == [1, 2, 3]
    assert curve[-1]["train_loss"] < curve[0]["train_loss"]
    assert [run.folder.name for run in find_runs(digits_run.parent)] == ["digits-run"]
    assert find_runs(tmp_path / "none") == []
    with pytest.raises(RunError, match="holds no run"):
        read_curve(tmp_path)
    shutil.copy(digits_run / "config.json", tmp_path / "config.json")
    with pytest.raises(RunError, match="no finished epoch"):
        read_curve(tmp_path)


def test_kernels_before_training_are_those_of_a_new_network():
    net = CapsNet(image_size=8, stem=(4, 3, 1), primary=2, capsules=((2, 3, 2),))
    for profile in kernel_profiles(net, reach=4.0, points=5):
        np.testing.assert_array_equal(profile.before, profile.after)
        assert profile.distances.tolist() == [0, 1, 2, 3, 4]
        assert profile.after[0, 0] == pytest.approx(1)
        assert np.all(np.diff(profile.after[0]) < 0)


def test_kernels_are_equation_15():
    net = CapsNet(
        image_size=8, classes=3, stem=(4, 3, 1), primary=2, capsules=(), routing_options={"per_channel": True}
    )
    kernel = net.layers[0].routing.compatibility.kernel
    with torch.no_grad():
        kernel.heights.free += torch.randn_like(kernel.heights.free)
    (profile,) = kernel_profiles(net, reach=3.0, points=4)
    heights, widths = kernel.heights().detach().numpy(), kernel.widths().detach().numpy()
    assert profile.after.shape == (3, 4)
    for channel in range(3):
        expected = [(heights[channel] * np.exp(-(d**2) / (2 * widths[channel] ** 2))).sum() for d in profile.distances]
        np.testing.assert_allclose(profile.after[channel], expected, rtol=1e-5)
    assert np.abs(profile.after - profile.before).max() > 0.01


def test_routings_without_kernels_are_refused():
    with pytest.raises(RunError, match="learns no similarity kernel"):
        kernel_profiles(CapsNet("em", image_size=8, stem=(4, 3, 1), primary=2, capsules=()))
