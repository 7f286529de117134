"""Capsule networks side by side, as one network (after do Rosario et al. 2019, the multi-lane capsule network)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from capsroute.capsules import Capsules
from capsroute.models import CapsNet, Saved, check_images

Average = Literal["logits", "shares"]


class View(NamedTuple):
    """What a network sees of square images made for another: `side` pixels about their centre, `shrink` times smaller.

    A side beyond the image's is filled with the nearest pixel.
    """

    side: int
    shrink: int = 1

    @classmethod
    def of(cls, given: Sequence[int]) -> View:
        """A view as configurations write it, `[side]` or `[side, shrink]`."""
        values = list(given) if isinstance(given, (list, tuple)) else []
        whole = len(values) in (1, 2) and all(isinstance(value, int) and value >= 1 for value in values)
        if not whole or (len(values) == 2 and values[0] % values[1]):
            raise ValueError(
                f"view={given!r}: write [side], or [side, shrink], the second how many times smaller, a divisor"
            )
        return cls(*values)

    @property
    def pixels(self) -> int:
        """The side of what is seen."""
        return self.side // self.shrink

    def __call__(self, images: Float[Tensor, "B F H W"]) -> Float[Tensor, "B F h w"]:
        """The window, standardised as `Transform` does with `standardise="crop"`; a view of all is the image itself."""
        size = images.shape[-1]
        if self == (size, 1):
            return images
        margin = max(0, -(-(self.side - size) // 2))
        around = F.pad(images, (margin,) * 4, mode="replicate") if margin else images
        start = (around.shape[-1] - self.side) // 2
        seen = around[..., start : start + self.side, start : start + self.side]
        if self.shrink > 1:
            seen = F.avg_pool2d(seen, self.shrink)
        deviation, mean = torch.std_mean(seen, (1, 2, 3), keepdim=True, correction=0)
        # a flat image has no deviation to divide by
        return (seen - mean) / deviation.clamp_min(seen[0].numel() ** -0.5)


class LaneNet(Saved):
    """Several `CapsNet`s that never hear of each other; what they say is averaged, their poses stacked by rows.

    Each learns from a loss of its own (`heads`) and may see the image in another size, so that what one of them
    mistakes the others may not. `net(images)` gives `Capsules` of the classes: activations and logits `[B, classes]`,
    poses `[B, classes, lanes * r, c]`.

    Args:
        lanes: of each lane what it has for itself: arguments of `CapsNet` that go over `options`, and `view`, the side
            of the window it sees and how many times smaller that is made (`View`), the whole image unless told.
        average: of the class `logits`, or of the class `shares` (softmax), in which no lane counts more for being sure.
        image_size: side of the square images.
        options: of all lanes, as `CapsNet` takes them.
    """

    def __init__(
        self,
        routing: str = "similarity",
        *,
        lanes: Sequence[Mapping[str, Any]] = ({}, {}, {}),
        average: Average = "logits",
        image_size: int = 32,
        in_channels: int = 1,
        classes: int = 5,
        **options: Any,
    ) -> None:
        super().__init__()
        if not lanes or not all(isinstance(lane, Mapping) for lane in lanes):
            raise ValueError(f"lanes={lanes!r}: pass one set of options for each lane, {{}} where there are none")
        if options.get("decoder") or any(lane.get("decoder") for lane in lanes):
            raise ValueError("decoder: each lane sees an image of its own, and none is drawn; leave the decoder out")
        if average not in ("logits", "shares"):
            raise ValueError(f"average={average!r}: choose 'logits' or 'shares'")
        self.average = average
        self.config = {
            "routing": routing,
            "lanes": [dict(lane) for lane in lanes],
            "average": average,
            "image_size": image_size,
            "in_channels": in_channels,
            "classes": classes,
            **options,
        }
        self.image_size, self.in_channels, self.classes = (image_size, image_size), in_channels, classes
        self.views = [View.of(lane.get("view", (image_size,))) for lane in lanes]
        nets = []
        for view, lane in zip(self.views, lanes, strict=True):
            own = {"routing": routing, **options, **{name: value for name, value in lane.items() if name != "view"}}
            nets.append(CapsNet(image_size=view.pixels, in_channels=in_channels, classes=classes, **own))
        self.lanes = nn.ModuleList(nets)

    def heads(self, images: Float[Tensor, "B F H W"]) -> list[Capsules]:
        """The class capsules of each lane."""
        check_images(images, self.in_channels, self.image_size)
        return [lane(view(images)) for view, lane in zip(self.views, self.lanes, strict=True)]

    def forward(self, images: Float[Tensor, "B F H W"]) -> Capsules:
        return self.joined(self.heads(images))

    def joined(self, heads: Sequence[Capsules]) -> Capsules:
        """Capsules of all lanes as one; where shares are averaged, its logits are their logarithms."""
        logits = torch.stack([caps.logits for caps in heads if caps.logits is not None])
        mean = logits.mean(0) if self.average == "logits" else mean_share(logits)
        return Capsules.from_logits(torch.cat([caps.poses for caps in heads], -2), mean)


def mean_share(logits: Float[Tensor, "N B K"]) -> Float[Tensor, "B K"]:
    """The logarithm of the class shares (softmax), averaged over N networks or views."""
    return logits.log_softmax(-1).logsumexp(0) - math.log(len(logits))
