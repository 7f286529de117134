"""Novel viewpoints: train on some poses of the toys, test on poses never seen (needs pose labels, so smallNORB)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from capsroute.data.dataset import DataSet, Split
from capsroute.errors import DataError

# Hinton et al. 2018: trained on the views from behind 0 degrees, or on the three lower of nine elevations.
FAMILIAR = {"azimuth": (300, 320, 340, 0, 20, 40), "elevation": (30, 35, 40)}
_TEST_TOYS_TO_TRAIN_ON = 3  # of the five toys a class has in the test set


class Viewpoints(NamedTuple):
    """Train on `train`; `familiar` and `novel` show other toys, from viewpoints of the training set and from others."""

    name: str
    train: Split
    familiar: Split
    novel: Split


def published(dataset: DataSet, by: str = "azimuth") -> Viewpoints:
    """The split of Hinton et al. 2018: train toys at a third of the viewpoints, test toys at all of them.

    It needs the viewpoints of the training images, which only the official training `-info.mat` tells.
    """
    _check(by)
    if by not in dataset.train.meta:
        raise DataError(
            f"{dataset.name} ({dataset.source}) has no {by} for its training images, which the published split needs: "
            "put smallNORB's training -info.mat beside the data, or use viewpoints.within_test_toys"
        )
    return Viewpoints(
        f"novel-{by}", dataset.train.subset(_familiar(dataset.train, by)), *_both(_posed(dataset, by), by)
    )


def within_test_toys(dataset: DataSet, by: str = "azimuth") -> Viewpoints:
    """A split of our own inside the test toys, whose poses are always known: three toys of five to train on.

    Its numbers compare with each other alone, and a network trained on it has seen the test set.
    """
    _check(by)
    test = _posed(dataset, by)
    if "instance" not in test.meta:
        raise DataError(f"{dataset.name} does not say which toy an image shows; viewpoints.within_test_toys needs it")
    trained = np.zeros(len(test), dtype=np.bool_)
    for label in np.unique(test.labels):
        toys = np.unique(test.meta["instance"][test.labels == label])[:_TEST_TOYS_TO_TRAIN_ON]
        trained |= (test.labels == label) & np.isin(test.meta["instance"], toys)
    name = f"test-toys-{by}"
    return Viewpoints(name, test.subset(trained & _familiar(test, by)), *_both(test.subset(~trained), by))


def _check(by: str) -> None:
    if by not in FAMILIAR:
        raise ValueError(f"by={by!r} is no viewpoint; use 'azimuth' or 'elevation'")


def _posed(dataset: DataSet, by: str) -> Split:
    if by not in dataset.test.meta:
        raise DataError(
            f"{dataset.name} ({dataset.source}) has no {by} for its test images; viewpoints need pose labels"
        )
    return dataset.test


def _familiar(split: Split, by: str) -> npt.NDArray[np.bool_]:
    return np.isin(split.meta[by], FAMILIAR[by])


def _both(split: Split, by: str) -> tuple[Split, Split]:
    seen = _familiar(split, by)
    return split.subset(seen), split.subset(~seen)
