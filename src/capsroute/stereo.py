"""What two cameras say together: how alike their pictures are when one is moved sideways."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from capsroute.norms import BatchNorm2d


def correlate(
    left: Float[Tensor, "B C H W"], right: Float[Tensor, "B C H W"], reach: int
) -> Float[Tensor, "B 2*{reach}+1 H W"]:
    """Σ_c left[x] right[x + d] for d from -reach to reach; beyond its border a picture is zero.

    The correlation of Dosovitskiy et al. (2015), along rows alone, where two cameras side by side see a point.
    """
    batch, channels, height, width = left.shape
    wide = width + 2 * reach
    rows = left.permute(0, 2, 3, 1).reshape(batch * height, width, channels)
    others = F.pad(right, (reach, reach)).permute(0, 2, 1, 3).reshape(batch * height, channels, wide)
    # all pairs of a row, [width, wide]; rows one longer turn the wanted diagonals into columns
    pairs = F.pad(torch.bmm(rows, others).flatten(1), (0, width))
    return pairs.view(batch, height, width, wide + 1)[..., : 2 * reach + 1].permute(0, 3, 1, 2)


class Disparity(nn.Module):
    """Maps of likeness for each of 2 `reach` + 1 shifts, averaged over the windows of a convolution beside it.

    The higher a point, the further apart two cameras see it: what is tall and what is flat is told by where the
    likeness is, and a convolution, which adds, cannot multiply. Both pictures go through the same small convolution;
    what is compared, pixel by pixel, is the direction of its features.
    """

    def __init__(self, reach: int, kernel: int, stride: int, padding: int, channels: int = 16) -> None:
        super().__init__()
        self.reach = reach
        self.eye = nn.Sequential(nn.Conv2d(1, channels, 5, padding=2), nn.ReLU(), BatchNorm2d(channels))
        self.window = nn.AvgPool2d(kernel, stride, padding)
        self.norm = BatchNorm2d(2 * reach + 1, affine=False)

    def forward(self, images: Float[Tensor, "B 2 H W"]) -> Float[Tensor, "B D h w"]:
        both = images.transpose(0, 1).flatten(0, 1)[:, None].contiguous(memory_format=torch.channels_last)
        seen = self.eye(both)
        seen = seen * torch.rsqrt(seen.square().sum(1, keepdim=True) + 1e-3)
        left, right = seen.chunk(2)
        maps: Tensor = self.norm(self.window(correlate(left, right, self.reach)))
        return maps
