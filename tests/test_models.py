"""The paper's network: its numbers, its shapes, its symmetry."""

from __future__ import annotations

import json

import pytest
import torch

import capsroute as cr
from capsroute import models
from capsroute.errors import RunError
from capsroute.models import CapsNet, ConvNet, count_parameters
from capsroute.pretrained import load
from capsroute.routing import ROUTINGS
from capsroute.testing import assert_capsules_close, assert_equivariant, random_capsules


def spaces(net):
    """The output space of each stage, for one image."""
    caps = net.primary_capsules(torch.zeros(1, net.in_channels, *net.image_size))
    found = [tuple(caps.poses.shape[1:])]
    for layer in net.layers:
        caps = layer(caps)
        found.append(tuple(caps.poses.shape[1:]))
    return found


@pytest.mark.parametrize(
    ("options", "weights", "sides"),
    [
        ({}, 86_408, (14, 6, 4)),
        ({"stem_padding": 2}, 97_928, (16, 7, 5)),
        ({"coordinate_addition": True}, 67_208, (14, 6, 4)),
        ({"coordinate_addition": True, "stem_padding": 2}, 67_208, (16, 7, 5)),
    ],
)
def test_weights_and_shapes_of_the_paper(options, weights, sides):
    net = cr.CapsNet(**options)
    assert count_parameters(net) == weights
    a, b, c = sides
    assert spaces(net) == [(a, a, 8, 4, 4), (b, b, 16, 4, 4), (c, c, 16, 4, 4), (5, 4, 4)]


def test_a_stem_of_several_convolutions():
    net = cr.CapsNet(in_channels=2, stem=((32, 5, 2), (32, 3, 1), (64, 3, 1)), coordinate_addition=True)
    assert spaces(net)[0] == (14, 14, 8, 4, 4)
    assert count_parameters(net, routing=True) == 95_269
    assert count_parameters(cr.CapsNet(stem=((64, 5, 2),))) == 86_408
    for wrong in ((), (64, 5), ((64, 5, 2), (32, 3))):
        with pytest.raises(ValueError, match="channels, kernel size, stride"):
            cr.CapsNet(stem=wrong)


@pytest.mark.parametrize("name", ["similarity", "em"])
def test_dropped_capsules_are_not_heard_in_training_alone(name):
    torch.manual_seed(0)
    net = cr.CapsNet(name, image_size=16, stem=(8, 3, 2), capsules=((4, 3, 1),), capsule_dropout=0.4)
    images = torch.randn(2, 1, 16, 16)
    net.train()
    first, second = net(images), net(images)
    assert not torch.equal(first.logits, second.logits)
    assert all(torch.isfinite(p.grad).all() for p in _learn(net, first) if p.grad is not None)
    net.eval()
    assert torch.equal(net(images).logits, net(images).logits)
    caps = cr.Capsules.from_logits(torch.randn(4, 50, 8, 4, 4), torch.randn(4, 50, 8))
    dropped = models._without_some(caps, 0.4).activations < 1e-6
    assert 0.35 < dropped.float().mean() < 0.45
    with pytest.raises(ValueError, match="capsule_dropout=1"):
        cr.CapsNet(capsule_dropout=1.0)


def _learn(net, caps):
    cr.losses.cross_entropy(caps, torch.zeros(len(caps.activations), dtype=torch.long)).backward()
    return list(net.parameters())


def test_routing_parameters_of_the_paper():
    """Q = 4, 4, 10; hidden layers and LSTM units of the connectionist table."""
    kernels = [layer.routing.compatibility.kernel for layer in cr.CapsNet().layers]
    assert [kernel.heights().shape[-1] for kernel in kernels] == [4, 4, 10]
    widths = []
    for layer in cr.CapsNet("connectionist").layers:
        f, g = layer.routing.compatibility.score, layer.routing.activation.judge
        widths.append([[m.out_features for m in net if isinstance(m, torch.nn.Linear)] for net in (f, g)])
        assert layer.routing.compatibility.cell.hidden_size == 16
        assert layer.routing.compatibility.cell.input_size == 34
    assert widths == [[[1], [1]], [[32, 32, 1], [64, 64, 1]], [[64, 64, 1], [124, 124, 1]]]


@pytest.mark.parametrize("name", ROUTINGS)
def test_one_step_of_every_routing(name):
    net = cr.CapsNet(
        name, image_size=(20, 24), in_channels=3, classes=7, stem=(8, 5, 2), primary=2, capsules=((3, 3, 2),)
    )
    caps = net(torch.randn(4, 3, 20, 24))
    assert caps.activations.shape == caps.logits.shape == (4, 7)
    cr.losses.cross_entropy(caps, torch.tensor([0, 1, 2, 6])).backward()
    assert all(torch.isfinite(p.grad).all() for p in net.parameters() if p.grad is not None)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ["similarity", "dynamic", "uniform"])
