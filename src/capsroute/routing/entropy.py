"""Routing as an optimisation (Wang & Liu 2018): agreement with a unit cluster centre, and the entropy of couplings.

    min  -Σ_ij c_ij v_ij · s_j + α Σ_ij c_ij log c_ij,   Σ_j c_ij = 1,  |s_j| = 1
    c_ij = softmax_j (v_ij · s_j / α);   s_j = Σ_i c_ij v_ij / |Σ_i c_ij v_ij|

Alternating the two lowers the objective at every step. The output is squashed, as in dynamic routing, which this view
explains: dynamic routing keeps the couplings near their last values instead of near uniform.
"""

from __future__ import annotations

from functools import partial

import torch

from capsroute.routing.algorithm import (
    Compatibility,
    Edges,
    Inputs,
    LayerShape,
    Memory,
    Routing,
    RoutingFactory,
    RoutingState,
    Votes,
    check_iterations,
)
from capsroute.routing.dynamic import TINY, LengthActivation, SquashedSum


class UnitAgreement(Compatibility):
    """v_ij · s_j / α with s_j the direction of pose j"""

    def __init__(self, alpha: float) -> None:
        super().__init__()
        self.alpha = alpha

    def forward(self, votes: Votes, inputs: Inputs, state: RoutingState) -> tuple[Edges, Memory]:
        length = torch.sqrt(state.poses.square().sum(-1, keepdim=True) + TINY)
        return torch.einsum("bpijd,bpjd->bpij", votes, state.poses / length) / self.alpha, state.memory


def _build(shape: LayerShape, iterations: int, alpha: float) -> Routing:
    return Routing(
        UnitAgreement(alpha),
        LengthActivation(),
        SquashedSum(),
        iterations=iterations,
        competition="window",
        counts_first=True,
    )


def entropy(*, iterations: int = 3, alpha: float = 1.0) -> RoutingFactory:
    """The optimisation view's routing; `alpha` weighs the entropy: large keeps couplings flat, small hardens them."""
    if not alpha > 0:
        raise ValueError(f"alpha={alpha}: the weight of the entropy must be positive")
    return partial(_build, iterations=check_iterations(iterations), alpha=alpha)
