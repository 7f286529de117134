"""How operators hand tensors to C++: structures of 64-bit words, and the checks that must come before."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import torch

from capsroute.ops import build

if TYPE_CHECKING:
    from torch import Tensor

MAX_POSE = 64


def words(*values: Tensor | int | None) -> ctypes.Array[ctypes.c_int64]:
    """Return a structure of integers and addresses, null for None. Tensors must be contiguous and outlive it."""
    fields = [value if isinstance(value, int) else 0 if value is None else value.data_ptr() for value in values]
    return (ctypes.c_int64 * len(fields))(*fields)


def geometry(poses: Tensor, weight: Tensor, index: Tensor) -> ctypes.Array[ctypes.c_int64]:
    """Return `Geometry` of common.hpp for poses [B, N, r_in, c], weight [I, J, r_out, r_in] and index [P, I]."""
    batch, inputs, rows_in, cols = poses.shape
    window, outputs, rows_out, _ = weight.shape
    return words(batch, inputs, index.shape[0], window, outputs, rows_out, rows_in, cols, torch.get_num_threads())


def check(poses: Tensor, logits: Tensor, weight: Tensor, offset: Tensor | None, index: Tensor) -> None:
    """Refuse shapes and types that C++ would read wrongly."""
    batch, inputs, rows_in, cols = poses.shape
    window, _, rows_out, inner = weight.shape
    if inner != rows_in or index.shape[-1] != window or logits.shape != (batch, inputs):
        raise ValueError(
            f"poses {tuple(poses.shape)}, logits {tuple(logits.shape)}, weight {tuple(weight.shape)} and index "
            f"{tuple(index.shape)} do not fit; expected [B, N, r_in, c], [B, N], [I, J, r_out, r_in] and [P, I]"
        )
    if offset is not None and offset.shape != (window, rows_out * cols):
        raise ValueError(f"offset is {tuple(offset.shape)}; expected {(window, rows_out * cols)}")
    if max(rows_in, rows_out) * cols > MAX_POSE:
        raise ValueError(f"poses have {max(rows_in, rows_out) * cols} elements; fused operators take up to {MAX_POSE}")
    if index.dtype != torch.int32:
        raise ValueError(f"index is {index.dtype}; expected torch.int32")
    for tensor in (poses, logits, weight, *(() if offset is None else (offset,))):
        if tensor.dtype != torch.float32:
            raise ValueError(f"fused operators take torch.float32, not {tensor.dtype}")


def library(name: str) -> ctypes.CDLL:
    """Return the compiled operator; there being none is an error by now, since a layer looks before it calls."""
    found = build.load(name)
    if found is None:
        raise build.BuildError(build.reason(name))
    return found


def contiguous(*tensors: Tensor | None) -> list[Tensor | None]:
    """Return what C++ can read of each tensor: itself, or a copy to keep until the call returns."""
    return [None if tensor is None else tensor.contiguous() for tensor in tensors]


def empty_outputs(poses: Tensor, weight: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """Return poses [B, P, J, r_out, c] and logits [B, P, J] to be filled."""
    shape = (poses.shape[0], index.shape[0], weight.shape[1])
    return poses.new_empty(*shape, weight.shape[2], poses.shape[3]), poses.new_empty(shape)


def given_gradients(
    grad_poses: Tensor | None, grad_logits: Tensor | None, poses: Tensor, weight: Tensor, index: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradients of both outputs, zero for one that nothing depends on."""
    shape = (poses.shape[0], index.shape[0], weight.shape[1])
    if grad_poses is None:
        grad_poses = poses.new_zeros(*shape, weight.shape[2], poses.shape[3])
    if grad_logits is None:
        grad_logits = poses.new_zeros(shape)
    return grad_poses, grad_logits


def empty_gradients(*inputs: Tensor | None) -> list[Tensor]:
    """Return one contiguous tensor to be filled for each input; that of an absent input is empty."""
    absent = torch.empty(0)
    return [
        torch.empty_like(absent if tensor is None else tensor, memory_format=torch.contiguous_format)
        for tensor in inputs
    ]


def call(function: ctypes._NamedFuncPointer, *structures: ctypes.Array[ctypes.c_int64]) -> None:
    """Call an operator's entry point; it returns 1 when the index table names an input that does not exist."""
    if function(*map(ctypes.byref, structures)):
        raise ValueError("the index table names an input capsule that does not exist; entries go from -1 to N - 1")
