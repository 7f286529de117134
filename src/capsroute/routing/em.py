"""EM routing (Hinton, Sabour & Frosst 2018): each output capsule is a Gaussian that its votes are drawn from.

    M   w_ij = r_ij a_i;  μ_j = Σ_i w_ij v_ij / Σ_i w_ij;  σ²_j likewise;  m_j = Σ_i w_ij
        logit_j = λ_t (β_a - m_j Σ_h (β_u + log σ_jh)),   λ_t = λ (1 - 0.95^(t+1))
    E   r_ij ∝ a_j N(v_ij; μ_j, σ²_j), normalised over all parents j of child i, output positions included

β_a and β_u are learned, one of each for an output type.
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from capsroute.routing.algorithm import (
    Activation,
    Aggregation,
    Compatibility,
    Competition,
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


class EMMemory(NamedTuple):
    """What the E-step and the activation need of the M-step."""

    variances: Poses
    mass: Outputs
    iteration: int


def moments(votes: Votes, inputs: Inputs, coupling: Edges) -> tuple[Outputs, Poses, Poses]:
    """Mass, mean and variance of the votes for each output capsule, weighed by r_ij a_i."""
    weights = coupling * inputs.activations.unsqueeze(-1)
    mass = weights.sum(2)
    # not clamped from below: a slope of 1 / tiny would overflow where nothing couples, as in a window of padding
    share = weights / torch.where(mass < torch.finfo(mass.dtype).tiny, 1.0, mass).unsqueeze(2)
    mean = weighted_sum(share, votes)
    # not E[v²] - μ², which cancels
    return mass, mean, weighted_sum(share, (votes - mean.unsqueeze(2)).square())


class GaussianAggregation(Aggregation):
    """The M-step: weighted mean and variance of the votes, weighed by r_ij a_i."""

    def __init__(self, min_variance: float) -> None:
        super().__init__()
        self.min_variance = min_variance

    def forward(self, votes: Votes, inputs: Inputs, coupling: Edges, memory: Memory) -> tuple[Poses, Memory]:
        mass, poses, variances = moments(votes, inputs, coupling)
        variances = variances + self.min_variance
        return poses, EMMemory(variances, mass, 0 if memory is None else memory.iteration + 1)


class CostActivation(Activation):
    """logit_j = λ_t (β_a - m_j Σ_h (β_u + log σ_jh)): a capsule is on when its votes are cheap to describe by it."""

    def __init__(self, outputs: int, inverse_temperature: float, anneal: float) -> None:
        super().__init__()
        self.inverse_temperature = inverse_temperature
        self.anneal = anneal
        self.beta_use = nn.Parameter(torch.zeros(outputs))
        self.beta_activate = nn.Parameter(torch.zeros(outputs))

    def forward(self, votes: Votes, inputs: Inputs, coupling: Edges, poses: Poses, memory: EMMemory) -> Outputs:
        scale = self.inverse_temperature * (1 - self.anneal ** (memory.iteration + 1))
        cost = memory.mass * (self.beta_use.unsqueeze(-1) + 0.5 * memory.variances.log()).sum(-1)
        return scale * (self.beta_activate - cost)


class GaussianCompatibility(Compatibility):
    """The E-step's log a_j + log N(v_ij; μ_j, σ²_j)."""

    def forward(self, votes: Votes, inputs: Inputs, state: RoutingState) -> tuple[Edges, Memory]:
        variances = state.memory.variances
        deviation = ((votes - state.poses.unsqueeze(2)).square() / variances.unsqueeze(2)).sum(-1)
        constant = F.logsigmoid(state.logits) - 0.5 * (math.log(2 * math.pi) + variances.log()).sum(-1)
        return constant.unsqueeze(2) - 0.5 * deviation, state.memory


def _build(
    shape: LayerShape,
    iterations: int,
    competition: Competition,
    inverse_temperature: float,
    anneal: float,
    min_variance: float,
) -> Routing:
    return Routing(
        GaussianCompatibility(),
        CostActivation(shape.outputs, inverse_temperature, anneal),
        GaussianAggregation(min_variance),
        iterations=iterations,
        competition=competition,
        counts_first=True,
    )


def em(
    *,
    iterations: int = 3,
    competition: Competition = "parents",
    inverse_temperature: float = 0.01,
    anneal: float = 0.95,
    min_variance: float = 5e-4,
) -> RoutingFactory:
    """EM routing.

    Args:
        iterations: M-steps, the first from flat couplings, as Hinton et al. count.
        competition: `parents` normalises each child over all its parents, as the authors do; `window` over the output
            types of one window, as most reimplementations do.
        inverse_temperature: λ, and `anneal` its schedule over the iterations: λ (1 - anneal^(t+1)).
        min_variance: added to each variance.
    """
    if competition not in ("parents", "window"):
        raise ValueError(f"competition={competition!r}: EM routing normalises over 'parents' or over the 'window'")
    return partial(
        _build,
        iterations=check_iterations(iterations),
        competition=competition,
        inverse_temperature=inverse_temperature,
        anneal=anneal,
        min_variance=min_variance,
    )
