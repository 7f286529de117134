"""Capsule layers: which inputs (geometry), what they vote (votes), how they agree (routing)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from capsroute import ops
from capsroute.capsules import Capsules, entering_logits
from capsroute.geometry import Field, convolution_field, dense_field, output_space, per_axis
from capsroute.routing import LayerShape, Routing, RoutingFactory, RoutingState, resolve
from capsroute.routing.algorithm import Inputs
from capsroute.routing.dynamic import squash
from capsroute.routing.tiling import DEFAULT_BUDGET, route
from capsroute.votes import Start, coordinates, matrices, start, votes

Fused = Literal["auto", True, False]
PoseShape = tuple[int, int]


def pose_shape(pose: int | Sequence[int], name: str = "pose") -> PoseShape:
    """`(rows, columns)`; a whole number is the length of a vector pose."""
    shape = (pose, 1) if isinstance(pose, int) else tuple(pose)
    if len(shape) != 2 or any(not isinstance(n, int) or n < 1 for n in shape):
        raise ValueError(f"{name}={pose!r}: pass (rows, columns), such as (4, 4), or the length of a vector")
    return shape[0], shape[1]


class CapsuleLayer(nn.Module):
    """Votes by learned matrices, then routing; subclasses say where each output capsule looks.

    Args:
        taps: positions of the window; with `in_channels` types each, they are the `I` inputs of an output capsule.
        in_channels, out_channels: capsule types.
        routing: a name, the result of a constructor such as `capsroute.routing.em()`, or a `Routing` of one's own.
        pose: shape of the input poses; `out_pose` that of the output poses, which have as many columns.
        normalise: divide each matrix by its Frobenius norm (eq. 1).
        weight_start: `identity` (plus noise), `noise`, or `small` noise.
        shared: one matrix for each pair of types, whatever the position in the window.
        fused: `auto` uses a fused operator where there is one, True insists on it, False never does.
        vote_budget: how many bytes of votes the layer may hold where no operator is used; None for no limit.
    """

    def __init__(
        self,
        taps: int,
        in_channels: int,
        out_channels: int,
        *,
        routing: str | Routing | RoutingFactory = "similarity",
        pose: int | Sequence[int] = (4, 4),
        out_pose: int | Sequence[int] | None = None,
        normalise: bool = True,
        weight_start: Start = "identity",
        shared: bool = False,
        fused: Fused = "auto",
        vote_budget: int | None = DEFAULT_BUDGET,
    ) -> None:
        super().__init__()
        if in_channels < 1 or out_channels < 1:
            raise ValueError(f"{in_channels} input and {out_channels} output types: a layer needs at least one of each")
        if fused not in ("auto", True, False):
            raise ValueError(f"fused={fused!r}: choose 'auto', True or False")
        if vote_budget is not None and vote_budget < 1:
            raise ValueError(f"vote_budget={vote_budget}: pass a number of bytes, or None for no limit")
        self.in_channels, self.out_channels, self.taps = in_channels, out_channels, taps
        self.pose = pose_shape(pose)
        self.out_pose = self.pose if out_pose is None else pose_shape(out_pose, "out_pose")
        if self.out_pose[1] != self.pose[1]:
            raise ValueError(
                f"out_pose={self.out_pose}: W P has as many columns as the input poses {self.pose}; change the rows"
            )
        self.normalise = normalise
        self.shared = shared
        self.fused: Fused = fused
        self.vote_budget = vote_budget
        self.weight = nn.Parameter(
            torch.empty((1 if shared else taps) * in_channels, out_channels, self.out_pose[0], self.pose[0])
        )
        start(self.weight, weight_start)
        self.routing = resolve(routing, LayerShape(taps * in_channels, out_channels, self.out_pose))

    def _look(self, space: tuple[int, ...], device: torch.device) -> tuple[tuple[int, ...], Field]:
        """The output space, and the receptive field of each of its positions."""
        raise NotImplementedError

    def _dimensions(self) -> int:
        raise NotImplementedError

    def _offset(self) -> Tensor | None:
        return None

    def forward(self, caps: Capsules, scale: Float[Tensor, " C"] | None = None) -> Capsules:
        """The output capsules, `[B, *S, J, r, c]`; input poses count `scale` times, for each type its own."""
        poses, logits, out, field = self._enter(caps)
        matrices = (
            self._matrices() if scale is None else self._matrices() * scale.repeat(self.taps)[:, None, None, None]
        )
        operator = self._operator(poses)
        if operator is not None:
            new_poses, new_logits = operator(
                self.routing, poses.float(), logits.float(), matrices.float(), self._offset(), field.index
            )
        else:
            new_poses, new_logits = route(
                self.routing, poses, logits, matrices, self._offset(), field, self.vote_budget
            )
        shape = (len(poses), *out, self.out_channels)
        return Capsules.from_logits(new_poses.reshape(*shape, *self.out_pose), new_logits.reshape(shape))

    def _operator(self, poses: Tensor) -> ops.Operator | None:
        if self.fused is False:
            return None
        # operators compute in float32; autocast's halves are widened for them
        dtype = torch.float32 if poses.dtype in (torch.bfloat16, torch.float16) else poses.dtype
        size = max(self.pose[0], self.out_pose[0]) * self.pose[1]
        operator = ops.find(self.routing, dtype, poses.device, size)
        if operator is None and self.fused is True:
            raise ValueError(
                f"fused=True, but {ops.why_not(self.routing, dtype, poses.device, size)}; use fused='auto'"
            )
        return operator

    def trace(self, caps: Capsules) -> Iterator[RoutingState]:
        """Watch Algorithm 1: every state of the routing, couplings `[B, *S, I, J]`, poses `[B, *S, J, r, c]`."""
        poses, logits, out, field = self._enter(caps)
        cast = votes(field.gather(poses), self._matrices(), self._offset())
        for state in self.routing.steps(cast, Inputs(field.gather(logits), field.mask), field):
            yield RoutingState(
                state.coupling.unflatten(1, out) if out else state.coupling.squeeze(1),
                state.poses.reshape(len(poses), *out, self.out_channels, *self.out_pose),
                state.logits.reshape(len(poses), *out, self.out_channels),
                state.memory,
            )

    def _matrices(self) -> Float[Tensor, "I J r k"]:
        weight = matrices(self.weight, self.normalise)
        return weight.repeat(self.taps, 1, 1, 1) if self.shared else weight

    def _enter(self, caps: Capsules) -> tuple[Tensor, Tensor, tuple[int, ...], Field]:
        poses, activations, logits = caps
        self._check_shapes(poses, activations)
        if logits is None:
            if not torch.compiler.is_compiling():
                check_activations(activations)
            logits = entering_logits(activations)
        space = tuple(poses.shape[1:-3])
        out, field = self._look(space, poses.device)
        flat = (len(poses), field.num_inputs)
        return poses.reshape(*flat, *self.pose), logits.reshape(flat), out, field

    def _check_shapes(self, poses: Tensor, activations: Tensor) -> None:
        if poses.dim() != self._dimensions() + 4:
            raise ValueError(
                f"poses have shape {list(poses.shape)}; this layer takes [batch, {self._dimensions()} spatial axes, "
                f"types, rows, columns], {self._dimensions() + 4} axes"
            )
        if poses.shape[-3] != self.in_channels:
            raise ValueError(
                f"input has {poses.shape[-3]} capsule types, the layer was built for {self.in_channels}; "
                f"pass in_channels={poses.shape[-3]}"
            )
        if tuple(poses.shape[-2:]) != self.pose:
            raise ValueError(
                f"poses are {poses.shape[-2]} x {poses.shape[-1]}, the layer was built for {self.pose[0]} x "
                f"{self.pose[1]}; pass pose=({poses.shape[-2]}, {poses.shape[-1]})"
            )
        if activations.shape != poses.shape[:-2]:
            raise ValueError(
                f"activations have shape {list(activations.shape)}, poses ask for {list(poses.shape[:-2])}: "
                f"one activation for each capsule"
            )

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, pose={self.pose}, out_pose={self.out_pose}"


def check_activations(activations: Tensor) -> None:
    """Complain about activations that are no probabilities."""
    if activations.numel() == 0:
        return
    low, high = activations.aminmax()
    if not (low >= 0 and high <= 1):
        wrong = activations[~((activations >= 0) & (activations <= 1))].flatten()[0].item()
        raise ValueError(f"an activation is {wrong}; activations lie between 0 and 1 (pass logits for anything else)")


class _ConvCapsules(CapsuleLayer):
    _dims: int

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        *,
        routing: str | Routing | RoutingFactory = "similarity",
        pose: int | Sequence[int] = (4, 4),
        out_pose: int | Sequence[int] | None = None,
        normalise: bool = True,
        weight_start: Start = "identity",
        fused: Fused = "auto",
        vote_budget: int | None = DEFAULT_BUDGET,
    ) -> None:
        kernel = per_axis(kernel_size, self._dims, "kernel_size", 1)
        taps = 1
        for size in kernel:
            taps *= size
        super().__init__(
            taps,
            in_channels,
            out_channels,
            routing=routing,
            pose=pose,
            out_pose=out_pose,
            normalise=normalise,
            weight_start=weight_start,
            fused=fused,
            vote_budget=vote_budget,
        )
        self.kernel_size = kernel
        self.stride = per_axis(stride, self._dims, "stride", 1)
        self.padding = per_axis(padding, self._dims, "padding", 0)
        self.dilation = per_axis(dilation, self._dims, "dilation", 1)

    def _dimensions(self) -> int:
        return self._dims

    def output_space(self, space: tuple[int, ...]) -> tuple[int, ...]:
        """The size of the output for an input of size `space`."""
        return output_space(space, self.kernel_size, self.stride, self.padding, self.dilation)

    def _look(self, space: tuple[int, ...], device: torch.device) -> tuple[tuple[int, ...], Field]:
        field = convolution_field(
            space, self.in_channels, self.kernel_size, self.stride, self.padding, self.dilation, device
        )
        return self.output_space(space), field

    def extra_repr(self) -> str:
        return (
            f"{super().extra_repr()}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"padding={self.padding}, dilation={self.dilation}"
        )


class ConvCapsules1d(_ConvCapsules):
    """Convolutional routing in one dimension: `[B, L, C, r, c] -> [B, L', J, r', c]`."""

    _dims = 1


class ConvCapsules2d(_ConvCapsules):
    """Convolutional routing in two dimensions: `[B, H, W, C, r, c] -> [B, H', W', J, r', c]`."""

    _dims = 2


class ConvCapsules3d(_ConvCapsules):
    """Convolutional routing in three dimensions: `[B, D, H, W, C, r, c] -> [B, D', H', W', J, r', c]`."""

    _dims = 3


class DenseCapsules(CapsuleLayer):
    """Every output capsule listens to every input capsule: `[B, *space, C, r, c] -> [B, J, r', c]`.

    Args:
        space: the size of the input's space, nothing for a dense layer before this one. It is fixed, since each input
            has matrices of its own, unless they are `shared` between positions.
        coordinate_addition: add each position to two (in general, `len(space)`) elements of its votes, so that sharing
            matrices does not lose where a capsule is (Hinton et al. 2018); positions run from 0 to 1, or to the number
            given.
    """

    coordinates: Tensor | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        space: int | Sequence[int] = (),
        coordinate_addition: bool | float = False,
        shared: bool = False,
        routing: str | Routing | RoutingFactory = "similarity",
        pose: int | Sequence[int] = (4, 4),
        out_pose: int | Sequence[int] | None = None,
        normalise: bool = True,
        weight_start: Start = "identity",
        fused: Fused = "auto",
        vote_budget: int | None = DEFAULT_BUDGET,
    ) -> None:
        sizes = (space,) if isinstance(space, int) else tuple(space)
        sizes = per_axis(sizes, len(sizes), "space", 1)
        taps = 1
        for size in sizes:
            taps *= size
        super().__init__(
            taps,
            in_channels,
            out_channels,
            routing=routing,
            pose=pose,
            out_pose=out_pose,
            normalise=normalise,
            weight_start=weight_start,
            shared=shared,
            fused=fused,
            vote_budget=vote_budget,
        )
        self.space = sizes
        where = None
        if coordinate_addition:
            where = coordinate_addition * coordinates(sizes, self.out_pose).repeat_interleave(in_channels, dim=0)
        self.register_buffer("coordinates", where, persistent=False)

    def _dimensions(self) -> int:
        return len(self.space)

    def _offset(self) -> Tensor | None:
        return self.coordinates

    def _look(self, space: tuple[int, ...], device: torch.device) -> tuple[tuple[int, ...], Field]:
        if space != self.space:
            raise ValueError(
                f"input covers {list(space)}, the layer was built for {list(self.space)}; pass space={space}"
            )
        return (), dense_field(space, self.in_channels, device)


class PrimaryCapsules(nn.Module):
    """The first capsules, read off feature maps by a convolution: `[B, F, *S] -> [B, *S', C, r, c]`.

    One convolution gives each type r c feature maps for its pose, another one map for its logit; with `squash` the
    length of the squashed pose is the activation (Sabour et al. 2017).
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int = 1,
        stride: int = 1,
        padding: int = 0,
        *,
        pose: int | Sequence[int] = (4, 4),
        dimensions: int = 2,
        squash: bool = False,
    ) -> None:
        super().__init__()
        convolutions = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
        if dimensions not in convolutions:
            raise ValueError(f"dimensions={dimensions}: feature maps have 1, 2 or 3")
        self.pose = pose_shape(pose)
        self.out_channels, self.dimensions, self.squash = out_channels, dimensions, squash
        kind, window = convolutions[dimensions], (kernel_size, stride, padding)
        self.poses = kind(in_channels, out_channels * self.pose[0] * self.pose[1], *window)
        self.logits = None if squash else kind(in_channels, out_channels, *window)

    def forward(self, features: Float[Tensor, "B F *S"]) -> Capsules:
        """Channels last, as capsule layers want them."""
        if features.dim() != self.dimensions + 2 or features.shape[1] != self.poses.in_channels:
            raise ValueError(
                f"feature maps have shape {list(features.shape)}; expected [batch, {self.poses.in_channels}, "
                f"{self.dimensions} spatial axes]"
            )
        flat = self.poses(features).movedim(1, -1).unflatten(-1, (self.out_channels, -1))
        if self.logits is not None:
            return Capsules.from_logits(flat.unflatten(-1, self.pose), self.logits(features).movedim(1, -1))
        squared_length = flat.square().sum(-1)
        poses = squash(flat, squared_length).unflatten(-1, self.pose)
        return Capsules.from_logits(poses, torch.log(squared_length + 1e-12))
