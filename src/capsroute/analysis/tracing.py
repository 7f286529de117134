"""What routing did inside a network, layer by layer and iteration by iteration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from capsroute.capsules import Capsules
from capsroute.errors import RunError
from capsroute.geometry import Field
from capsroute.lanes import LaneNet
from capsroute.layers import CapsuleLayer
from capsroute.models import CapsNet
from capsroute.routing import RoutingState
from capsroute.routing.algorithm import Inputs
from capsroute.votes import votes

Array = npt.NDArray[np.float32]
Score = Callable[[Tensor], Tensor]  # class logits [..., K] to scores between 0 and 1


@dataclass(frozen=True, eq=False)
class LayerTrace:
    """One layer's routing of B images, T states of it, flat couplings first.

    `shares` says how much of each output's pose came from each input: what a vote, weighed as the routing weighs it,
    adds along the pose it helps to form. Shares are not negative and sum to one over the inputs of an output.
    """

    index: npt.NDArray[np.int64]  # [P, I], -1 where that is padding
    space: tuple[int, ...]  # of the inputs
    types: int  # of the inputs
    out_space: tuple[int, ...]
    couplings: Array  # [T, B, P, I, J]
    shares: Array  # [T, B, P, I, J]
    logits: Array  # [T, B, P, J], of the outputs
    poses: Array  # [T, B, P, J, r, c]

    @property
    def activations(self) -> Array:
        """Of the outputs [T, B, P, J]. What wins is better read off the logits: activations may all round to one."""
        return (1 / (1 + np.exp(-np.clip(self.logits, -80, 80)))).astype(np.float32)

    @property
    def entropy(self) -> Array:
        """How evenly each output listens to its inputs [T, B, P, J]: 1 for flat couplings, 0 for a single input."""
        mass = self.couplings.sum(3, keepdims=True)
        share = self.couplings / np.maximum(mass, np.finfo(np.float32).tiny)
        logs = np.log(np.maximum(share, np.finfo(np.float32).tiny))
        inputs = np.maximum((self.index >= 0).sum(1), 2)
        result: Array = -(share * logs).sum(3) / np.log(inputs)[:, None]
        return result

    def to_inputs(self, edges: Array) -> Array:
        """Values on edges [B, P, I] added up for each input: [B, *space, types]."""
        inputs = int(np.prod(self.space)) * self.types
        total = np.zeros((len(edges), inputs), dtype=np.float64)
        inside = self.index >= 0
        for row, values in zip(total, edges, strict=True):
            np.add.at(row, self.index[inside], values[inside])
        return total.reshape(len(edges), *self.space, self.types).astype(np.float32)


def softmax(logits: Tensor) -> Tensor:
    """Class scores of a network that was trained by cross-entropy, where logits mean something only by comparison."""
    return logits.softmax(-1)


def capsule_network(net: Any) -> CapsNet:
    """`net`, where it has capsules to look into."""
    if isinstance(net, LaneNet):
        raise RunError(
            f"{len(net.lanes)} networks lie side by side here; in Python, look into one of them, net.lanes[0]"
        )
    if not isinstance(net, CapsNet):
        raise RunError(f"a {type(net).__name__} has no capsules to look into; choose a run of a capsule network")
    return net


def trace(net: CapsNet, images: Tensor) -> list[LayerTrace]:
    """Watch every routed layer of a network; meant for a few images, since all couplings are kept."""
    network = capsule_network(net)
    was_training = network.training
    network.eval()
    found = []
    with torch.no_grad():
        caps = network.primary_capsules(images)
        for norm, layer in zip(network.norms, network.layers, strict=True):
            assert isinstance(layer, CapsuleLayer)
            traced, caps = _trace_layer(layer, norm(caps))
            found.append(traced)
        if network.class_norm is not None:
            logits = network.class_norm(torch.from_numpy(found[-1].logits))
            found[-1] = replace(found[-1], logits=logits.numpy())
    network.train(was_training)
    return found


def _trace_layer(layer: CapsuleLayer, caps: Capsules) -> tuple[LayerTrace, Capsules]:
    poses, logits, out, field = layer._enter(caps)
    cast = votes(field.gather(poses), layer._matrices(), layer._offset())
    inputs = Inputs(field.gather(logits), field.mask)
    states = list(layer.routing.steps(cast, inputs, field))
    shares = [_shares(layer, cast, inputs, state, field) for state in states]
    outputs = [state.poses.unflatten(-1, layer.out_pose) for state in states]
    last = (len(poses), *out, layer.out_channels)
    formed = Capsules.from_logits(outputs[-1].reshape(*last, *layer.out_pose), states[-1].logits.reshape(last))
    traced = LayerTrace(
        index=field.index.numpy().astype(np.int64),
        space=tuple(caps.poses.shape[1:-3]),
        types=layer.in_channels,
        out_space=out,
        couplings=_stack([state.coupling for state in states]),
        shares=_stack(shares),
        logits=_stack([state.logits for state in states]),
        poses=_stack(outputs),
    )
    return traced, formed


def _stack(tensors: list[Tensor]) -> Array:
    result: Array = torch.stack(tensors).float().numpy()
    return result


def _shares(layer: CapsuleLayer, cast: Tensor, inputs: Inputs, state: RoutingState, field: Field) -> Tensor:
    """Each vote's part in the pose, from the slope of the pose's length by the vote.

    For a weighted mean that is c_i v_i·μ / μ·μ; by the slope it holds for any aggregation, whatever it weighs by.
    """
    with torch.enable_grad():
        moved = cast.detach().requires_grad_()
        poses, _ = layer.routing.aggregation(moved, inputs, state.coupling, state.memory)
        (slope,) = torch.autograd.grad((poses * poses.detach()).sum(), moved)
    part = (slope * cast).sum(-1).clamp_min(0) * field.mask[:, :, None]
    total = part.sum(2, keepdim=True)
    # a pose of zero has no direction to add along: then what was listened to decides
    flat = state.coupling / state.coupling.sum(2, keepdim=True).clamp_min(torch.finfo(part.dtype).tiny)
    return torch.where(total > 0, part / total.clamp_min(torch.finfo(part.dtype).tiny), flat)
