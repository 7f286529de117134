"""What is minimised, and what counts as right."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from capsroute import losses
from capsroute.capsules import Capsules
from capsroute.errors import RunError
from capsroute.lanes import LaneNet
from capsroute.models import CapsNet
from capsroute.pretrained import Network
from capsroute.training.config import LossConfig
from capsroute.training.mixing import Mixed, mixed
from capsroute.training.teaching import Teachers, distillation

_SPAN = 8  # the margin's sigmoid runs from -4 to 4


class Objective(nn.Module):
    """A network with its loss. One module, so that ranks see every parameter used in one forward pass."""

    def __init__(self, net: Network, config: LossConfig, steps: int) -> None:
        super().__init__()
        self.net = net
        self.config = config
        self.steps = steps
        self.teachers = Teachers(config.teachers, net.in_channels, net.classes) if config.teachers else None
        lanes = len(net.lanes) if isinstance(net, LaneNet) else 1
        if config.apart and len(config.teachers) != lanes:
            raise RunError(
                f"loss.apart: {len(config.teachers)} teachers for {lanes} networks side by side; each needs its own"
            )

    def forward(
        self, images: Float[Tensor, "B F H W"], labels: Int[Tensor, "B *n"], step: int
    ) -> tuple[Float[Tensor, ""], Float[Tensor, "B K"]]:
        """The loss, and the class logits. Lanes each have a loss of their own; what is minimised is the mean."""
        mix = mixed(images, self.config.mixup, self.config.cutmix) if self.config.mixes else None
        seen = images if mix is None else mix.images
        heads = self.net.heads(seen) if isinstance(self.net, LaneNet) else [self.net(seen)]
        if self.teachers is not None:
            wanted = self.teachers.each(seen) if self.config.apart else [self.teachers(seen)] * len(heads)
            each = [distillation(c, w, self.config.temperature) for c, w in zip(heads, wanted, strict=True)]
        else:
            each = [self._labelled(caps, labels, mix, step) for caps in heads]
        loss = torch.stack(each).mean()
        if self.config.reconstruction:
            assert isinstance(self.net, CapsNet)
            drawn = self.net.reconstruct(heads[0], labels)
            loss = loss + self.config.reconstruction * losses.reconstruction(_unit_range(images), drawn)
        logits = self.net.joined(heads).logits if isinstance(self.net, LaneNet) else heads[0].logits
        assert logits is not None
        return loss, logits

    def _labelled(self, caps: Capsules, labels: Int[Tensor, "B *n"], mix: Mixed | None, step: int) -> Float[Tensor, ""]:
        """The classification loss, of both labels where two images were made into one."""
        loss = self.classification(caps, labels, step)
        if mix is None:
            return loss
        return mix.share * loss + (1 - mix.share) * self.classification(caps, labels[mix.partners], step)

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
