"""The value that flows from layer to layer, and the letters that name its axes.

| letter | axis |
|---|---|
| `B` | batch |
| `*S` | output space: nothing for a dense layer, `L`, `H W` or `D H W` for a convolutional one; `P` is `*S` flattened |
| `N` | all input capsules of a layer, space and types flattened |
| `C` | capsule types (channels) of a layer |
| `I` | input capsules that one output capsule listens to |
| `J` | output capsule types |
| `r c` | rows and columns of a pose matrix, `D` is `r c` flattened |
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor


class Capsules(NamedTuple):
    """A layer's capsules: what each one sees (pose) and how sure it is that it is there (activation).

    `activations = sigmoid(logits)` where logits are given. Layers hand on logits, so that losses and log a never go
    through a saturated sigmoid; a user who enters a network by hand may leave them out.
    """

    poses: Float[Tensor, "B *S C r c"]
    activations: Float[Tensor, "B *S C"]
    logits: Float[Tensor, "B *S C"] | None = None

    @classmethod
    def from_logits(cls, poses: Tensor, logits: Tensor) -> Capsules:
        """The capsules whose activations are the sigmoid of `logits`."""
        return cls(poses, torch.sigmoid(logits), logits)


LOWEST_ACTIVATION = 1e-12


def entering_logits(activations: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    """The logits of activations that a user gave, finite for exactly 0 and exactly 1, where the gradient is zero."""
    highest = 1 - torch.finfo(activations.dtype).eps
    clamped = activations.clamp(LOWEST_ACTIVATION, highest)
    return clamped.log() - torch.log1p(-clamped)
