"""Pictures that people bring: good ones fit the network, bad ones get a message, none takes the server down."""

from __future__ import annotations

import base64
import io
import struct
import tracemalloc
import zlib

import numpy as np
import pytest
from PIL import Image

from capsroute.explore import pictures
from capsroute.explore.pictures import (
    PictureError,
    fit_digit,
    fit_photo,
    read_bytes,
    read_drawing,
    read_file,
    to_channels,
)


def packed(image, kind="PNG", **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def png(width, height, body):
    """A PNG that claims a size, whatever lies in it."""

    def chunk(name, content):
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def test_pictures_of_every_format_are_read(tmp_path):
    image = Image.fromarray(np.arange(48 * 3, dtype=np.uint8).reshape(6, 8, 3))
    for kind in pictures.FORMATS:
        path = tmp_path / f"picture.{kind.lower()}"
        path.write_bytes(packed(image, kind))
        read = read_file(path)
        assert read.size == (8, 6)
        assert read.mode == "RGB"


def test_a_photograph_is_turned_upright():
    image = Image.fromarray(np.zeros((4, 9, 3), dtype=np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6
    assert read_bytes(packed(image, "JPEG", exif=exif), "x.jpg").size == (4, 9)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no picture"),
        (b"just some words", "no picture"),
        (b"%PDF-1.7 something", "no picture"),
        (b"\x89PNG\r\n\x1a\n and then nothing", "no picture"),
        (png(20, 20, b"no pixels"), "damaged"),
        (packed(Image.effect_noise((40, 40), 90))[:600], "damaged"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "no picture"),
    ],
)
def test_files_that_are_no_pictures(content, message):
    with pytest.raises(PictureError, match=message) as caught:
        read_bytes(content, "file.png")
    assert "file.png" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_too_large_is_not_even_read(tmp_path):
    path = tmp_path / "huge.png"
    with path.open("wb") as file:
        file.truncate(pictures.MAX_BYTES + 1)
    with pytest.raises(PictureError, match=r"huge\.png has 10 MB; pictures may have up to 10 MB"):
        read_file(path)


@pytest.mark.parametrize("side", [6_000, 12_000, 60_000])
def test_a_decompression_bomb_is_refused_by_its_header(side):
    """A few kilobytes that would unpack to 36 million pixels and more."""
    body = zlib.compress(bytes(min(side * (side + 1), 40_000_000)), 9)
    tracemalloc.start()
    with pytest.raises(PictureError, match="pixels"):
        read_bytes(png(side, side, body), "bomb.png")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5_000_000


def test_drawings_arrive_as_white_on_black():
    canvas = Image.new("RGB", (224, 224))
    address = "data:image/png;base64," + base64.b64encode(packed(canvas)).decode()
    assert read_drawing(address) is None
    canvas.paste((255, 255, 255), (100, 40, 120, 180))
    drawn = read_drawing("data:image/png;base64," + base64.b64encode(packed(canvas)).decode())
    assert drawn.size == (224, 224)
    assert np.asarray(drawn).max() == 255


@pytest.mark.parametrize(
    "address", ["", None, 7, "http://elsewhere/x.png", "data:image/png;base64,%%%", "data:text/html,x"]
)
def test_drawings_that_are_none(address):
    with pytest.raises(PictureError, match="drawing"):
        read_drawing(address)


@pytest.mark.parametrize(("side", "margin", "room"), [(8, 0.0, 8), (32, 0.19, 20)])
def test_a_drawn_digit_is_centred_and_fills_its_frame(side, margin, room):
    canvas = Image.new("L", (224, 224))
    canvas.paste(255, (10, 20, 40, 140))  # a tall stroke in a corner
    small = np.asarray(fit_digit(canvas, side, margin)) > 100
    rows, columns = np.flatnonzero(small.any(1)), np.flatnonzero(small.any(0))
    assert len(rows) == room
    assert len(columns) == pytest.approx(room / 4, abs=1)
    assert abs((columns[0] + columns[-1]) / 2 - (side - 1) / 2) <= 0.5
    assert abs((rows[0] + rows[-1]) / 2 - (side - 1) / 2) <= 0.5


def test_photographs_are_cut_to_their_middle_square():
    pixels = np.zeros((10, 30, 3), dtype=np.uint8)
    pixels[:, 10:20] = 200
    assert np.all(np.asarray(fit_photo(Image.fromarray(pixels), 5)) == 200)


def test_channels_are_what_the_network_takes():
    image = Image.new("RGB", (4, 4), (255, 0, 0))
    assert to_channels(image, 3)[:, 0, 0].tolist() == [255, 0, 0]
    pair = to_channels(image, 2)
    assert pair.shape == (2, 4, 4)
    assert pair[0, 0, 0] == pair[1, 0, 0] == 76
    assert to_channels(image, 1, invert=True)[0, 0, 0] == 255 - 76
