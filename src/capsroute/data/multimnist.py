"""MultiMNIST (Sabour et al. 2017): two digits of different classes on top of each other, made here from MNIST."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from capsroute.data import mnist, store
from capsroute.data.counter import Counter
from capsroute.data.dataset import DataSet, Part, Split
from capsroute.data.transforms import Transform, windows
from capsroute.errors import DataError

SIDE = 36
SHIFT = 4
_CHUNK = 2000
_PARTNER, _DOWN, _RIGHT, _PARTNER_DOWN, _PARTNER_RIGHT = range(5)


def open_multimnist(
    data_dir: Path | None = None, *, pairs_per_digit: int = 1, seed: int = 0, verify: bool = True
) -> DataSet:
    """Each digit is moved by up to 4 pixels each way on a 36 x 36 canvas and laid over a digit of another class of the
    same split, pixels added up to white. Labels are [N, 2]. `pairs_per_digit` is 1000 in the paper, 60 M pairs.
    """
    if pairs_per_digit < 1:
        raise DataError(f"pairs_per_digit={pairs_per_digit}: each digit needs at least one partner")
    return DataSet(
        name="multimnist",
        source="generated",
        classes=mnist.MNIST.classes,
        channels=1,
        image_size=SIDE,
        transform=Transform(),
        opener=partial(_open, mnist.find(mnist.MNIST, data_dir), pairs_per_digit, seed, verify),
        title="MultiMNIST (made here)",
    )


def _open(folder: Path, pairs: int, seed: int, verify: bool, part: Part) -> Split:
    key = store.fingerprint("multimnist", part, pairs, seed, SIDE, SHIFT, verify, *mnist.marks(folder, part))
    return store.cached(f"multimnist-{part}-{key}", partial(_recipe, folder, verify, pairs, seed, part))


def _recipe(folder: Path, verify: bool, pairs: int, seed: int, part: Part) -> store.Recipe:
    digits = mnist.open_part(mnist.MNIST, folder, verify, part)
    count = pairs * len(digits)
    numbers = np.arange(count)
    partner = partners(digits.labels, Counter(seed, 0, numbers).uniform(_PARTNER))
    labels = np.stack([digits.labels[numbers % len(digits)], digits.labels[partner]], axis=1)
    return store.Recipe((count, 1, SIDE, SIDE), _chunks(digits, numbers, partner, seed), {"labels": labels})


def partners(labels: npt.NDArray[np.int64], unit: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """For pair k, whose first digit is k modulo their number, a digit of another class: uniform among all of them."""
    order = np.argsort(labels, kind="stable")
    first = labels[np.arange(len(unit)) % len(labels)]
    begins = np.searchsorted(labels[order], first, side="left")
    ends = np.searchsorted(labels[order], first, side="right")
    others = len(labels) - (ends - begins)
    if others.min() == 0:
        raise DataError(f"all digits are of class {labels[0]}; overlapping pairs need two classes")
    place = (unit * others).astype(np.int64)
    return order[np.where(place < begins, place, place + (ends - begins))]


def _chunks(
    digits: Split, numbers: npt.NDArray[np.int64], partner: npt.NDArray[np.int64], seed: int
) -> Iterator[npt.NDArray[np.uint8]]:
    for start in range(0, len(numbers), _CHUNK):
        chunk = numbers[start : start + _CHUNK]
        draws = Counter(seed, 0, chunk)
        under = _placed(digits, chunk % len(digits), draws, _DOWN, _RIGHT)
        over = _placed(digits, partner[chunk], draws, _PARTNER_DOWN, _PARTNER_RIGHT)
        yield np.minimum(under.astype(np.uint16) + over, 255).astype(np.uint8)


def _placed(digits: Split, rows: npt.NDArray[np.int64], draws: Counter, down: int, right: int) -> npt.NDArray[np.uint8]:
    corner = (SIDE - digits.images.shape[2]) // 2 + SHIFT
    top = draws.integers(down, 2 * SHIFT + 1) - corner
    left = draws.integers(right, 2 * SHIFT + 1) - corner
    return windows(digits.images.stored, rows, top, left, SIDE, "zero")
