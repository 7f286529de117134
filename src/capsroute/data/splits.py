"""Hold out part of the training set to tune on: the test set is for the final number alone."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from capsroute.data.counter import Counter
from capsroute.data.dataset import Split
from capsroute.errors import DataError

_PICK = 2_000_000  # a draw number of its own


def split_validation(
    train: Split, how: str = "random", fraction: float = 0.1, seed: int = 0, fold: int | None = None
) -> tuple[Split, Split]:
    """Divide the training set into (train, validation); no sample is in both.

    "random" takes `fraction` of every class: the paper's way. Its views of a toy are near-duplicates of views trained
    on, so it says little about new toys. "by_instance" holds out one toy of each class instead (a fifth of smallNORB;
    `fraction` plays no part), chosen by `seed`, or in each class the one at place `fold`: tune on this one, report
    both.
    """
    if how == "random":
        held = stratified(train, fraction, seed)
    elif how == "by_instance":
        held = _one_toy_a_class(train, seed, fold)
    else:
        raise ValueError(f"how={how!r} is no way to split; use 'random' or 'by_instance'")
    return train.subset(~held), train.subset(held)


def stratified(split: Split, fraction: float, seed: int) -> npt.NDArray[np.bool_]:
    """A mask of `fraction` of every class (pairs: of every first label), chosen by a hash of seed and sample."""
    if not 0 < fraction < 1:
        raise ValueError(f"fraction={fraction} must lie between 0 and 1")
    labels = split.labels if split.labels.ndim == 1 else split.labels[:, 0]
    words = Counter(seed, 0, split.ids).words(_PICK)
    held = np.zeros(len(split), dtype=np.bool_)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        wanted = round(fraction * len(members))
        if not 0 < wanted < len(members):
            raise DataError(
                f"class {label} has {len(members)} samples, too few to hold out {fraction:g} of them; "
                "use another fraction or more data"
            )
        held[members[np.argsort(words[members], kind="stable")[:wanted]]] = True
    return held


def _one_toy_a_class(split: Split, seed: int, fold: int | None) -> npt.NDArray[np.bool_]:
    if "instance" not in split.meta:
        raise DataError("this data set does not say which object an image shows; use how='random'")
    instances = split.meta["instance"]
    held = np.zeros(len(split), dtype=np.bool_)
    for label in np.unique(split.labels):
        toys = np.unique(instances[split.labels == label])
        if len(toys) < 2:
            raise DataError(f"class {label} has one instance, {toys[0]}: nothing to train on without it")
        if fold is not None and not 0 <= fold < len(toys):
            raise DataError(f"fold={fold}: class {label} has {len(toys)} instances, numbered from 0")
        place = Counter(seed, 0, np.array([label])).integers(_PICK, len(toys))[0] if fold is None else fold
        chosen = toys[place]
        held |= (split.labels == label) & (instances == chosen)
    return held
