"""Where data lies on this machine: places to look in, reading and checking files, the cache of decoded arrays."""

from __future__ import annotations

import errno
import gzip
import hashlib
import json
import os
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from capsroute.data.dataset import Split
from capsroute.errors import DataError
from capsroute.files import durable, sync_folder

try:
    import fcntl
except ImportError:  # Windows: two processes may then both build; each ends in a whole cache, the last one stays
    fcntl = None  # type: ignore[assignment]

_VERSION = 1  # raise it when what a cache holds changes: older ones are then built anew


def cache_dir() -> Path:
    """What capsroute downloads and decodes for this user."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "capsroute"


def places(data_dir: Path | str | None = None) -> list[tuple[str, Path | None]]:
    """The three places to look in, in this order: the folder asked for, the environment's, the user's cache."""
    environment = os.environ.get("CAPSROUTE_DATA")
    return [
        ("--data", Path(data_dir).expanduser() if data_dir else None),
        ("CAPSROUTE_DATA", Path(environment).expanduser() if environment else None),
        ("the user cache", cache_dir()),
    ]


def folders(name: str, data_dir: Path | str | None = None) -> Iterator[Path]:
    """Folders that may hold the files of a data set: in each place first one of its name, then the place itself."""
    for _, place in places(data_dir):
        if place is not None:
            yield from (folder for folder in (place / name, place) if folder.is_dir())


class NotFound(DataError):
    """A data set lies in none of the three places."""

    def __init__(self, name: str, data_dir: Path | str | None, way_out: str) -> None:
        super().__init__(f"{name} is not here: looked in {looked_in(data_dir)}; {way_out}")


def looked_in(data_dir: Path | str | None) -> str:
    """The three places in words."""
    return ", ".join(f"{label} ({'not set' if place is None else place})" for label, place in places(data_dir))


def read(path: Path) -> bytes:
    """The content of a file, unpacked if it is gzipped."""
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path} is a damaged gzip file ({error}); fetch it again") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


def digest(content: bytes, kind: str = "sha256") -> str:
    """A digest with its kind, "sha256:…"; "md5:…" where that is all that was ever published."""
    return f"{kind}:{hashlib.new(kind, content, usedforsecurity=False).hexdigest()}"


def verify(content: bytes, expected: str, path: Path | str) -> None:
    """Refuse content whose digest is not the published one."""
    found = digest(content, expected.split(":")[0])
    if found != expected:
        raise DataError(
            f"{path} has {found[:20]}… once unpacked, the published file {expected[:20]}…; "
            "fetch it again, or pass verify=False to use it as it is"
        )


def fingerprint(*things: Any) -> str:
    """A short name for what a cache was made from."""
    return hashlib.sha256(json.dumps([_VERSION, *things], default=str).encode()).hexdigest()[:16]


def file_mark(path: Path) -> tuple[str, int, int]:
    """What tells one version of a file from another without reading it."""
    stat = path.stat()
    return path.name, stat.st_size, stat.st_mtime_ns


@dataclass(frozen=True)
class Recipe:
    """How to make a cache: images [N, C, H, W] come in chunks, `columns` are the labels and what else is known."""

    shape: tuple[int, int, int, int]
    chunks: Iterable[npt.NDArray[np.uint8]]
    columns: Mapping[str, npt.NDArray[np.int64]]


def cached(key: str, recipe: Callable[[], Recipe]) -> Split:
    """The split stored under `key`, memory-mapped; made first if it is not there, by one process while others wait.

    A cache is written beside its place and renamed when it is whole and on disk, so it is there entirely or not at all.
    """
    folder = cache_dir() / "arrays" / key
    split = _opened(folder)
    if split is not None:
        return split
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _lock(folder.with_name(f"{key}.lock")):
            split = _opened(folder)  # another process may have made it while this one waited
            if split is None:
                _build(folder, recipe())
                split = _opened(folder)
    except OSError as error:
        raise _refused(folder.parent, error) from error
    if split is None:
        raise DataError(f"{folder} was written but cannot be read back; check the disk")
    return split


def _refused(folder: Path, error: OSError) -> DataError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    problem = "the disk is full" if full else error.strerror or str(error)
    return DataError(f"the cache {folder} cannot be written: {problem}; free space or point XDG_CACHE_HOME elsewhere")


def _opened(folder: Path) -> Split | None:
    """The split of a whole cache; None if there is none, or if it was tampered with since."""
    try:
        sizes = json.loads((folder / "complete.json").read_text())
        if any((folder / name).stat().st_size != size for name, size in sizes.items()):
            return None
        # `asarray` drops memmap's subclass, whose bookkeeping on every slice is slow; the mapping stays.
        images = np.asarray(np.load(folder / "images.npy", mmap_mode="r", allow_pickle=False))
        columns = {
            name.removesuffix(".npy"): np.load(folder / name, allow_pickle=False)
            for name in sizes
            if name != "images.npy"
        }
        return Split.of(images, columns.pop("labels"), columns)
    except (OSError, ValueError, KeyError):
        return None


def _build(folder: Path, recipe: Recipe) -> None:
    for leftover in folder.parent.glob(f"{folder.name}.partial-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    partial = folder.with_name(f"{folder.name}.partial-{os.getpid()}")
    partial.mkdir()
    try:
        with durable(partial / "images.npy") as file:
            _write_images(file, recipe, title=folder.name.rsplit("-", 1)[0])
        for name, values in recipe.columns.items():
            with durable(partial / f"{name}.npy") as file:
                np.lib.format.write_array(file, np.asarray(values, dtype=np.int64), allow_pickle=False)
        sizes = {path.name: path.stat().st_size for path in sorted(partial.iterdir())}
        with durable(partial / "complete.json") as file:
            file.write(json.dumps(sizes).encode())
        sync_folder(partial)
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
        sync_folder(folder.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write_images(file: IO[bytes], recipe: Recipe, title: str) -> None:
    """Write chunk by chunk: a full disk is then an error, where a memory map would kill the process."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    header = {"descr": "|u1", "fortran_order": False, "shape": recipe.shape}
    np.lib.format.write_array_header_1_0(file, header)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(f"decoding {title}", total=recipe.shape[0])
        written = 0
        for chunk in recipe.chunks:
            file.write(np.ascontiguousarray(chunk, dtype=np.uint8).data)
            written += len(chunk)
            progress.update(task, completed=written)
    if written != recipe.shape[0]:
        raise DataError(f"{title}: {written} images came where {recipe.shape[0]} were announced; check the files")


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Held by one process at a time; the system releases it when its holder dies."""
    with path.open("ab") as file:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
