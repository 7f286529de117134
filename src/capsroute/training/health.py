"""Routing health: do couplings choose, are capsules alive, how long are poses, what has the routing learned."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from capsroute.lanes import LaneNet
from capsroute.layers import CapsuleLayer
from capsroute.models import CapsNet
from capsroute.routing import Routing
from capsroute.routing.kernels import Positive

DEAD = 0.01


@torch.no_grad()
def routing_health(net: nn.Module, images: Float[Tensor, "B F H W"]) -> list[dict[str, Any]]:
    """One entry a capsule layer, empty for a network without any.

    `entropy`: of the couplings, in nats, after each forming of the capsules; the first is that of flat couplings.
    `dead`: share of capsule types that stay below an activation of 0.01 wherever they look. `activation` and
    `pose_norm`: means. `learned`: smallest, mean and largest value of each lambda, beta, kernel height and width.
    """
    if isinstance(net, LaneNet):  # lanes are alike; the first tells
        return routing_health(net.lanes[0], net.views[0](images))
    if not isinstance(net, CapsNet):
        return []
    was_training = net.training
    net.eval()
    found = []
    caps = net.primary_capsules(images)
    for norm, layer in zip(net.norms, net.layers, strict=True):
        seen = norm(caps)
        assert isinstance(layer, CapsuleLayer)
        entropies = [coupling_entropy(state.coupling) for state in layer.trace(seen)]
        caps = layer(seen) if layer is not net.layers[-1] else net.verdict(layer(seen))
        most = caps.activations.flatten(0, -2).amax(0)
        found.append(
            {
                "entropy": entropies,
                "dead": float((most < DEAD).float().mean()),
                "activation": float(caps.activations.mean()),
                "pose_norm": float(caps.poses.float().flatten(-2).norm(dim=-1).mean()),
                "learned": learned(layer.routing),
            }
        )
    net.train(was_training)
    return found


def coupling_entropy(coupling: Tensor) -> float:
    """Mean entropy of the distributions that couplings form.

    Each distribution sums to one, so the sum of all couplings counts the distributions, over whatever they compete.
    """
    coupling = coupling.double()
    return float(-torch.xlogy(coupling, coupling).sum() / coupling.sum().clamp_min(1e-12))


def learned(routing: Routing) -> dict[str, list[float]]:
    """Smallest, mean and largest of each interpretable parameter; networks inside a routing have none."""
    values = {name: module() for name, module in routing.named_modules() if isinstance(module, Positive)}
    values |= {name: p for name, p in routing.named_parameters() if name.rpartition(".")[2].startswith("beta")}
    return {
        name.rpartition(".")[2]: [float(value.min()), float(value.mean()), float(value.max())]
        for name, value in values.items()
    }


def flatten(health: list[dict[str, Any]]) -> dict[str, float]:
    """Single numbers by name, for TensorBoard."""
    scalars: dict[str, float] = {}
    for number, layer in enumerate(health, 1):
        at = f"routing/layer{number}"
        scalars |= {f"{at}/entropy/{step}": value for step, value in enumerate(layer["entropy"])}
        scalars |= {f"{at}/{name}": layer[name] for name in ("dead", "activation", "pose_norm")}
        scalars |= {f"{at}/{name}": mean for name, (_, mean, _) in layer["learned"].items()}
    return scalars


class FirstNonFinite:
    """Finds the first layer whose output is not finite, as a network runs."""

    def __init__(self, net: nn.Module) -> None:
        self.found: str | None = None
        self._handles = []
        inside = {id(m) for r in net.modules() if isinstance(r, Routing) for m in r.modules()}
        for name, module in net.named_modules():
            if id(module) not in inside:  # of a capsule layer it is the layer that is named
                self._handles.append(module.register_forward_hook(self._hook(name or "the network")))

    def _hook(self, name: str) -> Any:
        def look(module: nn.Module, _: Any, output: Any) -> None:
            tensors = [output] if isinstance(output, Tensor) else output if isinstance(output, tuple) else []
            if self.found is None and not all(_finite(t) for t in tensors if isinstance(t, Tensor)):
                self.found = f"{name} ({type(module).__name__})"

        return look

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()


def _finite(tensor: Tensor) -> bool:
    return bool(torch.isfinite(tensor).all())


def name_non_finite(net: nn.Module, images: Tensor) -> str:
    """Where values that are not finite first appear: in the images, a layer's output, or else in a gradient."""
    if not _finite(images):
        return "the images"
    watch = FirstNonFinite(net)
    try:
        with torch.no_grad():
            net(images)
    finally:
        watch.remove()
    if watch.found:
        return watch.found
    gradients = [name for name, p in net.named_parameters() if p.grad is not None and not _finite(p.grad)]
    # backward runs from the end: the last parameter with such a gradient is where it began
    return f"the gradient of {gradients[-1]}" if gradients else "the loss alone"
