"""Networks side by side: each with its own view and its own loss, one answer together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import capsroute as cr
from capsroute import pretrained
from capsroute.analysis.tracing import capsule_network
from capsroute.data import Split, Transform
from capsroute.errors import RunError
from capsroute.lanes import LaneNet, View
from capsroute.models import CapsNet, ConvNet, count_parameters
from capsroute.training.config import LossConfig
from capsroute.training.health import routing_health
from capsroute.training.objective import Objective

SMALL: dict[str, Any] = {"stem": [8, 5, 2], "primary": 2, "capsules": [[3, 3, 1]], "pose_norm": "batch"}


def two_lanes(**options: Any) -> LaneNet:
    torch.manual_seed(0)
    lanes = [{}, {"view": [28, 2], "routing": "uniform", "primary": 3}]
    return LaneNet(image_size=32, in_channels=2, lanes=lanes, **{**SMALL, **options})


def images(count: int = 4) -> torch.Tensor:
    return torch.randn(count, 2, 32, 32, generator=torch.Generator().manual_seed(1))


def test_the_answer_is_the_mean_of_the_lanes_and_keeps_their_poses() -> None:
    net = two_lanes().eval()
    first, second = (lane(view(images())) for lane, view in zip(net.lanes, net.views, strict=True))
    caps = net(images())
    torch.testing.assert_close(caps.logits, (first.logits + second.logits) / 2)
    torch.testing.assert_close(caps.activations, caps.logits.sigmoid())
    assert torch.equal(caps.poses, torch.cat([first.poses, second.poses], -2))
    assert caps.poses.shape == (4, 5, 8, 4)


def test_shares_can_be_averaged_instead_of_logits() -> None:
    net = two_lanes(average="shares").eval()
    shares = [caps.logits.softmax(1) for caps in net.heads(images())]
    caps = net(images())
    torch.testing.assert_close(caps.logits.exp(), (shares[0] + shares[1]) / 2)
    torch.testing.assert_close(caps.logits.softmax(1), caps.logits.exp())


def test_lanes_have_their_own_options_over_those_of_all() -> None:
    net = two_lanes(classes=3)
    first, second = net.lanes
    assert isinstance(first, CapsNet)
    assert isinstance(second, CapsNet)
    assert (first.config["routing"], second.config["routing"]) == ("similarity", "uniform")
    assert (first.config["primary"], second.config["primary"]) == (2, 3)
    assert (first.image_size, second.image_size) == ((32, 32), (14, 14))
    assert first.classes == second.classes == net.classes == 3
    assert count_parameters(net) == count_parameters(first) + count_parameters(second)


def test_a_lane_begins_elsewhere_than_the_next() -> None:
    net = LaneNet(image_size=32, **SMALL)
    assert len(net.lanes) == 3
    logits = [caps.logits for caps in net.eval().heads(images()[:, :1])]
    assert not torch.allclose(logits[0], logits[1])
    assert not torch.allclose(logits[1], logits[2])


@pytest.mark.parametrize("side", [40, 41])
def test_a_view_is_what_a_network_fed_with_windows_sees(side: int) -> None:
    """Standardised windows of standardised images are standardised windows of the pixels themselves."""
    pixels = torch.randint(0, 256, (3, 2, 48, 48), generator=torch.Generator().manual_seed(2), dtype=torch.uint8)
    split = Split.of(pixels.numpy(), [0, 1, 2])
    whole, window = (
        Transform(crop=crop, standardise="crop").apply(split, [0, 1, 2], epoch=0, seed=0, train=False)
        for crop in (48, side)
    )
    torch.testing.assert_close(View(side)(whole), window, atol=1e-5, rtol=1e-4)


def test_a_smaller_view_has_means_of_pixels() -> None:
    given = images()
    seen = View(28, 2)(given)
    assert seen.shape == (4, 2, 14, 14)
    means = given[..., 2:30, 2:30].unflatten(-1, (14, 2)).unflatten(-3, (14, 2)).mean((-1, -3))
    slope = (seen[0, 0, 0, 0] - seen[0, 0, 5, 5]) / (means[0, 0, 0, 0] - means[0, 0, 5, 5])
    torch.testing.assert_close(seen[0] - seen[0].mean(), slope * (means[0] - means[0].mean()), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(seen.flatten(1).std(1, correction=0), torch.ones(4))


def test_a_view_beyond_the_image_repeats_its_edge() -> None:
    seen = View(37)(images())
    assert seen.shape == (4, 2, 37, 37)
    assert torch.equal(seen[..., 0, :], seen[..., 1, :])
    assert torch.equal(seen[..., :, 0], seen[..., :, 1])


def test_a_view_of_all_is_the_image_and_a_flat_one_stays_finite() -> None:
    given = images()
    assert View(32)(given) is given
    assert torch.equal(View(16)(torch.full((1, 1, 32, 32), 3.0)), torch.zeros(1, 1, 16, 16))


@pytest.mark.parametrize("given", [[], [0], [80, 3], [80, 0], [80, 2, 1], "80", [8.0], None])
def test_a_wrong_view_is_told(given: Any) -> None:
    with pytest.raises(ValueError, match=r"view=.*write \[side\]"):
        View.of(given)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lanes": []}, "lanes=\\[\\]: pass one set of options"),
        ({"average": "poses"}, "average='poses': choose 'logits' or 'shares'"),
        ({"lanes": [3]}, "lanes=\\[3\\]"),
        ({"lanes": [{}], "decoder": [16]}, "leave the decoder out"),
        ({"lanes": [{"decoder": [16]}]}, "leave the decoder out"),
        ({"lanes": [{"view": [5, 2]}]}, "a divisor"),
    ],
)
def test_wrong_lanes_are_told(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LaneNet(**{**SMALL, **options})


def test_images_of_another_size_are_refused() -> None:
    with pytest.raises(ValueError, match=r"this network takes \[batch, 2, 32, 32\]"):
        two_lanes()(torch.zeros(1, 2, 28, 28))


def test_saved_and_loaded_it_says_the_same(tmp_path: Path) -> None:
    net = two_lanes().eval()
    net.save_pretrained(tmp_path)
    again = cr.LaneNet.from_pretrained(tmp_path)
    assert again.config == net.config
    assert torch.equal(again(images()).logits, net(images()).logits)
    with pytest.raises(ValueError, match=r"holds a LaneNet, not a CapsNet; LaneNet\.from_pretrained loads it"):
        cr.CapsNet.from_pretrained(tmp_path)


def test_each_lane_takes_what_fits_it_of_a_saved_network(tmp_path: Path) -> None:
    single = CapsNet(image_size=32, in_channels=2, **SMALL)
    single.save_pretrained(tmp_path / "single")
    net = two_lanes()
    before = net.lanes[1].state_dict()["primary.poses.weight"].clone()
    pretrained.borrow(net, tmp_path / "single")
    assert torch.equal(net.eval().heads(images())[0].logits, single.eval()(images()).logits)
    assert torch.equal(net.lanes[1].state_dict()["primary.poses.weight"], before)
    ConvNet(image_size=32, in_channels=2, parameters=2000).save_pretrained(tmp_path / "other")
    with pytest.raises(RunError, match="nothing of the network"):
        pretrained.borrow(net, tmp_path / "other")


def test_each_lane_takes_what_fits_it_of_the_saved_lane_in_its_place(tmp_path: Path) -> None:
    saved, net = two_lanes().eval(), two_lanes().eval()
    with torch.no_grad():
        for parameter in saved.parameters():
            parameter.mul_(1.5)
    saved.save_pretrained(tmp_path)
    assert not torch.allclose(net(images()).logits, saved(images()).logits)
    pretrained.borrow(net, tmp_path)
    assert torch.equal(net(images()).logits, saved(images()).logits)


def test_each_lane_has_a_loss_of_its_own() -> None:
    net, labels = two_lanes().eval(), torch.tensor([0, 1, 2, 3])
    loss, logits = Objective(net, LossConfig(), 10)(images(), labels, 0)
    each = [torch.nn.functional.cross_entropy(caps.logits, labels) for caps in net.heads(images())]
    torch.testing.assert_close(loss, torch.stack(each).mean())
    torch.testing.assert_close(logits, net(images()).logits)
    assert loss > torch.nn.functional.cross_entropy(logits, labels), "a mean of logits errs less than their mean loss"


def test_routing_health_is_that_of_the_first_lane() -> None:
    net = LaneNet(image_size=32, in_channels=2, lanes=[{"view": [28, 2]}, {}], **SMALL).eval()
    assert routing_health(net, images()) == routing_health(net.lanes[0], net.views[0](images()))


def test_who_looks_inside_is_told_to_choose_a_lane() -> None:
    with pytest.raises(RunError, match="2 networks lie side by side here"):
        capsule_network(two_lanes())
