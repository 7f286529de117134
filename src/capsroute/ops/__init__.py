"""Fused routing operators, found by the exact types of a routing's plugs.

No operator is imported, let alone compiled, before one is looked up.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from capsroute.routing import Routing

    # operator(routing, poses [B, N, k, c], logits [B, N], matrices [I, J, r, k], offset [I, r c] or None, index [P, I])
    # -> poses [B, P, J, r, c], logits [B, P, J]
    Operator = Callable[[Routing, Tensor, Tensor, Tensor, Tensor | None, Tensor], tuple[Tensor, Tensor]]

__all__ = ["find", "register", "status", "why_not"]

# Packages of operators: importing one registers what it serves.
_PACKAGES = ("similarity", "em", "dynamic", "connectionist")
_MAX_POSE = 64


class _Entry(NamedTuple):
    name: str
    operator: Operator
    accepts: Callable[[Routing], bool]


_ENTRIES: dict[tuple[type, ...], _Entry] = {}


def register(
    key_types: tuple[type, type, type], operator: Operator, *, name: str, accepts: Callable[[Routing], bool]
) -> None:
    """Let `operator` serve routings whose compatibility, aggregation and activation are exactly of these types.

    `name` is that of the compiled code; `accepts` refuses routings with options that the operator does not know.
    """
    _ENTRIES[key_types] = _Entry(name, operator, accepts)


def find(routing: Routing, dtype: torch.dtype, device: torch.device, pose_size: int) -> Operator | None:
    """The fused operator for exactly this routing, or None."""
    entry = _entry(routing)
    return entry.operator if entry is not None and _refusal(entry, routing, dtype, device, pose_size) is None else None


def why_not(routing: Routing, dtype: torch.dtype, device: torch.device, pose_size: int) -> str:
    """Why `find` gives None."""
    entry = _entry(routing)
    if entry is None:
        plugs = (routing.compatibility, routing.aggregation, routing.activation)
        return f"no fused operator serves {', '.join(type(plug).__name__ for plug in plugs)}"
    return _refusal(entry, routing, dtype, device, pose_size) or "nothing is in the way"


def exact_type(module: torch.nn.Module) -> type:
    """The class a module was made of: while a graph is exported, torch may wrap it in a subclass of the same name."""
    kind = type(module)
    for base in kind.__mro__[1:]:
        if base.__qualname__ == kind.__qualname__ and base.__module__ == kind.__module__:
            return base
    return kind


def status() -> dict[str, str]:
    """What each operator is doing: `active`, or why it is off. Compiles those that were not compiled yet."""
    from capsroute.ops import build

    return {name: "active" if build.load(name) else f"off: {build.reason(name)}" for name in build.names()}


@torch.compiler.assume_constant_result  # imports and compilers are nothing to trace
def _import_packages() -> bool:
    for package in _PACKAGES:
        importlib.import_module(f"capsroute.ops.{package}")
    return True


def _entry(routing: Routing) -> _Entry | None:
    _import_packages()
    plugs = (routing.compatibility, routing.aggregation, routing.activation)
    return _ENTRIES.get(tuple(exact_type(plug) for plug in plugs))


@torch.compiler.assume_constant_result
def _refusal(entry: _Entry, routing: Routing, dtype: torch.dtype, device: torch.device, pose_size: int) -> str | None:
    from capsroute.ops import build

    if dtype != torch.float32 or device.type != "cpu":
        return f"the fused {entry.name} operator takes torch.float32 on the CPU, not {dtype} on {device}"
    if pose_size > _MAX_POSE:
        return f"fused operators take poses of up to {_MAX_POSE} elements, not {pose_size}"
    if not entry.accepts(routing):
        return f"the fused {entry.name} operator does not know an option of this routing"
    return None if build.load(entry.name) else build.reason(entry.name)
