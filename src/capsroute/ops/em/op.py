"""The operator `capsroute::em`: schema, fake, autograd, and the call into C++."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from capsroute.ops import native


def em(
    poses: Tensor,
    logits: Tensor,
    weight: Tensor,
    offset: Tensor | None,
    index: Tensor,
    beta_use: Tensor,
    beta_activate: Tensor,
    scales: Sequence[float],
    parents: bool,
    min_variance: float,
    prior: Sequence[float] = (),
) -> tuple[Tensor, Tensor]:
    """Route the votes `weight @ poses + offset` of every window of `index` by EM; no vote is ever stored.

    Shapes:
        poses [B, N, r_in, c], logits [B, N], weight [I, J, r_out, r_in], offset [I, r_out * c] or None,
        index [P, I] int32 with -1 for padding, betas [J]
        -> poses [B, P, J, r_out, c], logits [B, P, J]

    Args:
        scales: the inverse temperature of each M-step, and so their number; the first has flat couplings.
        parents: whether a child's couplings compete over all its parents, or else over the output types of each window.
        prior: alpha, kappa, scatter and degrees of variational routing, whose beta is `beta_activate` and which has no
            use for the other nor for the scales, but for their number; nothing for EM.
    """
    out, out_logits, _, _ = em_forward(
        poses, logits, weight, offset, index, beta_use, beta_activate, scales, parents, min_variance, prior
    )
    return out, out_logits


@torch.library.custom_op("capsroute::em", mutates_args=(), device_types="cpu")
def em_forward(
    poses: Tensor,
    logits: Tensor,
    weight: Tensor,
    offset: Tensor | None,
    index: Tensor,
    beta_use: Tensor,
    beta_activate: Tensor,
    scales: Sequence[float],
    parents: bool,
    min_variance: float,
    prior: Sequence[float],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return poses, logits, the moments of each M-step and the softmax of each E-step: what backward starts from."""
    _check(poses, logits, weight, offset, index, beta_use, beta_activate, scales, prior)
    kept = native.contiguous(poses, logits, weight, offset, index, beta_use, beta_activate)
    constants, priors = _constants(min_variance, scales, prior)
    outputs = _empty_outputs(poses, weight, index, len(scales), prior)
    native.call(
        native.library("em").capsroute_em_forward,
        native.geometry(poses, weight, index),
        native.words(*kept, constants, len(scales), int(parents), priors),
        native.words(*outputs),
    )
    return outputs


@em_forward.register_fake
def _(
    poses: Tensor, logits: Tensor, weight: Tensor, offset: Tensor | None, index: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _empty_outputs(poses, weight, index, len(rest[2]), rest[5])


@torch.library.custom_op("capsroute::em_backward", mutates_args=(), device_types="cpu")
def em_backward(
    grad_poses: Tensor,
    grad_logits: Tensor,
    trail: Tensor,
    shares: Tensor,
    poses: Tensor,
    logits: Tensor,
    weight: Tensor,
    offset: Tensor | None,
    index: Tensor,
    beta_use: Tensor,
    beta_activate: Tensor,
    scales: Sequence[float],
    parents: bool,
    min_variance: float,
    prior: Sequence[float],
) -> list[Tensor]:
    """Return the gradients of all float inputs in their order; that of an absent offset is empty."""
    kept = native.contiguous(poses, logits, weight, offset, index, beta_use, beta_activate)
    saved = native.contiguous(grad_poses, grad_logits, trail, shares)
    constants, priors = _constants(min_variance, scales, prior)
    grads = native.empty_gradients(poses, logits, weight, offset, beta_use, beta_activate)
    native.call(
        native.library("em").capsroute_em_backward,
        native.geometry(poses, weight, index),
        native.words(*kept, constants, len(scales), int(parents), priors),
        native.words(None, None, *saved[2:]),
        native.words(*saved[:2], *grads),
    )
    return grads


@em_backward.register_fake
def _(
    grad_poses: Tensor,
    grad_logits: Tensor,
    trail: Tensor,
    shares: Tensor,
    poses: Tensor,
    logits: Tensor,
    weight: Tensor,
    offset: Tensor | None,
    index: Tensor,
    beta_use: Tensor,
    beta_activate: Tensor,
    *rest: Any,
) -> list[Tensor]:
    return native.empty_gradients(poses, logits, weight, offset, beta_use, beta_activate)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    tensors, ctx.options = inputs[:7], inputs[7:]
    ctx.mark_non_differentiable(*output[2:])
    ctx.set_materialize_grads(False)  # zeros for the trail would be the largest tensor of the step
    ctx.save_for_backward(*output[2:], *tensors)


def _autograd(ctx: Any, grad_poses: Tensor | None, grad_logits: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    trail, shares, *inputs = ctx.saved_tensors
    poses, _, weight, offset, index, *_ = inputs
    grad_poses, grad_logits = native.given_gradients(grad_poses, grad_logits, poses, weight, index)
    grads = em_backward(grad_poses, grad_logits, trail, shares, *inputs, *ctx.options)
    of_poses, of_logits, of_weight, of_offset, of_use, of_activate = grads
    return of_poses, of_logits, of_weight, None if offset is None else of_offset, None, of_use, of_activate, *[None] * 4


em_forward.register_autograd(_autograd, setup_context=_setup_context)


def _constants(min_variance: float, scales: Sequence[float], prior: Sequence[float]) -> tuple[Tensor, Tensor | None]:
    constants = torch.tensor([min_variance, *scales], dtype=torch.float32)
    return constants, torch.tensor(prior, dtype=torch.float32) if prior else None


def _empty_outputs(
    poses: Tensor, weight: Tensor, index: Tensor, steps: int, prior: Sequence[float]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    out, logits = native.empty_outputs(poses, weight, index)
    return (
        out,
        logits,
        poses.new_empty(*logits.shape, steps, (4 if prior else 2) * weight.shape[2] * poses.shape[3] + 3),
        poses.new_empty(poses.shape[0], steps - 1, index.shape[0], 2, weight.shape[0]),
    )


def _check(
    poses: Tensor,
    logits: Tensor,
    weight: Tensor,
    offset: Tensor | None,
    index: Tensor,
    beta_use: Tensor,
    beta_activate: Tensor,
    scales: Sequence[float],
    prior: Sequence[float],
) -> None:
    native.check(poses, logits, weight, offset, index)
    outputs = weight.shape[1]
    for name, tensor in (("beta_use", beta_use), ("beta_activate", beta_activate)):
        if tensor.shape != (outputs,) or tensor.dtype != torch.float32:
            raise ValueError(f"{name} is {tuple(tensor.shape)} {tensor.dtype}; expected {(outputs,)} torch.float32")
    if not scales:
        raise ValueError("scales is empty; pass the inverse temperature of each M-step, of at least one")
    size = weight.shape[2] * poses.shape[3]
    if prior and (len(prior) != 4 or min(prior) <= 0 or prior[3] <= size - 1):
        raise ValueError(
            f"prior is {list(prior)}; expected alpha, kappa, scatter and degrees, all above 0, degrees above {size - 1}"
        )
