"""From stored pixels to what the network sees: everything that decides the pixels is one value, `Transform`.

Whole batches are handled at once. Random numbers are hashes of seed, epoch and sample (`counter.py`), and sums are of
whole numbers, so a sample looks the same to the last bit in whatever batch, thread or rank it is prepared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from torch import Tensor

from capsroute.data import chimera, light
from capsroute.data.counter import Counter
from capsroute.data.warp import KNOTS, matrices, warp
from capsroute.mirror import mirrored

if TYPE_CHECKING:
    from capsroute.data.dataset import Images, Split

# Hinton et al.'s published code averages the centre and the corners of squares of 1, 2 and 3 pixels around it.
THIRTEEN_CROPS = ((0, 0), *((step * y, step * x) for step in (1, 2, 3) for y in (-1, 1) for x in (-1, 1)))


# What is random by up to so much.
_REACHES = (
    *("shift", "rotation", "scale", "shear", "stretch", "bend", "brightness", "contrast"),
    *("curve", "noise", "soften", "cutout", "chimera"),
)


class Draw(IntEnum):
    """What a random number is for. Numbers are never reused, so one option does not disturb the draws of another."""

    CROP_TOP = 0
    CROP_LEFT = 1
    SHIFT_DOWN = 2
    SHIFT_RIGHT = 3
    BRIGHTNESS = 4
    CONTRAST = 5
    ROTATION = 6
    SCALE = 7
    SHEAR = 8
    FLIP = 9
    CUT_TOP = 10
    CUT_LEFT = 11
    STRETCH = 12
    BEND = 13  # and the 31 numbers after it
    CURVE = 45
    NOISE = 46
    GRAIN = 47
    SOFTEN = 48


@dataclass(frozen=True)
class Transform:
    """How images are prepared. Random options act in training alone; in validation and test the crop is the centre.

    In this order: a share `chimera` of the images is joined with one of another toy that looks alike (`chimera.py`);
    `pad_to` a side, then a window of side `crop`, moved by up to `shift` whole pixels each way and
    turned by up to `rotation` degrees, scaled by 1 ± `scale`, made wider or narrower at the same area by up to
    1 + `stretch` and sheared by ± `shear` about its centre, and bent (16 points of a grid pull what is near
    them by up to `bend` pixels each way), `flip`ped left to right half of the time (with "stereo" the
    two cameras change places too, as they would before a mirrored object). What lies outside the image is `fill`:
    "zero" or "edge" (the nearest pixel). `pliancy` says of each class how much of `stretch`, `shear` and `bend` its
    images take, from 0 to 1, all unless told: an animal bent is an animal, a car stretched upwards may be a truck.

    Then pixels on the scale 0 to 1 are standardised: by the mean and deviation of the whole stored "image" (before
    cropping: Hinton et al. and this paper), of the "crop", by "fixed" `mean` and `std`, or not at all (None). Then
    contrast and brightness: `y = f (x - m) + m + b` with m the mean of the crop's channel, f in 1 ± `contrast`, b in
    ± `brightness`, in units of the standardised image. In the same units, `curve` moves the bright and the dark end up
    or down by up to that much, and `noise` adds to each pixel a number of deviation up to that; `soften` blurs or
    sharpens by up to that share of the difference to the mean of 3 x 3 pixels. Last, a square of side `cutout` is zero.

    The public smallNORB pipelines differ. This paper's code and IBM's: standardise the 48 x 48 image, crop, brightness
    ± 2.0 deviations, contrast 0.5 to 1.5: our default for smallNORB. Google's (± 63 / 255, 0.2 to 1.8) and VB routing's
    standardise after that, which undoes both: `standardise="crop"` with neither is the same. Others: ± 32 / 255 and
    0.5 to 1.5 on unstandardised pixels.
    """

    pad_to: int | None = None
    crop: int | None = None
    shift: int = 0
    fill: str = "zero"
    standardise: str | None = None
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    brightness: float = 0.0
    contrast: float = 0.0
    rotation: float = 0.0
    scale: float = 0.0
    shear: float = 0.0
    stretch: float = 0.0
    bend: float = 0.0
    pliancy: tuple[float, ...] = ()
    flip: bool | str = False
    curve: float = 0.0
    noise: float = 0.0
    soften: float = 0.0
    cutout: int = 0
    chimera: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", tuple(self.mean))
        object.__setattr__(self, "std", tuple(self.std))
        object.__setattr__(self, "pliancy", tuple(self.pliancy))
        if self.standardise not in ("image", "crop", "fixed", None):
            raise ValueError(f"standardise={self.standardise!r} is unknown; use 'image', 'crop', 'fixed' or None")
        if self.fill not in ("zero", "edge"):
            raise ValueError(f"fill={self.fill!r} is unknown; use 'zero' or 'edge'")
        if (self.standardise == "fixed") != bool(self.mean and self.std):
            raise ValueError("standardise='fixed' and mean=, std= (one number, or one a channel) go together")
        if self.flip not in (True, False, "stereo"):
            raise ValueError(f"flip={self.flip!r} is unknown; use true, false or 'stereo'")
        if self.chimera > 1:
            raise ValueError(f"chimera={self.chimera} is a share of the images; use 0 to 1")
        if any(not 0 <= share <= 1 for share in self.pliancy):
            raise ValueError(f"pliancy={list(self.pliancy)} are shares of stretch, shear and bend; use 0 to 1 a class")
        for name in _REACHES:
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)} is negative; it is how far to go either way")

    def without_noise(self) -> Transform:
        """The same preparation with nothing random left."""
        nothing: dict[str, Any] = dict.fromkeys(_REACHES, 0)
        return replace(self, flip=False, **nothing)

    def output_size(self, stored: int) -> int:
        """The side of what the network sees of images stored with this side."""
        return self.crop or self.pad_to or stored

    def apply(self, split: Split, indices: npt.ArrayLike, *, epoch: int, seed: int, train: bool) -> Tensor:
        """The samples at `indices` as float32 [b, C, h, w]; with `train`, as they are in this epoch of this seed."""
        chosen = np.asarray(indices, dtype=np.int64)
        steps = self if train else self.without_noise()
        draws = Counter(seed, epoch, split.ids[chosen]) if train else None
        images, pliancy = split.images, steps._pliancy(split, chosen) if train else 1.0
        if draws is not None and self.chimera and len(chosen):
            images, chosen = chimera.joined(split, chosen, self.chimera, draws), np.arange(len(chosen))
        top, left = steps._corners(images, len(chosen), draws)
        return torch.from_numpy(steps._prepare(images, chosen, top, left, draws, pliancy))

    def _pliancy(self, split: Split, chosen: npt.NDArray[np.int64]) -> float | npt.NDArray[np.float64]:
        """How much of stretch, shear and bend each sample takes."""
        if not self.pliancy:
            return 1.0
        labels = split.labels[chosen]
        if labels.ndim != 1 or labels.max(initial=0) >= len(self.pliancy):
            raise ValueError(
                f"pliancy={list(self.pliancy)} speaks of {len(self.pliancy)} classes; give each class one number, of "
                "images with one label"
            )
        return np.array(self.pliancy)[labels]

    def crops(
        self, split: Split, indices: npt.ArrayLike, offsets: Sequence[tuple[int, int]] = THIRTEEN_CROPS
    ) -> Tensor:
        """Multi-crop test time: windows around the centre, float32 [b, k, C, h, w]; average the network over k."""
        chosen = np.asarray(indices, dtype=np.int64)
        steps = self.without_noise()
        side = split.images.shape[2]
        reach = max(max(abs(down), abs(right)) for down, right in offsets)
        if self.crop is None or (side - self.crop) // 2 < reach:
            raise ValueError(
                f"crop={self.crop} of {side} pixels leaves less than {reach} around the centre; use a smaller crop"
            )
        top, left = steps._corners(split.images, len(chosen), None)
        windows = [steps._prepare(split.images, chosen, top + down, left + right, None) for down, right in offsets]
        return torch.from_numpy(np.stack(windows, axis=1))

    def mirrored(self, images: Float[Tensor, "*b C h w"]) -> Float[Tensor, "*b C h w"]:
        """Prepared images as a mirror shows them: what `flip` does to half of them in training."""
        if not self.flip:
            raise ValueError("flip=False: the network was not trained on mirrored images")
        return mirrored(images, "stereo" if self._cameras < 0 else True)

    @property
    def _cameras(self) -> int:
        """The order of the cameras in a mirror, as the step of a slice."""
        return -1 if self.flip == "stereo" else 1

    def _corners(
        self, images: Images, count: int, draws: Counter | None
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Top and left of each window, counted from the corner of the stored image."""
        height, width = images.shape[2:]
        side = self.pad_to or height
        if height != width or side < height:
            raise ValueError(f"images of {height} x {width} pixels cannot be padded to a square of {side}")
        free = side - (self.crop or side)
        if free < 0:
            raise ValueError(f"crop={self.crop} is larger than the image's {side} pixels; pad_to={self.crop} first")
        padding = (side - height) // 2
        if draws is None:
            centre = np.full(count, free // 2 - padding)
            return centre, centre
        top = draws.integers(Draw.CROP_TOP, free + 1) + draws.integers(Draw.SHIFT_DOWN, 2 * self.shift + 1)
        left = draws.integers(Draw.CROP_LEFT, free + 1) + draws.integers(Draw.SHIFT_RIGHT, 2 * self.shift + 1)
        return top - self.shift - padding, left - self.shift - padding

    def _prepare(
        self,
        images: Images,
        chosen: npt.NDArray[np.int64],
        top: npt.NDArray[np.int64],
        left: npt.NDArray[np.int64],
        draws: Counter | None,
        pliancy: float | npt.NDArray[np.float64] = 1.0,
    ) -> npt.NDArray[np.float32]:
        rows = images.rows[chosen]
        side = self.output_size(images.shape[2])
        maps = (self.rotation, self.scale, self.shear, self.stretch, self.bend)
        if draws is not None and len(rows) and any(maps):
            pixels = self._warped(images.stored[rows], top, left, side, draws, pliancy)
        else:
            pixels = windows(images.stored, rows, top, left, side, self.fill)
        if draws is not None and self.flip:
            turned = draws.uniform(Draw.FLIP) < 0.5
            pixels[turned] = pixels[turned][:, :: self._cameras, :, ::-1]
        out = pixels.astype(np.float32)
        slope, offset = self._levels(images, rows, out, draws)
        out *= slope.astype(np.float32)[:, :, None, None]
        out += offset.astype(np.float32)[:, :, None, None]
        if draws is not None:
            self._disturb(out, draws)
        return out

    def _disturb(self, out: npt.NDArray[np.float32], draws: Counter) -> None:
        if self.curve:
            light.curve(out, draws.uniform(Draw.CURVE, -self.curve, self.curve))
        if self.noise:
            light.noise(out, draws.uniform(Draw.NOISE, 0, self.noise), draws, Draw.GRAIN)
        if self.soften:
            light.soften(out, draws.uniform(Draw.SOFTEN, -self.soften, self.soften))
        if self.cutout:
            self._cut(out, draws)

    def _levels(
        self, images: Images, rows: npt.NDArray[np.int64], pixels: npt.NDArray[np.float32], draws: Counter | None
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Standardising, contrast and brightness are one straight line a channel: its slope and offset, [b, C]."""
        count, channels, side, _ = pixels.shape
        mean, std = self._standard(images, rows, pixels)
        slope = np.broadcast_to(1 / (255 * std), (count, channels))
        offset = np.broadcast_to(-mean / std, (count, channels))
        if draws is not None and self.contrast:
            factor = draws.uniform(Draw.CONTRAST, 1 - self.contrast, 1 + self.contrast)[:, None]
            level = slope * pixels.reshape(count, channels, side * side).mean(axis=2) + offset
            slope, offset = factor * slope, factor * offset + (1 - factor) * level
        if draws is not None and self.brightness:
            offset = offset + draws.uniform(Draw.BRIGHTNESS, -self.brightness, self.brightness)[:, None]
        return slope, offset

    def _standard(
        self, images: Images, rows: npt.NDArray[np.int64], pixels: npt.NDArray[np.float32]
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        if self.standardise is None:
            return np.zeros(1), np.ones(1)
        if self.standardise == "fixed":
            return np.array(self.mean), np.array(self.std)
        if self.standardise == "crop":
            count = int(np.prod(pixels.shape[1:]))
            values = pixels.reshape(len(pixels), count).astype(np.float64)
            sums = np.stack([values.sum(axis=1), np.einsum("ij,ij->i", values, values)], axis=1)
        else:
            sums = images.moments.sums(rows)
            count = images.shape[1] * (self.pad_to or images.shape[2]) ** 2
        mean = sums[:, :1] / (255 * count)
        variance = sums[:, 1:] / (255**2 * count) - mean**2
        # A flat image has no deviation to divide by; the floor is TensorFlow's, which the public pipelines share.
        return mean, np.sqrt(np.maximum(variance, 1 / count))

    def _warped(
        self,
        images: npt.NDArray[np.uint8],
        top: npt.NDArray[np.int64],
        left: npt.NDArray[np.int64],
        side: int,
        draws: Counter,
        pliancy: float | npt.NDArray[np.float64],
    ) -> npt.NDArray[np.uint8]:
        """Windows turned, scaled, stretched and sheared about their centre, and bent."""
        angle = np.deg2rad(draws.uniform(Draw.ROTATION, -self.rotation, self.rotation))
        size = draws.uniform(Draw.SCALE, 1 - self.scale, 1 + self.scale)
        shear = draws.uniform(Draw.SHEAR, -self.shear, self.shear) * pliancy
        reach = np.log1p(self.stretch)
        wide = np.exp(draws.uniform(Draw.STRETCH, -reach, reach) / 2 * pliancy)
        forward = matrices(angle, size * wide, size / wide, shear)
        centre = np.stack([left, top], axis=-1).astype(np.float64) + (side - 1) / 2
        moves = None
        if self.bend:
            drawn = [draws.uniform(Draw.BEND + n, -self.bend, self.bend) for n in range(2 * KNOTS * KNOTS)]
            moves = (np.stack(drawn) * pliancy).T.reshape(-1, KNOTS * KNOTS, 2)
        return warp(images, forward, centre, side, self.fill, moves)

    def _cut(self, out: npt.NDArray[np.float32], draws: Counter) -> None:
        side = out.shape[-1]
        places = np.arange(side)

        def inside(draw: Draw) -> npt.NDArray[Any]:
            start = draws.integers(draw, side) - self.cutout // 2
            return (places >= start[:, None]) & (places < start[:, None] + self.cutout)

        hole = inside(Draw.CUT_TOP)[:, :, None] & inside(Draw.CUT_LEFT)[:, None, :]
        out *= ~hole[:, None]


def windows(
    stored: npt.NDArray[np.uint8],
    rows: npt.NDArray[np.int64],
    top: npt.NDArray[np.int64],
    left: npt.NDArray[np.int64],
    side: int,
    fill: str,
) -> npt.NDArray[np.uint8]:
    """A window of each row, [b, C, side, side]; stored pixels are copied once, and only those inside a window."""
    size = stored.shape[2]
    if not len(rows):  # a rank's share of a last batch may be empty
        return np.empty((0, stored.shape[1], side, side), np.uint8)
    margin = max(0, -int(min(top.min(), left.min())), int(max(top.max(), left.max())) + side - size)
    if margin:
        around = ((0, 0), (0, 0), (margin, margin), (margin, margin))
        stored = np.pad(stored[rows], around, mode="constant" if fill == "zero" else "edge")
        rows, top, left = np.arange(len(rows)), top + margin, left + margin
    views = np.lib.stride_tricks.sliding_window_view(stored, (side, side), axis=(2, 3))
    return views[rows, :, top, left]
