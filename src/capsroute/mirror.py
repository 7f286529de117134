"""Networks that know what a mirror does: half of their filters are mirror images of the other half."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils import parametrize

from capsroute.capsules import Capsules
from capsroute.norms import BatchNorm2d

Mirror = Literal[False, True, "stereo"]


def mirrored(images: Float[Tensor, "*b C h w"], mirror: Mirror) -> Float[Tensor, "*b C h w"]:
    """Images as a mirror shows them; with "stereo" the two cameras change places, as before a mirrored object."""
    return images.flip(-1, -3) if mirror == "stereo" else images.flip(-1)


def check_mirror(mirror: Mirror, in_channels: int) -> None:
    """Refuse what no mirror does to images of so many channels."""
    if mirror not in (False, True, "stereo"):
        raise ValueError(f"mirror={mirror!r}: choose true, false or 'stereo'")
    if mirror == "stereo" and in_channels != 2:
        raise ValueError(f"mirror='stereo' with in_channels={in_channels}: it takes two, a camera each; or choose true")


def looks(look: Callable[[Tensor], Capsules], images: Float[Tensor, "B C h w"], mirror: Mirror) -> Capsules:
    """What one look at images says, or two, the second in a mirror: the mean of both logits, the poses of the first."""
    if not mirror:
        return look(images)
    poses, _, logits = look(torch.cat([images, mirrored(images, mirror)]))
    assert logits is not None
    return Capsules.from_logits(poses[: len(images)], torch.stack(logits.chunk(2)).mean(0))


class Twins(nn.Module):
    """Filters, and their mirror images after them; what they hear of is mirrored by `swap`ping its two halves, or not.

    A parametrization (`torch.nn.utils.parametrize`) of a convolution's weight: the first half alone is learned. In
    layers of such filters a mirrored image makes the features mirrored and their halves swapped, exactly where a
    stride leaves no pixel out (the convolutions of Cohen & Welling 2016 for a group of two).
    """

    def __init__(self, swap: bool) -> None:
        super().__init__()
        self.swap = swap

    def forward(self, half: Float[Tensor, "o i k l"]) -> Float[Tensor, "2*o i k l"]:
        other = half.roll(half.shape[1] // 2, 1) if self.swap else half
        return torch.cat([half, other.flip(-1)])

    def right_inverse(self, whole: Float[Tensor, "O i k l"]) -> Float[Tensor, "o i k l"]:
        return whole[: len(whole) // 2].clone()


class Twice(nn.Module):
    """The same numbers for filters and for their mirror images."""

    def forward(self, half: Float[Tensor, " o"]) -> Float[Tensor, " 2*o"]:
        return half.repeat(2)

    def right_inverse(self, whole: Float[Tensor, " O"]) -> Float[Tensor, " o"]:
        return whole[: len(whole) // 2].clone()


class TwinNorm(BatchNorm2d):
    """Batch norm of features that come as two halves, mirror images of one another: one mean and deviation for both."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels // 2)

    def forward(self, features: Float[Tensor, "B C h w"]) -> Float[Tensor, "B C h w"]:
        batch, channels, height, width = features.shape
        # channels last, halves are neighbours of one feature map twice as wide
        rows = features.permute(0, 2, 3, 1).reshape(batch, height, 2 * width, channels // 2)
        normed: Tensor = super().forward(rows.permute(0, 3, 1, 2))
        return normed.permute(0, 2, 3, 1).reshape(batch, height, width, channels).permute(0, 3, 1, 2)


def twin(convolution: nn.Conv2d, swap: bool) -> nn.Conv2d:
    """Let half of a convolution's filters be mirror images of the other half."""
    parametrize.register_parametrization(convolution, "weight", Twins(swap))
    parametrize.register_parametrization(convolution, "bias", Twice())
    return convolution
