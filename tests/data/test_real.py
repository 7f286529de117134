"""The real files, where they are found."""

from __future__ import annotations

import io
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from capsroute.data import DataSet, Split, load, smallnorb, split_validation, store, viewpoints
from capsroute.data.mnist import FASHION
from capsroute.errors import DataError

MNIST_COUNTS = {
    "train": [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
    "test": [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
}
# Of the pixels in use by everybody: means and deviations on the scale 0 to 1.
MNIST_LEVELS = (0.1307, 0.3081)
# Published with VB routing's code for the official training pairs at 48 x 48, left and right.
NORB_LEVELS = [(0.75239172, 0.1758033), (0.75738262, 0.17200065)]


def rows(images: np.ndarray) -> set[bytes]:
    return {image.tobytes() for image in images}


def test_mnist(real_data: Path) -> None:
    try:
        data = load("mnist", data_dir=real_data)
    except store.NotFound as error:
        pytest.skip(str(error))
    images = {"train": np.asarray(data.train.images), "test": np.asarray(data.test.images)}
    assert images["train"].shape == (60000, 1, 28, 28)
    assert images["test"].shape == (10000, 1, 28, 28)
    for part, split in (("train", data.train), ("test", data.test)):
        assert np.bincount(split.labels).tolist() == MNIST_COUNTS[part]
    assert images["train"].mean() / 255 == pytest.approx(MNIST_LEVELS[0], abs=5e-5)
    assert images["train"].std() / 255 == pytest.approx(MNIST_LEVELS[1], abs=5e-5)
    assert data.train.labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert images["train"][0, 0, 5, 12:24].tolist() == [3, 18, 18, 18, 126, 136, 175, 26, 166, 255, 247, 127]
    train = rows(images["train"])
    assert len(train) == 60000
    assert not train & rows(images["test"])
    kept, held = split_validation(data.train)
    assert not set(kept.ids) & set(held.ids)
    assert len(held) == pytest.approx(6000, abs=10)
    assert np.abs(np.bincount(held.labels) - np.array(MNIST_COUNTS["train"]) / 10).max() <= 0.5


def test_fashion_mnist() -> None:
    if FASHION.installed is None or not FASHION.installed.is_dir():
        pytest.skip(f"Debian's dataset-fashion-mnist is not installed: no {FASHION.installed}")
    data = load("fashion-mnist")
    assert np.bincount(data.train.labels).tolist() == [6000] * 10
    assert np.bincount(data.test.labels).tolist() == [1000] * 10


def norb_pictures(real_data: Path) -> smallnorb.PictureFiles:
    try:
        source = smallnorb.find(real_data)
    except store.NotFound as error:
        pytest.skip(str(error))
    if not isinstance(source, smallnorb.PictureFiles):
        pytest.skip(f"{source.path} has the official matrices, no pictures")
    return source


def test_smallnorb_names_and_matrices_agree(real_data: Path) -> None:
    """Pair numbers are rows of the official matrices: labels and toys in the names are those of -cat and -info."""
    source = norb_pictures(real_data)
    toys = {"train": {4, 6, 7, 8, 9}, "test": {0, 1, 2, 3, 5}}
    for part in ("train", "test"):
        pairs, columns = source.listing(part)
        assert len(pairs) == smallnorb.PAIRS
        assert np.bincount(columns["labels"]).tolist() == [4860] * 5
        assert set(columns["instance"]) == toys[part]
        views = np.unique(np.stack([columns["labels"], columns["instance"]]), axis=1, return_counts=True)
        assert views[0].shape == (2, 25)
        assert set(views[1]) == {9 * 18 * 6}
    poses = np.unique(np.stack(list(columns.values())), axis=1)  # of the test set, whose -info is there
    assert poses.shape == (5, smallnorb.PAIRS)
    assert set(columns["azimuth"]) == set(range(0, 360, 20))
    assert set(columns["elevation"]) == set(range(30, 75, 5))
    assert set(columns["lighting"]) == set(range(6))


@pytest.fixture
def decoded(real_data: Path, users_cache: Path, monkeypatch: pytest.MonkeyPatch) -> DataSet:
    """smallNORB from the user's cache, which is read but never written."""

    def only_read(key: str, recipe: object) -> Split:
        split = store._opened(users_cache / "arrays" / key)
        if split is None:
            pytest.skip(f"smallNORB is not decoded yet in {users_cache}; `capsroute bench data` does it")
        return split

    norb_pictures(real_data)
    monkeypatch.setattr(store, "cached", only_read)
    return load("smallnorb", data_dir=real_data)


def check_whole(data: DataSet, source: smallnorb.PictureFiles) -> None:
    images = {"train": np.asarray(data.train.images), "test": np.asarray(data.test.images)}
    for part, split in (("train", data.train), ("test", data.test)):
        assert images[part].shape == (24300, 2, 48, 48)
        assert np.bincount(split.labels).tolist() == [4860] * 5
        pairs, _ = source.listing(part)
        for number in (0, 7777, 24299):
            for camera, name in enumerate(pairs[number]):
                pixels = np.asarray(Image.open(io.BytesIO(source.files.read(name)))).astype(float)
                mean = pixels.reshape(48, 2, 48, 2).mean((1, 3))
                assert np.array_equal(images[part][number, camera], np.floor(mean + 0.5))
    for camera, (mean, deviation) in enumerate(NORB_LEVELS):
        assert images["train"][:, camera].mean() / 255 == pytest.approx(mean, abs=2e-4)
        assert images["train"][:, camera].std() / 255 == pytest.approx(deviation, abs=2e-4)
    train = rows(images["train"])
    assert len(train) == 24300
    assert not train & rows(images["test"])


def test_smallnorb_decoded(real_data: Path, decoded: DataSet) -> None:
    start = time.process_time()
    assert len(decoded.train) == len(decoded.test) == 24300
    assert time.process_time() - start < 1
    check_whole(decoded, norb_pictures(real_data))


def test_smallnorb_splits(decoded: DataSet) -> None:
    data = decoded
    kept, held = split_validation(data.train)
    assert np.bincount(held.labels).tolist() == [486] * 5
    assert not set(kept.ids) & set(held.ids)
    kept, held = split_validation(data.train, "by_instance")
    assert np.bincount(held.labels).tolist() == [972] * 5
    assert not set(kept.ids) & set(held.ids)
    for label in range(5):
        toys = held.meta["instance"][held.labels == label]
        assert len(set(toys)) == 1
        assert toys[0] not in kept.meta["instance"][kept.labels == label]
    for by in ("azimuth", "elevation"):
        views = viewpoints.within_test_toys(data, by)  # a third of the viewpoints; 15 toys, then 10
        assert (len(views.train), len(views.familiar), len(views.novel)) == (14580 // 3, 9720 // 3, 9720 * 2 // 3)
        if by not in data.train.meta:
            with pytest.raises(DataError, match=r"training -info\.mat"):
                viewpoints.published(data, by)


@pytest.mark.slow
def test_smallnorb_is_decoded_in_under_three_minutes(real_data: Path) -> None:
    source = norb_pictures(real_data)
    data = load("smallnorb", data_dir=real_data)
    start = time.perf_counter()
    assert len(data.train) == len(data.test) == 24300
    assert time.perf_counter() - start < 180
    check_whole(data, source)
