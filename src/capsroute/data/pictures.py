"""Pictures in files: a folder or a zip read alike, and decoding that names the file which fails."""

from __future__ import annotations

import io
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import Protocol

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from capsroute.data import store
from capsroute.errors import DataError

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp")


class Files(Protocol):
    """Named files in a folder or a zip; `part` is the sub-folder asked about."""

    @property
    def path(self) -> Path: ...

    def names(self, part: str) -> list[str]: ...

    def read(self, name: str) -> bytes: ...

    def marks(self, part: str) -> list[tuple[str, int, int]]: ...


class Folder:
    """The files in a folder and in one sub-folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def names(self, part: str) -> list[str]:
        found = [*self.path.glob("*"), *(self.path / part).glob("*")]
        return sorted(p.relative_to(self.path).as_posix() for p in found if p.is_file())

    def read(self, name: str) -> bytes:
        return store.read(self.path / name)

    def marks(self, part: str) -> list[tuple[str, int, int]]:
        return [(name, *store.file_mark(self.path / name)[1:]) for name in self.names(part)]


class Zip:
    """The files in a zip. Nothing is unpacked, and a zip whose names point outside it is refused all the same."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._zip: zipfile.ZipFile | None = None

    def _opened(self) -> zipfile.ZipFile:
        if self._zip is None:
            try:
                self._zip = zipfile.ZipFile(self.path)
            except (zipfile.BadZipFile, OSError) as error:
                raise DataError(f"{self.path} is no readable zip ({error}); fetch it again") from error
            for name in self._zip.namelist():
                if name.startswith(("/", "\\")) or ".." in PurePosixPath(name.replace("\\", "/")).parts or ":" in name:
                    raise DataError(f"{self.path} holds {name!r}, which points outside the zip; do not use this file")
        return self._zip

    def names(self, part: str) -> list[str]:
        return [entry.filename for entry in self._opened().infolist() if not entry.is_dir()]

    def read(self, name: str) -> bytes:
        try:
            return self._opened().read(name)
        except (zipfile.BadZipFile, zlib.error, OSError, EOFError, RuntimeError) as error:
            raise DataError(f"{self.path}: {name} is damaged ({error}); fetch the zip again") from error

    def marks(self, part: str) -> list[tuple[str, int, int]]:
        return [store.file_mark(self.path)]


def decode(content: bytes, mode: str, name: str) -> Image.Image:
    """The picture in `content`, upright, as grey ("L") or colour ("RGB")."""
    try:
        with Image.open(io.BytesIO(content)) as picture:
            if picture.mode == mode and picture.format != "TIFF" and not picture.getexif():
                picture.load()
                return picture
            upright = ImageOps.exif_transpose(picture)
            if upright.mode.startswith(("I;16", "I")):  # 16-bit grey: PIL would clip it, not scale it
                upright = Image.fromarray((np.asarray(upright) >> 8).astype(np.uint8))
            return upright.convert(mode)
    except (OSError, ValueError, SyntaxError, TypeError, zlib.error, Image.DecompressionBombError) as error:
        raise DataError(f"{name} does not decode as an image ({error}); repair or remove it") from error


def halved(images: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """The mean of each 2 x 2 pixels, rounded to the nearest level: [..., H, W] to [..., H / 2, W / 2]."""
    wide = images.astype(np.uint16)
    rows = wide[..., 0::2, :] + wide[..., 1::2, :]
    sums = rows[..., 0::2] + rows[..., 1::2]
    return ((sums + 2) >> 2).astype(np.uint8)
