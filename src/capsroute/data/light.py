"""Random changes of a standardised image's values, in place: another light, another lens, another film.

Only sums, products and quotients of single elements, so that a sample comes out the same to the last bit in any batch.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from capsroute.data.counter import Counter

Pixels = npt.NDArray[np.float32]  # [b, C, h, w]
_DEVIATION = 65536 / np.sqrt(3)  # of the sum of four numbers of 16 bits


def _per_sample(values: npt.NDArray[np.float64]) -> Pixels:
    return values.astype(np.float32)[:, None, None, None]


def curve(pixels: Pixels, amount: npt.NDArray[np.float64]) -> None:
    """Both ends of the scale move by `amount` deviations, what is near the mean stays: x + a x² / (1 + x²)."""
    square = pixels * pixels
    pixels += _per_sample(amount) * (square / (1 + square))


def noise(pixels: Pixels, deviation: npt.NDArray[np.float64], draws: Counter, draw: int) -> None:
    """Each pixel by itself, nearly normal: a sum of four numbers, each with all values alike."""
    words = draws.many(draw, int(np.prod(pixels.shape[1:])))
    total = sum(((words >> np.uint64(16 * part)) & np.uint64(0xFFFF)).astype(np.float32) for part in range(4))
    pixels += _per_sample(deviation / _DEVIATION) * (total - np.float32(2 * 65535)).reshape(pixels.shape)


def soften(pixels: Pixels, amount: npt.NDArray[np.float64]) -> None:
    """Part of the way to the mean of 3 x 3 pixels; with a negative amount away from it, which sharpens."""
    height, width = pixels.shape[2:]
    around = np.pad(pixels, ((0, 0), (0, 0), (1, 1), (1, 1)), mode="edge")
    rows = around[:, :, :height] + around[:, :, 1 : height + 1] + around[:, :, 2:]
    mean = (rows[..., :width] + rows[..., 1 : width + 1] + rows[..., 2:]) / np.float32(9)
    pixels += _per_sample(amount) * (mean - pixels)
