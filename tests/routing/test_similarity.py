"""The coupling update is the minimiser of equation 2: checked against an optimiser and against random couplings."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from capsroute.layers import DenseCapsules
from capsroute.routing import Inputs, LayerShape, RoutingState, similarity
from capsroute.routing.similarity import coupling_scores
from capsroute.testing import random_capsules

positive = st.floats(0.01, 5.0)


def objective(c, similarity_, activations, lambda1, lambda2):
    """Equation 2 for one output capsule, in NumPy; 0 log 0 = 0."""
    log_c = np.log(np.maximum(c, 1e-300))
    to_uniform = np.sum(c * (log_c + np.log(len(c))))
    to_activations = np.sum(c * (log_c - np.log(activations)))
    return -np.sum(c * similarity_) + lambda1 * to_uniform + lambda2 * to_activations


def slope(c, similarity_, activations, lambda1, lambda2):
    """The gradient of equation 2 in c."""
    log_c = np.log(np.maximum(c, 1e-300)) + 1
    return -similarity_ + lambda1 * (log_c + np.log(len(c))) + lambda2 * (log_c - np.log(activations))


def update(similarity_, activations, lambda1, lambda2):
    """The library's coupling for one output capsule."""
    scores = coupling_scores(
        torch.from_numpy(similarity_)[None, None, :, None],
        torch.from_numpy(np.log(activations))[None, None],
        torch.tensor([lambda1], dtype=torch.float64),
        torch.tensor([lambda2], dtype=torch.float64),
    )
    return torch.softmax(scores, 2).flatten().numpy()


def instance(seed, n):
    rng = np.random.default_rng(seed)
    activations = rng.uniform(0.05, 0.95, n)
    activations[0], activations[-1] = 1e-6, 1 - 1e-6
    return rng.normal(size=n), activations


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("lambda1", "lambda2"), [(0.7, 0.4), (0.0, 0.5), (0.6, 0.0), (0.05, 2.0)])
def test_update_is_what_a_constrained_optimiser_finds(seed, lambda1, lambda2):
    values, activations = instance(seed, 6)
    found = minimize(
        objective,
        np.full(6, 1 / 6),
        args=(values, activations, lambda1, lambda2),
        jac=slope,
        method="SLSQP",
        bounds=[(1e-14, 1.0)] * 6,
        constraints={"type": "eq", "fun": lambda c: c.sum() - 1, "jac": np.ones_like},
        options={"ftol": 1e-15, "maxiter": 1000},
    )
    ours = update(values, activations, lambda1, lambda2)
    np.testing.assert_allclose(ours.sum(), 1.0, rtol=1e-12)
    np.testing.assert_allclose(ours, found.x, atol=2e-5)
    assert objective(ours, values, activations, lambda1, lambda2) <= found.fun + 1e-9


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 12), positive, positive)
def test_no_coupling_on_the_simplex_does_better(seed, n, lambda1, lambda2):
    values, activations = instance(seed, n)
    best = objective(update(values, activations, lambda1, lambda2), values, activations, lambda1, lambda2)
    for c in np.random.default_rng(seed + 1).dirichlet(np.full(n, 0.5), size=20):
        assert objective(c, values, activations, lambda1, lambda2) >= best - 1e-12


def test_whole_routing_written_out_with_loops():
    """Equations 4, 12, 13 and 15 for each output capsule by itself, in NumPy."""
    layer = DenseCapsules(5, 3, routing=similarity(components=2, iterations=2), fused=False).double()
    with torch.no_grad():
        for parameter in layer.routing.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    caps = random_capsules(2, (), 5, (4, 4), torch.float64)
    out = layer(caps)
    soft = lambda free: np.log1p(np.exp(free.detach().numpy()))  # noqa: E731  one line of mathematics
    compatibility, activation = layer.routing.compatibility, layer.routing.activation
    heights, widths = soft(compatibility.kernel.heights.free)[0], soft(compatibility.kernel.widths.free)[0]
    lambda1, lambda2 = soft(compatibility.lambda1.free), soft(compatibility.lambda2.free)
    beta1, beta2, beta3 = soft(activation.beta1.free), soft(activation.beta2.free), activation.beta3.detach().numpy()
    kernel = lambda x, y: np.sum(heights * np.exp(-np.sum((x - y) ** 2) / (2 * widths**2)))  # noqa: E731
    weight = layer.weight.detach().numpy()
    for b in range(2):
        a = 1 / (1 + np.exp(-caps.logits[b].numpy()))
        for j in range(3):
            votes = [
                (weight[i, j] / np.linalg.norm(weight[i, j]) @ caps.poses[b, i].numpy()).flatten() for i in range(5)
            ]
            c = np.full(5, 1 / 5)
            mu = sum(c[i] * votes[i] for i in range(5))
            for _ in range(2):
                total = lambda1[j] + lambda2[j]
                c = np.array([a[i] ** (lambda2[j] / total) * math.exp(kernel(mu, votes[i]) / total) for i in range(5)])
                c /= c.sum()
                mu = sum(c[i] * votes[i] for i in range(5))
            agreement = sum(c[i] * kernel(mu, votes[i]) for i in range(5))
            divergence = sum(c[i] * math.log(c[i] / a[i]) for i in range(5))
            logit = beta1[j] * agreement - beta2[j] * divergence + beta3[j]
            np.testing.assert_allclose(out.poses[b, j].detach().numpy().flatten(), mu, atol=1e-12)
            np.testing.assert_allclose(out.logits[b, j].item(), logit, atol=1e-12)


