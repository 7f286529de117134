"""Pictures that people bring: uploaded or drawn, checked before they are decoded, made to fit a network."""

from __future__ import annotations

import base64
import binascii
import io
import warnings
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from capsroute.data.pictures import decode
from capsroute.errors import CapsrouteError, DataError

MAX_BYTES = 10 * 2**20
MAX_PIXELS = 25_000_000
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
_INK = 32  # a level above which a drawn pixel counts


class PictureError(CapsrouteError, ValueError):
    """A picture cannot be used; the page says why."""


def read_file(path: str | Path, name: str | None = None) -> Image.Image:
    """The picture in an uploaded file, in colour, upright."""
    file = Path(path)
    told = name or file.name
    size = file.stat().st_size
    if size > MAX_BYTES:
        raise PictureError(f"{told} has {size / 2**20:.0f} MB; pictures may have up to {MAX_BYTES // 2**20} MB")
    return read_bytes(file.read_bytes(), told)


def read_bytes(content: bytes, name: str) -> Image.Image:
    """The picture in `content`; what its header says is checked before any pixel is decoded."""
    if len(content) > MAX_BYTES:
        raise PictureError(f"{name} is too large; pictures may have up to {MAX_BYTES // 2**20} MB")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # our own bound is lower
            with Image.open(io.BytesIO(content), formats=FORMATS) as opened:
                width, height = opened.size
    except Image.DecompressionBombError:
        raise PictureError(f"{name} claims far more pixels than a picture has; choose another file") from None
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError) as error:
        known = ", ".join(FORMATS)
        raise PictureError(f"{name} is no picture that can be read here; choose a {known} file") from error
    if width * height > MAX_PIXELS:
        raise PictureError(
            f"{name} would unpack to {width} x {height} pixels; pictures may have up to {MAX_PIXELS // 10**6} million"
        )
    try:
        return decode(content, "RGB", name)
    except (DataError, MemoryError) as error:
        raise PictureError(f"{name} is damaged: {error}") from error


def read_drawing(address: str) -> Image.Image | None:
    """What the drawing pad sends, white on black; None while nothing is drawn."""
    start = "data:image/png;base64,"
    if not isinstance(address, str) or not address.startswith(start):
        raise PictureError("the drawing did not arrive as a picture; draw again")
    try:
        content = base64.b64decode(address[len(start) :], validate=True)
    except binascii.Error as error:
        raise PictureError("the drawing arrived damaged; draw again") from error
    drawn = read_bytes(content, "the drawing").convert("L")
    return None if not (np.asarray(drawn) > _INK).any() else drawn


def fit_digit(drawn: Image.Image, side: int, margin: float) -> Image.Image:
    """A drawn digit cut out and scaled to stand in a square of `side`, as handwriting data sets have it."""
    ink = np.asarray(drawn.convert("L")) > _INK
    rows, columns = np.flatnonzero(ink.any(1)), np.flatnonzero(ink.any(0))
    cut = drawn.crop((int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1))
    room = side * (1 - 2 * margin)
    scale = room / max(cut.size)
    size = (max(1, round(cut.width * scale)), max(1, round(cut.height * scale)))
    small = cut.resize(size, Image.Resampling.BOX if scale < 1 else Image.Resampling.BILINEAR)
    square = Image.new("L", (side, side))
    square.paste(small, ((side - size[0]) // 2, (side - size[1]) // 2))
    return square


def fit_photo(photo: Image.Image, side: int) -> Image.Image:
    """The middle square of a picture, scaled to `side`."""
    short = min(photo.size)
    left, top = (photo.width - short) // 2, (photo.height - short) // 2
    return photo.crop((left, top, left + short, top + short)).resize((side, side), Image.Resampling.BOX)


def to_channels(image: Image.Image, channels: int, invert: bool = False) -> npt.NDArray[np.uint8]:
    """Pixels [channels, h, w]: colour for three channels, else grey in each (both cameras of a pair see the same)."""
    if channels == 3:
        pixels = np.moveaxis(np.asarray(image.convert("RGB")), -1, 0)
    else:
        pixels = np.repeat(np.asarray(image.convert("L"))[None], channels, axis=0)
    return np.ascontiguousarray(255 - pixels if invert else pixels)
