"""The toy problem against equations 2, 4 and 12 written out in numpy."""

from __future__ import annotations

import numpy as np
import pytest

from capsroute.analysis import Cluster, consensus, sample
from capsroute.analysis.toy import responsibilities


def cosine(pose, votes):
    return votes @ pose / (np.linalg.norm(votes, axis=1) * np.linalg.norm(pose))


def couple(similarity, activations, lambda1, lambda2):
    weights = activations ** (lambda2 / (lambda1 + lambda2)) * np.exp(similarity / (lambda1 + lambda2))
    return weights / weights.sum()


def objective(c, similarity, activations, lambda1, lambda2):
    uniform = (c * np.log(c * len(c))).sum()
    active = (c * np.log(c / activations)).sum()
    return -(c * similarity).sum() + lambda1 * uniform + lambda2 * active


def test_iterations_are_equations_4_and_12():
    toy = sample(size=10, seed=3)
    found = consensus(toy.votes, toy.activations, lambda1=0.2, lambda2=0.5, iterations=3)
    c = np.full(20, 1 / 20)
    for step in range(4):
        pose = c @ toy.votes
        np.testing.assert_allclose(found.couplings[step], c, rtol=1e-5)
        np.testing.assert_allclose(found.poses[step], pose, rtol=1e-5)
        expected = objective(c, cosine(pose, toy.votes), toy.activations, 0.2, 0.5)
        np.testing.assert_allclose(found.objective[step], expected, rtol=1e-4)
        c = couple(cosine(pose, toy.votes), toy.activations, 0.2, 0.5)


def test_converged_couplings_are_optimal():
    toy = sample(size=15)
    found = consensus(toy.votes, toy.activations, lambda1=0.1, lambda2=0.1)
    c, pose = found.couplings[-1], found.poses[-1]
    similarity = cosine(pose, toy.votes)
    np.testing.assert_allclose(c, couple(similarity, toy.activations, 0.1, 0.1), rtol=1e-4)
    best = objective(c, similarity, toy.activations, 0.1, 0.1)
    random = np.random.default_rng(0)
    for _ in range(50):
        other = c * np.exp(0.2 * random.normal(size=len(c)))
        assert objective(other / other.sum(), similarity, toy.activations, 0.1, 0.1) > best


def test_gaussian_kernel_has_the_given_widths_and_heights():
    toy = sample(size=8)
    found = consensus(
        toy.votes,
        toy.activations,
        lambda1=0.3,
        lambda2=0.1,
        kernel="gaussian",
        widths=(0.7, 2.0),
        heights=(0.25, 1.5),
        iterations=1,
    )
    pose = toy.votes.mean(0)
    square = np.square(toy.votes - pose).sum(1)
    similarity = 0.25 * np.exp(-square / (2 * 0.7**2)) + 1.5 * np.exp(-square / (2 * 2.0**2))
    np.testing.assert_allclose(found.couplings[1], couple(similarity, toy.activations, 0.3, 0.1), rtol=1e-4)


def test_objective_never_rises_for_a_linear_kernel():
    toy = sample(size=20, seed=1)
    found = consensus(toy.votes, toy.activations, lambda1=2.0, lambda2=1.0, kernel="linear", iterations=20)
    assert np.all(np.diff(found.objective) <= 1e-9)
    assert found.objective[-1] < found.objective[0] - 0.1


def test_lambdas_do_what_the_figure_shows():
    toy = sample()
    mass = {
        (first, second): consensus(toy.votes, toy.activations, lambda1=first, lambda2=second)
        .couplings[-1][toy.cluster == 0]
        .sum()
        for first, second in ((0.05, 0.01), (0.05, 2.0), (50.0, 0.01))
    }
    assert mass[0.05, 0.01] < 0.01  # similarity alone prefers the second cluster
    assert mass[0.05, 2.0] > 0.85  # activations the first
    assert abs(mass[50.0, 0.01] - 0.5) < 0.02  # a large λ₁ keeps couplings flat


def test_activations_are_normalised_responsibilities():
    near, far = Cluster((0.0, 0.0), (1.0, 1.0)), Cluster((4.0, 0.0), (1.0, 1.0))
    points = np.array([[0.0, 0.0], [2.0, 1.0], [4.0, 0.0]])
    given = responsibilities(points, (near, far), 1.0)
    assert given.sum() == pytest.approx(1)
    # half way between equal clusters: half; at a centre: 1 / (1 + exp(-8))
    sure = 1 / (1 + np.exp(-8.0))
    np.testing.assert_allclose(given / given.sum(), np.array([sure, 0.5, 1 - sure]) / 1.5, rtol=1e-6)


def test_larger_covariances_tell_clusters_apart_less():
    ratios = []
    for scale in (2.0, 12.0, 60.0):
        toy = sample(covariance_scale=scale)
        ratios.append(toy.activations[toy.cluster == 0].mean() / toy.activations[toy.cluster == 1].mean())
    assert ratios[0] > ratios[1] > ratios[2] > 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lambda1": 0.0, "lambda2": 0.0}, "nor both zero"),
        ({"lambda1": -1.0, "lambda2": 2.0}, "negative"),
        ({"lambda1": 1.0, "lambda2": 1.0, "kernel": "round"}, "choose one of"),
        ({"lambda1": 1.0, "lambda2": 1.0, "kernel": "gaussian", "widths": (0.0,)}, "all positive"),
        ({"lambda1": 1.0, "lambda2": 1.0, "kernel": "gaussian", "widths": (1.0,), "heights": (1.0, 2.0)}, "as many"),
    ],
)
def test_wrong_options_are_refused(options, message):
    toy = sample(size=3)
    with pytest.raises(ValueError, match=message):
        consensus(toy.votes, toy.activations, **options)


def test_sample_needs_votes():
    with pytest.raises(ValueError, match="size=0"):
        sample(size=0)
