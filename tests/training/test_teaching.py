"""Trained networks as teachers: what they say together is learned, and they stay as they are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.training.tiny import Notes, tiny, train
from torch.nn import functional as F

from capsroute.capsules import Capsules
from capsroute.errors import RunError
from capsroute.lanes import LaneNet, View
from capsroute.models import ConvNet
from capsroute.training import Config, recipe
from capsroute.training.config import ConfigError, LossConfig
from capsroute.training.objective import Objective
from capsroute.training.teaching import Teachers, distillation

NAMES = {"first": [16], "second": [16, 2]}


@pytest.fixture
def taught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two networks, one of which sees half of the pixels."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    for name, size in (("first", 16), ("second", 8)):
        ConvNet(image_size=size, in_channels=2, parameters=2000).save_pretrained(name)
    return tmp_path


def images(count: int = 6) -> torch.Tensor:
    return torch.randn(count, 2, 16, 16, generator=torch.Generator().manual_seed(1))


def test_teachers_say_the_mean_of_their_shares(taught: Path) -> None:
    teachers = Teachers(NAMES, 2, 5)
    pairs = zip(teachers.nets, teachers.views, strict=True)
    first, second = (net(view(images())).logits.softmax(1) for net, view in pairs)
    torch.testing.assert_close(teachers(images()).exp(), (first + second) / 2)
    assert teachers.views == [View(16), View(16, 2)]


def test_teachers_do_not_learn(taught: Path) -> None:
    objective = Objective(ConvNet(image_size=16, in_channels=2, parameters=2000), LossConfig(teachers=NAMES), 10)
    objective.train()
    assert objective.teachers is not None
    before = {name: tensor.clone() for name, tensor in objective.teachers.state_dict().items()}
    objective(images(), torch.zeros(6, dtype=torch.long), 0)[0].backward()
    assert all(parameter.grad is None for parameter in objective.teachers.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in objective.teachers.state_dict().items())
    assert not any(module.training for module in objective.teachers.modules())


def test_labels_are_not_asked_for(taught: Path) -> None:
    objective = Objective(ConvNet(image_size=16, in_channels=2, parameters=2000).eval(), LossConfig(teachers=NAMES), 10)
    zeros, ones = (objective(images(), torch.full((6,), label), 0)[0] for label in (0, 1))
    assert torch.equal(zeros, ones)


def test_apart_each_lane_has_a_teacher_of_its_own(taught: Path) -> None:
    torch.manual_seed(3)
    lanes = [{}, {"view": [16, 2], "stem": [4, 3, 1]}]
    net = LaneNet(lanes=lanes, image_size=16, in_channels=2, stem=[4, 5, 2], primary=2, capsules=[]).eval()
    objective = Objective(net, LossConfig(teachers=NAMES, apart=True), 10)
    assert objective.teachers is not None
    pairs = zip(net.heads(images()), objective.teachers.each(images()), strict=True)
    each = [distillation(caps, wanted, 2.0) for caps, wanted in pairs]
    loss, logits = objective(images(), torch.zeros(6, dtype=torch.long), 0)
    torch.testing.assert_close(loss, (each[0] + each[1]) / 2)
    torch.testing.assert_close(logits, net(images()).logits)
    with pytest.raises(RunError, match=r"loss\.apart: 1 teachers for 2 networks side by side; each needs its own"):
        Objective(net, LossConfig(teachers={"first": [16]}, apart=True), 10)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_the_loss_is_nothing_where_both_agree_and_their_divergence_elsewhere(temperature: float) -> None:
    own, wanted = torch.randn(5, 3, requires_grad=True), torch.randn(5, 3).log_softmax(1)
    caps = Capsules.from_logits(own[..., None, None], own)
    soft = (wanted / temperature).softmax(1)
    divergence = (soft * (soft.log() - (own / temperature).log_softmax(1))).sum(1).mean()
    torch.testing.assert_close(distillation(caps, wanted, temperature), temperature**2 * divergence)
    same = Capsules.from_logits(wanted[..., None, None], wanted + 3)
    assert float(distillation(same, wanted, temperature)) == pytest.approx(0, abs=1e-6)


def test_at_temperature_one_its_gradient_is_that_of_cross_entropy_with_shares() -> None:
    own, wanted = torch.randn(5, 3, requires_grad=True), torch.randn(5, 3).log_softmax(1)
    (one,) = torch.autograd.grad(distillation(Capsules.from_logits(own[..., None, None], own), wanted, 1.0), own)
    (other,) = torch.autograd.grad(F.cross_entropy(own, wanted.exp()), own)
    torch.testing.assert_close(one, other)


def test_a_teacher_that_sees_other_images_is_told(taught: Path) -> None:
    with pytest.raises(RunError, match=r"second sees images of 8 x 8 pixels, its view \[16, 1\] gives it 16 x 16"):
        Teachers({"second": [16]}, 2, 5)
    with pytest.raises(RunError, match=r"loss\.teachers: view=.* a divisor"):
        Teachers({"second": [16, 3]}, 2, 5)
    with pytest.raises(RunError, match="no network at nobody"):
        Teachers({"nobody": [16]}, 2, 5)
    with pytest.raises(RunError, match=r"first has 2 channels and 5 classes, the network .* 1 and 5"):
        Teachers({"first": [16]}, 1, 5)


def test_a_teacher_that_is_all_too_sure_leaves_the_loss_finite(taught: Path) -> None:
    teachers = Teachers({"first": [16]}, 2, 5)
    with torch.no_grad():
        teachers.nets[0].net[-1].weight.mul_(1e4)
    wanted = teachers(images())
    assert wanted.min() < -80
    own = torch.zeros(6, 5, requires_grad=True)
    loss = distillation(Capsules.from_logits(own[..., None, None], own), wanted, 2.0)
    loss.backward()
    assert torch.isfinite(loss)
    assert own.grad is not None
    assert torch.isfinite(own.grad).all()


def test_teachers_are_part_of_a_configuration() -> None:
    config = recipe("digits-similarity").with_settings(['loss.teachers={"first": [16]}', "loss.temperature=3"])
    assert config.loss.teachers == {"first": [16]}
    assert Config.from_dict(config.to_dict()) == config
    with pytest.raises(ConfigError, match=r"loss\.temperature=0\.0: must be positive"):
        config.with_settings(["loss.temperature=0"])


def test_a_network_comes_to_say_what_its_teacher_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its loss, a divergence from the teacher, falls; the labels say nothing to it."""
    monkeypatch.chdir(tmp_path)
    teacher = train(tiny(), out="teacher", watcher=Notes())
    notes = Notes()
    pupil = train(tiny(f'loss.teachers={{"{teacher.model}": [8]}}', "epochs=8", "seed=1"), out="pupil", watcher=notes)
    assert notes.losses[-1] < 0.5 * notes.losses[5]
    assert pupil.result["config"]["loss"]["teachers"] == {str(teacher.model): [8]}
