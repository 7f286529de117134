"""Pairs of images made into one, with both labels: mixup (Zhang et al. 2018) and CutMix (Yun et al. 2019).

Random numbers come from torch's generator, which the loop seeds by the step.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

_SHAPE = 0.2  # of the Beta distribution that mixup draws shares from: most are near 0 or 1


class Mixed(NamedTuple):
    """Images of which `share` shows the first label and the rest the one of `partners`, rows of the same batch."""

    images: Float[Tensor, "B F H W"]
    partners: Int[Tensor, " B"]
    share: float


def mixed(images: Float[Tensor, "B F H W"], mixup: float, cutmix: float) -> Mixed | None:
    """A batch mixed with itself in another order; None for the batches, 1 - mixup - cutmix of all, left alone."""
    drawn = float(torch.rand(()))
    if drawn >= mixup + cutmix:
        return None
    partners = torch.randperm(len(images)).to(images.device)
    return _blended(images, partners) if drawn < mixup else _patched(images, partners)


def _blended(images: Float[Tensor, "B F H W"], partners: Int[Tensor, " B"]) -> Mixed:
    """Both images, one shining through the other."""
    share = float(torch.distributions.Beta(_SHAPE, _SHAPE).sample())
    share = max(share, 1 - share)
    return Mixed(share * images + (1 - share) * images[partners], partners, share)


def _patched(images: Float[Tensor, "B F H W"], partners: Int[Tensor, " B"]) -> Mixed:
    """One image with a rectangle of the other, in the same place; its area before the border cuts it is uniform."""
    height, width = images.shape[-2:]
    reach = math.sqrt(float(torch.rand(()))) / 2
    rows, columns = (_span(size, reach) for size in (height, width))
    patched = images.clone()
    patched[..., rows, columns] = images[partners][..., rows, columns]
    area = (rows.stop - rows.start) * (columns.stop - columns.start)
    return Mixed(patched, partners, 1 - area / (height * width))


def _span(size: int, reach: float) -> slice:
    """Places within `reach` of the size around one that is drawn."""
    centre, half = int(torch.randint(size, ())), round(reach * size)
    return slice(max(centre - half, 0), min(centre + half, size))
