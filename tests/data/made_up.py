"""Small files in the formats of the real ones."""

from __future__ import annotations

import gzip
import io
import struct
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image

from capsroute.data.mnist import FILES
from capsroute.data.smallnorb import CLASSES, STEMS


def idx(values: np.ndarray) -> bytes:
    head = struct.pack(f">I{values.ndim}I", 0x0800 + values.ndim, *values.shape)
    return head + values.astype(np.uint8).tobytes()


def write_mnist(folder: Path, train: int = 40, test: int = 20, packed: bool = True) -> dict[str, np.ndarray]:
    """Four idx files of random digits; returns what they hold."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    arrays = {}
    for (part, what), name in FILES.items():
        count = train if part == "train" else test
        values = random.integers(0, 256, (count, 28, 28)) if what == "images" else np.arange(count) % 10
        arrays[f"{part} {what}"] = values
        content = idx(values)
        (folder / (f"{name}.gz" if packed else name)).write_bytes(gzip.compress(content) if packed else content)
    return arrays


def norb_matrix(values: np.ndarray) -> bytes:
    """NORB's format: magic, dimensions, at least three sizes, values; all little-endian."""
    magic = {"u1": 0x1E3D4C55, "i4": 0x1E3D4C54}[values.dtype.str[1:]]
    sizes = [*values.shape, 1, 1][: max(3, values.ndim)]
    return (
        struct.pack(f"<II{len(sizes)}I", magic, values.ndim, *sizes)
        + values.astype(f"<{values.dtype.str[1:]}").tobytes()
    )


class Toys:
    """A small smallNORB: `pairs` stereo pairs a split, smooth enough to survive JPEG."""

    def __init__(self, pairs: int = 30) -> None:
        self.images, self.labels, self.info = {}, {}, {}
        for seed, (part, toys) in enumerate({"train": (4, 6, 7, 8, 9), "test": (0, 1, 2, 3, 5)}.items()):
            random = np.random.default_rng(seed)
            coarse = random.integers(40, 216, (pairs, 2, 6, 6)).astype(np.uint8)
            self.images[part] = coarse.repeat(16, axis=2).repeat(16, axis=3)
            self.labels[part] = (np.arange(pairs) % 5).astype(np.int32)
            columns = [np.array(toys)[np.arange(pairs) // 5 % 5]]
            columns += [random.integers(0, 9, pairs), 2 * random.integers(0, 18, pairs), random.integers(0, 6, pairs)]
            self.info[part] = np.stack(columns, axis=1).astype(np.int32)

    def matrices(self, folder: Path, packed: bool = False, info: tuple[str, ...] = ("train", "test")) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        for part, stem in STEMS.items():
            contents = {"dat": self.images[part], "cat": self.labels[part]}
            if part in info:
                contents["info"] = self.info[part]
            for what, values in contents.items():
                content = norb_matrix(values)
                path = folder / f"{stem}-{what}.mat{'.gz' if packed else ''}"
                path.write_bytes(gzip.compress(content) if packed else content)
        return folder

    def files(self, suffix: str = "png", info: tuple[str, ...] = ("test",)) -> dict[str, bytes]:
        """The export as names and contents."""
        found = {}
        for part, stem in STEMS.items():
            found[f"{stem}-cat.mat"] = norb_matrix(self.labels[part])
            if part in info:
                found[f"{stem}-info.mat"] = norb_matrix(self.info[part])
            for number, pair in enumerate(self.images[part]):
                name = f"{part}/{number:06d}_{CLASSES[self.labels[part][number]]}_{self.info[part][number, 0]:02d}"
                for camera, pixels in zip(("lt", "rt"), pair, strict=True):
                    found[f"{name}_{camera}.{suffix}"] = picture(pixels, suffix)
        return found


def picture(pixels: np.ndarray, suffix: str = "png") -> bytes:
    target = io.BytesIO()
    Image.fromarray(pixels).save(target, {"jpg": "JPEG", "png": "PNG"}[suffix])
    return target.getvalue()


def write_files(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def write_zip(path: Path, files: dict[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as target:
        for name, content in files.items():
            target.writestr(name, content)
    return path
