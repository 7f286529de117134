"""The operator `capsroute::similarity`: schema, fake, autograd, and the call into C++."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from capsroute.ops import native

_PARAMETERS = ("lambda1", "lambda2", "beta1", "beta2", "beta3")


def similarity(
    poses: Tensor,
    logits: Tensor,
    weight: Tensor,
    offset: Tensor | None,
    index: Tensor,
    lambda1: Tensor,
    lambda2: Tensor,
    beta1: Tensor,
    beta2: Tensor,
    beta3: Tensor,
    heights: Tensor,
    widths: Tensor,
    iterations: int,
) -> tuple[Tensor, Tensor]:
    """Route the votes `weight @ poses + offset` of every window of `index` by similarity; no vote is ever stored.

    Shapes:
        poses [B, N, r_in, c], logits [B, N], weight [I, J, r_out, r_in], offset [I, r_out * c] or None,
        index [P, I] int32 with -1 for padding, lambdas and betas [J], heights and widths [J or 1, Q]
        -> poses [B, P, J, r_out, c], logits [B, P, J]
    """
    log_activations = functional.logsigmoid(logits)
    out, out_logits, _ = similarity_forward(
        poses,
        log_activations,
        weight,
        offset,
        index,
        lambda1,
        lambda2,
        beta1,
        beta2,
        beta3,
        heights,
        widths,
        iterations,
    )
    return out, out_logits


@torch.library.custom_op("capsroute::similarity", mutates_args=(), device_types="cpu")
def similarity_forward(
    poses: Tensor,
    log_activations: Tensor,
    weight: Tensor,
    offset: Tensor | None,
    index: Tensor,
    lambda1: Tensor,
    lambda2: Tensor,
    beta1: Tensor,
    beta2: Tensor,
    beta3: Tensor,
    heights: Tensor,
    widths: Tensor,
    iterations: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return poses, logits and the trail: the means that each iteration started from, which backward needs."""
    inputs = (poses, log_activations, weight, offset, index, lambda1, lambda2, beta1, beta2, beta3, heights, widths)
    _check(*inputs, iterations)
    kept = native.contiguous(*inputs)
    outputs = _empty_outputs(poses, weight, index, iterations)
    native.call(
        native.library("similarity").capsroute_similarity_forward,
        native.geometry(poses, weight, index),
        native.words(*kept, iterations, heights.shape[1], heights.shape[0]),
        native.words(*outputs),
    )
    return outputs


@similarity_forward.register_fake
def _(
    poses: Tensor, log_activations: Tensor, weight: Tensor, offset: Tensor | None, index: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return _empty_outputs(poses, weight, index, rest[-1])


@torch.library.custom_op("capsroute::similarity_backward", mutates_args=(), device_types="cpu")
def similarity_backward(
    grad_poses: Tensor,
    grad_logits: Tensor,
    out_poses: Tensor,
    trail: Tensor,
    poses: Tensor,
    log_activations: Tensor,
    weight: Tensor,
    offset: Tensor | None,
    index: Tensor,
    lambda1: Tensor,
    lambda2: Tensor,
    beta1: Tensor,
    beta2: Tensor,
    beta3: Tensor,
    heights: Tensor,
    widths: Tensor,
    iterations: int,
) -> list[Tensor]:
    """Return the gradients of all float inputs in their order; that of an absent offset is empty."""
    inputs = (poses, log_activations, weight, offset, index, lambda1, lambda2, beta1, beta2, beta3, heights, widths)
    kept = native.contiguous(*inputs)
    given = native.contiguous(grad_poses, grad_logits, out_poses, trail)
    grads = native.empty_gradients(*inputs[:4], *inputs[5:])
    native.call(
        native.library("similarity").capsroute_similarity_backward,
        native.geometry(poses, weight, index),
        native.words(*kept, iterations, heights.shape[1], heights.shape[0]),
        native.words(given[2], None, given[3]),
        native.words(*given[:2], *grads),
    )
    return grads


@similarity_backward.register_fake
def _(
    grad_poses: Tensor, grad_logits: Tensor, out_poses: Tensor, trail: Tensor, *inputs_and_iterations: Any
) -> list[Tensor]:
    return native.empty_gradients(*inputs_and_iterations[:4], *inputs_and_iterations[5:-1])


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    *tensors, ctx.iterations = inputs
    ctx.mark_non_differentiable(output[2])
    ctx.set_materialize_grads(False)  # zeros for the trail would be the largest tensor of the step
    ctx.save_for_backward(output[0], output[2], *tensors)


def _autograd(ctx: Any, grad_poses: Tensor | None, grad_logits: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
    out_poses, trail, *inputs = ctx.saved_tensors
    poses, _, weight, _, index, *_ = inputs
    grad_poses, grad_logits = native.given_gradients(grad_poses, grad_logits, poses, weight, index)
    grads = similarity_backward(grad_poses, grad_logits, out_poses, trail, *inputs, ctx.iterations)
    of_poses, of_log_activations, of_weight, of_offset, *of_parameters = grads
    return of_poses, of_log_activations, of_weight, None if inputs[3] is None else of_offset, None, *of_parameters, None


similarity_forward.register_autograd(_autograd, setup_context=_setup_context)


def _empty_outputs(poses: Tensor, weight: Tensor, index: Tensor, iterations: int) -> tuple[Tensor, Tensor, Tensor]:
    out, logits = native.empty_outputs(poses, weight, index)
    return out, logits, poses.new_empty(*logits.shape, iterations, weight.shape[2] * poses.shape[3])


def _check(
    poses: Tensor, log_activations: Tensor, weight: Tensor, offset: Tensor | None, index: Tensor, *rest: Any
) -> None:
    native.check(poses, log_activations, weight, offset, index)
    *scalars, heights, widths, iterations = rest
    outputs = weight.shape[1]
    for name, tensor in zip(_PARAMETERS, scalars, strict=True):
        if tensor.shape != (outputs,) or tensor.dtype != torch.float32:
            raise ValueError(f"{name} is {tuple(tensor.shape)} {tensor.dtype}; expected {(outputs,)} torch.float32")
    if heights.shape != widths.shape or heights.ndim != 2 or heights.shape[0] not in (1, outputs):
        raise ValueError(
            f"heights {tuple(heights.shape)} and widths {tuple(widths.shape)} must both be [1 or {outputs}, components]"
        )
    if iterations < 0:
        raise ValueError(f"iterations is {iterations}; it counts routing iterations and cannot be negative")
