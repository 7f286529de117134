"""Writing the files of a run: whole or not at all, and faults of the machine as one line each."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from capsroute.errors import RunError
from capsroute.files import durable, sync_folder

UNFINISHED = ".unfinished"


def write_atomically(path: Path, content: bytes) -> None:
    """Put `content` at `path` so that, whatever happens, either all of it is there or what was there before."""
    unfinished = path.with_name(path.name + UNFINISHED)
    with one_line(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with durable(unfinished) as file:
                file.write(content)
            unfinished.replace(path)
        except OSError:
            with suppress(OSError):
                unfinished.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


@contextmanager
def one_line(path: Path) -> Iterator[None]:
    """Faults of the machine as one line each."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise RunError(
                f"the disk is full, {path} was not written; what was saved before is intact: free some space, "
                "then go on with --resume"
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise RunError(f"no permission to write {path}; choose another folder with --out") from error
        raise RunError(f"{path} cannot be written ({error.strerror or error}); choose another folder") from error
