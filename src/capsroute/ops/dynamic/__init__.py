"""Fused dynamic routing (Sabour, Frosst & Hinton 2017), entropy routing (Wang & Liu 2018) and their flat control."""

from __future__ import annotations

from torch import Tensor

from capsroute import ops
from capsroute.ops.dynamic.op import dynamic
from capsroute.routing.algorithm import Routing
from capsroute.routing.dynamic import Agreement, LengthActivation, SquashedSum
from capsroute.routing.entropy import UnitAgreement
from capsroute.routing.uniform import FlatCompatibility


def _operator(
    routing: Routing, poses: Tensor, logits: Tensor, matrices: Tensor, offset: Tensor | None, index: Tensor
) -> tuple[Tensor, Tensor]:
    compatibility, times = routing.compatibility, routing.updates + 1
    if isinstance(compatibility, UnitAgreement):
        return dynamic(poses, matrices, offset, index, times, unit=True, sharpness=1 / compatibility.alpha)
    # with flat couplings every forming is the first
    return dynamic(poses, matrices, offset, index, times if isinstance(compatibility, Agreement) else 1)


def _accepts(routing: Routing) -> bool:
    """Couplings that sum to one over the types of a window; a flat compatibility whose inner one is not asked."""
    return routing.competition == "window" and getattr(routing.compatibility, "inner", None) is None


for _compatibility in (Agreement, UnitAgreement, FlatCompatibility):
    ops.register((_compatibility, SquashedSum, LengthActivation), _operator, name="dynamic", accepts=_accepts)
