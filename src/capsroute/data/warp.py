"""Affine maps of whole batches of images, and bends."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

Reals = npt.NDArray[np.float64]

KNOTS = 4  # a side of the grid of points that bends an image


def matrices(angle: Reals, wide: Reals, high: Reals, shear: Reals) -> Reals:
    """Maps of (x, y), [b, 2, 2]: shear along x, stretch `wide` and `high`, then turn by `angle` in radians."""
    cos, sin = np.cos(angle), np.sin(angle)
    turn = np.stack([cos, -sin, sin, cos], axis=-1).reshape(-1, 2, 2)
    zero = np.zeros_like(wide)
    stretch = np.stack([wide, wide * shear, zero, high], axis=-1).reshape(-1, 2, 2)
    return turn @ stretch


def around_centre(side: int) -> Reals:
    """The pixels of a square as (x, y) from its centre, [side * side, 2]."""
    steps = np.arange(side) - (side - 1) / 2
    return np.stack(np.meshgrid(steps, steps, indexing="xy"), axis=-1).reshape(-1, 2)


def between_knots(side: int) -> Reals:
    """How much each knot moves each pixel of a square, [side * side, KNOTS * KNOTS]: cubic B-splines of either axis."""
    spacing = (side - 1) / (KNOTS - 1)
    away = np.abs(np.arange(side)[:, None] - np.arange(KNOTS) * spacing) / spacing
    near, far = 2 / 3 - away**2 + away**3 / 2, np.clip(2 - away, 0, None) ** 3 / 6
    axis = np.where(away < 1, near, far)
    axis /= axis.sum(1, keepdims=True)
    weights: Reals = np.einsum("yk,xl->yxkl", axis, axis).reshape(side * side, KNOTS * KNOTS)
    return weights


def warp(
    images: npt.NDArray[np.uint8],
    forward: Reals,
    centre: Reals,
    side: int,
    fill: str = "zero",
    moves: Reals | None = None,
) -> npt.NDArray[np.uint8]:
    """Windows of `side`, uint8 [b, C, side, side], with the image mapped by `forward` about `centre`.

    Each output pixel looks up where it came from, between four pixels; `centre` is the (x, y) in the image that comes
    to lie in the middle of the window. `moves`, [b, KNOTS * KNOTS, 2], are how far the knots of a grid over the window
    move the places looked up near them. Outside the image is zero, or its nearest pixel with `fill="edge"`.
    """
    source = around_centre(side) @ np.linalg.inv(forward).transpose(0, 2, 1) + centre[:, None, :]
    if moves is not None:
        source = source + between_knots(side) @ moves
    height, width = images.shape[2:]
    grid = (2 * source + 1) / np.array([width, height]) - 1
    sampled = functional.grid_sample(
        torch.from_numpy(images.astype(np.float32)),
        torch.from_numpy(grid.reshape(-1, side, side, 2).astype(np.float32)),
        padding_mode="zeros" if fill == "zero" else "border",
        align_corners=False,
    )
    rounded: npt.NDArray[np.uint8] = sampled.round_().clamp_(0, 255).to(torch.uint8).numpy()
    return rounded
