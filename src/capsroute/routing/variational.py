"""Variational routing (De Sousa Ribeiro, Leontidis & Kollias 2020): EM routing with a prior on every Gaussian.

    N_j, v̄_j, s²_j: mass, mean and variance of the votes for j, weighed by r_ij a_i as in EM routing
    α_j = α₀ + N_j;  κ_j = κ₀ + N_j;  ν_j = ν₀ + N_j
    m_j = N_j v̄_j / κ_j;  S_j = S₀ + N_j s²_j + (κ₀ N_j / κ_j) v̄²_j
    E ln π_j = ψ(α_j) - ψ(Σ_k α_k);  E ln |Λ_j| = Σ_h (ψ((ν_j - h) / 2) + ln 2 - ln S_jh),  h = 0 ... D - 1
    r_ij ∝ exp(E ln π_j + (E ln |Λ_j| - D/κ_j - ν_j Σ_h (v_ijh - m_jh)² / S_jh) / 2), over all parents j of child i
    logit_j = β_j - exp(E ln π_j) (D ln 2πe - E ln |Λ_j|) / 2

ψ is the digamma function, k runs over the output types of a position. m_j is the pose. The prior keeps every variance
away from zero, so no capsule can collapse onto a single vote. The authors' two betas only ever occur as their
difference, β_j.
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import torch
from torch import nn

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
)
from capsroute.routing.em import moments


class Prior(NamedTuple):
    """α₀ of the Dirichlet, κ₀ of the Gaussian around zero, S₀ and ν₀ of the Wishart distribution."""

    alpha: float
    kappa: float
    scatter: float
    degrees: float


class Posterior(NamedTuple):
    """What is believed of each output capsule after its votes were counted."""

    mass: Outputs
    kappa: Outputs
    degrees: Outputs
    scatter: Poses
    log_share: Outputs  # E ln π_j
    log_precision: Outputs  # E ln |Λ_j|


class PosteriorAggregation(Aggregation):
    """From the moments of the votes to the posterior; the pose is its mean."""

    def __init__(self, prior: Prior) -> None:
        super().__init__()
        self.prior = prior

    def forward(self, votes: Votes, inputs: Inputs, coupling: Edges, memory: Memory) -> tuple[Poses, Memory]:
        alpha, kappa, scatter, degrees = self.prior
        mass, mean, variance = moments(votes, inputs, coupling)
        some = mass.unsqueeze(-1)
        shrink = some / (kappa + some)
        scatters = scatter + some * variance + kappa * shrink * mean.square()
        steps = torch.arange(votes.shape[-1], dtype=votes.dtype, device=votes.device)
        log_precision = (torch.digamma((degrees + some - steps) / 2) + math.log(2) - scatters.log()).sum(-1)
        counts = alpha + mass
        log_share = torch.digamma(counts) - torch.digamma(counts.sum(-1, keepdim=True))
        return shrink * mean, Posterior(mass, kappa + mass, degrees + mass, scatters, log_share, log_precision)


class EntropyActivation(Activation):
    """logit_j = β_j - exp(E ln π_j) (D ln 2πe - E ln |Λ_j|) / 2: on when many votes agree narrowly."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.beta = nn.Parameter(torch.zeros(outputs))

    def forward(self, votes: Votes, inputs: Inputs, coupling: Edges, poses: Poses, memory: Posterior) -> Outputs:
        entropy = 0.5 * (poses.shape[-1] * math.log(2 * math.pi * math.e) - memory.log_precision)
        return self.beta - memory.log_share.exp() * entropy


class PosteriorCompatibility(Compatibility):
    """The expected log of π_j N(v_ij; μ_j, Λ_j), but for a constant."""

    def forward(self, votes: Votes, inputs: Inputs, state: RoutingState) -> tuple[Edges, Memory]:
        belief: Posterior = state.memory
        precision = belief.degrees.unsqueeze(-1) / belief.scatter
        distance = ((votes - state.poses.unsqueeze(2)).square() * precision.unsqueeze(2)).sum(-1)
        constant = belief.log_share + 0.5 * (belief.log_precision - votes.shape[-1] / belief.kappa)
        return constant.unsqueeze(2) - 0.5 * distance, belief


def _build(shape: LayerShape, iterations: int, competition: Competition, prior: Prior) -> Routing:
    if not prior.degrees:
        prior = prior._replace(degrees=shape.pose_size + 1.0)
    if prior.degrees <= shape.pose_size - 1:
        raise ValueError(
            f"degrees={prior.degrees}: poses of {shape.pose_size} elements need more than one less of them"
        )
    return Routing(
        PosteriorCompatibility(),
        EntropyActivation(shape.outputs),
        PosteriorAggregation(prior),
        iterations=iterations,
        competition=competition,
        counts_first=True,
    )


def variational(
    *,
    iterations: int = 3,
    competition: Competition = "parents",
    alpha: float = 1.0,
    kappa: float = 1.0,
    scatter: float = 1.0,
    degrees: float = 0.0,
) -> RoutingFactory:
    """Variational routing.

    Args:
        iterations: how often the posterior is formed, the first time from flat couplings, as the authors count.
        competition: `parents` normalises each child over all its parents, `window` over the types of one window.
        alpha: α₀, votes that each output type is taken to have had before any came.
        kappa: κ₀, votes for a pose of zero that come before the others; they shrink poses of little mass.
        scatter: S₀, the squared deviations that come before the others: votes much closer than its root are as one.
        degrees: ν₀, how firmly; 0 for the authors' D + 1.
    """
    if competition not in ("parents", "window"):
        raise ValueError(f"competition={competition!r}: variational routing normalises over 'parents' or the 'window'")
    prior = Prior(alpha, kappa, scatter, degrees)
    for name, value in (("alpha", alpha), ("kappa", kappa), ("scatter", scatter)):
        if not value > 0:
            raise ValueError(f"{name}={value}: a prior needs a number above 0")
    return partial(_build, iterations=check_iterations(iterations), competition=competition, prior=prior)
