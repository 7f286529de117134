"""Tiles change memory, never values: whole networks at two sizes, with a user's routing; and the memory itself."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from torch import nn

import capsroute as cr
from capsroute.routing import Activation, Compatibility, Routing
from capsroute.routing.tiling import tile_sizes
from capsroute.testing import assert_matches_reference, random_capsules


class Nearest(Compatibility):
    """A user's compatibility: votes near the pose count more."""

    def __init__(self):
        super().__init__()
        self.rate = nn.Parameter(torch.tensor(0.7, dtype=torch.float64))

    def forward(self, votes, inputs, state):
        return -self.rate * (votes - state.poses.unsqueeze(2)).square().sum(-1) + inputs.log_activations[
            ..., None
        ], None


class Length(Activation):
    """A user's activation: longer poses are surer."""

    def forward(self, votes, inputs, coupling, poses, memory):
        return poses.square().sum(-1) - 1


class Trunk(nn.Module):
    """The capsule layers of a network, as one layer."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, caps):
        return self.net.route(caps)


def trunk(routing, size, budget):
    torch.manual_seed(3)
    net = cr.CapsNet(
        routing,
        image_size=size,
        stem=(4, 3, 2),
        primary=2,
        capsules=((3, 3, 2), (3, 2, 1)),
        fused=False,
        vote_budget=budget,
    )
    return Trunk(net.double())


@pytest.mark.parametrize("size", [20, 27])
@pytest.mark.parametrize("name", [*cr.routing.ROUTINGS, "own"])
def test_tiled_equals_untiled(name, size):
    routing = (lambda shape: Routing(Nearest(), Length())) if name == "own" else name
    side = (size - 3) // 2 + 1
    caps = random_capsules(3, (side, side), 2, (4, 4), torch.float64)
    for budget in (20_000, 200_000):
        assert_matches_reference(trunk(routing, size, budget), trunk(routing, size, None), caps, 1e-10)


@pytest.mark.parametrize(
    ("name", "budget", "expected"),
    [
        ("similarity", None, (10, 5)),
        ("similarity", 10**9, (10, 5)),
        ("similarity", 5 * 2 * 5 * 6 * 3 * 16 * 4, (2, 5)),
        ("similarity", 5 * 2 * 6 * 3 * 16 * 4, (1, 2)),
        ("similarity", 1, (1, 1)),
        ("em", 1, (1, 5)),
        ("em", 4 * 3 * 5 * 6 * 3 * 16 * 4, (3, 5)),
    ],
)
def test_tile_sizes(name, budget, expected):
    layer = cr.ConvCapsules1d(2, 3, 3, routing=name)
    _, field = layer._look((7,), torch.device("cpu"))
    poses = torch.zeros(10, 14, 4, 4)
    assert tile_sizes(layer.routing, 10, layer.weight, poses, field, budget) == expected


PEAK = """
import json, resource, sys
import torch
import capsroute as cr
torch.manual_seed(0); torch.set_num_threads(1)
net = cr.CapsNet("similarity", fused=False, **json.loads(sys.argv[1]))
def step(batch):
    caps = net(torch.randn(batch, 1, 32, 32))
    cr.losses.cross_entropy(caps, torch.zeros(batch, dtype=torch.long)).backward()
step(1)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
step(64)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_a_tiled_step_takes_a_quarter_of_the_memory():
    """Peak resident memory of one training step at batch 64, above what one image takes, in two processes."""
    extra = [
        int(
            subprocess.run(
                [sys.executable, "-c", PEAK, json.dumps(o)], capture_output=True, check=True, text=True
            ).stdout
        )
        for o in ({}, {"vote_budget": None})
    ]
    assert extra[0] <= extra[1] / 4, f"tiled {extra[0] / 1024:.0f} MB, untiled {extra[1] / 1024:.0f} MB"
