from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import made_up
import numpy as np
import pytest

from capsroute.data import load, mnist, store
from capsroute.data.affnist import affine_digits
from capsroute.data.counter import Counter
from capsroute.data.dataset import Split
from capsroute.data.multimnist import partners
from capsroute.errors import DataError


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("inside", ["mnist", "."])
def test_idx_files_gzipped_or_not(tmp_path: Path, packed: bool, inside: str) -> None:
    arrays = made_up.write_mnist(tmp_path / inside, packed=packed)
    data = load("mnist", data_dir=tmp_path, verify=False)
    assert (data.source, data.channels, data.image_size, len(data.classes)) == ("idx", 1, 32, 10)
    for part, split in (("train", data.train), ("test", data.test)):
        assert np.array_equal(np.asarray(split.images)[:, 0], arrays[f"{part} images"])
        assert np.array_equal(split.labels, arrays[f"{part} labels"])
    out = data.default_transform(train=True).apply(data.train, [0], epoch=0, seed=0, train=True)[0, 0].numpy()
    np.testing.assert_allclose(out, np.pad(arrays["train images"][0], 2) / 255, atol=1e-6)
    assert load("mnist", data_dir=tmp_path, shift=2).transform.shift == 2


def test_places_in_their_order(tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {"asked": 41, "environment": 42, "cache": 43}
    folders = {"asked": tmp_path / "asked", "environment": tmp_path / "environment", "cache": own_cache}
    monkeypatch.setenv("CAPSROUTE_DATA", str(folders["environment"]))
    for name in ("cache", "environment", "asked"):  # each is found before those written earlier
        made_up.write_mnist(folders[name] / "mnist", train=counts[name])
        assert len(load("mnist", data_dir=folders["asked"], verify=False).train) == counts[name]
    assert len(load("mnist", verify=False).train) == counts["environment"]


def test_training_never_reads_the_test_files(tmp_path: Path) -> None:
    """With unreadable test files, everything but the test split works."""
    folder = tmp_path / "mnist"
    made_up.write_mnist(folder)
    for path in folder.glob("t10k*"):
        path.write_bytes(b"not to be read")
    data = load("mnist", data_dir=tmp_path, verify=False)
    assert len(data.train) == 40
    with pytest.raises(DataError, match="t10k"):
        _ = data.test


def test_missing_names_the_three_places_and_the_way_out(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAPSROUTE_DATA", str(tmp_path / "elsewhere"))
    with pytest.raises(DataError) as caught:
        load("mnist", data_dir=tmp_path / "here")
    message = str(caught.value)
    for part in ("here", "elsewhere", str(own_cache), "capsroute data fetch mnist"):
        assert part in message
    assert "\n" not in message


def test_incomplete_data_set_is_missing(tmp_path: Path) -> None:
    made_up.write_mnist(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match="mnist is not here"):
        load("mnist", data_dir=tmp_path)


def spoil(folder: Path, change: str) -> None:
    images, labels = folder / "train-images-idx3-ubyte.gz", folder / "train-labels-idx1-ubyte.gz"
    content = gzip.decompress(images.read_bytes())
    if change == "truncated gzip":
        images.write_bytes(images.read_bytes()[:-2000])
    elif change == "flipped bit":
        packed = bytearray(images.read_bytes())
        packed[len(packed) // 2] ^= 0xFF
        images.write_bytes(packed)
    elif change == "truncated content":
        images.write_bytes(gzip.compress(content[:-5]))
    elif change == "header alone":
        images.write_bytes(content[:9])
    elif change == "empty":
        images.write_bytes(b"")
    elif change == "wrong magic":
        images.write_bytes(b"\x00\x00\x0d\x03" + content[4:])
    elif change == "labels as images":
        images.write_bytes(labels.read_bytes())
    elif change == "fewer labels":
        labels.write_bytes(made_up.idx(np.arange(39) % 10))
    elif change == "label out of range":
        labels.write_bytes(made_up.idx(np.arange(40) % 11))
    elif change == "huge header":
        images.write_bytes(b"\x00\x00\x08\x03" + b"\xff" * 12 + content[16:])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("truncated gzip", "damaged gzip file"),
        ("flipped bit", "damaged gzip file"),
        ("truncated content", "31371 bytes where its header announces 31376"),
        ("header alone", "ends within its header after 9 bytes"),
        ("empty", "starts with 0x00000000"),
        ("wrong magic", r"starts with 0x00000d03, no idx file of 3 dimensions \(0x00000803\)"),
        ("labels as images", "starts with 0x00000801"),
        ("fewer labels", "40 train images but 39 labels"),
        ("label out of range", "a train label 10, but mnist has 10 classes"),
        ("huge header", "where its header announces"),
    ],
)
def test_damaged_files_are_named_in_one_line(tmp_path: Path, change: str, message: str) -> None:
    made_up.write_mnist(tmp_path)
    spoil(tmp_path, change)
    data = load("mnist", data_dir=tmp_path, verify=False)
    with pytest.raises(DataError, match=message) as caught:
        _ = data.train
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_wrong_sha256_is_refused(tmp_path: Path) -> None:
    made_up.write_mnist(tmp_path)
    data = load("mnist", data_dir=tmp_path)
    with pytest.raises(
        DataError, match=r"train-images.*has sha256:.* the published file sha256:ba891046e650.*verify=False"
    ):
        _ = data.train


def test_a_folder_of_mnist_is_not_taken_for_fashion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have the same file names; labels tell them apart."""
    made_up.write_mnist(tmp_path / "both")
    labels = gzip.decompress((tmp_path / "both" / "train-labels-idx1-ubyte.gz").read_bytes())
    known = replace(mnist.MNIST, digests=("", store.digest(labels).removeprefix("sha256:"), "", ""))
    monkeypatch.setattr(mnist, "MNIST", known)
    monkeypatch.setattr(mnist, "FASHION", replace(mnist.FASHION, installed=tmp_path / "none"))
    assert len(load("mnist", data_dir=tmp_path / "both", verify=False).train) == 40
    with pytest.raises(DataError, match=r"fashion-mnist is not here.*dataset-fashion-mnist"):
        load("fashion-mnist", data_dir=tmp_path / "both")


def test_debians_package_is_found_without_being_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made_up.write_mnist(tmp_path / "installed")
    monkeypatch.setattr(mnist, "FASHION", replace(mnist.FASHION, installed=tmp_path / "installed"))
    data = load("fashion-mnist", verify=False)
    assert len(data.train) == 40
    assert data.classes[9] == "ankle boot"


def test_digits_need_nothing() -> None:
    data = load("digits")
    assert (data.source, data.image_size, data.channels) == ("embedded", 8, 1)
    assert len(data.train) + len(data.test) == 1797
    assert not set(data.train.ids) & set(data.test.ids)
    counts = np.bincount(data.test.labels) / np.bincount(data.train.labels)
    assert np.abs(counts - 0.25).max() < 0.01
    out = data.default_transform(train=False).apply(data.test, range(359), epoch=0, seed=0, train=False)
    assert (float(out.min()), float(out.max())) == (0.0, 1.0)


def test_unknown_names_and_options() -> None:
    with pytest.raises(
        DataError, match=r"no data set 'mnits' \(did you mean 'mnist'\?\); use digits, mnist,.* or folder:PATH"
    ):
        load("mnits")
    with pytest.raises(
        DataError, match=r"smallnorb has no option 'camera' \(did you mean 'cameras'\?\); its options: cameras"
    ):
        load("smallnorb", camera="left")
    with pytest.raises(DataError, match="digits has no option 'shift'; its options: none"):
        load("digits", shift=2)


def blobs(count: int) -> Split:
    """Digits with ink in their middle 20 x 20, as MNIST's."""
    images = np.zeros((count, 1, 28, 28), np.uint8)
    images[:, :, 4:24, 4:24] = np.random.default_rng(0).integers(1, 256, (count, 1, 20, 20))
    return Split.of(images, np.arange(count) % 10)


def test_affine_digits_keep_their_ink_on_the_canvas() -> None:
    digits = blobs(200)
    out = affine_digits(np.asarray(digits.images), Counter(0, 0, digits.ids))
    assert out.shape == (200, 1, 40, 40)
    border = np.ones((40, 40), bool)
    border[1:-1, 1:-1] = False
    assert out[:, 0, border].max() <= 128  # half of a pixel's ink at most lies on the rim
    mass = out.sum((1, 2, 3)) / np.asarray(digits.images).sum((1, 2, 3))
    assert 0.6 < mass.min() < 0.75  # 0.8 x 0.8
    assert 1.25 < mass.max() < 1.46  # 1.2 x 1.2
    places = (out[:, 0] > 0).any(axis=2).argmax(axis=1)
    assert places.max() - places.min() > 10
    alone = affine_digits(digits.images[[7]], Counter(0, 0, digits.ids[[7]]))
    assert np.array_equal(alone[0], out[7])


def test_affnist_splits(tmp_path: Path) -> None:
    made_up.write_mnist(tmp_path)
    data = load("affnist", data_dir=tmp_path, verify=False)
    assert data.train.images.shape == (40, 1, 28, 28)  # plain digits, moved about at training time
    assert data.test.images.shape == (20, 1, 40, 40)
    for train, split in ((True, data.train), (False, data.test)):
        out = data.default_transform(train).apply(split, [0, 1], epoch=0, seed=0, train=train)
        assert out.shape == (2, 1, 40, 40)
    affine = load("affnist", data_dir=tmp_path, verify=False, train="affine", seed=1)
    assert affine.train.images.shape == (40, 1, 40, 40)
    assert not np.array_equal(affine.test.images[0], data.test.images[0])
    with pytest.raises(DataError, match="train='rotated' is no training set of affnist"):
        load("affnist", data_dir=tmp_path, train="rotated")


def test_partners_are_of_another_class_and_all_are_met() -> None:
    labels = np.array([0, 1, 1, 2, 2, 2])
    unit = Counter(0, 0, np.arange(6000)).uniform(0)
    partner = partners(labels, unit)
    first = np.arange(6000) % 6
    assert (labels[partner] != labels[first]).all()
    met = np.unique(np.stack([first, partner]), axis=1, return_counts=True)
    assert met[0].shape[1] == 5 + 4 + 4 + 3 + 3 + 3
    with pytest.raises(DataError, match="all digits are of class 0"):
        partners(np.zeros(5, np.int64), unit)


def test_multimnist_pairs(tmp_path: Path) -> None:
    arrays = made_up.write_mnist(tmp_path)
    data = load("multimnist", data_dir=tmp_path, verify=False, pairs_per_digit=3)
    assert data.train.images.shape == (120, 1, 36, 36)
    assert data.train.labels.shape == (120, 2)
    assert (data.train.labels[:, 0] != data.train.labels[:, 1]).all()
    assert np.array_equal(data.train.labels[:, 0], np.tile(arrays["train labels"], 3))
    # Some placement of the first digit lies under the picture everywhere.
    canvas = np.asarray(data.train.images)[5, 0].astype(int)
    digit = arrays["train images"][5]
    assert any((canvas[y : y + 28, x : x + 28] >= digit).all() for y in range(9) for x in range(9))
    out = data.default_transform(train=True).apply(data.train, [0], epoch=0, seed=0, train=True)
    assert out.shape == (1, 1, 36, 36)
    with pytest.raises(DataError, match="pairs_per_digit=0"):
        load("multimnist", data_dir=tmp_path, pairs_per_digit=0)
