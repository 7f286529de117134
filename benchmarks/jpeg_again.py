"""What does JPEG cost? Write the smallNORB pictures once more, compressed harder, to train on and compare.

python benchmarks/jpeg_again.py DATA/smallnorb-jpeg.zip again/smallnorb-jpeg.zip --quality 40
capsroute train smallnorb-similarity-deep --epochs 10 --seed 0 --threads 1 --data again
"""

from __future__ import annotations

import argparse
import io
import os
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image


def compressed(picture: bytes, quality: int) -> tuple[bytes, float]:
    """The picture at that quality, and by how many grey levels its pixels are off (root mean square)."""
    before, out = Image.open(io.BytesIO(picture)), io.BytesIO()
    before.save(out, "jpeg", quality=quality)
    difference = np.asarray(Image.open(out), np.float64) - np.asarray(before, np.float64)
    return out.getvalue(), float(np.sqrt((difference**2).mean()))


def main() -> None:
    """Copy the archive, its matrices as they are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--quality", type=int, default=40, help="1 to 95")
    given = parser.parse_args()
    given.target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = given.target.with_suffix(".part")
    off, sizes = [], [0, 0]
    with zipfile.ZipFile(given.source) as source, zipfile.ZipFile(unfinished, "w") as target:
        for entry in source.infolist():
            content = source.read(entry)
            if entry.filename.lower().endswith((".jpg", ".jpeg")):
                smaller, error = compressed(content, given.quality)
                off.append(error)
                sizes = [sizes[0] + len(content), sizes[1] + len(smaller)]
                content = smaller
            target.writestr(entry, content)
    os.replace(unfinished, given.target)
    print(
        f"{len(off):,} pictures, {sizes[0] / 1e6:.1f} MB before, {sizes[1] / 1e6:.1f} MB at quality {given.quality}; "
    )
    print(f"pixels are off by {np.mean(off):.2f} of 255 grey levels in the mean")


if __name__ == "__main__":
    main()
