"""Networks most of whose weights are zero: the others alone are stored, learned and counted.

The large weights of a trained network can stand for all, once they are trained a little further (Han et al. 2015).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils import parametrize

from capsroute.routing import Routing

LARGE = 1000  # a tensor of no more numbers stays whole
_POWER = 0.7  # n numbers are left c n^0.7, so that of small tensors a larger share stays (docs/experiments.md)
_HALVINGS = 60
_STEPS = "parametrizations.weight"  # torch's names
_VALUES = f"{_STEPS}.original"


class Placed(nn.Module):
    """A tensor from its numbers that are not zero: `values[k]` lies at `places[k]`, counted through all its axes.

    As a parametrization (`torch.nn.utils.parametrize`) it makes `layer.weight` the whole tensor, or what further
    parametrizations make of that; what is assigned to `layer.weight` is thinned to its largest numbers, wherever these
    lie.
    """

    places: Tensor

    def __init__(self, shape: Sequence[int], count: int) -> None:
        super().__init__()
        self.shape = torch.Size(shape)
        self.register_buffer("places", torch.zeros(count, dtype=torch.int32))

    def forward(self, values: Float[Tensor, " n"]) -> Tensor:
        empty = values.new_zeros(self.shape.numel())
        return empty.index_put((self.places.long(),), values).view(self.shape)

    def right_inverse(self, whole: Tensor) -> Float[Tensor, " n"]:
        largest = whole.detach().abs().flatten().topk(len(self.places)).indices.sort().values
        self.places = largest.to(self.places)
        return whole.flatten()[largest]


def thin(net: nn.Module, weights: int) -> None:
    """Leave at most so many learned numbers of a network, the largest of each tensor; the others are zero and stay so.

    Of filters with mirror images (`capsroute.mirror`) those that are learned are thinned. Biases, norms, what routings
    learn and tensors of up to 1,000 numbers stay whole.
    """
    routed = {id(part) for module in net.modules() if isinstance(module, Routing) for part in module.modules()}
    layers = [
        (module, weight)
        for module in net.modules()
        if id(module) not in routed and (weight := _large(module)) is not None
    ]
    sizes = [weight.numel() for _, weight in layers]
    total = sum(parameter.numel() for parameter in net.parameters())
    least = total - sum(sizes) + len(sizes)
    if not least <= weights < total:
        raise ValueError(
            f"thin={weights}: this network has {total:,} learned numbers and can be left {least:,} or more of them"
        )
    for (layer, weight), count in zip(layers, _counts(sizes, weights - (total - sum(sizes))), strict=True):
        _register_first(layer, Placed(weight.shape, count))


def thinned(net: nn.Module) -> dict[str, nn.Module]:
    """The layers whose weights were thinned, by name."""
    return {
        name: module for name, module in net.named_modules() if isinstance(next(iter(_steps(module)), None), Placed)
    }


def values(net: nn.Module) -> list[nn.Parameter]:
    """What is left of their weights."""
    return [layer.get_parameter(_VALUES) for layer in thinned(net).values()]


@torch.no_grad()
def refill(layer: nn.Module, learned: Tensor) -> bool:
    """Let a thinned layer take the largest of these numbers, which a whole layer learned; whether their shape fits."""
    steps = _steps(layer)
    placed = steps[0]
    if not isinstance(placed, Placed) or learned.shape != placed.shape:
        return False
    layer.get_parameter(_VALUES).copy_(placed.right_inverse(learned))
    return True


def _steps(layer: nn.Module) -> list[nn.Module]:
    """What makes a layer's weight from what it learns, in order."""
    return list(layer.get_submodule(_STEPS).children()) if parametrize.is_parametrized(layer, "weight") else []


def _learned(module: nn.Module) -> nn.Parameter | None:
    """The numbers that a layer's weight is, or is made from."""
    if _steps(module):
        return module.get_parameter(_VALUES)
    weight = getattr(module, "weight", None)
    return weight if isinstance(weight, nn.Parameter) else None


def _large(module: nn.Module) -> nn.Parameter | None:
    weight = _learned(module)
    return weight if weight is not None and weight.dim() > 1 and weight.numel() > LARGE else None


def _register_first(layer: nn.Module, placed: Placed) -> None:
    """Make what the weight is made from a thinned tensor; torch registers parametrizations as the last step alone."""
    others = _steps(layer)
    if others:
        parametrize.remove_parametrizations(layer, "weight", leave_parametrized=False)
    for step in (placed, *others):
        parametrize.register_parametrization(layer, "weight", step, unsafe=True)


def _counts(sizes: Sequence[int], room: int) -> list[int]:
    """How many numbers of each tensor stay, `room` of all at most and nearly."""

    def at(factor: float) -> list[int]:
        return [max(1, min(size, int(factor * size**_POWER))) for size in sizes]

    low, high = 0.0, float(max(sizes))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(at(middle)) <= room else (low, middle)
    return at(low)
