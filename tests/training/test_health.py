"""Routing health: numbers that can be worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

import capsroute as cr
from capsroute.models import ConvNet
from capsroute.training.health import coupling_entropy, flatten, routing_health
from capsroute.training.recipes import ROUTINGS


def small(routing: str = "similarity") -> cr.CapsNet:
    torch.manual_seed(0)
    return cr.CapsNet(routing, image_size=8, stem=(4, 3, 1), primary=2, capsules=((3, 3, 2),), classes=4, fused=False)


def test_entropy_of_known_couplings() -> None:
    flat = torch.full((2, 5, 8, 3), 1 / 8)  # 2 x 5 x 3 distributions over 8 inputs
    assert coupling_entropy(flat) == pytest.approx(math.log(8))
    hard = torch.zeros(1, 1, 8, 2)
    hard[:, :, 0] = 1.0
    assert coupling_entropy(hard) == 0.0
    over_outputs = torch.full((2, 5, 8, 3), 1 / 3)
    assert coupling_entropy(over_outputs) == pytest.approx(math.log(3))


@pytest.mark.parametrize("routing", ROUTINGS)
def test_every_routing_reports(routing: str) -> None:
    net = small(routing)
    net.train()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    health = routing_health(net, torch.rand(3, 1, 8, 8))
    assert net.training
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items()), "it only looks"
    assert len(health) == 2
    for layer, own in zip(health, net.layers, strict=True):
        assert len(layer["entropy"]) == own.routing.updates + 1
        assert all(0 <= entropy <= layer["entropy"][0] + 1e-6 for entropy in layer["entropy"]), "flat is the most"
        assert 0 <= layer["dead"] <= 1
        assert layer["pose_norm"] > 0
    assert health[0]["entropy"][0] == pytest.approx(
        {"similarity": math.log(18), "connectionist": math.log(18), "uniform": math.log(18)}.get(routing, math.log(3)),
        abs=0.7
        if routing in ("em", "variational")
        else 1e-5,  # their children compete for parents at several positions
    )


def test_what_is_learned_is_shown() -> None:
    net = small()
    learned = routing_health(net, torch.rand(3, 1, 8, 8))[0]["learned"]
    assert set(learned) == {"lambda1", "lambda2", "beta1", "beta2", "beta3", "heights", "widths"}
    routing = net.layers[0].routing
    with torch.no_grad():
        routing.activation.beta3.copy_(torch.tensor([-1.0, 0.0, 4.0]))
    assert routing_health(net, torch.rand(3, 1, 8, 8))[0]["learned"]["beta3"] == [-1.0, 1.0, 4.0]


def test_dead_types_are_counted() -> None:
    net = small()
    with torch.no_grad():
        net.layers[0].routing.activation.beta3[1] = -100.0
    assert routing_health(net, torch.rand(3, 1, 8, 8))[0]["dead"] == pytest.approx(1 / 3)


def test_scalars_for_tensorboard() -> None:
    scalars = flatten(routing_health(small(), torch.rand(3, 1, 8, 8)))
    wanted = {"entropy/0", "entropy/3", "dead", "pose_norm", "lambda1", "beta3", "widths"}
    assert {f"routing/layer2/{name}" for name in wanted} <= set(scalars)
    assert all(isinstance(value, float) for value in scalars.values())


def test_a_network_without_capsules_has_none() -> None:
    assert routing_health(ConvNet(parameters=2000), torch.rand(1, 1, 32, 32)) == []
