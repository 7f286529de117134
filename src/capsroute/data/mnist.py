"""MNIST and Fashion-MNIST from their idx files, gzipped or not."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from capsroute.data import store
from capsroute.data.dataset import DataSet, Part, Split
from capsroute.data.transforms import Transform
from capsroute.errors import DataError

FILES = {
    ("train", "images"): "train-images-idx3-ubyte",
    ("train", "labels"): "train-labels-idx1-ubyte",
    ("test", "images"): "t10k-images-idx3-ubyte",
    ("test", "labels"): "t10k-labels-idx1-ubyte",
}


@dataclass(frozen=True)
class Published:
    """What is known of a data set in MNIST's format. Digests are of the unpacked files, in the order of `FILES`."""

    name: str
    title: str
    classes: tuple[str, ...]
    digests: tuple[str, str, str, str]
    mirrors: tuple[str, ...]
    installed: Path | None = None

    def digest(self, part: str, what: str) -> str:
        return "sha256:" + self.digests[list(FILES).index((part, what))]


MNIST = Published(
    name="mnist",
    title="MNIST",
    classes=tuple("0123456789"),
    digests=(
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
    mirrors=(
        "http://yann.lecun.com/exdb/mnist/",
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
)
FASHION = Published(
    name="fashion-mnist",
    title="Fashion-MNIST",
    classes=(
        *("T-shirt", "trouser", "pullover", "dress", "coat"),
        *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
    ),
    digests=(
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
    mirrors=(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
    ),
    installed=Path("/usr/share/datasets/fashion-mnist"),  # Debian's package dataset-fashion-mnist
)


def open_mnist(data_dir: Path | None = None, *, verify: bool = True, shift: int = 0) -> DataSet:
    """Digits of 28 x 28, zero-padded to 32 x 32; `shift` moves them in training by up to so many pixels each way."""
    return _open_published(MNIST, data_dir, verify, shift)


def open_fashion_mnist(data_dir: Path | None = None, *, verify: bool = True, shift: int = 0) -> DataSet:
    """Zalando's clothes, in MNIST's format and prepared alike."""
    return _open_published(FASHION, data_dir, verify, shift)


def _open_published(which: Published, data_dir: Path | None, verify: bool, shift: int) -> DataSet:
    return DataSet(
        name=which.name,
        source="idx",
        classes=which.classes,
        channels=1,
        image_size=32,
        transform=Transform(pad_to=32, shift=shift),
        opener=partial(open_part, which, find(which, data_dir), verify),
        title=which.title,
    )


def find(which: Published, data_dir: Path | None) -> Path:
    """The folder with all four files."""
    for folder in _candidates(which, data_dir):
        if all(_file(folder, *key) for key in FILES):
            return folder
    package = " or install Debian's dataset-fashion-mnist" if which.installed else ""
    raise store.NotFound(which.name, data_dir, f"run `capsroute data fetch {which.name}`{package}")


def _candidates(which: Published, data_dir: Path | None) -> Iterator[Path]:
    others = {other.digest("train", "labels") for other in (MNIST, FASHION) if other is not which}
    for folder in store.folders(which.name, data_dir):
        # Both data sets use the same file names: a folder that is not named after one may hold the other.
        labels = _file(folder, "train", "labels")
        if folder.name == which.name or labels is None or _digest(labels) not in others:
            yield folder
    if which.installed is not None and which.installed.is_dir():
        yield which.installed


def _digest(path: Path) -> str:
    try:
        return store.digest(store.read(path))
    except DataError:
        return ""  # damaged: reported where the file is used


def _file(folder: Path, part: str, what: str) -> Path | None:
    name = FILES[part, what]
    spellings = (name, name.replace("-idx", ".idx"))
    return next((p for s in spellings for p in (folder / s, folder / f"{s}.gz") if p.is_file()), None)


def marks(folder: Path, part: Part) -> list[tuple[str, int, int]]:
    """What tells this copy of a split from another, for what is made from it."""
    paths = [_file(folder, part, what) for what in ("images", "labels")]
    return [store.file_mark(path) for path in paths if path is not None]


def open_part(which: Published, folder: Path, verify: bool, part: Part) -> Split:
    """Read the two files of a split, and no other."""
    arrays = {}
    for what, dimensions in (("images", 3), ("labels", 1)):
        path = _file(folder, part, what)
        if path is None:
            raise DataError(f"{folder / FILES[part, what]} is gone; run `capsroute data fetch {which.name}`")
        content = store.read(path)
        arrays[what] = parse_idx(content, dimensions, path)
        if verify:
            store.verify(content, which.digest(part, what), path)
    images, labels = arrays["images"], arrays["labels"]
    if len(images) != len(labels):
        raise DataError(f"{folder} has {len(images)} {part} images but {len(labels)} labels; fetch the files again")
    if labels.size and labels.max() >= len(which.classes):
        raise DataError(
            f"{folder} has a {part} label {labels.max()}, but {which.name} has {len(which.classes)} classes"
        )
    return Split.of(images[:, None], labels)


def parse_idx(content: bytes, dimensions: int, path: Path | str) -> npt.NDArray[np.uint8]:
    """An array in LeCun's idx format: two zero bytes, the type (8: bytes), the number of dimensions, their sizes."""
    magic = 0x0800 + dimensions
    found = int.from_bytes(content[:4], "big")
    if found != magic:
        raise DataError(f"{path} starts with {found:#010x}, no idx file of {dimensions} dimensions ({magic:#010x})")
    start = 4 + 4 * dimensions
    if len(content) < start:
        raise DataError(f"{path} ends within its header after {len(content)} bytes; fetch it again")
    shape = struct.unpack(f">{dimensions}I", content[4:start])
    expected = start + int(np.prod(shape, dtype=object))
    if len(content) != expected:
        raise DataError(f"{path} has {len(content)} bytes where its header announces {expected}; fetch it again")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)