def test_the_whole_network_is_equivariant(name, training):
    net = cr.CapsNet(name, fused=False).double().train(training)
    assert_equivariant(net.route, random_capsules(2, (14, 14), 8, (4, 4), torch.float64), 1e-8)


def test_shared_routing_is_one_module():
    for name in ("connectionist", "similarity"):
        net = cr.CapsNet(name, share_routing=True, image_size=16, stem=(8, 3, 2), capsules=((4, 3, 1),))
        assert len({id(layer.routing) for layer in net.layers}) == 1
        assert net(torch.randn(2, 1, 16, 16)).logits.shape == (2, 5)


def test_one_routing_for_each_layer():
    net = cr.CapsNet(["em", cr.routing.dynamic(), "similarity"])
    assert [layer.routing.competition for layer in net.layers] == ["parents", "window", "inputs"]


def test_faithful_leaves_out_what_the_paper_does_not_mention():
    net = cr.CapsNet(faithful=True)
    assert all(isinstance(norm, torch.nn.Identity) for norm in net.norms)
    assert all((layer.routing.activation.beta3 == 0).all() for layer in net.layers)
    assert abs(net.layers[0].weight.diagonal(dim1=-2, dim2=-1).mean().item()) < 0.05


def test_pose_norm_gives_unit_scale_and_remembers_it():
    net = cr.CapsNet(image_size=16, stem=(8, 3, 2), capsules=((4, 3, 1),), fused=False)
    norm, caps = net.norms[0], random_capsules(64, (3, 3), 8, (4, 4))
    caps = caps._replace(poses=caps.poses * torch.arange(1.0, 9)[:, None, None])
    scale = norm(caps).poses.square().mean((0, 1, 2, 4, 5)).sqrt()
    torch.testing.assert_close(scale, torch.ones(8), rtol=1e-4, atol=0)
    for _ in range(100):
        norm(caps)
    assert_capsules_close(norm.eval()(caps), norm.train()(caps), 1e-3)


def test_batch_norm_of_capsules_centres_each_pose_element_and_logit():
    net = cr.CapsNet(image_size=16, stem=(8, 3, 2), capsules=((4, 3, 1),), pose_norm="batch", fused=False)
    norm, caps = net.norms[0], random_capsules(64, (3, 3), 8, (4, 4))
    caps = cr.Capsules.from_logits(3 * caps.poses + torch.arange(1.0, 9)[:, None, None], 5 * caps.logits - 2)
    seen = norm(caps)
    for values in (seen.poses, seen.logits):
        torch.testing.assert_close(values.mean((0, 1, 2)), torch.zeros(values.shape[3:]), rtol=0, atol=1e-4)
        torch.testing.assert_close(values.var((0, 1, 2)), torch.ones(values.shape[3:]), rtol=0.02, atol=0)
    torch.testing.assert_close(seen.activations, seen.logits.sigmoid())
    for _ in range(100):
        norm(caps)
    assert_capsules_close(norm.eval()(caps), norm.train()(caps), 1e-2)
    assert net(torch.randn(2, 1, 16, 16)).logits.shape == (2, 5)


def test_type_norm_keeps_what_tells_pose_elements_apart():
    net = cr.CapsNet(image_size=16, stem=(8, 3, 2), capsules=((4, 3, 1),), pose_norm="type", fused=False)
    norm, later = net.norms
    assert [len(list(each.parameters())) for each in (norm, later)] == [4, 0]
    caps = random_capsules(64, (3, 3), 8, (4, 4))
    shape = torch.randn(4, 4)
    caps = caps._replace(poses=torch.arange(1.0, 9)[:, None, None] * (caps.poses + shape))
    seen = norm(caps)
    torch.testing.assert_close(seen.poses.mean((0, 1, 2, 4, 5)), torch.zeros(8), rtol=0, atol=1e-4)
    torch.testing.assert_close(seen.poses.var((0, 1, 2, 4, 5)), torch.ones(8), rtol=0.01, atol=0)
    kept = torch.corrcoef(torch.stack([seen.poses.mean((0, 1, 2, 3)).flatten(), shape.flatten()]))[0, 1]
    assert kept > 0.99
    for _ in range(100):
        norm(caps)
    assert_capsules_close(norm.eval()(caps), norm.train()(caps), 1e-2)


