"""Dynamic routing (Sabour, Frosst & Hinton 2017, procedure 1): agreement adds up over the iterations.

    c_ij = softmax_j b_ij;   s_j = Σ_i c_ij v_ij;   pose_j = squash(s_j) = |s_j|² / (1 + |s_j|²) s_j / |s_j|
    b_ij <- b_ij + v_ij · pose_j

The length of the squashed pose is the activation: sigmoid(2 log |s_j|). The inputs' activations take no part of their
own, since an inactive capsule's pose is short.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from capsroute.routing.algorithm import (
    Activation,
    Aggregation,
    Compatibility,
    Edges,
    Inputs,
    LayerShape,
    Memory,
    Outputs,
    Poses,
    Routing,
    RoutingFactory,
    RoutingState,
    Votes,
    check_iterations,
    weighted_sum,
)

TINY = 1e-12  # keeps the slope of the length finite at zero


class DynamicMemory(NamedTuple):
    """The agreement so far, and how long the sum was before it was squashed."""

    scores: Edges
    squared_length: Outputs


def squash(vectors: Float[Tensor, "*any D"], squared_length: Float[Tensor, "*any"]) -> Float[Tensor, "*any D"]:
    """Shrink vectors to lengths below one, keeping their direction."""
    return vectors * (torch.sqrt(squared_length + TINY) / (1 + squared_length)).unsqueeze(-1)


class SquashedSum(Aggregation):
    """pose_j = squash(Σ_i c_ij v_ij)"""

    def forward(self, votes: Votes, inputs: Inputs, coupling: Edges, memory: Memory) -> tuple[Poses, Memory]:
        total = weighted_sum(coupling, votes)
        squared_length = total.square().sum(-1)
        scores = torch.zeros_like(coupling) if memory is None else memory.scores
        return squash(total, squared_length), DynamicMemory(scores, squared_length)


class LengthActivation(Activation):
    """logit_j = 2 log |s_j|, whose sigmoid is the squashed length"""

    def forward(self, votes: Votes, inputs: Inputs, coupling: Edges, poses: Poses, memory: DynamicMemory) -> Outputs:
        return torch.log(memory.squared_length + TINY)


class Agreement(Compatibility):
    """b_ij <- b_ij + v_ij · pose_j"""

    def forward(self, votes: Votes, inputs: Inputs, state: RoutingState) -> tuple[Edges, Memory]:
        scores = state.memory.scores + torch.einsum("bpijd,bpjd->bpij", votes, state.poses)
        return scores, state.memory._replace(scores=scores)


def _build(shape: LayerShape, iterations: int) -> Routing:
    return Routing(
        Agreement(),
        LengthActivation(),
        SquashedSum(),
        iterations=iterations,
        competition="window",
        counts_first=True,
    )


def dynamic(*, iterations: int = 3) -> RoutingFactory:
    """Dynamic routing; `iterations` counts the first forming, from flat couplings, as Sabour et al. do."""
    return partial(_build, iterations=check_iterations(iterations))
