"""Random numbers without a state: each is a hash of (seed, epoch, sample, draw), so nobody else's draws change them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_STEP = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: consecutive counters land far apart
_MASK = 0xFFFFFFFFFFFFFFFF


def _mix(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finaliser of SplitMix64: every input bit flips each output bit with probability one half."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _combine(key: npt.NDArray[np.uint64], number: int) -> npt.NDArray[np.uint64]:
    return _mix(key + np.uint64((number + 1) * _STEP & _MASK))


class Counter:
    """Numbers for the samples `ids` in one epoch of one seed; `draw` tells apart what they are used for."""

    def __init__(self, seed: int, epoch: int, ids: npt.NDArray[np.int64]) -> None:
        key = _combine(_combine(np.zeros(1, np.uint64), seed), epoch)
        self._keys = _mix(key + (ids.astype(np.uint64) + np.uint64(1)) * np.uint64(_STEP))

    def words(self, draw: int) -> npt.NDArray[np.uint64]:
        """64 random bits for each sample."""
        return _combine(self._keys, draw)

    def many(self, draw: int, count: int) -> npt.NDArray[np.uint64]:
        """64 random bits `count` times for each sample, [b, count]."""
        steps = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_STEP)
        return _mix(self.words(draw)[:, None] + steps)

    def uniform(self, draw: int, low: float = 0.0, high: float = 1.0) -> npt.NDArray[np.float64]:
        """A number in [low, high) for each sample."""
        unit = (self.words(draw) >> np.uint64(11)).astype(np.float64) * 2.0**-53
        return low + (high - low) * unit

    def integers(self, draw: int, count: int) -> npt.NDArray[np.int64]:
        """A whole number in [0, count) for each sample."""
        return (self.uniform(draw) * count).astype(np.int64)
