"""The operator `capsroute::connectionist`: schema, fake, autograd, and the call into C++."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from capsroute.ops import native


def connectionist(
    poses: Tensor,
    logits: Tensor,
    weight: Tensor,
    offset: Tensor | None,
    index: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias: Tensor,
    score: Sequence[tuple[Tensor, Tensor]],
    iterations: int,
) -> tuple[Tensor, Tensor]:
    """Route the votes `weight @ poses + offset` of every window of `index` by an LSTM; no vote is ever stored.

    Shapes:
        poses [B, N, r_in, c], logits [B, N], weight [I, J, r_out, r_in], offset [I, r_out * c] or None,
        index [P, I] int32 with -1 for padding; of the LSTM, whose input is [mu, c, v, a] and whose gates come in the
        order of torch: weight_ih [4 U, 2 r_out c + 2], weight_hh [4 U, U], bias [4 U]
        -> poses [B, P, J, r_out, c], summary [B, P, J, U], the coupled cell states

    Args:
        score: weight and bias of each layer of f, which scores a vote from its hidden state; ReLU between them.
    """
    widths = [layer_weight.shape[0] for layer_weight, _ in score[:-1]]
    parameters = torch.cat([tensor.flatten() for layer in score for tensor in layer])
    out, summary, _ = connectionist_forward(
        poses, torch.sigmoid(logits), weight, offset, index, weight_ih, weight_hh, bias, parameters, widths, iterations
    )
    return out, summary


@torch.library.custom_op("capsroute::connectionist", mutates_args=(), device_types="cpu")
def connectionist_forward(
    poses: Tensor,
    activations: Tensor,
    weight: Tensor,
    offset: Tensor | None,
    index: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias: Tensor,
    score: Tensor,
    widths: Sequence[int],
    iterations: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return poses, summary and the trail: the mean that each iteration started from.

    `score` has weight and bias of each layer of f, one after the other; `widths` are those of its hidden layers.
    """
    tensors = (poses, activations, weight, offset, index, weight_ih, weight_hh, bias, score)
    _check(*tensors, widths, iterations)
    kept = native.contiguous(*tensors)
    layers = torch.tensor(widths, dtype=torch.int64)
    outputs = _empty_outputs(poses, weight, index, weight_hh, iterations)
    native.call(
        native.library("connectionist").capsroute_connectionist_forward,
        native.geometry(poses, weight, index),
        native.words(*kept, layers, len(widths), weight_hh.shape[1], iterations, _bfloat16()),
        native.words(*outputs),
    )
    return outputs


@connectionist_forward.register_fake
def _(
    poses: Tensor,
    activations: Tensor,
    weight: Tensor,
    offset: Tensor | None,
    index: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias: Tensor,
    score: Tensor,
    widths: Sequence[int],
    iterations: int,
) -> tuple[Tensor, Tensor, Tensor]:
    return _empty_outputs(poses, weight, index, weight_hh, iterations)


@torch.library.custom_op("capsroute::connectionist_backward", mutates_args=(), device_types="cpu")
def connectionist_backward(
    grad_poses: Tensor,
    grad_summary: Tensor,
    trail: Tensor,
    poses: Tensor,
    activations: Tensor,
    weight: Tensor,
    offset: Tensor | None,
    index: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias: Tensor,
    score: Tensor,
    widths: Sequence[int],
    iterations: int,
) -> list[Tensor]:
    """Return the gradients of all float inputs in their order; that of an absent offset is empty."""
    kept = native.contiguous(poses, activations, weight, offset, index, weight_ih, weight_hh, bias, score)
    saved = native.contiguous(grad_poses, grad_summary, trail)
    layers = torch.tensor(widths, dtype=torch.int64)
    grads = native.empty_gradients(poses, activations, weight, offset, weight_ih, weight_hh, bias, score)
    native.call(
        native.library("connectionist").capsroute_connectionist_backward,
        native.geometry(poses, weight, index),
        native.words(*kept, layers, len(widths), weight_hh.shape[1], iterations, _bfloat16()),
        native.words(None, None, saved[2]),
        native.words(*saved[:2], *grads),
    )
    return grads


