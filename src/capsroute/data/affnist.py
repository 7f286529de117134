"""MNIST under random affine maps on a 40 x 40 canvas, in the style of affNIST (Tieleman), made here from MNIST."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from capsroute.data import mnist, store
from capsroute.data.counter import Counter
from capsroute.data.dataset import DataSet, Part, Split
from capsroute.data.transforms import Transform
from capsroute.data.warp import around_centre, matrices, warp
from capsroute.errors import DataError

SIDE = 40
ROTATION = 20.0  # degrees either way
SHEAR = 0.2  # either way
STRETCH = (0.8, 1.2)  # width and height, each on its own
_CHUNK = 1000
_ANGLE, _WIDE, _HIGH, _SHEAR, _RIGHT, _DOWN = range(6)


def open_affnist(
    data_dir: Path | None = None, *, train: str = "translated", seed: int = 0, verify: bool = True
) -> DataSet:
    """Test digits are turned by up to 20 degrees, sheared by up to 0.2, stretched by 0.8 to 1.2 in width and in height,
    and put anywhere on the canvas where all their ink fits; all uniform, one map a digit, decided by `seed`.

    `train="translated"` is the usual test of generalisation: train on plain digits moved about the canvas, by up to 6
    pixels each way, and never see an affine map. `train="affine"` maps the training digits like the test digits.
    """
    if train not in ("translated", "affine"):
        raise DataError(f"train={train!r} is no training set of affnist; use 'translated' or 'affine'")
    folder = mnist.find(mnist.MNIST, data_dir)
    translated = train == "translated"
    return DataSet(
        name="affnist",
        source="generated",
        classes=mnist.MNIST.classes,
        channels=1,
        image_size=SIDE,
        transform=Transform(pad_to=SIDE, shift=6 if translated else 0),
        opener=partial(_open, folder, translated, seed, verify),
        title="affNIST (made here)",
    )


def _open(folder: Path, translated: bool, seed: int, verify: bool, part: Part) -> Split:
    if part == "train" and translated:
        return mnist.open_part(mnist.MNIST, folder, verify, part)
    ranges = (SIDE, ROTATION, SHEAR, STRETCH)
    key = store.fingerprint("affnist", part, seed, ranges, verify, *mnist.marks(folder, part))
    return store.cached(f"affnist-{part}-{key}", partial(_recipe, folder, verify, seed, part))


def _recipe(folder: Path, verify: bool, seed: int, part: Part) -> store.Recipe:
    digits = mnist.open_part(mnist.MNIST, folder, verify, part)
    return store.Recipe((len(digits), 1, SIDE, SIDE), _chunks(digits, seed), {"labels": digits.labels})


def _chunks(digits: Split, seed: int) -> Iterator[npt.NDArray[np.uint8]]:
    for start in range(0, len(digits), _CHUNK):
        rows = slice(start, start + _CHUNK)
        yield affine_digits(digits.images[rows], Counter(seed, 0, digits.ids[rows]))


def affine_digits(images: npt.NDArray[np.uint8], draws: Counter) -> npt.NDArray[np.uint8]:
    """Each image [b, 1, H, H] under a map of its own, on the canvas: [b, 1, 40, 40]."""
    angle = np.deg2rad(draws.uniform(_ANGLE, -ROTATION, ROTATION))
    forward = matrices(
        angle, draws.uniform(_WIDE, *STRETCH), draws.uniform(_HIGH, *STRETCH), draws.uniform(_SHEAR, -SHEAR, SHEAR)
    )
    side = images.shape[-1]
    moved = around_centre(side) @ forward.transpose(0, 2, 1)  # where each pixel goes, [b, H * H, 2]
    ink = images.reshape(len(images), -1, 1) > 0
    # One pixel of room, since a pixel's ink spreads to its neighbours.
    least = -(SIDE / 2 - 1) - np.where(ink, moved, np.inf).min(axis=1)
    most = (SIDE / 2 - 1) - np.where(ink, moved, -np.inf).max(axis=1)
    unit = np.stack([draws.uniform(_RIGHT), draws.uniform(_DOWN)], axis=-1)
    place = np.where(np.isfinite(least), least + unit * (most - least), 0.0)
    back = np.linalg.solve(forward, place[:, :, None])[:, :, 0]
    return warp(images, forward, (side - 1) / 2 - back, SIDE)
