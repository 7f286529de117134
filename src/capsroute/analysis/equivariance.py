"""Equivariance: how the class pose moves as the input is turned, shifted, scaled, or seen from elsewhere.

Votes are W P, so a change of viewpoint that multiplies poses from the right passes through every layer,
(W P) R = W (P R). That is what `measure` looks for in a trained network.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from capsroute.analysis.crediting import background
from capsroute.analysis.subject import Subject
from capsroute.analysis.tracing import Array, Score, capsule_network, softmax
from capsroute.data import Split
from capsroute.errors import DataError
from capsroute.models import CapsNet

Reals = npt.NDArray[np.float64]
Map = Literal["rotation", "shift", "scale", "shear"]
MAPS: dict[Map, tuple[float, float]] = {
    "rotation": (-45.0, 45.0),  # degrees
    "shift": (-0.2, 0.2),  # of the width, to the right
    "scale": (0.7, 1.3),
    "shear": (-0.4, 0.4),
}
VIEWPOINTS = ("azimuth", "elevation")
UNITS = {"rotation": "°", "azimuth": "°", "elevation": "°"}
FOLDS = 5


class Path(NamedTuple):
    """Class capsules along a change: `values` [T], poses [T, N, r, c], class scores [T, N], whether the class won."""

    values: Reals
    poses: Array
    scores: Array
    won: npt.NDArray[np.bool_]


class Equivariance(NamedTuple):
    """What a path says; every figure is about images held out from its fit, and 1 is best but for `moved`.

    moved: how far poses move from that at the reference value, as a share of their length; 0 is invariance.
    carried: share of that movement that one matrix R a step explains, P_t = P_0 R_t, the same for all images.
    readout: share of the change's variance that a linear map reads off the pose.
    steady: how little class scores move, 1 - their deviation along the path.
    won: share of steps at which the class is still the most active.
    """

    moved: float
    carried: float
    readout: float
    steady: float
    won: float


class Walk(NamedTuple):
    """One change applied to many objects: frames [T, C, H, W] of the first, the path of all, where it starts."""

    frames: Tensor
    path: Path
    reference: int
    period: float | None
    label: int


def walk(subject: Subject, by: str, image: int = 0, count: int = 60, steps: int = 19) -> Walk:
    """Follow `count` test images of the class of `image`, that one first, through a change named by `by`."""
    net = capsule_network(subject.net)
    split = subject.split()
    if split.labels.ndim > 1:
        raise DataError(f"{subject.dataset.name} has two labels an image; choose a run with one class an image")
    subject.images([image])  # says which numbers there are
    label = int(split.labels[image])
    if by in VIEWPOINTS:
        values, rows = viewpoints(split, by, count, label, image)
        frames = subject.images(rows.flatten()).unflatten(0, rows.shape)
        reference, period = 0, 360.0 if by == "azimuth" else None
    elif by in MAPS:
        members = np.flatnonzero(split.labels == label)
        members = np.array([image, *members[members != image][: count - 1]])
        values = np.linspace(*MAPS[by], steps)
        frames, reference, period = affine_frames(subject.images(members), by, values), steps // 2, None
    else:
        raise DataError(f"by={by!r} is no change; choose one of {', '.join((*MAPS, *VIEWPOINTS))}")
    targets = np.full(frames.shape[1], label)
    path = follow(net, frames, values, targets, reference=reference, score=subject.scores)
    return Walk(frames[:, 0], path, reference, period, label)


def affine(
    images: Tensor,
    *,
    rotation: float = 0.0,
    shift: tuple[float, float] = (0.0, 0.0),
    scale: float = 1.0,
    shear: float = 0.0,
) -> Tensor:
    """Images [B, C, H, W] turned anticlockwise by degrees, moved right and down by shares of their size, and scaled.

    What comes in from outside has the background's colour.
    """
    if scale <= 0:
        raise ValueError(f"scale={scale}: an image can be scaled by positive factors only")
    angle = math.radians(rotation)
    cos, sin = math.cos(angle), math.sin(angle)
    # rows of y pointing down: anticlockwise on the screen
    turn = np.array([[cos, sin], [-sin, cos]]) @ np.array([[1.0, shear], [0.0, 1.0]]) * scale
    back = np.linalg.inv(turn)
    moved = -back @ (2 * np.asarray(shift))
    theta = torch.tensor(np.column_stack([back, moved]), dtype=images.dtype).expand(len(images), 2, 3)
    height, width = images.shape[2:]
    if height != width:
        # grid coordinates are shares of each side; a turn must act on pixels
        ratio = width / height
        theta = theta * torch.tensor([[1.0, 1 / ratio, 1.0], [ratio, 1.0, 1.0]], dtype=images.dtype)
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    ground = background(images)
    return F.grid_sample(images - ground, grid, padding_mode="zeros", align_corners=False) + ground


def affine_frames(images: Tensor, what: Map, values: npt.ArrayLike) -> Tensor:
    """Each image under each value of one map: [T, N, C, H, W]."""
    frames = []
    for value in np.asarray(values, dtype=np.float64).tolist():
        if what == "rotation":
            frames.append(affine(images, rotation=value))
        elif what == "shift":
            frames.append(affine(images, shift=(value, 0.0)))
        elif what == "scale":
            frames.append(affine(images, scale=value))
        else:
            frames.append(affine(images, shear=value))
    return torch.stack(frames)


def viewpoints(
    split: Split, by: str, count: int = 60, label: int | None = None, first: int | None = None
) -> tuple[Reals, npt.NDArray[np.int64]]:
    """Rows of `count` objects, each seen from all values of `by` (azimuth or elevation) and otherwise alike.

    Returns the values [T] and the rows [T, N], objects spread evenly over toys, classes and the other conditions; the
    one that image `first` shows comes first.
    """
    if by not in split.meta:
        raise DataError(f"these images have no {by}; viewpoints need smallNORB's test set, or choose {', '.join(MAPS)}")
    fixed = [name for name in ("instance", "lighting", *VIEWPOINTS) if name != by and name in split.meta]
    columns = np.stack([split.labels, *(split.meta[name] for name in fixed)], axis=1)
    rows = np.arange(len(split)) if label is None else np.flatnonzero(split.labels == label)
    _, group = np.unique(columns[rows], axis=0, return_inverse=True)
    values = np.unique(split.meta[by])
    order = rows[np.lexsort((split.meta[by][rows], group.reshape(-1)))]
    if len(order) % len(values) or np.any(split.meta[by][order].reshape(-1, len(values)) != values):
        raise DataError(f"not every object is seen from every {by} here; use a whole test set")
    objects = order.reshape(-1, len(values))
    chosen = np.unique(np.linspace(0, len(objects) - 1, min(count, len(objects))).round().astype(np.int64))
    if first is not None:
        shown = int(np.flatnonzero((objects == first).any(1))[0])
        chosen = np.array([shown, *chosen[chosen != shown][: count - 1]])
    return values.astype(np.float64), objects[chosen].T


@torch.no_grad()
def follow(
    net: CapsNet,
    frames: Tensor,
    values: npt.ArrayLike,
    target: npt.ArrayLike | None = None,
    *,
    reference: int = 0,
    score: Score = softmax,
) -> Path:
    """The capsule of `target` [N] (the class that wins in the `reference` frame) through frames [T, N, C, H, W]."""
    steps, count = frames.shape[:2]
    was_training = net.training
    net.eval()
    parts = [net(part) for part in frames.flatten(0, 1).split(256)]
    net.train(was_training)
    logits = torch.cat([caps.logits for caps in parts]).unflatten(0, (steps, count))
    poses = torch.cat([caps.poses for caps in parts]).unflatten(0, (steps, count)).numpy()
    won = logits.argmax(2).numpy()
    chosen = won[reference] if target is None else np.asarray(target, dtype=np.int64)
    objects = np.arange(count)
    return Path(
        np.asarray(values, dtype=np.float64),
        poses[:, objects, chosen],
        score(logits).numpy()[:, objects, chosen],
        won == chosen,
    )


def measure(path: Path, *, reference: int = 0, period: float | None = None) -> Equivariance:
    """Put numbers to a path; `period` for a value that comes round again, as an azimuth does."""
    steps, count = path.poses.shape[:2]
    if count < 2 * FOLDS or steps < 2:
        raise ValueError(f"{count} images at {steps} values: fits that are held out need {2 * FOLDS} images, 2 values")
    poses = path.poses.astype(np.float64)
    length = np.sqrt(np.square(poses[reference]).sum((1, 2)).mean())
    others = [step for step in range(steps) if step != reference]
    away = poses[others] - poses[reference]
    left_over = 0.0
    predicted = np.zeros((steps, count, 1 if period is None else 2))
    wanted = _targets(path.values, period)
    for fold in range(FOLDS):
        held = np.arange(count) % FOLDS == fold
        left_over += sum(_unexplained(poses[reference], poses[step], held) for step in others)
        predicted[:, held] = _read_out(poses, wanted, held)
    spread = np.square(wanted - wanted.mean(0)).sum() * count
    return Equivariance(
        moved=float(np.sqrt(np.square(away).sum((2, 3)).mean()) / max(length, 1e-12)),
        carried=float(1 - left_over / max(np.square(away).sum(), 1e-12)),
        readout=float(1 - np.square(predicted - wanted[:, None]).sum() / max(spread, 1e-12)),
        steady=float(1 - path.scores.std(0).mean()),
        won=float(path.won.mean()),
    )


def _targets(values: Reals, period: float | None) -> Reals:
    if period is None:
        scaled: Reals = (values - values.mean()) / max(float(values.std()), 1e-12)
        return scaled[:, None]
    turn = 2 * np.pi * values / period
    return np.stack([np.cos(turn), np.sin(turn)], axis=1)


def _unexplained(before: Reals, after: Reals, held: npt.NDArray[np.bool_]) -> float:
    """Squared error on held-out images of the matrix R that takes poses `before` [N, r, c] to `after` best."""
    rows, target = before[~held].reshape(-1, before.shape[2]), after[~held].reshape(-1, after.shape[2])
    matrix = np.linalg.lstsq(rows, target, rcond=None)[0]
    return float(np.square(after[held] - before[held] @ matrix).sum())


def _read_out(poses: Reals, wanted: Reals, held: npt.NDArray[np.bool_]) -> Reals:
    """Predictions [T, held, k] of `wanted` [T, k] from poses, by ridge regression on the other images."""
    flat = poses.reshape(*poses.shape[:2], -1)
    known, new = flat[:, ~held], flat[:, held]
    centre, scale = known.mean((0, 1)), known.std((0, 1)) + 1e-9
    inputs = ((known - centre) / scale).reshape(-1, flat.shape[2])
    mean = wanted.mean(0)
    targets = np.repeat(wanted - mean, known.shape[1], axis=0)
    ridge = 1e-3 * len(inputs) * np.eye(flat.shape[2])
    weights = np.linalg.solve(inputs.T @ inputs + ridge, inputs.T @ targets)
    result: Reals = (new - centre) / scale @ weights + mean
    return result
