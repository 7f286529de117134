"""smallNORB (LeCun, Huang & Bottou 2004): 50 toys of 5 classes in stereo, from the official matrices or their pictures.

Each split has 24,300 pairs: 5 toys a class, 9 elevations, 18 azimuths, 6 lightings. Pairs are stored halved to 48 x 48
(area mean) or as they are, both cameras, in the cache. For research use; cite LeCun, Huang & Bottou, CVPR 2004.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from capsroute.data import store
from capsroute.data.dataset import DataSet, Images, Numbers, Part, Pixels, Split
from capsroute.data.norbmat import parse_matrix
from capsroute.data.pictures import Files, Folder, Zip, decode, halved
from capsroute.data.transforms import Transform
from capsroute.errors import DataError

CLASSES = ("animal", "human", "airplane", "truck", "car")
PAIRS = 24300
STEMS = {"train": "smallnorb-5x46789x9x18x6x2x96x96-training", "test": "smallnorb-5x01235x9x18x6x2x96x96-testing"}
MIRRORS = (
    "https://cs.nyu.edu/~ylclab/data/norb-v1.0-small/",
    "http://www.cs.nyu.edu/~ylclab/data/norb-v1.0-small/",
)
# Of the unpacked matrices. Nobody published a sha256 for three of them; their md5 is the one in wide use.
DIGESTS = {
    ("train", "dat"): "md5:8138a0902307b32dfa0025a36dfa45ec",
    ("train", "cat"): "sha256:591ed90c090cb6724593e8de28180bd602095ee8ec82bd1a5ca30b488cd1d06e",
    ("train", "info"): "md5:19faee774120001fc7e17980d6960451",
    ("test", "dat"): "md5:e9920b7f7b2869a8f1a12e945b2c166c",
    ("test", "cat"): "sha256:591ed90c090cb6724593e8de28180bd602095ee8ec82bd1a5ca30b488cd1d06e",
    ("test", "info"): "sha256:318f817236b7c97af03cd90e07a9cbb4346e20ef83a1118a61eeb50e3b96db7e",
}
_SIDE = 96
_CHUNK = 128
_PICTURE = re.compile(r"(?:^|.*/)(train|test)/(\d+)_([a-z]+)_(\d+)_(lt|rt)\.(jpe?g|png)$", re.IGNORECASE)
_HEAD = re.compile(rb"(?:train|test)/\d+_[a-z]+_\d+_[lr]t\.(jpe?g|png)", re.IGNORECASE)


class Source(Protocol):
    """One of the two forms smallNORB comes in."""

    @property
    def kind(self) -> str: ...

    @property
    def path(self) -> Path: ...

    def marks(self, part: Part) -> list[tuple[str, int, int]]: ...

    def recipe(self, part: Part) -> store.Recipe: ...

    def count(self, part: Part) -> int: ...

    def verified(self) -> str: ...


def open_smallnorb(
    data_dir: Path | None = None, *, cameras: str = "stereo", side: int = _SIDE // 2, verify: bool = True
) -> DataSet:
    """`cameras="stereo"` gives two channels, left and right (Hinton et al.); `"left"` one, as in this paper's table.

    `side` is 48, to which everybody halves the images, or 96, as they were taken. `verify` compares official matrices
    with their published digests.
    """
    if side not in (_SIDE // 2, _SIDE):
        raise DataError(f"side={side} is unknown; use {_SIDE // 2} (halved) or {_SIDE} (as they were taken)")
    if cameras not in ("stereo", "left"):
        raise DataError(f"cameras={cameras!r} is unknown; use 'stereo' or 'left'")
    source = find(data_dir, verify)
    titles = {"mat": "smallNORB", "jpeg": "smallNORB (JPEG copy)", "png": "smallNORB (PNG copy)"}
    return DataSet(
        name="smallnorb",
        source=source.kind,
        cameras=cameras,
        classes=CLASSES,
        channels=2 if cameras == "stereo" else 1,
        image_size=side * 2 // 3,
        transform=Transform(crop=side * 2 // 3, fill="edge", standardise="image", brightness=2.0, contrast=0.5),
        opener=partial(_open, source, cameras, side),
        title=titles[source.kind],
    )


def _open(source: Source, cameras: str, side: int, part: Part) -> Split:
    key = store.fingerprint("smallnorb", source.kind, part, side, *source.marks(part))
    split = store.cached(f"smallnorb-{source.kind}-{part}-{key}", partial(_stored, source, side, part))
    return split if cameras == "stereo" else replace(split, images=Images(split.images.stored[:, :1]))


def _stored(source: Source, side: int, part: Part) -> store.Recipe:
    taken = source.recipe(part)
    if side == _SIDE:
        return taken
    return store.Recipe((*taken.shape[:2], side, side), map(halved, taken.chunks), taken.columns)


def find(data_dir: Path | None, verify: bool = True) -> Source:
    """The first place that has the data set; where it has several forms, the official one."""
    for folder in store.folders("smallnorb", data_dir):
        if all(_matrix(folder, part, "dat") and _matrix(folder, part, "cat") for part in STEMS):
            return Matrices(folder, verify)
        for path in sorted(folder.glob("*small[nN][oO][rR][bB]*.zip")):
            if (kind := _kind_of_zip(path)) is not None:
                return PictureFiles(Zip(path), kind, folder)
        if (kind := _kind_of_folder(folder)) is not None:
            return PictureFiles(Folder(folder), kind, folder)
    raise store.NotFound(
        "smallnorb",
        data_dir,
        "run `capsroute data fetch smallnorb`, or put there the official .mat files, or the pictures "
        "(train/000000_animal_08_lt.jpg) as folders or zip",
    )


def _matrix(folder: Path, part: str, what: str) -> Path | None:
    name = f"{STEMS[part]}-{what}.mat"
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def _kind_of_zip(path: Path) -> str | None:
    """What the first names at the head of a zip say; listing all 97,200 takes a second."""
    try:
        with path.open("rb") as file:
            found = _HEAD.search(file.read(1 << 20))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    if found:
        return _kind(found[1].decode())
    kinds = (match[6] for name in Zip(path).names("train") if (match := _PICTURE.match(name)))
    return next((_kind(suffix) for suffix in kinds), None)


def _kind_of_folder(folder: Path) -> str | None:
    for part in STEMS:
        for path in (folder / part).glob("*_[lr]t.*"):
            if match := _PICTURE.match(f"{part}/{path.name}"):
                return _kind(match[6])
    return None


def _kind(suffix: str) -> str:
    return "png" if suffix.lower() == "png" else "jpeg"


@dataclass(frozen=True)
class Matrices:
    """The official `-dat`, `-cat` and `-info` matrices, gzipped or not; without `-info`, poses are not known."""

    path: Path
    verify: bool
    kind: str = "mat"

    def marks(self, part: Part) -> list[tuple[str, int, int]]:
        paths = [_matrix(self.path, part, what) for what in ("dat", "cat", "info")]
        # A cache of files nobody compared must not pass for one of files that were.
        return [("verified", self.verify, 0), *(store.file_mark(path) for path in paths if path is not None)]

    def recipe(self, part: Part) -> store.Recipe:
        pairs = self._read(part, "dat", (None, 2, _SIDE, _SIDE))
        if pairs.dtype != np.uint8:
            raise DataError(f"{self.path}: the {part} -dat matrix holds {pairs.dtype} values, smallNORB's are bytes")
        images = pairs.astype(np.uint8, copy=False)
        labels = self._read(part, "cat", (None,)).astype(np.int64)
        info = self._read(part, "info", (None, 4)) if _matrix(self.path, part, "info") else None
        columns = {"labels": labels, **(poses(info) if info is not None else {})}
        for name, values in columns.items():
            if len(values) != len(pairs):
                raise DataError(f"{self.path}: {len(pairs)} {part} pairs but {len(values)} values of {name}")
        chunks = (images[start : start + _CHUNK] for start in range(0, len(pairs), _CHUNK))
        return store.Recipe((len(pairs), 2, _SIDE, _SIDE), chunks, columns)

    def count(self, part: Part) -> int:
        return len(self._read(part, "dat", (None, 2, _SIDE, _SIDE)))

    def verified(self) -> str:
        """Whatever is read is compared, so a copy that can be counted is the published one."""
        return "md5" if self.verify else "no"

    def _read(self, part: Part, what: str, shape: tuple[int | None, ...]) -> npt.NDArray[np.generic]:
        path = _matrix(self.path, part, what)
        if path is None:
            raise DataError(f"{self.path / STEMS[part]}-{what}.mat is gone; run `capsroute data fetch smallnorb`")
        content = store.read(path)
        matrix = parse_matrix(content, path)
        if len(matrix.shape) != len(shape) or any(s not in (None, m) for s, m in zip(shape, matrix.shape, strict=True)):
            wanted = " x ".join("N" if size is None else str(size) for size in shape)
            raise DataError(f"{path} holds {' x '.join(map(str, matrix.shape))}, smallNORB's -{what} is {wanted}")
        if self.verify:
            store.verify(content, DIGESTS[part, what], path)
        return matrix


def poses(info: npt.NDArray[np.generic]) -> dict[str, Numbers]:
    """The columns of an `-info` matrix; elevation and azimuth in degrees."""
    instance, elevation, azimuth, lighting = info.astype(np.int64).T
    return {"instance": instance, "elevation": 30 + 5 * elevation, "azimuth": 10 * azimuth, "lighting": lighting}


@dataclass(frozen=True)
class PictureFiles:
    """The common export: `train/000000_animal_08_lt.jpg` is pair 0, an animal, toy 8, the left camera.

    Pair numbers are rows of the official matrices. Elevation, azimuth and lighting come from an `-info.mat` among the
    pictures or beside them, where there is one.
    """

    files: Files
    kind: str
    beside: Path

    @property
    def path(self) -> Path:
        return self.files.path

    def marks(self, part: Part) -> list[tuple[str, int, int]]:
        loose = [_matrix(self.beside, part, what) for what in ("cat", "info")]
        return self.files.marks(part) + [store.file_mark(path) for path in loose if path is not None]

    def recipe(self, part: Part) -> store.Recipe:
        pairs, columns = self.listing(part)
        return store.Recipe((len(pairs), 2, _SIDE, _SIDE), self._chunks(pairs), columns)

    def count(self, part: Part) -> int:
        return len(self.listing(part)[0])

    def verified(self) -> str:
        """Labels can be compared with what was published, pictures cannot: exports differ in their bytes."""
        names = {part: self.files.names(part) for part in STEMS}
        found = {(part, "cat"): self._extra(part, "cat", names[part]) for part in STEMS}
        same = all(
            extra is not None and store.digest(extra[0], DIGESTS[key].split(":")[0]) == DIGESTS[key]
            for key, extra in found.items()
        )
        return "labels (sha256)" if same else "no"

    def listing(self, part: Part) -> tuple[list[tuple[str, str]], dict[str, Numbers]]:
        """The file names of each pair, and what names and matrices say of it; no picture is read."""
        names = self.files.names(part)
        found: dict[int, dict[str, tuple[str, str, int]]] = {}
        for name in names:
            if (match := _PICTURE.match(name)) and match[1].lower() == part:
                entry = (name, match[3].lower(), int(match[4]))
                found.setdefault(int(match[2]), {})[match[5].lower()] = entry
        if not found:
            raise DataError(
                f"{self.path} has no {part} pictures ({part}/000000_animal_08_lt.jpg); get the whole data set"
            )
        pairs = [self._pair(part, number, found) for number in range(len(found))]
        labels, instances = (np.array([pair["lt"][k] for pair in found.values()]) for k in (1, 2))
        order = np.argsort(np.array(list(found)))
        known = {name: place for place, name in enumerate(CLASSES)}
        columns: dict[str, Numbers] = {
            "labels": np.array([known[label] for label in labels[order]], dtype=np.int64),
            "instance": instances[order].astype(np.int64),
        }
        self._compare(part, names, columns)
        return pairs, columns

    def _pair(self, part: str, number: int, found: Mapping[int, Mapping[str, tuple[str, str, int]]]) -> tuple[str, str]:
        place = f"{self.path}: {part} pair {number:06d}"
        if number not in found or len(found[number]) != 2:
            there = set(found.get(number, ()))
            lacking = " and ".join({"lt": "left", "rt": "right"}[side] for side in ("lt", "rt") if side not in there)
            raise DataError(f"{place} has no {lacking} image; get the whole data set again")
        left, right = found[number]["lt"], found[number]["rt"]
        if left[1:] != right[1:] or left[1] not in CLASSES:
            raise DataError(f"{place} is {left[0]!r} and {right[0]!r}: no pair of {', '.join(CLASSES)}")
        return left[0], right[0]

    def _compare(self, part: Part, names: list[str], columns: dict[str, Numbers]) -> None:
        """Add what the matrices know, after checking that they speak of the same pairs as the names."""
        claims: dict[str, Numbers] = {}
        if (extra := self._extra(part, "cat", names)) is not None:
            claims["labels"] = parse_matrix(*extra).astype(np.int64)
        if (extra := self._extra(part, "info", names)) is not None:
            claims |= poses(parse_matrix(*extra))
        for name, values in claims.items():
            own = columns.get(name)
            if len(values) != len(columns["labels"]) or (own is not None and not np.array_equal(own, values)):
                raise DataError(f"{self.path}: the {part} pictures and the .mat files disagree on {name}; use one copy")
        columns |= claims

    def _extra(self, part: str, what: str, names: list[str]) -> tuple[bytes, str] | None:
        """An official matrix among the pictures or beside them, and its name."""
        wanted = f"{STEMS[part]}-{what}.mat"
        inside = next((name for name in names if name.endswith(wanted)), None)
        if inside is not None:
            return self.files.read(inside), f"{self.path}: {inside}"
        loose = _matrix(self.beside, part, what)
        return None if loose is None else (store.read(loose), str(loose))

    def _chunks(self, pairs: list[tuple[str, str]]) -> Iterator[Pixels]:
        for start in range(0, len(pairs), _CHUNK):
            chunk = pairs[start : start + _CHUNK]
            yield np.stack([np.stack([self._picture(name) for name in pair]) for pair in chunk])

    def _picture(self, name: str) -> Pixels:
        picture = decode(self.files.read(name), "L", f"{self.path}: {name}")
        if picture.size != (_SIDE, _SIDE):
            raise DataError(
                f"{self.path}: {name} is {picture.width} x {picture.height}, smallNORB's are {_SIDE} x {_SIDE}"
            )
        return np.asarray(picture)
