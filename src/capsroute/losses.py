"""Losses on the class capsules `[B, K]`, given as `Capsules`; labels are `[B]`, or `[B, n]` where there are several."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from capsroute.capsules import Capsules


def _logits(caps: Capsules) -> Tensor:
    if caps.logits is None:
        raise ValueError("these capsules carry no logits; pass the output of a network, or Capsules.from_logits(...)")
    return caps.logits


def targets(labels: Int[Tensor, "B *n"], classes: int) -> Float[Tensor, "B K"]:
    """One where a class is present, zero elsewhere."""
    rows = labels.reshape(len(labels), -1)
    return torch.zeros(len(labels), classes, device=labels.device).scatter(1, rows, 1.0)


def cross_entropy(caps: Capsules, labels: Int[Tensor, "B *n"], smoothing: float = 0.0) -> Float[Tensor, ""]:
    """Cross-entropy of a softmax over the class logits; several labels share the target equally."""
    return _softmax_loss(_logits(caps), labels, smoothing)


def bounded(caps: Capsules, labels: Int[Tensor, "B *n"]) -> Float[Tensor, ""]:
    """Cross-entropy of a softmax over the class *activations*, as in the code of De Sousa Ribeiro et al. (2020).

    Activations lie between 0 and 1, so no image is ever done with and none can cost much: it is nearly linear in
    them. With `class_norm` that asks for views of a class to be alike, not for any of them to be far from the rest.
    """
    return _softmax_loss(caps.activations, labels)


def _softmax_loss(
    scores: Float[Tensor, "B K"], labels: Int[Tensor, "B *n"], smoothing: float = 0.0
) -> Float[Tensor, ""]:
    if labels.dim() == 1:
        return F.cross_entropy(scores, labels, label_smoothing=smoothing)
    wanted = targets(labels, scores.shape[1])
    return F.cross_entropy(scores, wanted / wanted.sum(1, keepdim=True), label_smoothing=smoothing)


def spread(caps: Capsules, labels: Int[Tensor, "B"], margin: float = 0.9) -> Float[Tensor, ""]:
    """Σ_{k≠t} max(0, m - (a_t - a_k))² (Hinton et al. 2018)."""
    activations = caps.activations
    right = activations.gather(1, labels[:, None])
    loss = F.relu(margin - (right - activations)).square()
    return loss.scatter(1, labels[:, None], 0.0).sum(1).mean()


def spread_margin(step: int, scale: float = 50_000.0) -> float:
    """0.2 + 0.79 sigmoid(min(10, step / 50000 - 4)): the margin's schedule in the authors' code, for batches of 64."""
    return 0.2 + 0.79 / (1 + math.exp(-min(10.0, step / scale - 4)))


def margin(
    caps: Capsules, labels: Int[Tensor, "B *n"], high: float = 0.9, low: float = 0.1, absent_weight: float = 0.5
) -> Float[Tensor, ""]:
    """T max(0, m⁺ - a)² + λ (1 - T) max(0, a - m⁻)² for each class (Sabour et al. 2017)."""
    activations = caps.activations
    present = targets(labels, activations.shape[1])
    loss = present * F.relu(high - activations).square()
    loss = loss + absent_weight * (1 - present) * F.relu(activations - low).square()
    return loss.sum(1).mean()


def reconstruction(image: Float[Tensor, "B C H W"], drawn: Float[Tensor, "B C H W"]) -> Float[Tensor, ""]:
    """Mean over images of the summed squared difference to the image, scaled to 0..1 by the caller."""
    return (image - drawn).square().flatten(1).sum(1).mean()
