"""Routings: by name, by constructor, or a user's own `Routing(compatibility, activation)`."""

from __future__ import annotations

import difflib
from collections.abc import Callable

from capsroute.routing.algorithm import (
    Activation,
    Aggregation,
    Compatibility,
    Inputs,
    LayerShape,
    Routing,
    RoutingFactory,
    RoutingState,
    WeightedMean,
)
from capsroute.routing.connectionist import connectionist
from capsroute.routing.dynamic import dynamic
from capsroute.routing.em import em
from capsroute.routing.entropy import entropy
from capsroute.routing.similarity import similarity
from capsroute.routing.uniform import uniform
from capsroute.routing.variational import variational

ROUTINGS: dict[str, Callable[..., RoutingFactory]] = {
    "similarity": similarity,
    "connectionist": connectionist,
    "em": em,
    "variational": variational,
    "dynamic": dynamic,
    "entropy": entropy,
    "uniform": uniform,
}

__all__ = [
    "ROUTINGS",
    "Activation",
    "Aggregation",
    "Compatibility",
    "Inputs",
    "LayerShape",
    "Routing",
    "RoutingFactory",
    "RoutingState",
    "WeightedMean",
    "by_name",
    "connectionist",
    "dynamic",
    "em",
    "entropy",
    "resolve",
    "similarity",
    "uniform",
    "variational",
]


def by_name(name: str, **options: object) -> RoutingFactory:
    """The routing of that name with its options."""
    if name not in ROUTINGS:
        near = difflib.get_close_matches(name, ROUTINGS, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"unknown routing {name!r}: {hint}the names are {', '.join(ROUTINGS)}")
    try:
        return ROUTINGS[name](**options)
    except TypeError as error:
        raise ValueError(f"routing {name!r}: {error}; see help(capsroute.routing.{name})") from error


def resolve(routing: str | Routing | RoutingFactory, shape: LayerShape) -> Routing:
    """A routing module for a layer of that shape, from a name, a constructor's result or a module of the user's."""
    if isinstance(routing, Routing):
        return routing
    factory = by_name(routing) if isinstance(routing, str) else routing
    if not callable(factory):
        raise ValueError(
            f"routing={routing!r}: pass a name ({', '.join(ROUTINGS)}), a constructor's result or a Routing"
        )
    built = factory(shape)
    if not isinstance(built, Routing):
        raise ValueError(f"routing={routing!r} made a {type(built).__name__}; a routing factory returns a Routing")
    return built
