"""Losses against their formulas, number by number."""

from __future__ import annotations

import math

import pytest
import torch

from capsroute import Capsules, losses


def classes(*rows):
    activations = torch.tensor(rows)
    return Capsules(torch.zeros(*activations.shape, 1, 1), activations, torch.logit(activations))


def test_cross_entropy_is_a_softmax_over_logits():
    caps = classes([0.2, 0.7, 0.5])
    scores = [math.log(a / (1 - a)) for a in (0.2, 0.7, 0.5)]
    expected = math.log(sum(math.exp(s) for s in scores)) - scores[1]
    assert losses.cross_entropy(caps, torch.tensor([1])).item() == pytest.approx(expected, abs=1e-6)
    both = losses.cross_entropy(caps, torch.tensor([[0, 1]])).item()
    alone = [losses.cross_entropy(caps, torch.tensor([k])).item() for k in (0, 1)]
    assert both == pytest.approx(sum(alone) / 2, abs=1e-6)


def test_bounded_compares_activations():
    caps = classes([0.2, 0.7, 0.5])
    expected = math.log(sum(math.exp(a) for a in (0.2, 0.7, 0.5))) - 0.7
    assert losses.bounded(caps, torch.tensor([1])).item() == pytest.approx(expected, abs=1e-6)
    both = losses.bounded(caps, torch.tensor([[0, 1]])).item()
    alone = [losses.bounded(caps, torch.tensor([k])).item() for k in (0, 1)]
    assert both == pytest.approx(sum(alone) / 2, abs=1e-6)


def test_spread():
    caps = classes([0.9, 0.5, 0.1], [0.2, 0.1, 0.8])
    m = 0.6
    expected = ((m - 0.4) ** 2 + 0.0 + (m - 0.1) ** 2 + (m + 0.6) ** 2) / 2
    assert losses.spread(caps, torch.tensor([0, 0]), m).item() == pytest.approx(expected, abs=1e-6)


def test_spread_margin_grows_from_a_fifth_to_almost_one():
    assert losses.spread_margin(0) == pytest.approx(0.2 + 0.79 / (1 + math.exp(4)))
    assert losses.spread_margin(200_000) == pytest.approx(0.2 + 0.79 / 2)
    assert losses.spread_margin(10**9) == pytest.approx(0.2 + 0.79 / (1 + math.exp(-10)))


def test_margin_with_one_and_with_two_digits():
    caps = classes([0.8, 0.3, 0.05])
    assert losses.margin(caps, torch.tensor([0])).item() == pytest.approx(0.1**2 + 0.5 * 0.2**2, abs=1e-6)
    assert losses.margin(caps, torch.tensor([[0, 1]])).item() == pytest.approx(0.1**2 + 0.6**2, abs=1e-6)


def test_reconstruction_sums_over_pixels_and_averages_over_images():
    image, drawn = torch.zeros(2, 1, 2, 2), torch.zeros(2, 1, 2, 2)
    drawn[0] = 0.5
    assert losses.reconstruction(image, drawn).item() == pytest.approx(4 * 0.25 / 2)


def test_logits_are_needed_for_cross_entropy():
    with pytest.raises(ValueError, match="carry no logits"):
        losses.cross_entropy(Capsules(torch.zeros(1, 3, 1, 1), torch.ones(1, 3)), torch.tensor([0]))
