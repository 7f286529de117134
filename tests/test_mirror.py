"""Networks that know what a mirror does: filters in pairs, two looks, one answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import capsroute as cr
from capsroute.data import Transform
from capsroute.mirror import Mirror, TwinNorm, mirrored, twin
from capsroute.models import ConvNet, count_parameters, look_once
from capsroute.pretrained import borrow, load
from capsroute.testing import assert_capsules_close
from capsroute.training import recipe
from capsroute.training.config import OptimizerConfig
from capsroute.training.optim import build_optimizer

STEM = ((8, 5, 2), (12, 3, 2))  # of 17 pixels: 7, then 4 positions, and no pixel is left out
MIRRORS: tuple[Mirror, ...] = (True, "stereo")


def network(mirror: Mirror = "stereo", **options: Any) -> cr.CapsNet:
    settings: dict[str, Any] = {
        "image_size": 17,
        "in_channels": 2,
        "stem": STEM,
        "primary": 2,
        "capsules": ((3, 3, 1),),
        "coordinate_addition": True,
        "pose_norm": "batch",
    }
    net = cr.CapsNet(mirror=mirror, **{**settings, **options})
    return net.eval()


def trained(net: cr.CapsNet, images: Tensor) -> cr.CapsNet:
    """A few steps, so that norms have seen something and no bias is zero."""
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    net.train()
    for _ in range(3):
        optimizer.zero_grad()
        caps = net(images)
        assert caps.logits is not None
        nn.functional.cross_entropy(caps.logits, torch.arange(len(images)) % 5).backward()
        optimizer.step()
    return net.eval()


@pytest.mark.parametrize("mirror", MIRRORS)
def test_features_of_a_mirrored_image_are_mirrored_with_their_halves_swapped(mirror: Mirror) -> None:
    torch.manual_seed(0)
    net = network(mirror, image_size=21, stem=((8, 5, 2), (12, 3, 2))).double()
    images = torch.randn(6, 2, 21, 21, dtype=torch.double)
    trained(net, images)
    seen, other = net.features(images), net.features(mirrored(images, mirror))
    assert seen.shape[-1] == 5
    torch.testing.assert_close(other, seen.flip(-1).roll(6, 1), rtol=1e-10, atol=1e-12)
    assert (seen - seen.flip(-1)).abs().max() > 0.1


@pytest.mark.parametrize("mirror", MIRRORS)
@pytest.mark.parametrize("side", [17, 20])
def test_the_answer_is_the_same_in_a_mirror(mirror: Mirror, side: int) -> None:
    torch.manual_seed(0)
    images = torch.randn(6, 2, side, side)
    net = trained(network(mirror, image_size=side), images)
    with torch.no_grad():
        caps, other = net(images), net(mirrored(images, mirror))
    torch.testing.assert_close(caps.logits, other.logits)
    assert (caps.poses - other.poses).abs().max() > 1e-3, "poses say how the toy lies as it is seen"


def test_an_answer_is_the_mean_of_two_looks_and_training_has_one() -> None:
    torch.manual_seed(0)
    images = torch.randn(6, 2, 17, 17)
    net = trained(network(), images)
    with torch.no_grad():
        looks = [net.route(net.primary_capsules(x)) for x in (images, images.flip(-1, -3))]
        caps = net(images)
    logits = [look.logits for look in looks]
    torch.testing.assert_close(caps.logits, (logits[0] + logits[1]) / 2)
    torch.testing.assert_close(caps.poses, looks[0].poses)
    net.train()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    with torch.no_grad():
        assert_capsules_close(net(images), looks[0], 1e-6)


def test_it_can_be_told_to_look_once() -> None:
    torch.manual_seed(0)
    images = torch.randn(6, 2, 17, 17)
    lanes = cr.LaneNet(lanes=[{}], image_size=17, in_channels=2, stem=STEM, capsules=((3, 3, 1),), mirror=True)
    nets = [trained(network(), images), lanes]
    for net in nets:
        lane = net.lanes[0] if isinstance(net, cr.LaneNet) else net
        assert isinstance(lane, cr.CapsNet)
        look_once(net.eval())
        with torch.no_grad():
            torch.testing.assert_close(net(images).logits, lane.route(lane.primary_capsules(images)).logits)


@pytest.mark.parametrize("swap", [False, True])
def test_values_and_gradients_are_those_of_a_convolution_with_both_halves_written_out(swap: bool) -> None:
    torch.manual_seed(0)
    layer = twin(nn.Conv2d(4, 6, 3, 2, 1), swap).double()
    images = torch.randn(2, 4, 9, 9, dtype=torch.double)
    half = layer.parametrizations.weight.original
    bias = layer.parametrizations.bias.original
    assert half.shape == (3, 4, 3, 3)
    assert bias.shape == (3,)
    heard = images[:, [2, 3, 0, 1]] if swap else images
    # a mirrored filter on an image is the filter on the mirrored image, mirrored
    first = nn.functional.conv2d(images, half, bias, 2, 1)
    second = nn.functional.conv2d(heard.flip(-1), half, bias, 2, 1).flip(-1)
    expected = torch.cat([first, second], 1)
    torch.testing.assert_close(layer(images), expected)
    weights = torch.randn_like(expected)
    found = torch.autograd.grad((layer(images) * weights).sum(), [half, bias])
    for one, other in zip(found, torch.autograd.grad((expected * weights).sum(), [half, bias]), strict=True):
        torch.testing.assert_close(one, other)


def test_a_norm_of_twins_is_one_of_both_halves_together() -> None:
    torch.manual_seed(0)
    features = torch.randn(4, 6, 5, 3).contiguous(memory_format=torch.channels_last)
    norm = TwinNorm(6)
    plain = nn.BatchNorm2d(3)
    found = norm(features)
    expected = plain(torch.cat([features[:, :3], features[:, 3:]]))
    torch.testing.assert_close(found, torch.cat([expected[:4], expected[4:]], 1))
    torch.testing.assert_close(norm.running_var, plain.running_var)
    assert found.is_contiguous(memory_format=torch.channels_last)


def test_half_of_the_filters_are_learned() -> None:
    plain, net = network(False), network()
    parts = [(count_parameters(n.stem), count_parameters(n, routing=True)) for n in (plain, net)]
    assert 2 * parts[1][0] == parts[0][0]
    assert parts[0][1] - parts[1][1] == parts[1][0]


def test_its_filters_decay_and_its_biases_do_not() -> None:
    net = network()
    decayed, free = build_optimizer(net, OptimizerConfig("adamw", weight_decay=0.1)).param_groups
    first = net.stem[0].parametrizations
    assert any(p is first.weight.original for p in decayed["params"])
    assert any(p is first.bias.original for p in free["params"])


def test_saved_and_loaded_it_says_the_same(tmp_path: Path) -> None:
    torch.manual_seed(0)
    images = torch.randn(6, 2, 17, 17)
    net = trained(network(), images)
    net.save_pretrained(tmp_path)
    again = load(tmp_path)
    assert isinstance(again, cr.CapsNet)
    assert again.mirror == "stereo"
    with torch.no_grad():
        assert_capsules_close(again(images), net(images), 1e-6)
    other = network()
    borrow(other, tmp_path)
    torch.testing.assert_close(other.stem[0].weight, net.stem[0].weight)


def test_lanes_may_be_symmetric() -> None:
    torch.manual_seed(0)
    common = {"in_channels": 2, "stem": STEM, "primary": 2, "capsules": ((3, 3, 1),), "mirror": "stereo"}
    net = cr.LaneNet(lanes=[{}, {"view": [16]}], image_size=20, **common).eval()
    images = torch.randn(3, 2, 20, 20)
    with torch.no_grad():
        torch.testing.assert_close(net(images).logits, net(mirrored(images, "stereo")).logits)


def test_a_convolutional_network_may_be_symmetric() -> None:
    torch.manual_seed(0)
    images = torch.randn(6, 2, 17, 17)
    net = ConvNet(image_size=17, in_channels=2, parameters=3000, mirror="stereo")
    plain = ConvNet(image_size=17, in_channels=2, parameters=6000)
    assert abs(count_parameters(net) / 3000 - 1) < 0.1
    assert len(net.net[0].weight) == pytest.approx(len(plain.net[0].weight), abs=1), "about as wide as with twice that"
    nn.functional.cross_entropy(net(images).logits, torch.arange(6) % 5).backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in net.parameters())
    net.eval()
    with torch.no_grad():
        caps, other_side = net(images), net(mirrored(images, "stereo"))
    torch.testing.assert_close(caps.logits, other_side.logits)


def test_no_images_have_no_answers() -> None:
    caps = network()(torch.zeros(0, 2, 17, 17))
    assert caps.poses.shape == (0, 5, 4, 4)
    assert caps.logits is not None
    assert caps.logits.shape == (0, 5)


def test_what_a_mirror_shows_is_what_flips_show() -> None:
    images = torch.randn(3, 2, 8, 8)
    for flip in MIRRORS:
        torch.testing.assert_close(Transform(flip=flip).mirrored(images), mirrored(images, flip))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mirror": "left"}, "mirror='left': choose true, false or 'stereo'"),
        ({"stem": ((8, 5, 2), (7, 3, 2))}, "their numbers are even"),
        ({"in_channels": 1}, "mirror='stereo' with in_channels=1: it takes two"),
        ({"disparity": 2}, "disparity stays 0"),
    ],
)
def test_wrong_settings_are_told(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        network(**options)


@pytest.mark.parametrize(("name", "side"), [("cut-mirror", 40), ("fine-cut-mirror", 80)])
def test_the_recipes_have_more_filters_and_fewer_weights(name: str, side: int) -> None:
    counts = []
    for kind in (name, name.removesuffix("-mirror")):
        model = {k: v for k, v in recipe(f"smallnorb-similarity-{kind}").model.items() if k != "network"}
        counts.append(count_parameters(cr.CapsNet(image_size=side, in_channels=2, **model), routing=True))
    assert counts[0] < counts[1]
