"""Images joined from two that look alike: the front of one toy and the rear of another, as if seen from the same side.

Five toys a class are few; what is put together from two of them is one more. Viewpoint and light of a partner need not
be known: whichever image of another toy looks most alike has nearly the same. Partners come from the split itself, so
that a held-out toy is never part of another; in this alone a sample looks different in another subset.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from capsroute.data.counter import Counter
from capsroute.data.dataset import Images, Numbers, Pixels, Split

ALIKE = 6  # partners to draw from
_CELLS = 16  # images are compared by the means of so many cells a side
_SCALE = 2000  # sums of whole numbers below its square are exact in float32, in whatever order they are added
_ROWS = 1024

# Beside those of `transforms.Draw`.
_JOINED, _PARTNER, _ANGLE, _PLACE = range(100, 104)


def look_alikes(split: Split, count: int = ALIKE) -> Numbers:
    """For each sample, where in the split lie the `count` of its class, but of other instances, that look most alike.

    Without instances in `meta` each sample is its own. A sample with too few partners is its own partner instead.
    """
    cells = _cells(split.images)
    instances = split.meta.get("instance", split.ids)
    found = np.repeat(np.arange(len(split))[:, None], count, axis=1)
    _, classes = np.unique(split.labels, axis=0, return_inverse=True)
    for label in range(classes.max(initial=-1) + 1):
        members = np.flatnonzero(classes == label)
        for start in range(0, len(members), _ROWS):
            rows = members[start : start + _ROWS]
            likeness = cells[rows] @ cells[members].T
            likeness[instances[rows][:, None] == instances[members]] = -np.inf
            best = np.argpartition(-likeness, min(count, len(members)) - 1, axis=1)[:, :count]
            other = np.take_along_axis(likeness, best, axis=1) > -np.inf
            found[rows, : best.shape[1]] = np.where(other, members[best], rows[:, None])
    return found


def joined(split: Split, chosen: Numbers, share: float, draws: Counter) -> Images:
    """The samples at `chosen`; a `share` of them has, beyond a line near the middle, what one that looks alike has."""
    own = split.images[chosen]
    on = np.flatnonzero(draws.uniform(_JOINED) < share)
    if not len(on):
        return Images(own)
    partners = split.look_alikes[chosen, draws.integers(_PARTNER, ALIKE)]
    other = split.images[partners[on]]
    light = (_background(own[on]) + 1) / (_background(other) + 1)
    lit = np.minimum(other * light[:, None, None, None], 255)
    mask = _beyond(own.shape[-1], draws)[on, None]
    own[on] = np.rint(own[on] + mask * (lit - own[on])).astype(np.uint8)
    return Images(own)


def _cells(images: Images) -> npt.NDArray[np.float32]:
    """What is compared: the coarse image without its mean and contrast, as whole numbers."""
    count, _, height, width = images.shape
    rows, columns = (np.arange(_CELLS) * side // _CELLS for side in (height, width))
    coarse = np.empty((count, _CELLS * _CELLS), np.float64)
    for start in range(0, count, _ROWS):
        pixels = images[start : start + _ROWS, 0].astype(np.float64)
        sums = np.add.reduceat(np.add.reduceat(pixels, rows, axis=1), columns, axis=2)
        coarse[start : start + _ROWS] = sums.reshape(len(sums), -1)
    coarse -= coarse.mean(axis=1, keepdims=True)
    length = np.sqrt(np.einsum("ij,ij->i", coarse, coarse))[:, None]
    whole: npt.NDArray[np.float32] = np.rint(_SCALE * coarse / np.maximum(length, 1e-9)).astype(np.float32)
    return whole


def _background(images: Pixels) -> npt.NDArray[np.float32]:
    """The median of the first and last row of each image."""
    ends = images[:, :, [0, -1]].reshape(len(images), -1)
    level: npt.NDArray[np.float32] = np.median(ends, axis=1).astype(np.float32)
    return level


def _beyond(side: int, draws: Counter) -> npt.NDArray[np.float32]:
    """0 on one side of a line near the middle, 1 on the other, and a few pixels between, [b, side, side]."""
    angle = draws.uniform(_ANGLE, 0, 2 * np.pi).astype(np.float32)[:, None, None]
    place = draws.uniform(_PLACE, -side / 8, side / 8).astype(np.float32)[:, None, None]
    down, right = np.mgrid[:side, :side].astype(np.float32) - (side - 1) / 2
    distance = (right * np.cos(angle) + down * np.sin(angle) - place) * (32 / side)
    soft: npt.NDArray[np.float32] = 1 / (1 + np.exp(-distance))
    return soft
