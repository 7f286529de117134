"""What is minimised, and what counts as right."""

from __future__ import annotations

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from capsroute import losses
from capsroute.capsules import Capsules
from capsroute.models import CapsNet, ConvNet
from capsroute.training.config import LossConfig
from capsroute.training.mixing import mixed

_SPAN = 8  # the margin's sigmoid runs from -4 to 4


class Objective(nn.Module):
    """A network with its loss. One module, so that ranks see every parameter used in one forward pass."""

    def __init__(self, net: CapsNet | ConvNet, config: LossConfig, steps: int) -> None:
        super().__init__()
        self.net = net
        self.config = config
        self.steps = steps

    def forward(
        self, images: Float[Tensor, "B F H W"], labels: Int[Tensor, "B *n"], step: int
    ) -> tuple[Float[Tensor, ""], Float[Tensor, "B K"]]:
        """The loss, and the class logits."""
        mix = mixed(images, self.config.mixup, self.config.cutmix) if self.config.mixes else None
        if mix is not None:
            caps = self.net(mix.images)
            first, second = (self.classification(caps, wanted, step) for wanted in (labels, labels[mix.partners]))
            return mix.share * first + (1 - mix.share) * second, caps.logits
        caps = self.net(images)
        loss = self.classification(caps, labels, step)
        if self.config.reconstruction:
            assert isinstance(self.net, CapsNet)
            drawn = self.net.reconstruct(caps, labels)
            loss = loss + self.config.reconstruction * losses.reconstruction(_unit_range(images), drawn)
        return loss, caps.logits

    def classification(self, caps: Capsules, labels: Int[Tensor, "B *n"], step: int) -> Float[Tensor, ""]:
        """The loss without reconstruction."""
        if self.config.name == "spread":
            margin = self.config.margin
            return losses.spread(caps, labels, self.margin_at(step) if margin is None else margin)
        if self.config.name == "margin":
            return losses.margin(caps, labels)
        if self.config.name == "bounded":
            return losses.bounded(caps, labels)
        return losses.cross_entropy(caps, labels, self.config.smoothing)

    def margin_at(self, step: int) -> float:
        """The authors' schedule, stretched so that it ends with the run."""
        return losses.spread_margin(step, max(self.steps, 1) / _SPAN)


def correct(logits: Float[Tensor, "B K"], labels: Int[Tensor, "B *n"]) -> Bool[Tensor, "B"]:
    """Whether the most active classes are exactly those of the labels."""
    rows = labels.reshape(len(labels), -1)
    guessed = logits.topk(rows.shape[1], dim=1).indices.sort(1).values
    return (guessed == rows.sort(1).values).all(1)


def _unit_range(images: Float[Tensor, "B F H W"]) -> Float[Tensor, "B F H W"]:
    """Each image from 0 to 1, as the decoder draws it."""
    low, high = images.amin((1, 2, 3), keepdim=True), images.amax((1, 2, 3), keepdim=True)
    return (images - low) / (high - low).clamp_min(1e-6)
