"""Procedure 1 of Sabour et al. 2017 and the alternation of Wang & Liu 2018, written out."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch

from capsroute.layers import DenseCapsules
from capsroute.routing import dynamic, entropy
from capsroute.testing import random_capsules


def votes_of(layer, caps, b):
    weight = layer.weight.detach().numpy()
    return np.array(
        [[weight[i, j] @ caps.poses[b, i].numpy() for j in range(weight.shape[1])] for i in range(weight.shape[0])]
    )[..., 0]


def squash(s):
    length = np.linalg.norm(s)
    return length**2 / (1 + length**2) * s / length


def softmax(b):
    e = np.exp(b - b.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def test_dynamic_is_procedure_1():
    """Vector capsules, 8 -> 16 as in the paper, plain matrices."""
    layer = DenseCapsules(
        6, 3, routing=dynamic(iterations=3), pose=8, out_pose=16, normalise=False, fused=False
    ).double()
    caps = random_capsules(2, (), 6, (8, 1), torch.float64)
    out = layer(caps)
    for n in range(2):
        u = votes_of(layer, caps, n)
        b = np.zeros((6, 3))
        for r in range(3):
            c = softmax(b)
            s = np.einsum("ij,ijd->jd", c, u)
            v = np.array([squash(x) for x in s])
            if r < 2:
                b = b + np.einsum("ijd,jd->ij", u, v)
        np.testing.assert_allclose(out.poses[n].detach().numpy()[..., 0], v, atol=1e-9)
        np.testing.assert_allclose(out.activations[n].detach().numpy(), np.linalg.norm(v, axis=1), atol=1e-9)


def test_entropy_alternates_and_lowers_its_objective():
    alpha = 0.7
    layer = DenseCapsules(
        6, 3, routing=entropy(iterations=5, alpha=alpha), pose=4, normalise=False, fused=False
    ).double()
    caps = random_capsules(1, (), 6, (4, 1), torch.float64)
    u = votes_of(layer, caps, 0)
    c, values = np.full((6, 3), 1 / 3), []
    for state in layer.trace(caps):
        np.testing.assert_allclose(state.coupling[0].detach().numpy(), c, atol=1e-8)
        s = np.einsum("ij,ijd->jd", c, u)
        centre = s / np.linalg.norm(s, axis=1, keepdims=True)
        np.testing.assert_allclose(state.poses[0].detach().numpy()[..., 0], [squash(x) for x in s], atol=1e-8)
        values.append(-np.sum(c * np.einsum("ijd,jd->ij", u, centre)) + alpha * np.sum(c * np.log(c)))
        c = softmax(np.einsum("ijd,jd->ij", u, centre) / alpha)
    assert len(values) == 5
    assert all(after <= before + 1e-9 for before, after in pairwise(values))
