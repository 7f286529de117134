"""Variational routing against a direct implementation with loops, where children have several parents."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from capsroute.layers import ConvCapsules1d
from capsroute.routing import LayerShape, variational
from capsroute.testing import random_capsules

LENGTH, IN, OUT, KERNEL, SIZE = 5, 2, 3, 3, 4
PLACES = range(LENGTH - KERNEL + 1)


def digamma(x):
    return float(torch.digamma(torch.tensor(x, dtype=torch.float64)))


def by_loops(poses, a, weight, beta, iterations, competition, alpha, kappa, scatter, degrees):
    """Update by update, each quantity of one capsule at a time; dictionaries keyed by (child, place, type)."""
    votes = {
        ((p + k, c), p, j): (weight[k * IN + c, j] @ poses[p + k, c]).flatten()
        for p in PLACES
        for k in range(KERNEL)
        for c in range(IN)
        for j in range(OUT)
    }

    def rivals(child, p):
        places = [q for q in PLACES if (child, q, 0) in votes] if competition == "parents" else [p]
        return [(q, k) for q in places for k in range(OUT)]

    r = {(child, p, j): 1 / len(rivals(child, p)) for child, p, j in votes}
    for _ in range(iterations):
        counts, centre, spread = {}, {}, {}
        for p in PLACES:
            for j in range(OUT):
                mine = [child for child, q, k in votes if (q, k) == (p, j)]
                weights = [r[child, p, j] * a[child] for child in mine]
                cast = [votes[child, p, j] for child in mine]
                counts[p, j] = n = sum(weights)
                mean = sum(w * v for w, v in zip(weights, cast, strict=True)) / n
                centre[p, j] = (n * mean) / (kappa + n)
                about = sum(w * (v - mean) ** 2 for w, v in zip(weights, cast, strict=True))
                spread[p, j] = scatter + about + kappa * n / (kappa + n) * mean**2
        log_pi = {
            (p, j): digamma(alpha + counts[p, j]) - digamma(sum(alpha + counts[p, k] for k in range(OUT)))
            for p, j in counts
        }
        log_det = {
            key: sum(digamma((degrees + n - h) / 2) + math.log(2) - math.log(spread[key][h]) for h in range(SIZE))
            for key, n in counts.items()
        }

        def likelihood(child, key, counts=counts, centre=centre, spread=spread, log_pi=log_pi, log_det=log_det):
            n, gap = counts[key], votes[(child, *key)] - centre[key]
            quadratic = SIZE / (kappa + n) + (degrees + n) * sum(gap**2 / spread[key])
            return math.exp(log_pi[key] + 0.5 * log_det[key] - 0.5 * quadratic)

        r = {
            (child, p, j): likelihood(child, (p, j)) / sum(likelihood(child, rival) for rival in rivals(child, p))
            for child, p, j in votes
        }
    entropy = {key: 0.5 * SIZE * math.log(2 * math.pi * math.e) - 0.5 * log_det[key] for key in counts}
    return centre, {(p, j): beta[j] - math.exp(log_pi[p, j]) * entropy[p, j] for p, j in counts}


@pytest.mark.parametrize("competition", ["parents", "window"])
@pytest.mark.parametrize("iterations", [1, 3])
def test_equals_loops(competition, iterations):
    prior = {"alpha": 0.8, "kappa": 0.6, "scatter": 0.4, "degrees": 3.7}
    chosen = variational(iterations=iterations, competition=competition, **prior)
    layer = ConvCapsules1d(IN, OUT, KERNEL, routing=chosen, pose=(2, 2), normalise=False, fused=False).double()
    beta = layer.routing.activation.beta
    with torch.no_grad():
        beta.normal_()
    caps = random_capsules(1, (LENGTH,), IN, (2, 2), torch.float64)
    out = layer(caps)
    centre, logits = by_loops(
        caps.poses[0].numpy(),
        torch.sigmoid(caps.logits[0]).numpy(),
        layer.weight.detach().numpy(),
        beta.detach().numpy(),
        iterations,
        competition,
        **prior,
    )
    for p in PLACES:
        for j in range(OUT):
            np.testing.assert_allclose(out.poses[0, p, j].detach().numpy().flatten(), centre[p, j], atol=1e-9)
            np.testing.assert_allclose(out.logits[0, p, j].item(), logits[p, j], atol=1e-9)


def test_without_votes_the_prior_is_all_there_is():
    layer = ConvCapsules1d(IN, OUT, KERNEL, routing="variational", pose=(2, 2), fused=False)
    caps = random_capsules(1, (LENGTH,), IN, (2, 2))
    belief = list(layer.trace(caps._replace(logits=torch.full_like(caps.logits, -200.0))))[-1]
    assert not bool(belief.poses.any())
    assert bool((belief.memory.scatter == 1).all())
    torch.testing.assert_close(belief.memory.degrees, torch.full_like(belief.memory.degrees, 5.0))


def test_a_stronger_prior_couples_more_evenly():
    """Votes that differ by less than the prior's width are as one to it."""
    caps = random_capsules(4, (LENGTH,), IN, (2, 2))

    def unevenness(scatter):
        torch.manual_seed(0)
        layer = ConvCapsules1d(IN, OUT, KERNEL, routing=variational(scatter=scatter), pose=(2, 2), fused=False)
        first, *_, last = layer.trace(caps)
        return float((last.coupling - first.coupling).detach().abs().mean())

    assert unevenness(100.0) < 0.5 * unevenness(1.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"competition": "inputs"}, "'parents' or the 'window'"),
        ({"scatter": 0.0}, "scatter=0.0: a prior needs"),
        ({"kappa": -1.0}, "kappa=-1.0"),
        ({"alpha": math.nan}, "alpha=nan"),
        ({"iterations": 0}, "iterations=0"),
        ({"degrees": 3.0}, "poses of 4 elements need more"),
    ],
)
def test_refuses_priors_that_are_none(options, message):
    with pytest.raises(ValueError, match=message):
        variational(**options)(LayerShape(4, OUT, (2, 2)))
