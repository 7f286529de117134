"""Batch statistics between layers, the same on one process and on many."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributed.nn.functional import all_reduce

from capsroute.capsules import Capsules


def _several_ranks() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def mean_over_batch(total: Float[Tensor, "k C"], count: int) -> Float[Tensor, "k C"]:
    """`total` / `count`, both summed over all ranks; gradients flow through the sum."""
    if not _several_ranks():
        return total / max(count, 1)
    counted = torch.cat([total, total.new_full((1, total.shape[1]), count)])
    summed: Tensor = all_reduce(counted)
    return summed[:-1] / summed[-1].clamp_min(1)


class PoseNorm(nn.Module):
    """Divide the poses of each capsule type by their root mean square over batch, space and elements.

    Only the scale: subtracting a mean would break the equivariance of the layers. At test time a running average of
    the mean square is used.
    """

    mean_square: Tensor

    def __init__(self, channels: int, momentum: float = 0.1, eps: float = 1e-5) -> None:
        super().__init__()
        self.momentum = momentum
        self.eps = eps
        self.register_buffer("mean_square", torch.ones(channels))

    def scale(self, poses: Float[Tensor, "*S C r c"]) -> Float[Tensor, " C"]:
        """What the poses of each type are multiplied by; a layer's matrices can do that, without a copy of poses."""
        square = self.mean_square
        if self.training and poses.numel() > 0:
            total: Tensor = _SumOfSquares.apply(poses)
            square = mean_over_batch(total[None], poses.numel() // poses.shape[-3])[0]
            with torch.no_grad():
                self.mean_square.lerp_(square.to(self.mean_square.dtype), self.momentum)
        return torch.rsqrt(square + self.eps).to(poses.dtype)

    def forward(self, caps: Capsules) -> Capsules:
        return caps._replace(poses=caps.poses * self.scale(caps.poses)[:, None, None])


class CapsuleBatchNorm(nn.Module):
    """Each pose element and logit of each type minus its mean, over its deviation.

    Means and deviations are over batch and space, nothing is learned. Unlike `PoseNorm` this is not equivariant.
    """

    def __init__(self, channels: int, pose: tuple[int, int]) -> None:
        super().__init__()
        self.poses = BatchNorm2d(channels * pose[0] * pose[1], affine=False)
        self.logits = BatchNorm2d(channels, affine=False)

    def forward(self, caps: Capsules) -> Capsules:
        assert caps.logits is not None
        poses = _by_channel(self.poses, caps.poses.flatten(-3)).view_as(caps.poses)
        return Capsules.from_logits(poses, _by_channel(self.logits, caps.logits))


class TypeBatchNorm(nn.Module):
    """The same with one mean and one deviation for all elements of a type's poses (De Sousa Ribeiro et al. 2020).

    What tells the elements of a pose apart stays. With `affine`, as the authors norm primary capsules, each type's
    poses and logits are then scaled and shifted by learned numbers.
    """

    def __init__(self, channels: int, affine: bool = False) -> None:
        super().__init__()
        self.poses = BatchNorm2d(channels, affine=affine)
        self.logits = BatchNorm2d(channels, affine=affine)

    def forward(self, caps: Capsules) -> Capsules:
        assert caps.logits is not None
        flat = caps.poses.flatten(-2)
        poses = _by_channel(self.poses, flat.transpose(-1, -2)).transpose(-1, -2)
        return Capsules.from_logits(poses.reshape(caps.poses.shape), _by_channel(self.logits, caps.logits))


class ClassNorm(nn.Module):
    """Each class logit minus its mean over the batch, over its deviation (De Sousa Ribeiro et al. 2020).

    Nothing is learned, so no class can be made to stand out but by views of it that are alike.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.norm = BatchNorm2d(classes, affine=False)

    def forward(self, logits: Float[Tensor, "*B K"]) -> Float[Tensor, "*B K"]:
        if self.training and not _several_ranks() and len(logits) == 1:
            # one image has no deviation; what was seen before has
            assert self.norm.running_mean is not None
            assert self.norm.running_var is not None
            return (logits - self.norm.running_mean) * torch.rsqrt(self.norm.running_var + self.norm.eps)
        return _by_channel(self.norm, logits)


def _by_channel(norm: BatchNorm2d, values: Float[Tensor, "B *S C"]) -> Float[Tensor, "B *S C"]:
    """The norm of channels that come last; they stay last in memory."""
    batch, channels = values.shape[0], values.shape[-1]
    normed: Tensor = norm(values.reshape(batch, values.shape[1:-1].numel(), 1, channels).permute(0, 3, 1, 2))
    return normed.permute(0, 2, 3, 1).reshape(values.shape)


class _SumOfSquares(torch.autograd.Function):
    """For each type; without the copies of all poses that squaring them, and its gradient, would take."""

    @staticmethod
    def forward(ctx: Any, poses: Float[Tensor, "*S C r c"]) -> Float[Tensor, " C"]:
        ctx.save_for_backward(poses)
        others = [axis for axis in range(poses.dim()) if axis != poses.dim() - 3]
        wide = torch.promote_types(poses.dtype, torch.float32)
        total: Tensor = torch.linalg.vector_norm(poses, dim=others, dtype=wide).square()
        return total

    @staticmethod
    def backward(ctx: Any, grad: Float[Tensor, " C"]) -> Tensor:
        (poses,) = ctx.saved_tensors
        result: Tensor = poses * (2 * grad).to(poses.dtype)[:, None, None]
        return result


class BatchNorm2d(nn.BatchNorm2d):
    """Batch normalisation whose statistics cover the batches of all ranks, on any device.

    torch's own synchronised norm is for GPUs alone. On one process this is `torch.nn.BatchNorm2d`.
    """

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C H W"]:
        if not (self.training and _several_ranks()):
            if self.training and images.numel() == 0:
                return images
            result: Tensor = super().forward(images)
            return result
        channels = images.shape[1]
        flat = images.float().transpose(0, 1).reshape(channels, -1)
        mean = mean_over_batch(flat.sum(1)[None], flat.shape[1])[0]
        centred = images.float() - mean[:, None, None]
        variance = mean_over_batch(centred.square().sum((0, 2, 3))[None], flat.shape[1])[0]
        self._track(mean, variance, flat.shape[1] * dist.get_world_size())
        scaled = centred * torch.rsqrt(variance + self.eps)[:, None, None]
        if self.affine:
            scaled = scaled * self.weight[:, None, None] + self.bias[:, None, None]
        return scaled.to(images.dtype)

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor, count: int) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        momentum = 0.1 if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
        self.running_var.lerp_((variance * count / max(count - 1, 1)).to(self.running_var.dtype), momentum)
        self.num_batches_tracked += 1
