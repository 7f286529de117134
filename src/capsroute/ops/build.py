"""Compile an operator's C++ once, keep the result, and load it.

`python -m capsroute.ops.build` compiles all operators ahead of their first use.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from capsroute.errors import CapsrouteError

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
# Contraction gives fused multiply-adds. Nothing here may reorder sums or assume away NaN: results must be reproducible.
FLAGS = ("-std=c++20", "-O3", "-march=native", "-fPIC", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math")
# Vectors never cross a library's boundary, so how they would be passed there is nothing to note.
WARNINGS = ("-Wall", "-Wextra", "-Wno-psabi")


class BuildError(CapsrouteError, RuntimeError):
    """An operator cannot be compiled or loaded; layers then take the tiled path."""


def names() -> list[str]:
    """Return the operators that have C++ code."""
    return sorted(source.parent.name for source in HERE.glob("*/cpu.cpp"))


def flags() -> list[str]:
    """Return the compiler's flags; `CAPSROUTE_CXXFLAGS` adds to them, and a later `-march=` wins."""
    return [*FLAGS, *WARNINGS, *shlex.split(os.environ.get("CAPSROUTE_CXXFLAGS", ""))]


def prebuild() -> dict[str, Path | BuildError]:
    """Compile every operator and return where each lies, or why it could not be compiled."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        return dict(zip(names(), pool.map(_built_or_error, names()), strict=True))


@functools.cache
def load(name: str) -> ctypes.CDLL | None:
    """Return the operator's library, compiled at first use, or None after one notice; `reason` then says why."""
    try:
        return _load(name)
    except BuildError as error:
        _failures[name] = str(error)
        _notice()
        return None


def reason(name: str) -> str | None:
    """Return why `load` gave None for this operator, or None if it did not."""
    return _failures.get(name)


_failures: dict[str, str] = {}


@functools.cache
def _notice() -> None:
    """Tell once a process that something could not be built, whatever number of operators it concerns."""
    name, why = next(iter(_failures.items()))
    warnings.warn(
        f"fused {name} routing is off, layers take the slower tiled path: {why}", RuntimeWarning, stacklevel=4
    )


def _load(name: str) -> ctypes.CDLL:
    library = build(name)
    _share_openmp()
    try:
        return ctypes.CDLL(str(library))
    except OSError as error:
        raise BuildError(f"{library} cannot be loaded ({error}); delete it to have it compiled again") from error


def _share_openmp() -> None:
    """Let operators use the OpenMP runtime that torch has loaded: two thread pools on the same cores would fight.

    The libraries are linked against no runtime of their own; making torch's symbols global resolves theirs.
    """
    import torch  # noqa: F401  loads its runtime

    try:
        mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    except OSError as error:
        raise BuildError("torch's OpenMP runtime can be found on Linux only") from error
    for path in sorted(mapped):
        if Path(path).name.startswith(("libgomp", "libiomp5", "libomp")):
            ctypes.CDLL(path, mode=os.RTLD_GLOBAL | os.RTLD_NOW | os.RTLD_NOLOAD)
            return
    raise BuildError("this torch was built without OpenMP; install one of the usual builds")


def build(name: str) -> Path:
    """Return the compiled operator from the cache, or compile it into the first folder that can be written."""
    file = f"{name}-{_key(name)}.so"
    for folder in _folders():
        if (folder / file).exists():
            return folder / file
    reasons = []
    for folder in _folders():
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not _is_ours(folder):
                reasons.append(f"{folder} belongs to another user")
                continue
            with _locked(folder / f"{file}.lock"):
                if not (folder / file).exists():
                    _compile(name, folder / file)
            return folder / file
        except OSError as error:
            reasons.append(str(error))
    raise BuildError(f"no folder to build in: {'; '.join(reasons)}; set CAPSROUTE_CACHE to one that can be written")


def _built_or_error(name: str) -> Path | BuildError:
    try:
        return build(name)
    except BuildError as error:
        return error


def _folders() -> list[Path]:
    """Return the folders to look in, best first: the user's cache, then a private temporary one (read-only homes)."""
    cache = os.environ.get("CAPSROUTE_CACHE")
    if cache is None:
        cache = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "capsroute")
    return [Path(cache) / "ops", Path(tempfile.gettempdir()) / f"capsroute-{os.getuid()}" / "ops"]


def _is_ours(folder: Path) -> bool:
    """Tell whether only this user could have put libraries there: a name in the temporary folder can be guessed."""
    return folder.stat().st_uid == os.getuid() and folder.parent.stat().st_uid == os.getuid()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock between processes, so that of many that start together one compiles and the others wait."""
    import fcntl

    with path.open("w") as file:
        # some network file systems have no locks; the result is renamed into place, so compiling twice does no harm
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _key(name: str) -> str:
    """Return a digest of all that decides what the compiled code is: sources, flags, compiler and processor."""
    sources = [*sorted(HERE.glob("*.hpp")), *sorted((HERE / name).glob("*.[ch]pp"))]
    parts = [f"{path.name}\n{path.read_text()}" for path in sources]
    parts += [*flags(), *_compiler(), *platform.libc_ver(), _processor()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


@functools.cache
def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    told = [line for line in lines if line.startswith(("model name", "flags", "CPU part", "Features"))]
    return "\n".join([platform.machine(), *told])


def _compiler() -> list[str]:
    return shlex.split(os.environ.get("CXX", "g++"))


def _compile(name: str, library: Path) -> None:
    """Compile and link in two steps, since linking with -fopenmp would bring a second OpenMP runtime."""
    if shutil.which(_compiler()[0]) is None:
        raise BuildError(f"no C++ compiler {_compiler()[0]!r} on PATH; install g++ or set CXX")
    print(f"capsroute: compiling the {name} operator, once, for a few seconds", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        compiled, linked = Path(scratch) / "op.o", Path(scratch) / "op.so"
        _run([*flags(), "-fopenmp", "-c", str(HERE / name / "cpu.cpp"), "-I", str(HERE), "-o", str(compiled)])
        _run(["-shared", str(compiled), "-o", str(linked)])
        linked.replace(library)


def _run(arguments: list[str]) -> None:
    command = [*_compiler(), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        lines = result.stderr.strip().splitlines() or ["it said nothing"]
        first = next((line for line in lines if "error" in line), lines[0])
        raise BuildError(f"{shlex.join(command[:1])} failed with status {result.returncode}: {first}")


if __name__ == "__main__":
    for operator, outcome in prebuild().items():
        print(f"{operator}: {'not built: ' if isinstance(outcome, BuildError) else ''}{outcome}")
