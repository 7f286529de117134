"""Trained networks as teachers (Hinton et al. 2015): what they say of an image stands in for its label.

Several teachers err less than each of them, and they have an answer for images that no label fits: mixed ones, or toys
bent beyond their class. A small network that is shown many such images comes to answer as all teachers together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from capsroute import pretrained
from capsroute.capsules import Capsules
from capsroute.errors import RunError
from capsroute.lanes import View, mean_share


class Teachers(nn.Module):
    """Networks by name, each with its view of the images, for one that sees so many channels and tells such classes."""

    def __init__(self, names: Mapping[str, Any], in_channels: int, classes: int) -> None:
        super().__init__()
        try:
            self.views = [View.of(view) for view in names.values()]
        except ValueError as error:
            raise RunError(f"loss.teachers: {error}") from error
        nets = [pretrained.load(name) for name in names]
        self.nets = nn.ModuleList(nets).requires_grad_(False)
        for name, view, net in zip(names, self.views, nets, strict=True):
            if net.image_size != (view.pixels, view.pixels):
                raise RunError(
                    f"loss.teachers: {name} sees images of {net.image_size[0]} x {net.image_size[1]} pixels, its view "
                    f"{list(view)} gives it {view.pixels} x {view.pixels}"
                )
            if (net.in_channels, net.classes) != (in_channels, classes):
                raise RunError(
                    f"loss.teachers: {name} has {net.in_channels} channels and {net.classes} classes, the network that "
                    f"is to learn from it {in_channels} and {classes}"
                )
        self.eval()

    def train(self, mode: bool = True) -> Teachers:
        """They do not learn: always as in a test."""
        return super().train(False)

    @torch.no_grad()
    def each(self, images: Float[Tensor, "B F H W"]) -> Float[Tensor, "N B K"]:
        """Class logits of each teacher."""
        return torch.stack([net(view(images)).logits for view, net in zip(self.views, self.nets, strict=True)])

    def forward(self, images: Float[Tensor, "B F H W"]) -> Float[Tensor, "B K"]:
        """Logarithms of the class shares, averaged over the teachers."""
        return mean_share(self.each(images))


def distillation(caps: Capsules, wanted: Float[Tensor, "B K"], temperature: float) -> Float[Tensor, ""]:
    """T² D_KL(teachers ‖ network), both softened by the temperature T (Hinton et al. 2015)."""
    assert caps.logits is not None
    soft, own = ((scores / temperature).log_softmax(1) for scores in (wanted, caps.logits))
    return temperature**2 * F.kl_div(own, soft, log_target=True, reduction="batchmean")