def test_a_linear_kernel_lowers_the_objective_at_every_step():
    """For a linear kernel, equation 4 minimises over mu what equation 12 minimises over C."""
    layer = DenseCapsules(8, 1, routing=similarity(kernel="linear", iterations=6), fused=False).double()
    caps = random_capsules(1, (), 8, (4, 4), torch.float64)
    compatibility = layer.routing.compatibility
    lambda1, lambda2 = compatibility.lambda1().item(), compatibility.lambda2().item()
    a = caps.activations[0].numpy()
    weight = layer.weight / torch.linalg.matrix_norm(layer.weight, keepdim=True)
    votes = (weight[:, 0] @ caps.poses[0]).flatten(1)
    values = []
    for state in layer.trace(caps):
        similarities = (votes @ state.poses[0, 0].flatten()).detach().numpy()
        values.append(objective(state.coupling[0, :, 0].detach().numpy(), similarities, a, lambda1, lambda2))
    assert len(values) == 7
    assert all(after < before + 1e-12 for before, after in pairwise(values))
    assert values[-1] < values[0]


def test_a_flat_coupling_starts_undecided():
    """beta_3 is set from the layer's size: without it, logits would start near the log of the number of inputs."""
    shape = LayerShape(inputs=256, outputs=5, pose=(4, 4))
    for calibrate, low, high in ((True, -6.0, 6.0), (False, 20.0, 40.0)):
        routing = similarity(calibrate=calibrate)(shape)
        votes = torch.randn(1, 1, 256, 5, 16) / 2
        inputs = Inputs(torch.zeros(1, 1, 256), torch.ones(1, 256, dtype=torch.bool))
        coupling = torch.full((1, 1, 256, 5), 1 / 256)
        poses, _ = routing.aggregation(votes, inputs, coupling, None)
        logits = routing.activation(votes, inputs, coupling, poses, None)
        assert low < logits.mean().item() < high
        assert RoutingState(coupling, poses, logits, None).activations.shape == (1, 1, 5)


@pytest.mark.parametrize(("options", "sets"), [({}, 1), ({"per_channel": True}, 3)])
def test_kernel_parameters_per_layer_or_per_channel(options, sets):
    routing = similarity(components=4, **options)(LayerShape(10, 3, (4, 4)))
    assert routing.compatibility.kernel.heights().shape == (sets, 4)
    assert routing.compatibility.kernel is routing.activation.kernel
    assert routing.compatibility.lambda1().shape == routing.activation.beta3.shape == (3,)


@pytest.mark.parametrize("fused", [False, "auto"])
def test_a_fixed_kernel_keeps_its_numbers_and_the_rest_learns(fused):
    torch.manual_seed(0)
    layer = DenseCapsules(4, 3, space=(2,), routing=similarity(learn_kernel=False), fused=fused)
    out = layer(random_capsules(2, (2,), 4, (4, 4)))
    (out.logits.sum() + out.poses.square().sum()).backward()
    fixed = {name for name, parameter in layer.named_parameters() if parameter.grad is None}
    assert fixed == {name for name, _ in layer.named_parameters() if ".kernel." in name}


@pytest.mark.parametrize(
    ("options", "message"), [({"kernel": "rbf"}, "choose one of gaussian"), ({"components": 0}, "at least one")]
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        similarity(**options)(LayerShape(10, 3, (4, 4)))
