"""Fused EM routing (Hinton, Sabour & Frosst 2018), variational routing, and their controls with flat couplings."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from capsroute import ops
from capsroute.ops.em.op import em
from capsroute.routing.algorithm import Routing
from capsroute.routing.em import CostActivation, GaussianAggregation, GaussianCompatibility
from capsroute.routing.uniform import FlatCompatibility
from capsroute.routing.variational import EntropyActivation, PosteriorAggregation, PosteriorCompatibility


def _operator(
    routing: Routing, poses: Tensor, logits: Tensor, matrices: Tensor, offset: Tensor | None, index: Tensor
) -> tuple[Tensor, Tensor]:
    activation = cast(CostActivation, routing.activation)
    scales = [activation.inverse_temperature * (1 - activation.anneal ** (t + 1)) for t in range(routing.updates + 1)]
    if isinstance(routing.compatibility, FlatCompatibility):
        scales = scales[-1:]  # its M-steps are all alike but for the scale, so the last is enough
    # a routing that several layers share has one parameter for all output types
    beta_use, beta_activate = (p.expand(matrices.shape[1]) for p in (activation.beta_use, activation.beta_activate))
    min_variance = cast(GaussianAggregation, routing.aggregation).min_variance
    return em(
        poses,
        logits,
        matrices,
        offset,
        index,
        beta_use,
        beta_activate,
        scales,
        routing.competition == "parents",
        min_variance,
    )


def _variational(
    routing: Routing, poses: Tensor, logits: Tensor, matrices: Tensor, offset: Tensor | None, index: Tensor
) -> tuple[Tensor, Tensor]:
    beta = cast(EntropyActivation, routing.activation).beta.expand(matrices.shape[1])
    prior = cast(PosteriorAggregation, routing.aggregation).prior
    scales = [1.0] * (1 if isinstance(routing.compatibility, FlatCompatibility) else routing.updates + 1)
    unused, parents = torch.zeros_like(beta), routing.competition == "parents"
    return em(poses, logits, matrices, offset, index, unused, beta, scales, parents, 0.0, prior)


def _accepts(routing: Routing) -> bool:
    """Couplings that sum to one over the parents of an input; a flat compatibility whose inner one is not asked."""
    return routing.competition != "inputs" and getattr(routing.compatibility, "inner", None) is None


for _em in (GaussianCompatibility, FlatCompatibility):
    ops.register((_em, GaussianAggregation, CostActivation), _operator, name="em", accepts=_accepts)
for _vb in (PosteriorCompatibility, FlatCompatibility):
    ops.register((_vb, PosteriorAggregation, EntropyActivation), _variational, name="em", accepts=_accepts)
