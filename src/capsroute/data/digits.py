"""scikit-learn's handwritten digits: 1,797 images of 8 x 8 pixels that come with the package, nothing to download."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from capsroute.data.dataset import DataSet, Part, Split
from capsroute.data.splits import stratified
from capsroute.data.transforms import Transform


def open_digits(data_dir: Path | None = None) -> DataSet:
    """A fifth of every class is the test set, the same for everybody: the data set has no published split."""
    return DataSet(
        name="digits",
        source="embedded",
        classes=tuple("0123456789"),
        channels=1,
        image_size=8,
        transform=Transform(),
        opener=_open,
        title="digits (8 x 8)",
    )


def _open(part: Part) -> Split:
    from sklearn.datasets import load_digits

    values, labels = load_digits(return_X_y=True)
    images = np.round(values * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
    everything = Split.of(images, labels)
    test = stratified(everything, 0.2, seed=0)
    return everything.subset(test if part == "test" else ~test)
