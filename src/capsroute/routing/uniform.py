"""No routing: the couplings stay flat, all else is as in the routing that this one controls.

c_ij = flat;   pose and activation as in `control`
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

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
)
from capsroute.routing.connectionist import connectionist
from capsroute.routing.dynamic import dynamic
from capsroute.routing.em import em
from capsroute.routing.entropy import entropy
from capsroute.routing.similarity import similarity
from capsroute.routing.variational import variational

CONTROLS: dict[str, Callable[..., RoutingFactory]] = {
    "similarity": similarity,
    "connectionist": connectionist,
    "em": em,
    "variational": variational,
    "dynamic": dynamic,
    "entropy": entropy,
}
# Their capsules depend on couplings and votes alone: with flat couplings, forming them again changes nothing.
_FORMED_ONCE = ("similarity", "variational", "dynamic", "entropy")


class FlatCompatibility(Compatibility):
    """Scores every vote alike; `inner` still runs where the activation reads its memory."""

    def __init__(self, inner: Compatibility | None) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, votes: Votes, inputs: Inputs, state: RoutingState) -> tuple[Edges, Memory]:
        memory = state.memory if self.inner is None else self.inner(votes, inputs, state)[1]
        return torch.zeros_like(state.coupling), memory


def _build(shape: LayerShape, control: str, options: dict[str, Any]) -> Routing:
    routing = CONTROLS[control](**options)(shape)
    once = control in _FORMED_ONCE
    return Routing(
        FlatCompatibility(routing.compatibility if control == "connectionist" else None),
        routing.activation,
        routing.aggregation,
        iterations=1 if once else routing.iterations,
        competition=routing.competition,
        counts_first=True if once else routing.counts_first,
    )


def uniform(*, control: str = "similarity", **options: Any) -> RoutingFactory:
    """Flat couplings under the activation of the routing named `control`, to which `options` go."""
    if control not in CONTROLS:
        raise ValueError(f"control={control!r}: choose one of {', '.join(CONTROLS)}")
    CONTROLS[control](**options)  # wrong options are the caller's error, now
    return partial(_build, control=control, options=options)
