"""Fused routing operators, found by the exact types of a routing's plugs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from capsroute.routing import Routing

    # operator(routing, poses, logits, matrices, offset, index) -> (poses, logits)
    Operator = Callable[[Routing, Tensor, Tensor, Tensor, Tensor | None, Tensor], tuple[Tensor, Tensor]]


def find(routing: Routing, dtype: torch.dtype, device: torch.device, pose_size: int) -> Operator | None:
    """The fused operator for exactly this routing, or None."""
    return None


def why_not(routing: Routing, dtype: torch.dtype, device: torch.device, pose_size: int) -> str:
    """Why `find` gives None."""
    return "no operator is registered for this routing"
