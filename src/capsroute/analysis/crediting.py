"""Credit: whom the winning class listened to, followed through all layers down to the pixels.

The class has credit 1. Each layer hands the credit of an output capsule on to its inputs, in proportion to their shares
in its pose (`LayerTrace.shares`); what one input gets from several outputs adds up. A primary capsule hands its credit
on to the pixels that its convolution sees, in proportion to how far each is from the background and how strongly the
convolution weighs it. Nothing is lost on the way: every map sums to one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from capsroute.analysis.tracing import Array, LayerTrace, Score, softmax, trace
from capsroute.geometry import Field, convolution_field
from capsroute.models import CapsNet


class Credit(NamedTuple):
    """`pixels` [B, H, W]; `layers[l]` [B, *space, types] for the inputs of layer l; `target` [B], the classes."""

    pixels: Array
    layers: list[Array]
    target: npt.NDArray[np.int64]


def credit(
    net: CapsNet,
    images: Tensor,
    *,
    target: npt.ArrayLike | None = None,
    iteration: int = -1,
    traces: list[LayerTrace] | None = None,
) -> Credit:
    """The credit of `target` (the most active class unless given) as it stands after a routing `iteration`.

    `traces` saves tracing the same images again.
    """
    layers = trace(net, images) if traces is None else traces
    chosen = layers[-1].logits[-1, :, 0].argmax(-1) if target is None else np.asarray(target, dtype=np.int64)
    outputs = np.zeros_like(layers[-1].logits[-1])
    outputs[np.arange(len(outputs)), 0, chosen] = 1.0
    maps: list[Array] = []
    for layer in reversed(layers):
        step = iteration if iteration < 0 else min(iteration, len(layer.shares) - 1)
        given = layer.to_inputs(np.einsum("bpj,bpij->bpi", outputs, layer.shares[step]))
        maps.insert(0, given)
        outputs = given.reshape(len(given), -1, layer.types)
    return Credit(_to_pixels(net, images, outputs.sum(-1)), maps, chosen)


def _to_pixels(net: CapsNet, images: Tensor, primary: Array) -> Array:
    """From positions of primary capsules [B, P] to pixels [B, H, W]."""
    convolutions = [module for module in net.stem if isinstance(module, torch.nn.Conv2d)]
    # several convolutions are looked through as one: its window, and how strongly it weighs each pixel of it
    weight = torch.ones(1, convolutions[-1].out_channels, 1, 1)
    stride, padding = 1, 0
    for convolution in reversed(convolutions):
        step, before = convolution.stride[0], convolution.padding[0]
        assert isinstance(before, int)
        weight = weight[:, : convolution.out_channels]  # beside it there may be maps of disparity
        weight = functional.conv_transpose2d(weight, convolution.weight.detach().square(), stride=step)
        stride, padding = stride * step, padding * step + before
    sides = (weight.shape[2], weight.shape[3])
    around = ((stride,) * 2, (padding,) * 2, (1, 1))
    field = convolution_field(net.image_size, net.in_channels, sides, *around, images.device)
    strength = weight[0].permute(1, 2, 0).flatten().sqrt()
    away = (images - background(images)).abs().permute(0, 2, 3, 1).flatten(1)
    # a window of nothing but background still hands its credit on, evenly
    part = (field.gather(away) * strength + 1e-6) * field.mask
    part = part / part.sum(2, keepdim=True)
    edges = torch.from_numpy(primary)[:, :, None] * part
    total = _scatter(field, edges).unflatten(1, (*net.image_size, net.in_channels)).sum(-1)
    result: Array = total.numpy()
    return result


def background(images: Tensor) -> Tensor:
    """The median of each image and channel [B, C, 1, 1]: what most of it shows."""
    return images.flatten(2).median(2).values[:, :, None, None]


def _scatter(field: Field, edges: Tensor) -> Tensor:
    slot = torch.where(field.mask, field.index, field.num_inputs).flatten().long().expand(len(edges), -1)
    return edges.new_zeros(len(edges), field.num_inputs + 1).scatter_add(1, slot, edges.flatten(1))[:, :-1]


def coupling_maps(traces: list[LayerTrace], given: Credit) -> list[Array]:
    """Where the credited capsules of each layer listened, iteration by iteration: [T, B, *space] for each layer.

    Couplings, normalised for each output capsule and averaged over outputs by their credit; each map sums to one.
    """
    result: list[Array] = []
    classes = np.zeros_like(traces[-1].logits[-1])
    classes[np.arange(len(classes)), 0, given.target] = 1.0
    for number, layer in enumerate(traces):
        last = number + 1 == len(traces)
        outputs = classes if last else given.layers[number + 1].reshape(len(classes), -1, traces[number + 1].types)
        mass = np.maximum(layer.couplings.sum(3, keepdims=True), np.finfo(np.float32).tiny)
        edges = np.einsum("bpj,tbpij->tbpi", outputs, layer.couplings / mass)
        result.append(np.stack([layer.to_inputs(step).sum(-1) for step in edges]))
    return result


def most_credited(pixels: npt.NDArray[Any], share: float) -> npt.NDArray[np.bool_]:
    """The `share` of the pixels with the most credit, a mask [B, H, W]."""
    flat = pixels.reshape(len(pixels), -1)
    count = round(share * flat.shape[1])
    mask = np.zeros(flat.shape, dtype=np.bool_)
    np.put_along_axis(mask, np.argsort(-flat, axis=1, kind="stable")[:, :count], True, axis=1)
    return mask.reshape(pixels.shape)


@torch.no_grad()
def hiding(
    net: CapsNet,
    images: Tensor,
    given: Credit,
    shares: Sequence[float],
    *,
    score: Score = softmax,
    draws: int = 10,
    seed: int = 0,
) -> tuple[Array, Array]:
    """The class's score with the most credited `shares` of the pixels hidden, and with as many random ones.

    Both are [shares, B]; random pixels are averaged over `draws`. Credit that says what the class rests on makes the
    first fall faster than the second.
    """
    random = np.random.default_rng(seed)
    rows = torch.arange(len(images)), torch.from_numpy(given.target)

    def without(mask: npt.NDArray[np.bool_]) -> Array:
        seen: Array = score(net(hide(images, mask)).logits)[rows].numpy()
        return seen

    def by_chance(share: float) -> Array:
        masks = [most_credited(random.random(given.pixels.shape), share) for _ in range(draws)]
        mean: Array = np.mean([without(mask) for mask in masks], axis=0)
        return mean

    was_training = net.training
    net.eval()
    credited = np.stack([without(most_credited(given.pixels, share)) for share in shares])
    chance = np.stack([by_chance(share) for share in shares])
    net.train(was_training)
    return credited, chance


def hide(images: Tensor, mask: npt.NDArray[np.bool_]) -> Tensor:
    """The images with the masked pixels [B, H, W] painted over in the background's colour."""
    return torch.where(torch.from_numpy(mask)[:, None], background(images), images)
