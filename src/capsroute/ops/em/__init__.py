"""Fused EM routing (Hinton, Sabour & Frosst 2018), and its control with flat couplings."""

from __future__ import annotations

from typing import cast

from torch import Tensor

from capsroute import ops
from capsroute.ops.em.op import em
from capsroute.routing.algorithm import Routing
from capsroute.routing.em import CostActivation, GaussianAggregation, GaussianCompatibility
from capsroute.routing.uniform import FlatCompatibility


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


def _accepts(routing: Routing) -> bool:
    """Couplings that sum to one over the parents of an input; a flat compatibility whose inner one is not asked."""
    return routing.competition != "inputs" and getattr(routing.compatibility, "inner", None) is None


for _compatibility in (GaussianCompatibility, FlatCompatibility):
    ops.register((_compatibility, GaussianAggregation, CostActivation), _operator, name="em", accepts=_accepts)
