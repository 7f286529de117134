"""A contact sheet: some examples of each class, labelled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from capsroute.data.counter import Counter
from capsroute.data.dataset import DataSet, Part, Split
from capsroute.errors import DataError

_PICK = 3_000_000  # a draw number of its own


def draw_sheet(dataset: DataSet, path: Path, *, part: Part = "train", columns: int = 8, seed: int = 0) -> None:
    """Write a picture with a row for each class and `columns` examples in it, as stored (the left camera of a pair)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    split = dataset.train if part == "train" else dataset.test
    first = split.labels if split.labels.ndim == 1 else split.labels[:, 0]
    rows = len(dataset.classes)
    figure = Figure(figsize=(1.1 * columns + 1.2, 1.25 * rows + 0.6), layout="constrained")
    FigureCanvasAgg(figure)
    titles = {"train": "training set", "test": "test set"}
    figure.suptitle(f"{dataset.title or dataset.name}, {titles[part]}: {len(split):,} examples")
    grid = figure.subplots(rows, columns, squeeze=False)
    words = Counter(seed, 0, split.ids).words(_PICK)
    for label, (name, axes) in enumerate(zip(dataset.classes, grid, strict=True)):
        members = np.flatnonzero(first == label)
        shown = members[np.argsort(words[members], kind="stable")[:columns]]
        for axis in axes:
            axis.set(xticks=[], yticks=[])
            axis.spines[:].set_visible(False)
        axes[0].set_ylabel(name, rotation=0, ha="right", va="center")
        for axis, index in zip(axes, shown, strict=False):
            axis.imshow(_pixels(split, index), cmap="gray", vmin=0, vmax=255)
            axis.set_xlabel(_caption(dataset, split, index), fontsize=6)
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise DataError(f"the sheet cannot be written to {path}: {error}") from error


def _pixels(split: Split, index: int) -> npt.NDArray[np.uint8]:
    image = split.images[index]
    return image.transpose(1, 2, 0) if len(image) == 3 else image[0]


def _caption(dataset: DataSet, split: Split, index: int) -> str:
    if split.labels.ndim == 2:
        return " + ".join(dataset.classes[label] for label in split.labels[index])
    told = []
    if "instance" in split.meta:
        told.append(f"toy {split.meta['instance'][index]}")
    if "elevation" in split.meta and "azimuth" in split.meta:
        told.append(f"{split.meta['elevation'][index]}°, {split.meta['azimuth'][index]}°")
    return ", ".join(told)
