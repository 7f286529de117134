"""More images to train on, of one's own, beside those of a data set: an `.npz` with `images` and `labels`.

`images` are uint8 [N, C, H, W] of the size the data set stores, `labels` numbers of its classes; `instance`, if there,
says which object each shows. They are never validated or tested on.
"""

from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from capsroute.data.dataset import Images, Split
from capsroute.errors import DataError


def with_extra(split: Split, path: Path | str, classes: int) -> Split:
    """The split and, after it, all of the file; what the file does not say of its images is -1 in `meta`."""
    path = Path(path).expanduser()
    try:
        with np.load(path, allow_pickle=False) as file:
            held = {name: file[name] for name in file.files}
    except FileNotFoundError as error:
        raise DataError(f"{path} is not there; data.extra takes an .npz with images and labels") from error
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise DataError(f"{path} cannot be read as .npz, perhaps it was cut short: {error}") from error
    if missing := [name for name in ("images", "labels") if name not in held]:
        raise DataError(f"{path} has no {' and no '.join(missing)}; data.extra needs images and labels")
    images, labels = held["images"], held["labels"]
    wanted = split.images.shape[1:]
    if images.dtype != np.uint8 or images.shape[1:] != wanted:
        raise DataError(
            f"{path}: images are {images.dtype} {list(images.shape)}; beside this data set they must be uint8 "
            f"[N, {', '.join(map(str, wanted))}]"
        )
    if labels.shape != (len(images), *split.labels.shape[1:]):
        raise DataError(
            f"{path}: {len(images)} images but labels of shape {list(labels.shape)}; each image needs its own"
        )
    if len(labels) and not (labels.min() >= 0 and labels.max() < classes):
        raise DataError(f"{path}: labels from {labels.min()} to {labels.max()}, but classes are 0 to {classes - 1}")
    for name in split.meta:
        if name in held and len(held[name]) != len(images):
            raise DataError(f"{path}: {len(images)} images but {len(held[name])} values of {name}")
    first = int(split.ids.max(initial=-1)) + 1
    unknown = np.full(len(images), -1)
    return replace(
        split,
        images=Images(np.concatenate([np.asarray(split.images), images])),
        labels=np.concatenate([split.labels, labels.astype(np.int64)]),
        ids=np.concatenate([split.ids, np.arange(first, first + len(images))]),
        meta={name: np.concatenate([known, held.get(name, unknown)]) for name, known in split.meta.items()},
    )
