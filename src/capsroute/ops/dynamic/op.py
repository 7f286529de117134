"""The operator `capsroute::dynamic`: schema, fake, autograd, and the call into C++."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from capsroute.ops import native


def dynamic(
    poses: Tensor,
    weight: Tensor,
    offset: Tensor | None,
    index: Tensor,
    iterations: int,
    *,
    unit: bool = False,
    sharpness: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Route the votes `weight @ poses + offset` of every window of `index` by agreement; no vote is ever stored.

    Shapes:
        poses [B, N, r_in, c], weight [I, J, r_out, r_in], offset [I, r_out * c] or None,
        index [P, I] int32 with -1 for padding
        -> poses [B, P, J, r_out, c], logits [B, P, J]

    Args:
        iterations: how often capsules are formed, the first time from flat couplings.
        unit: scores are agreements with the direction of the pose, or else with the sum of all poses so far.
        sharpness: what scores are multiplied by.
    """
    out, out_logits, _ = dynamic_forward(poses, weight, offset, index, iterations, unit, sharpness)
    return out, out_logits


@torch.library.custom_op("capsroute::dynamic", mutates_args=(), device_types="cpu")
def dynamic_forward(
    poses: Tensor,
    weight: Tensor,
    offset: Tensor | None,
    index: Tensor,
    iterations: int,
    unit: bool,
    sharpness: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return poses, logits and the trail: the sums before they were squashed, and the squared length of the last."""
    native.check(poses, poses[..., 0, 0], weight, offset, index)
    if iterations < 1:
        raise ValueError(f"iterations={iterations}: capsules are formed at least once")
    kept = native.contiguous(poses, weight, offset, index)
    factor = torch.tensor([sharpness], dtype=torch.float32)
    outputs = _empty_outputs(poses, weight, index, iterations)
    native.call(
        native.library("dynamic").capsroute_dynamic_forward,
        native.geometry(poses, weight, index),
        native.words(*kept, factor, iterations, int(unit)),
        native.words(*outputs),
    )
    return outputs


@dynamic_forward.register_fake
def _(
    poses: Tensor, weight: Tensor, offset: Tensor | None, index: Tensor, iterations: int, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return _empty_outputs(poses, weight, index, iterations)


@torch.library.custom_op("capsroute::dynamic_backward", mutates_args=(), device_types="cpu")
def dynamic_backward(
    grad_poses: Tensor,
    grad_logits: Tensor,
    out_poses: Tensor,
    trail: Tensor,
    poses: Tensor,
    weight: Tensor,
    offset: Tensor | None,
    index: Tensor,
    iterations: int,
    unit: bool,
    sharpness: float,
) -> list[Tensor]:
    """Return the gradients of all float inputs in their order; that of an absent offset is empty."""
    kept = native.contiguous(poses, weight, offset, index)
    grads_out = native.contiguous(grad_poses, grad_logits)
    saved = native.contiguous(out_poses, trail)
    factor = torch.tensor([sharpness], dtype=torch.float32)
    grads = native.empty_gradients(poses, weight, offset)
    native.call(
        native.library("dynamic").capsroute_dynamic_backward,
        native.geometry(poses, weight, index),
        native.words(*kept, factor, iterations, int(unit)),
        native.words(saved[0], None, saved[1]),
        native.words(*grads_out, *grads),
    )
    return grads


@dynamic_backward.register_fake
def _(
    grad_poses: Tensor,
    grad_logits: Tensor,
    out_poses: Tensor,
    trail: Tensor,
    poses: Tensor,
    weight: Tensor,
    offset: Tensor | None,
    *rest: Any,
) -> list[Tensor]:
    return native.empty_gradients(poses, weight, offset)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    tensors, ctx.options = inputs[:4], inputs[4:]
    ctx.mark_non_differentiable(output[2])
    ctx.set_materialize_grads(False)  # zeros for the trail would be the largest tensor of the step
    ctx.save_for_backward(output[0], output[2], *tensors)


def _autograd(ctx: Any, grad_poses: Tensor | None, grad_logits: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
    out_poses, trail, poses, weight, offset, index = ctx.saved_tensors
    grad_poses, grad_logits = native.given_gradients(grad_poses, grad_logits, poses, weight, index)
    grads = dynamic_backward(grad_poses, grad_logits, out_poses, trail, poses, weight, offset, index, *ctx.options)
    return grads[0], grads[1], None if offset is None else grads[2], *[None] * 4


dynamic_forward.register_autograd(_autograd, setup_context=_setup_context)


def _empty_outputs(poses: Tensor, weight: Tensor, index: Tensor, iterations: int) -> tuple[Tensor, Tensor, Tensor]:
    out, logits = native.empty_outputs(poses, weight, index)
    return out, logits, poses.new_empty(*logits.shape, (iterations - 1) * weight.shape[2] * poses.shape[3] + 1)
