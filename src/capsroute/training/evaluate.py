"""Predictions of a network on a split, and what they say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from capsroute.data import Loader, Split, Transform
from capsroute.lanes import mean_share
from capsroute.training.objective import correct

if TYPE_CHECKING:
    from lightning_fabric import Fabric


class Predictions(NamedTuple):
    """Class logits for each sample of a split, in its order, with the labels."""

    logits: Float[Tensor, "N K"]
    labels: Int[Tensor, "N *n"]

    @property
    def right(self) -> Tensor:
        return correct(self.logits, self.labels)

    @property
    def error(self) -> float:
        """Per cent of samples that are wrong."""
        return 100.0 * int((~self.right).sum()) / max(len(self.labels), 1)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the error, in per cent."""
        low, high = wilson(int((~self.right).sum()), len(self.labels))
        return 100 * low, 100 * high


@torch.no_grad()
def predict(
    net: nn.Module,
    split: Split,
    transform: Transform,
    *,
    batch_size: int = 128,
    fabric: Fabric | None = None,
    crops: Sequence[tuple[int, int]] = (),
    mirrored: bool = False,
) -> Predictions:
    """Run a network over a split; ranks share the work and all get the result.

    With `crops`, the class shares (softmax) of windows that far from the centre are averaged; with `mirrored`, those of
    each image and its mirror image.
    """
    rank, world = (0, 1) if fabric is None else (fabric.global_rank, fabric.world_size)
    loader = Loader(split, transform, batch_size=batch_size, train=False, rank=rank, world_size=world)
    device = next(net.parameters()).device
    was_training = net.training
    net.eval()
    found: Tensor | None = None
    for number, batch in enumerate(loader.epoch(0)):
        first = number * loader.global_batch
        rows = torch.arange(first, min(first + loader.global_batch, len(split)))[rank::world]
        if crops or mirrored:
            views = transform.crops(split, rows.numpy(), crops) if crops else batch.images[:, None]
            views = torch.cat([views, transform.mirrored(views)], 1) if mirrored else views
            logits = _over_views(net, views.to(device))
        else:
            logits = _logits(net, batch.images.to(device), fabric)
        if found is None:
            found = torch.zeros(len(split), logits.shape[1], device=device)
        found[rows.to(device)] = logits.float()
    net.train(was_training)
    assert found is not None
    if fabric is not None and world > 1:
        found = summed(fabric, found)
    return Predictions(found.cpu(), torch.from_numpy(split.labels))


def summed(fabric: Fabric, values: Tensor) -> Tensor:
    """The sum over all ranks."""
    total = fabric.all_reduce(values, reduce_op="sum")
    assert isinstance(total, Tensor)
    return total


def _logits(net: nn.Module, images: Tensor, fabric: Fabric | None) -> Tensor:
    with fabric.autocast() if fabric is not None else nullcontext():
        logits: Tensor = net(images).logits
    return logits


def _over_views(net: nn.Module, views: Float[Tensor, "B k F H W"]) -> Float[Tensor, "B K"]:
    """The logarithm of the mean share: after cross-entropy all activations may be near one, which says nothing."""
    logits = net(views.flatten(0, 1)).logits.unflatten(0, views.shape[:2])
    return mean_share(logits.transpose(0, 1).double())


def wilson(wrong: int, count: int, z: float = 1.959963984540054) -> tuple[float, float]:
    """Wilson's interval of a proportion: sensible also where few or none are wrong."""
    if count == 0:
        return 0.0, 1.0
    share, square = wrong / count, z * z / count
    middle = (share + square / 2) / (1 + square)
    half = z / (1 + square) * math.sqrt(share * (1 - share) / count + square / (4 * count))
    return max(0.0, middle - half), min(1.0, middle + half)


def confusion(predictions: Predictions) -> Int[Tensor, "K K"]:
    """How often a class (row) was taken for another (column); for single labels."""
    classes = predictions.logits.shape[1]
    pairs = predictions.labels * classes + predictions.logits.argmax(1)
    return torch.bincount(pairs, minlength=classes * classes).reshape(classes, classes)


class Missed(NamedTuple):
    """An object of a class, and how many of its views were taken for another class."""

    label: int
    instance: int
    wrong: int
    views: int


def missed(predictions: Predictions, split: Split) -> list[Missed]:
    """The objects with mistakes, most first; none where the data set does not tell objects apart."""
    if "instance" not in split.meta or predictions.labels.dim() > 1:
        return []
    wrong = (~predictions.right).numpy()
    counts: dict[tuple[int, int], list[int]] = {}
    for label, instance, failed in zip(split.labels.tolist(), split.meta["instance"].tolist(), wrong, strict=True):
        count = counts.setdefault((label, instance), [0, 0])
        count[0] += int(failed)
        count[1] += 1
    found = [Missed(*known, *count) for known, count in counts.items() if count[0]]
    return sorted(found, key=lambda one: (-one.wrong, one.label, one.instance))
