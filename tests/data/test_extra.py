"""Images of one's own beside a data set: added after it, and refused where they do not fit."""

from __future__ import annotations

import numpy as np
import pytest

from capsroute.data import Split
from capsroute.data.extra import with_extra
from capsroute.errors import DataError


@pytest.fixture
def split():
    images = np.arange(3 * 2 * 4 * 4, dtype=np.uint8).reshape(3, 2, 4, 4)
    return Split.of(images, [0, 1, 2], {"instance": [7, 8, 9]}).subset([0, 2])


def write(path, **changes):
    entries = {"images": np.full((4, 2, 4, 4), 200, np.uint8), "labels": np.array([2, 1, 0, 1]), **changes}
    np.savez(path, **{name: values for name, values in entries.items() if values is not None})
    return path


def test_they_come_after_the_split_with_numbers_of_their_own(split, tmp_path):
    more = with_extra(split, write(tmp_path / "more.npz"), classes=3)
    assert more.labels.tolist() == [0, 2, 2, 1, 0, 1]
    assert more.ids.tolist() == [0, 2, 3, 4, 5, 6]
    assert more.meta["instance"].tolist() == [7, 9, -1, -1, -1, -1]
    np.testing.assert_array_equal(more.images[:2], np.asarray(split.images))
    assert (more.images[2:] == 200).all()


def test_they_may_say_which_object_they_show(split, tmp_path):
    more = with_extra(split, write(tmp_path / "more.npz", instance=np.array([1, 1, 2, 2])), classes=3)
    assert more.meta["instance"].tolist() == [7, 9, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": None}, "has no labels"),
        ({"images": np.zeros((4, 1, 4, 4), np.uint8)}, r"uint8 \[4, 1, 4, 4\].*must be uint8 \[N, 2, 4, 4\]"),
        ({"images": np.zeros((4, 2, 4, 4))}, r"float64 \[4, 2, 4, 4\]"),
        ({"labels": np.array([0, 1])}, "4 images but labels of shape"),
        ({"labels": np.array([0, 1, 2, 3])}, "labels from 0 to 3, but classes are 0 to 2"),
        ({"labels": np.array([0, 1, -2, 1])}, "labels from -2 to 1"),
        ({"instance": np.array([1, 2])}, "4 images but 2 values of instance"),
    ],
)
def test_what_does_not_fit_is_refused(split, tmp_path, changes, message):
    with pytest.raises(DataError, match=message):
        with_extra(split, write(tmp_path / "more.npz", **changes), classes=3)


def test_a_file_that_is_missing_or_cut_short_is_named(split, tmp_path):
    with pytest.raises(DataError, match=r"none\.npz is not there"):
        with_extra(split, tmp_path / "none.npz", classes=3)
    path = write(tmp_path / "more.npz")
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(DataError, match=r"more\.npz cannot be read as \.npz"):
        with_extra(split, path, classes=3)