def test_coordinates_may_be_made_small():
    whole, tenth = (
        cr.CapsNet(image_size=16, stem=(8, 3, 2), capsules=((4, 3, 1),), coordinate_addition=how) for how in (True, 0.1)
    )
    torch.testing.assert_close(tenth.layers[-1].coordinates, 0.1 * whole.layers[-1].coordinates)
    assert tenth.layers[-1].shared


@pytest.mark.parametrize(
    "net",
    [
        cr.CapsNet(image_size=16, stem=(8, 3, 2), capsules=((4, 3, 1),), class_norm=True),
        ConvNet(image_size=16, parameters=2000, class_norm=True),
    ],
)
def test_class_norm_centres_each_logit_over_the_batch_and_remembers(net: CapsNet | ConvNet) -> None:
    images = torch.randn(32, 1, 16, 16)
    caps = net.train()(images)
    torch.testing.assert_close(caps.logits.mean(0), torch.zeros(5), rtol=0, atol=1e-4)
    torch.testing.assert_close(caps.logits.var(0, unbiased=False), torch.ones(5), rtol=0.05, atol=0)
    torch.testing.assert_close(caps.activations, caps.logits.sigmoid())
    assert net.class_norm is not None
    for _ in range(100):
        net.class_norm(5 * torch.randn(64, 5) + 3)
    logits = net.class_norm(torch.full((1, 5), 8.0))
    torch.testing.assert_close(logits, torch.ones(1, 5), rtol=0, atol=0.2)  # one image alone: by what was seen before
    torch.testing.assert_close(net.class_norm.eval()(torch.full((1, 5), 8.0)), logits)


def test_decoder_draws_the_chosen_class():
    net = cr.CapsNet(image_size=16, stem=(8, 3, 2), capsules=((4, 3, 1),), decoder=(12, 20))
    caps = net(torch.randn(3, 1, 16, 16))
    drawn = net.reconstruct(caps, torch.tensor([0, 1, 2]))
    assert drawn.shape == (3, 1, 16, 16)
    assert not torch.equal(drawn, net.reconstruct(caps, torch.tensor([3, 3, 3])))
    assert torch.equal(net.reconstruct(caps), net.reconstruct(caps, caps.activations.argmax(1)))


def test_the_convolutional_network_has_the_same_budget():
    for budget in (86_408, 67_208, 20_000):
        assert abs(count_parameters(ConvNet(parameters=budget)) / budget - 1) < 0.03
    assert ConvNet(in_channels=2)(torch.randn(3, 2, 32, 32)).logits.shape == (3, 5)


@pytest.mark.parametrize("share", [False, True])
def test_saved_and_loaded_again(tmp_path, share):
    net = cr.CapsNet("similarity", image_size=16, stem=(8, 3, 2), capsules=((4, 3, 1),), share_routing=share)
    net(torch.randn(8, 1, 16, 16))
    net.eval().save_pretrained(tmp_path / "net")
    again = cr.CapsNet.from_pretrained(tmp_path / "net")
    images = torch.randn(2, 1, 16, 16)
    assert_capsules_close(again(images), net(images), 1e-7)
    assert not again.training
    assert json.loads((tmp_path / "net" / "config.json").read_text())["network"] == "CapsNet"


def test_a_damaged_or_missing_network_is_one_line(tmp_path):
    cr.CapsNet(image_size=16, stem=(8, 3, 2), capsules=((4, 3, 1),)).save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0half a header")
    with pytest.raises(RunError, match="cannot be read"):
        load(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(RunError, match="cannot be read"):
        load(tmp_path)
    with pytest.raises(RunError, match="no network at nowhere"):
        load("nowhere")
    with pytest.raises(ValueError, match="given by name"):
        cr.CapsNet(cr.routing.em()).save_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: cr.CapsNet("smilarity"), "the names are similarity"),
        (lambda: cr.CapsNet(image_size=8), "smaller than the kernel"),
        (lambda: cr.CapsNet(classes=0), "at least one"),
        (lambda: cr.CapsNet(["em"]), "1 routings for 3 capsule layers"),
        (lambda: cr.CapsNet(["em"] * 3, share_routing=True), "a list already says all"),
        (lambda: cr.CapsNet(cr.routing.em(), routing_options={"iterations": 1}), "given by name"),
        (lambda: cr.CapsNet(pose_norm="layer"), "choose 'scale', 'batch', 'type'"),
        (lambda: cr.CapsNet(routing_options={"iteration": 1}), "unexpected keyword"),
        (lambda: cr.CapsNet()(torch.zeros(2, 3, 32, 32)), "takes .batch, 1, 32, 32"),
        (lambda: cr.CapsNet().reconstruct(random_capsules(1, (), 5, (4, 4))), "no decoder"),
    ],
)
def test_wrong_construction(make, message):
    with pytest.raises(ValueError, match=message):
        make()
