"""Downloading data sets: from the official address or a mirror, resumable, checked, and in place only when whole."""

from __future__ import annotations

import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from capsroute.data import mnist, smallnorb, store
from capsroute.errors import DataError

if TYPE_CHECKING:
    from rich.progress import Progress

_TIMEOUT = 30  # seconds without an answer
_BLOCK = 1 << 18


@dataclass(frozen=True)
class Download:
    """A file to fetch: what it is called, where it is offered, and the digest of its unpacked content."""

    name: str
    mirrors: tuple[str, ...]
    digest: str


def downloads(name: str) -> list[Download]:
    """The files of a data set."""
    for which in (mnist.MNIST, mnist.FASHION):
        if name == which.name:
            return [Download(f"{mnist.FILES[key]}.gz", which.mirrors, which.digest(*key)) for key in mnist.FILES]
    if name == "smallnorb":
        return [
            Download(f"{smallnorb.STEMS[part]}-{what}.mat.gz", smallnorb.MIRRORS, digest)
            for (part, what), digest in smallnorb.DIGESTS.items()
        ]
    raise DataError(f"{name!r} cannot be fetched; mnist, fashion-mnist and smallnorb can")


def fetch(name: str, data_dir: Path | str | None = None) -> Path:
    """Get the files of a data set into `data_dir/name`, or into the user cache; those already there are kept."""
    base = Path(data_dir).expanduser() if data_dir else store.cache_dir()
    folder = base / name
    files = downloads(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _progress() as progress:
            for file in files:
                if not _there(folder / file.name, file.digest):
                    _get(file, folder, progress)
    except OSError as error:
        raise DataError(f"{folder} cannot be written: {error.strerror or error}; use --data DIR") from error
    return folder


def _there(path: Path, digest: str) -> bool:
    try:
        store.verify(store.read(path), digest, path)
    except DataError:
        return False
    return True


def _get(file: Download, folder: Path, progress: Progress) -> None:
    failures = []
    for number, mirror in enumerate(file.mirrors):
        # One part a mirror: mirrors pack the same content differently, so their halves do not fit together.
        part = folder / f"{file.name}.{number}.part"
        try:
            _download(mirror + file.name, part, progress)
            store.verify(store.read(part), file.digest, mirror + file.name)
        except _Interrupted as error:
            failures.append(f"{mirror}: {error}")
            continue
        except DataError as error:
            part.unlink(missing_ok=True)
            failures.append(str(error))
            continue
        part.replace(folder / file.name)
        for leftover in folder.glob(f"{file.name}.*.part"):
            leftover.unlink()
        return
    raise DataError(
        f"{file.name} could not be fetched: {'; '.join(failures)}. Run again to resume, or copy it to {folder}"
    )


class _Interrupted(Exception):
    """The connection failed; what has come is kept."""


def _download(address: str, part: Path, progress: Progress) -> None:
    """Append to `part` what the server has beyond it."""
    begun = part.stat().st_size if part.exists() else 0
    answer = _ask(address, begun)
    if answer is None:
        return
    with answer:
        start = begun if answer.status == 206 else 0  # a server that cannot resume begins anew
        length = answer.headers.get("Content-Length")
        total = start + int(length) if length else None
        task = progress.add_task(part.name.rsplit(".", 2)[0], total=total, completed=start)
        with part.open("ab" if start else "wb") as file:
            for block in _blocks(answer):
                file.write(block)
                progress.advance(task, len(block))
            _sync(file)
    size = part.stat().st_size
    if total is not None and size < total:
        raise _Interrupted(f"the connection broke after {size} of {total} bytes")


def _ask(address: str, begun: int) -> http.client.HTTPResponse | None:
    """The server's answer from byte `begun` on; None if it has nothing more (the digest tells if that is all)."""
    headers = {"User-Agent": "capsroute", **({"Range": f"bytes={begun}-"} if begun else {})}
    request = urllib.request.Request(address, headers=headers)
    try:
        answer: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=_TIMEOUT)
        return answer
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:
            return None
        raise _Interrupted(f"HTTP {error.code}") from error
    except (OSError, http.client.HTTPException) as error:
        raise _Interrupted(str(getattr(error, "reason", None) or error)) from error


def _blocks(answer: http.client.HTTPResponse) -> Iterator[bytes]:
    """What the server sends; its failures are told apart from those of the disk, which are OSErrors too."""
    while True:
        try:
            block = answer.read(_BLOCK)
        except (OSError, http.client.HTTPException) as error:
            raise _Interrupted(str(error)) from error
        if not block:
            return
        yield block


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


@contextmanager
def _progress() -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield progress
