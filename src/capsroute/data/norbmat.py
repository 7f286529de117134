"""NORB's own matrix format: a magic number for the type, the number of dimensions, at least three sizes, the values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from capsroute.errors import DataError

TYPES = {0x1E3D4C55: "u1", 0x1E3D4C54: "<i4"}


def parse_matrix(content: bytes, path: Path | str) -> npt.NDArray[np.generic]:
    """The array in a NORB `.mat` file (bytes or 32-bit integers, little-endian)."""
    words = np.frombuffer(content[: 4 * (len(content[:64]) // 4)], "<i4", count=-1)[:16]
    magic = int(words[0]) if len(words) else 0
    if magic not in TYPES:
        known = " or ".join(f"{number:#x}" for number in TYPES)
        raise DataError(f"{path} starts with {magic:#x}, no NORB matrix of bytes or integers ({known})")
    dimensions = int(words[1]) if len(words) > 1 else 0
    header = 2 + max(3, dimensions)  # vectors and tables are filled up to three sizes
    if not 1 <= dimensions <= 8 or len(words) < header:
        raise DataError(f"{path} ends within its header after {len(content)} bytes; fetch it again")
    shape = tuple(int(size) for size in words[2 : 2 + dimensions])
    kind = np.dtype(TYPES[magic])
    expected = 4 * header + int(np.prod(shape, dtype=object)) * kind.itemsize
    if len(content) != expected:
        raise DataError(f"{path} has {len(content)} bytes where its header announces {expected}; fetch it again")
    return np.frombuffer(content, kind, offset=4 * header).reshape(shape)
