"""Your own images: one folder a class, colour or grey, any size."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from capsroute.data import store
from capsroute.data.dataset import DataSet, Part, Split
from capsroute.data.pictures import SUFFIXES, decode
from capsroute.data.transforms import Transform
from capsroute.errors import DataError

_CHUNK = 64
_LOOKED_AT = 5  # pictures of each class that decide whether the data set is in colour

Listing = list[tuple[Path, int]]  # pictures with their labels


def open_folder(
    data_dir: Path | None = None,
    *,
    path: Path,
    size: int = 32,
    colour: bool | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> DataSet:
    """Images in `path/train/CLASS/` and `path/test/CLASS/`; or in `path/CLASS/`, of which `test_fraction` of every
    class is then the test set, chosen by file name and `seed`.

    Images are cut to a centred square and scaled to `size`. `colour` keeps three channels or one; if it is None, the
    first few training images of every class decide.
    """
    if not path.is_dir():
        raise DataError(f"{path} is no folder; folder:PATH needs one with a folder of images for each class")
    if size < 1 or not 0 < test_fraction < 1:
        raise DataError(
            f"size={size}, test_fraction={test_fraction}: need a positive size and a fraction between 0 and 1"
        )
    divided = (path / "train").is_dir()
    classes = _classes(path / "train" if divided else path)
    pictures = partial(_divided, path, classes) if divided else partial(_share, path, classes, test_fraction, seed)
    if colour is None:
        colour = any(_coloured(picture) for picture in _first_of_each_class(pictures("train")))
    return DataSet(
        name=f"folder:{path}",
        source="folder",
        classes=classes,
        channels=3 if colour else 1,
        image_size=size,
        transform=Transform(standardise="image", shift=size // 16, fill="edge"),
        opener=partial(_open, path, pictures, size, colour),
        title=path.name,
    )


def _classes(root: Path) -> tuple[str, ...]:
    names = tuple(sorted(p.name for p in root.iterdir() if p.is_dir() and not p.name.startswith(".")))
    if len(names) < 2:
        raise DataError(f"{root} has {len(names)} class folders; need at least two, each with images of one class")
    return names


def _pictures(folder: Path) -> list[Path]:
    found = sorted(p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES and not p.name.startswith("."))
    if not found:
        raise DataError(f"the class folder {folder} has no images ({', '.join(SUFFIXES)}); add some or remove it")
    return found


def _first_of_each_class(listing: Listing) -> list[Path]:
    seen: dict[int, list[Path]] = {}
    for picture, label in listing:
        seen.setdefault(label, []).append(picture)
    return [picture for pictures in seen.values() for picture in pictures[:_LOOKED_AT]]


def _coloured(path: Path) -> bool:
    pixels = np.asarray(decode(store.read(path), "RGB", str(path)))
    return bool((pixels != pixels[..., :1]).any())


def _open(path: Path, pictures: Callable[[Part], Listing], size: int, colour: bool, part: Part) -> Split:
    listing = pictures(part)
    marks = [(str(p.relative_to(path)), *store.file_mark(p)[1:], label) for p, label in listing]
    key = store.fingerprint("folder", str(path.resolve()), part, size, colour, marks)
    return store.cached(f"folder-{part}-{key}", partial(_recipe, listing, size, colour))


def _divided(path: Path, classes: tuple[str, ...], part: Part) -> Listing:
    """The pictures of one split of a folder that has them apart."""
    root = path / part
    if not root.is_dir():
        raise DataError(f"{root} is not there; add it, or put the class folders directly into {path}")
    if (found := _classes(root)) != classes:
        odd = ", ".join(sorted(set(found) ^ set(classes)))
        raise DataError(f"{root} and the training folder differ in their classes ({odd}); they must be the same")
    return [(picture, label) for label, name in enumerate(classes) for picture in _pictures(root / name)]


def _share(path: Path, classes: tuple[str, ...], fraction: float, seed: int, part: Part) -> Listing:
    """The pictures of one split of an undivided folder; a picture keeps its split when others are added."""
    listing = []
    for label, name in enumerate(classes):
        pictures = _pictures(path / name)
        if len(pictures) < 2:
            raise DataError(f"{path / name} has one image; a class needs two, one to train on and one to test")
        wanted = min(max(1, round(fraction * len(pictures))), len(pictures) - 1)
        drawn = sorted(pictures, key=lambda p: hashlib.sha256(f"{seed} {p.relative_to(path)}".encode()).digest())
        test = set(drawn[:wanted])
        listing += [(picture, label) for picture in pictures if (picture in test) == (part == "test")]
    return listing


def _recipe(listing: Listing, size: int, colour: bool) -> store.Recipe:
    labels = np.array([label for _, label in listing], dtype=np.int64)
    shape = (len(listing), 3 if colour else 1, size, size)
    return store.Recipe(shape, _chunks(listing, size, colour), {"labels": labels})


def _chunks(listing: Listing, size: int, colour: bool) -> Iterator[npt.NDArray[np.uint8]]:
    for start in range(0, len(listing), _CHUNK):
        yield np.stack([_square(path, size, colour) for path, _ in listing[start : start + _CHUNK]])


def _square(path: Path, size: int, colour: bool) -> npt.NDArray[np.uint8]:
    picture = decode(store.read(path), "RGB" if colour else "L", str(path))
    shrinks = min(picture.size) >= size
    method = Image.Resampling.BOX if shrinks else Image.Resampling.BILINEAR  # BOX is the area mean
    pixels = np.asarray(ImageOps.fit(picture, (size, size), method))
    return pixels.transpose(2, 0, 1) if colour else pixels[None]
