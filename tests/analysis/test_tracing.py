"""Traces agree with the network they watch, and their shares with the poses they explain."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from capsroute import CapsNet
from capsroute.analysis import trace
from capsroute.errors import RunError
from capsroute.models import ConvNet
from capsroute.routing import ROUTINGS


def small(routing, **options):
    return CapsNet(
        routing, image_size=9, classes=3, stem=(6, 3, 1), primary=2, capsules=((3, 3, 2),), fused=False, **options
    ).eval()


@pytest.mark.parametrize("class_norm", [False, True])
@pytest.mark.parametrize("routing", ROUTINGS)
def test_the_last_state_is_the_networks_output(routing, class_norm):
    net, images = small(routing, class_norm=class_norm), torch.rand(2, 1, 9, 9)
    if class_norm:
        net.class_norm.norm.running_mean.copy_(torch.tensor([1.0, -2.0, 3.0]))
    layers = trace(net, images)
    caps = net(images)
    np.testing.assert_allclose(layers[-1].logits[-1, :, 0], caps.logits.detach(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(layers[-1].poses[-1, :, 0], caps.poses.detach(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(layers[-1].activations[-1, :, 0], caps.activations.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_shares_are_a_distribution_over_inputs(routing):
    for layer in trace(small(routing), torch.rand(2, 1, 9, 9)):
        assert layer.shares.min() >= 0
        np.testing.assert_allclose(layer.shares.sum(3), 1, rtol=1e-4)


def test_shares_of_a_weighted_mean_are_what_votes_add_along_it():
    net = small("similarity")
    images = torch.rand(1, 1, 9, 9)
    layer = net.layers[0]
    caps = net.norms[0](net.primary_capsules(images))
    poses, _, _, field = layer._enter(caps)
    with torch.no_grad():
        weight = layer.weight / torch.linalg.matrix_norm(layer.weight, keepdim=True)
        votes = torch.einsum("ijrk,bpikc->bpijrc", weight, field.gather(poses)).flatten(-2).numpy()
    traced = trace(net, images)[0]
    coupling = traced.couplings[-1]
    formed = np.einsum("bpij,bpijd->bpjd", coupling, votes)
    along = np.maximum(coupling * np.einsum("bpijd,bpjd->bpij", votes, formed), 0)
    np.testing.assert_allclose(traced.shares[-1], along / along.sum(2, keepdims=True), rtol=1e-3, atol=1e-6)


def test_evenness_is_one_at_first_and_falls():
    net = small("similarity", routing_options={"lambdas": (1e-3, 1e-3)})
    for layer in trace(net, torch.rand(1, 1, 9, 9)):
        np.testing.assert_allclose(layer.entropy[0], 1, rtol=1e-4)
        assert layer.entropy[-1].mean() < 0.95


def test_values_on_edges_reach_the_inputs_that_the_table_names():
    net = CapsNet("similarity", image_size=9, classes=2, stem=(4, 3, 1), primary=2, capsules=((2, 3, 2),)).eval()
    layer = trace(net, torch.rand(1, 1, 9, 9))[0]
    edges = np.random.default_rng(0).random((1, *layer.index.shape)).astype(np.float32)
    expected = np.zeros(7 * 7 * 2)
    for position, row in enumerate(layer.index):
        for tap, place in enumerate(row):
            expected[place] += edges[0, position, tap]
    np.testing.assert_allclose(layer.to_inputs(edges).flatten(), expected, rtol=1e-5)


def test_training_mode_is_given_back():
    net = small("similarity").train()
    trace(net, torch.rand(1, 1, 9, 9))
    assert net.training


def test_a_network_without_capsules_is_refused():
    with pytest.raises(RunError, match="ConvNet has no capsules"):
        trace(ConvNet(image_size=8, parameters=2_000), torch.rand(1, 1, 8, 8))