@connectionist_backward.register_fake
def _(
    grad_poses: Tensor,
    grad_summary: Tensor,
    trail: Tensor,
    poses: Tensor,
    activations: Tensor,
    weight: Tensor,
    offset: Tensor | None,
    index: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias: Tensor,
    score: Tensor,
    widths: Sequence[int],
    iterations: int,
) -> list[Tensor]:
    return native.empty_gradients(poses, activations, weight, offset, weight_ih, weight_hh, bias, score)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    tensors, ctx.options = inputs[:9], inputs[9:]
    ctx.mark_non_differentiable(output[2])
    ctx.set_materialize_grads(False)  # no zeros for the trail
    ctx.save_for_backward(output[2], *tensors)


def _autograd(ctx: Any, grad_poses: Tensor | None, grad_summary: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
    trail, *inputs = ctx.saved_tensors
    poses, _, weight, offset, _, _, weight_hh, *_ = inputs
    if grad_poses is None:
        grad_poses = trail.new_zeros(*trail.shape[:3], weight.shape[2], poses.shape[3])
    if grad_summary is None:
        grad_summary = trail.new_zeros(*trail.shape[:3], weight_hh.shape[1])
    grads = connectionist_backward(grad_poses, grad_summary, trail, *inputs, *ctx.options)
    of_poses, of_activations, of_weight, of_offset, *of_parameters = grads
    of_offset_or_none = None if offset is None else of_offset
    return of_poses, of_activations, of_weight, of_offset_or_none, None, *of_parameters, None, None


connectionist_forward.register_autograd(_autograd, setup_context=_setup_context)


def _bfloat16() -> bool:
    """Whether matrix products round their operands: torch's own switch allows it, and the processor gains by it."""
    if torch.get_float32_matmul_precision() != "medium":
        return False
    has_instructions: int = native.library("connectionist").capsroute_connectionist_has_bfloat16()
    return bool(has_instructions) or os.environ.get("CAPSROUTE_BFLOAT16") == "emulate"


def _empty_outputs(
    poses: Tensor, weight: Tensor, index: Tensor, weight_hh: Tensor, iterations: int
) -> tuple[Tensor, Tensor, Tensor]:
    shape = (poses.shape[0], index.shape[0], weight.shape[1])
    return (
        poses.new_empty(*shape, weight.shape[2], poses.shape[3]),
        poses.new_empty(*shape, weight_hh.shape[1]),
        poses.new_empty(*shape, iterations, weight.shape[2] * poses.shape[3]),
    )


def _check(
    poses: Tensor,
    activations: Tensor,
    weight: Tensor,
    offset: Tensor | None,
    index: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias: Tensor,
    score: Tensor,
    widths: Sequence[int],
    iterations: int,
) -> None:
    native.check(poses, activations, weight, offset, index)
    units, pose_size = weight_hh.shape[-1], weight.shape[2] * poses.shape[3]
    count, inputs = 0, units
    for width in (*widths, 1):
        count, inputs = count + width * (inputs + 1), width
    expected = {
        "weight_ih": (weight_ih, (4 * units, 2 * pose_size + 2)),
        "weight_hh": (weight_hh, (4 * units, units)),
        "bias": (bias, (4 * units,)),
        "score": (score, (count,)),
    }
    for name, (tensor, shape) in expected.items():
        if tensor.shape != shape or tensor.dtype != torch.float32:
            raise ValueError(f"{name} is {tuple(tensor.shape)} {tensor.dtype}; expected {shape} torch.float32")
    if iterations < 1 or min(units, *widths, 1) < 1:
        raise ValueError(f"iterations={iterations}, {units} units, layers of {list(widths)}: all must be at least 1")
