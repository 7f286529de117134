"""Which input capsules each output position listens to: one integer table for 1D, 2D, 3D and dense layers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import repeat
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


class Field(NamedTuple):
    """The receptive fields of a layer. `index[p, i]` is the i-th input capsule of position p, -1 where that is padding.

    Inputs are numbered space first, types last, as they lie in memory; so are the window's taps within `I`.
    """

    index: Int[Tensor, "P I"]  # type: ignore[assignment]  # hides tuple.index, which nobody asks of a Field
    mask: Bool[Tensor, "P I"]
    num_inputs: int

    def rows(self, start: int, stop: int) -> Field:
        """The fields of the positions `start` to `stop`."""
        return Field(self.index[start:stop], self.mask[start:stop], self.num_inputs)

    def gather(self, values: Float[Tensor, "B N *any"]) -> Float[Tensor, "B P I *any"]:
        """Each position's inputs. What stands at padding is arbitrary but finite: no coupling ever weighs it."""
        flat = self.index.clamp(min=0).flatten().long()
        return values.index_select(1, flat).reshape(len(values), *self.index.shape, *values.shape[2:])

    def logsumexp_over_parents(self, scores: Float[Tensor, "B P I J"]) -> Float[Tensor, "B P I 1"]:
        """For each edge, log sum exp of the scores from its child to *all* parents of that child, in every position."""
        over_types = torch.logsumexp(scores, dim=-1).flatten(1)
        slot = torch.where(self.mask, self.index, self.num_inputs).flatten().long().expand(len(scores), -1)
        peak = over_types.new_full((len(scores), self.num_inputs + 1), torch.finfo(scores.dtype).min)
        peak = peak.scatter_reduce(1, slot, over_types.detach(), "amax")
        total = torch.zeros_like(peak).scatter_add(1, slot, torch.exp(over_types - peak.gather(1, slot)))
        # a child without parents has an empty sum, which no edge reads
        result = peak + torch.where(total > 0, total, 1.0).log()
        return result.gather(1, slot).reshape(len(scores), *self.index.shape, 1)


def per_axis(value: int | Sequence[int], dimensions: int, name: str, least: int) -> tuple[int, ...]:
    """`value` once for each spatial axis, checked."""
    values = tuple(repeat(value, dimensions)) if isinstance(value, int) else tuple(value)
    if len(values) != dimensions or any(not isinstance(v, int) or v < least for v in values):
        raise ValueError(f"{name}={value!r}: pass one integer >= {least}, or {dimensions} of them, one for each axis")
    return values


def output_space(
    space: tuple[int, ...],
    kernel_size: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
) -> tuple[int, ...]:
    """The size of what a convolution makes of `space`, by the usual rule."""
    reach = [d * (k - 1) + 1 for k, d in zip(kernel_size, dilation, strict=True)]
    for axis, (size, window, pad) in enumerate(zip(space, reach, padding, strict=True)):
        if size + 2 * pad < window:
            raise ValueError(
                f"input of size {size} (padding {pad}) is smaller than the kernel's reach {window} on axis {axis}; "
                f"use a larger input, a smaller kernel or more padding"
            )
    return tuple((n + 2 * p - w) // s + 1 for n, p, w, s in zip(space, padding, reach, stride, strict=True))


def _build(
    space: tuple[int, ...],
    channels: int,
    kernel_size: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    device: torch.device,
) -> Field:
    out = output_space(space, kernel_size, stride, padding, dilation)
    dims = len(space)
    index = torch.zeros((), dtype=torch.int64, device=device)
    mask = torch.ones((), dtype=torch.bool, device=device)
    for axis in range(dims):
        position = torch.arange(out[axis], device=device) * stride[axis] - padding[axis]
        place = position[:, None] + torch.arange(kernel_size[axis], device=device) * dilation[axis]
        shape = [1] * (2 * dims)
        shape[axis], shape[dims + axis] = out[axis], kernel_size[axis]
        place = place.reshape(shape)
        index = index * space[axis] + place
        mask = mask & (place >= 0) & (place < space[axis])
    full = (*out, *kernel_size)
    index = index.expand(full)[..., None] * channels + torch.arange(channels, device=device)
    mask = mask.expand(full)[..., None].expand(index.shape)
    positions, taps = _volume(out), _volume(kernel_size) * channels
    index = torch.where(mask, index, -1).reshape(positions, taps).to(torch.int32)
    return Field(index, mask.reshape(positions, taps), _volume(space) * channels)


def _volume(sizes: Sequence[int]) -> int:
    result = 1
    for size in sizes:
        result *= size
    return result


_cached = lru_cache(maxsize=256)(_build)


def convolution_field(
    space: tuple[int, ...],
    channels: int,
    kernel_size: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    device: torch.device,
) -> Field:
    """The fields of a convolution over `space`; cached per input size, except while a graph is being captured."""
    build = _build if torch.compiler.is_compiling() else _cached
    return build(space, channels, kernel_size, stride, padding, dilation, device)


def dense_field(space: tuple[int, ...], channels: int, device: torch.device) -> Field:
    """One position that listens to everything: a convolution whose kernel is the whole input."""
    ones = (1,) * len(space)
    return convolution_field(space, channels, space, ones, (0,) * len(space), ones, device)
