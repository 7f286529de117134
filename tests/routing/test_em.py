"""EM routing against a direct NumPy implementation with loops, where children have several parents."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from capsroute.layers import ConvCapsules2d
from capsroute.routing import em
from capsroute.testing import random_capsules

SIZE, IN, OUT, KERNEL = 4, 2, 3, 2
POSITIONS = [(y, x) for y in range(SIZE - KERNEL + 1) for x in range(SIZE - KERNEL + 1)]


def edges_of(position):
    """The children of an output position: (row of the weight, child)."""
    row = 0
    for dy in range(KERNEL):
        for dx in range(KERNEL):
            for c in range(IN):
                yield row, (position[0] + dy, position[1] + dx, c)
                row += 1


def by_loops(poses, a, weight, beta_use, beta_activate, iterations, competition, temperature, anneal, floor):
    """Procedure 1 of Hinton et al. 2018; dictionaries keyed by (child, parent position, parent type)."""
    votes = {}
    for p in POSITIONS:
        for row, child in edges_of(p):
            for j in range(OUT):
                w = weight[row, j] / np.linalg.norm(weight[row, j])
                votes[child, p, j] = (w @ poses[child]).flatten()

    def rivals(child, p):
        places = [q for q in POSITIONS if any(k == child for _, k in edges_of(q))] if competition == "parents" else [p]
        return [(q, k) for q in places for k in range(OUT)]

    r = {(child, p, j): 1 / len(rivals(child, p)) for child, p, j in votes}
    for t in range(iterations):
        mean, variance, active = {}, {}, {}
        scale = temperature * (1 - anneal ** (t + 1))
        for p in POSITIONS:
            for j in range(OUT):
                children = [child for _, child in edges_of(p)]
                weights = [r[child, p, j] * a[child] for child in children]
                mass = sum(weights)
                mean[p, j] = sum(w * votes[k, p, j] for w, k in zip(weights, children, strict=True)) / mass
                spread = [(votes[k, p, j] - mean[p, j]) ** 2 for k in children]
                variance[p, j] = sum(w * s for w, s in zip(weights, spread, strict=True)) / mass + floor
                cost = sum((beta_use[j] + math.log(math.sqrt(v))) * mass for v in variance[p, j])
                active[p, j] = scale * (beta_activate[j] - cost)
        for child, p, j in votes:

            def likelihood(q, k, child=child, mean=mean, variance=variance, active=active):
                v, m, s = votes[child, q, k], mean[q, k], variance[q, k]
                density = math.prod(
                    math.exp(-((x - y) ** 2) / (2 * z)) / math.sqrt(2 * math.pi * z)
                    for x, y, z in zip(v, m, s, strict=True)
                )
                return density / (1 + math.exp(-active[q, k]))

            r[child, p, j] = likelihood(p, j) / sum(likelihood(*rival) for rival in rivals(child, p))
    return mean, active


@pytest.mark.parametrize("competition", ["parents", "window"])
@pytest.mark.parametrize("iterations", [1, 3])
def test_equals_loops(competition, iterations):
    options = {"inverse_temperature": 0.3, "anneal": 0.8, "min_variance": 1e-3}
    layer = ConvCapsules2d(
        IN, OUT, KERNEL, routing=em(iterations=iterations, competition=competition, **options), pose=(2, 2), fused=False
    ).double()
    activation = layer.routing.activation
    with torch.no_grad():
        activation.beta_use.normal_()
        activation.beta_activate.normal_()
    caps = random_capsules(1, (SIZE, SIZE), IN, (2, 2), torch.float64)
    out = layer(caps)
    mean, active = by_loops(
        caps.poses[0].numpy(),
        torch.sigmoid(caps.logits[0]).numpy(),
        layer.weight.detach().numpy(),
        activation.beta_use.detach().numpy(),
        activation.beta_activate.detach().numpy(),
        iterations,
        competition,
        0.3,
        0.8,
        1e-3,
    )
    for y, x in POSITIONS:
        for j in range(OUT):
            np.testing.assert_allclose(out.poses[0, y, x, j].detach().numpy().flatten(), mean[(y, x), j], atol=1e-9)
            np.testing.assert_allclose(out.logits[0, y, x, j].item(), active[(y, x), j], atol=1e-9)


def test_each_child_gives_itself_once():
    """Over all parents, in all positions, the couplings of a child sum to one."""
    layer = ConvCapsules2d(IN, OUT, 3, padding=1, routing="em", pose=(2, 2), fused=False).double()
    caps = random_capsules(2, (SIZE, SIZE), IN, (2, 2), torch.float64)
    _, field = layer._look((SIZE, SIZE), torch.device("cpu"))
    for state in layer.trace(caps):
        coupling = state.coupling.flatten(1, 2).sum(-1).detach()
        for child in range(SIZE * SIZE * IN):
            given = coupling[:, field.index == child].sum(1)
            torch.testing.assert_close(given, torch.ones(2, dtype=torch.float64))


def test_iterations_are_counted_as_by_the_authors():
    layer = ConvCapsules2d(IN, OUT, KERNEL, routing=em(iterations=3), pose=(2, 2), fused=False)
    assert len(list(layer.trace(random_capsules(1, (SIZE, SIZE), IN, (2, 2))))) == 3


def test_competition_over_inputs_is_no_em():
    with pytest.raises(ValueError, match="normalises over 'parents' or over the 'window'"):
        em(competition="inputs")
