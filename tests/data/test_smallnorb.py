from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import made_up
import numpy as np
import pytest

from capsroute.data import Loader, Split, load, split_validation, viewpoints
from capsroute.data.norbmat import parse_matrix
from capsroute.data.smallnorb import CLASSES, STEMS
from capsroute.errors import DataError


@pytest.fixture(scope="module")
def toys_files() -> made_up.Toys:
    return made_up.Toys()


def halved(images: np.ndarray) -> np.ndarray:
    """Area mean of 2 x 2 pixels, halves upward."""
    return np.floor(images.reshape(*images.shape[:2], 48, 2, 48, 2).mean((3, 5)) + 0.5).astype(np.uint8)


def check(split: Split, files: made_up.Toys, part: str, poses: bool, tolerance: int = 0) -> None:
    assert split.images.shape == (30, 2, 48, 48)
    difference = np.asarray(split.images).astype(int) - halved(files.images[part])
    assert np.abs(difference).max() <= tolerance
    assert np.array_equal(split.labels, files.labels[part])
    instance, elevation, azimuth, lighting = files.info[part].T
    expected = {"instance": instance}
    if poses:
        expected |= {"elevation": 30 + 5 * elevation, "azimuth": 10 * azimuth, "lighting": lighting}
    assert split.meta.keys() == expected.keys()
    for name, values in expected.items():
        assert np.array_equal(split.meta[name], values)


@pytest.mark.parametrize("packed", [True, False])
def test_official_matrices(tmp_path: Path, toys_files: made_up.Toys, packed: bool) -> None:
    toys_files.matrices(tmp_path / "smallnorb", packed)
    data = load("smallnorb", data_dir=tmp_path, verify=False)
    assert data.describe() == {"dataset": "smallnorb", "source": "mat", "cameras": "stereo"}
    assert (data.channels, data.image_size, data.classes) == (2, 32, CLASSES)
    check(data.train, toys_files, "train", poses=True)
    check(data.test, toys_files, "test", poses=True)
    assert len(viewpoints.published(data).train) < 30


@pytest.mark.parametrize(("form", "suffix", "tolerance"), [("zip", "png", 0), ("folder", "png", 0), ("zip", "jpg", 6)])
def test_pictures(tmp_path: Path, toys_files: made_up.Toys, form: str, suffix: str, tolerance: int) -> None:
    files = toys_files.files(suffix)
    if form == "zip":
        made_up.write_zip(tmp_path / "smallnorb-export.zip", files)
    else:
        made_up.write_files(tmp_path / "smallnorb", files)
    data = load("smallnorb", data_dir=tmp_path)
    assert data.source == {"png": "png", "jpg": "jpeg"}[suffix]
    check(data.train, toys_files, "train", poses=False, tolerance=tolerance)
    check(data.test, toys_files, "test", poses=True, tolerance=tolerance)
    with pytest.raises(DataError, match="no azimuth for its training images"):
        viewpoints.published(data)


def test_pictures_below_another_folder_in_the_zip(tmp_path: Path, toys_files: made_up.Toys) -> None:
    files = {f"smallNORB/{name}": content for name, content in toys_files.files().items()}
    made_up.write_zip(tmp_path / "smallNORB.zip", files)
    check(load("smallnorb", data_dir=tmp_path).test, toys_files, "test", poses=True)


@pytest.mark.parametrize("form", ["zip", "folder"])
def test_training_poses_from_a_matrix_beside_the_pictures(tmp_path: Path, toys_files: made_up.Toys, form: str) -> None:
    files = toys_files.files()
    if form == "zip":
        made_up.write_zip(tmp_path / "smallnorb.zip", files)
    else:
        made_up.write_files(tmp_path, files)
    assert "azimuth" not in load("smallnorb", data_dir=tmp_path).train.meta
    content = made_up.norb_matrix(toys_files.info["train"])
    (tmp_path / f"{STEMS['train']}-info.mat.gz").write_bytes(gzip.compress(content))
    data = load("smallnorb", data_dir=tmp_path)
    check(data.train, toys_files, "train", poses=True)
    assert set(viewpoints.published(data).train.meta["azimuth"]) <= {300, 320, 340, 0, 20, 40}


def test_one_camera(tmp_path: Path, toys_files: made_up.Toys) -> None:
    toys_files.matrices(tmp_path)
    left = load("smallnorb", data_dir=tmp_path, verify=False, cameras="left")
    assert (left.channels, left.cameras) == (1, "left")
    assert np.array_equal(np.asarray(left.train.images), halved(toys_files.images["train"])[:, :1])
    out = left.default_transform(train=True).apply(left.train, range(5), epoch=0, seed=0, train=True)
    assert out.shape == (5, 1, 32, 32)
    with pytest.raises(DataError, match="cameras='right' is unknown; use 'stereo' or 'left'"):
        load("smallnorb", data_dir=tmp_path, cameras="right")


@pytest.mark.parametrize("form", ["mat", "png"])
def test_images_as_they_were_taken(tmp_path: Path, toys_files: made_up.Toys, form: str) -> None:
    if form == "mat":
        toys_files.matrices(tmp_path)
    else:
        made_up.write_files(tmp_path, toys_files.files("png"))
    data = load("smallnorb", data_dir=tmp_path, verify=False, side=96)
    assert data.image_size == 64
    assert np.array_equal(np.asarray(data.train.images), toys_files.images["train"])
    out = data.default_transform(train=True).apply(data.train, range(5), epoch=0, seed=0, train=True)
    assert out.shape == (5, 2, 64, 64)
    check(load("smallnorb", data_dir=tmp_path, verify=False).train, toys_files, "train", poses=form == "mat")
    with pytest.raises(DataError, match=r"side=64 is unknown; use 48 \(halved\) or 96"):
        load("smallnorb", data_dir=tmp_path, side=64)


def test_the_papers_preparation(tmp_path: Path, toys_files: made_up.Toys) -> None:
    toys_files.matrices(tmp_path)
    data = load("smallnorb", data_dir=tmp_path, verify=False)
    steps = data.default_transform(train=True)
    assert (steps.crop, steps.standardise, steps.brightness, steps.contrast) == (32, "image", 2.0, 0.5)
    plain = data.default_transform(train=False)
    assert (plain.crop, plain.standardise, plain.brightness, plain.contrast) == (32, "image", 0.0, 0.0)


@pytest.mark.parametrize("form", ["mat", "zip"])
def test_training_and_selection_never_read_test_data(
    tmp_path: Path, own_cache: Path, toys_files: made_up.Toys, form: str
) -> None:
    """Test pictures that cannot be decoded disturb nobody before the test set is asked for; nothing of it is cached."""
    if form == "mat":
        toys_files.matrices(tmp_path)
        (tmp_path / f"{STEMS['test']}-dat.mat").write_bytes(b"not to be read")
    else:
        files = {k: b"not to be read" if k.startswith("test/") else v for k, v in toys_files.files().items()}
        made_up.write_zip(tmp_path / "smallnorb.zip", files)
    data = load("smallnorb", data_dir=tmp_path, verify=False)
    for how in ("random", "by_instance"):
        train, validation = split_validation(data.train, how)
        for split, training in ((train, True), (validation, False)):
            loader = Loader(split, data.default_transform(training), batch_size=2, train=training)
            assert sum(len(batch.ids) for batch in loader.epoch(0)) > 0
    kept = [path.name for path in (own_cache / "arrays").iterdir()]
    assert kept
    assert not [name for name in kept if "-test-" in name]
    with pytest.raises(DataError, match=r"testing-dat\.mat starts with|test/000000_animal_00_lt\.png does not decode"):
        _ = data.test


def changed(**changes: Callable[[bytes], bytes | None]) -> Callable[[dict[str, bytes]], None]:
    def change(files: dict[str, bytes]) -> None:
        for name, new in changes.items():
            found = next(key for key in files if name in key)
            content = new(files.pop(found))
            if content is not None:
                files[found] = content

    return change


LABELS = f"{STEMS['train']}-cat.mat"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"000003_truck_04_rt": lambda _: b"GIF89a?"}, "train/000003_truck_04_rt.png does not decode as an image"),
        ({"000003_truck_04_rt": lambda old: old[:-30]}, "train/000003_truck_04_rt.png does not decode as an image"),
        ({"000003_truck_04_rt": lambda _: None}, "train pair 000003 has no right image"),
        (
            {"000003_truck_04_rt": lambda _: None, "000003_truck_04_lt": lambda _: None},
            "train pair 000003 has no left and right image",
        ),
        (
            {"000003_truck_04_rt": lambda _: made_up.picture(np.zeros((64, 96), np.uint8))},
            "000003_truck_04_rt.png is 96 x 64, smallNORB's are 96 x 96",
        ),
        (
            {LABELS: lambda _: made_up.norb_matrix(np.zeros(30, np.int32))},
            "train pictures and the .mat files disagree on labels",
        ),
        (
            {LABELS: lambda _: made_up.norb_matrix(np.zeros(29, np.int32))},
            "train pictures and the .mat files disagree on labels",
        ),
        ({LABELS: lambda old: b"1234" + old[4:]}, "starts with 0x34333231, no NORB matrix"),
    ],
)
def test_damaged_exports_are_named_in_one_line(
    tmp_path: Path, own_cache: Path, toys_files: made_up.Toys, change: dict, message: str
) -> None:
    files = toys_files.files()
    changed(**change)(files)
    made_up.write_zip(tmp_path / "smallnorb.zip", files)
    data = load("smallnorb", data_dir=tmp_path)
    with pytest.raises(DataError, match=message) as caught:
        _ = data.train
    assert "\n" not in str(caught.value)
    assert not [path for path in (own_cache / "arrays").iterdir() if path.is_dir()]


def test_odd_names(tmp_path: Path, toys_files: made_up.Toys) -> None:
    files = toys_files.files()
    files = {name.replace("000001_human", "000001_martian"): content for name, content in files.items()}
    made_up.write_zip(tmp_path / "smallnorb.zip", files)
    with pytest.raises(DataError, match=r"train pair 000001 is .*martian.*: no pair of animal, human"):
        _ = load("smallnorb", data_dir=tmp_path).train


def test_export_without_test_pictures(tmp_path: Path, toys_files: made_up.Toys) -> None:
    files = {name: content for name, content in toys_files.files().items() if not name.startswith("test/")}
    made_up.write_zip(tmp_path / "smallnorb.zip", files)
    data = load("smallnorb", data_dir=tmp_path)
    assert len(data.train) == 30
    with pytest.raises(DataError, match="has no test pictures"):
        _ = data.test


@pytest.mark.parametrize("name", ["../outside.jpg", "/etc/outside.jpg", "a/../../outside.jpg", "..\\outside.jpg"])
def test_zip_that_points_outside_is_refused(tmp_path: Path, toys_files: made_up.Toys, name: str) -> None:
    made_up.write_zip(tmp_path / "smallnorb.zip", {**toys_files.files(), name: b"x"})
    with pytest.raises(DataError, match="points outside the zip; do not use this file"):
        _ = load("smallnorb", data_dir=tmp_path).train


def test_damaged_zips(tmp_path: Path, toys_files: made_up.Toys) -> None:
    path = made_up.write_zip(tmp_path / "smallnorb.zip", toys_files.files())
    whole = path.read_bytes()
    path.write_bytes(whole[:-500])
    with pytest.raises(DataError, match="is no readable zip"):
        _ = load("smallnorb", data_dir=tmp_path).train
    spoilt = bytearray(whole)
    spoilt[whole.index(b"train/000000") + 60] ^= 0xFF  # within the packed content, past the name
    path.write_bytes(spoilt)
    with pytest.raises(DataError, match=r"train/000000_animal_04_lt\.png is damaged"):
        _ = load("smallnorb", data_dir=tmp_path).train


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "starts with 0x0"),
        (b"\x55\x4c\x3d\x1e", "ends within its header after 4 bytes"),
        (made_up.norb_matrix(np.zeros((3, 2), np.int32))[:-1], "has 43 bytes where its header announces 44"),
        (b"\x55\x4c\x3d\x1e\xff\xff\xff\x7f" + bytes(60), "ends within its header"),
        (b"\x55\x4c\x3d\x1e\x03\x00\x00\x00" + b"\xff\xff\xff\x7f" * 3, "where its header announces"),
    ],
)
def test_damaged_matrices(content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        parse_matrix(content, "a.mat")


@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 2, 5, 5), (2, 3, 4)])
@pytest.mark.parametrize("kind", [np.uint8, np.int32])
def test_matrices_of_any_shape(shape: tuple[int, ...], kind: type) -> None:
    values = np.arange(np.prod(shape)).reshape(shape).astype(kind)
    read = parse_matrix(made_up.norb_matrix(values), "a.mat")
    assert read.dtype == kind
    assert np.array_equal(read, values)


def test_matrices_that_are_not_smallnorbs(tmp_path: Path, toys_files: made_up.Toys) -> None:
    toys_files.matrices(tmp_path)
    assert len(load("smallnorb", data_dir=tmp_path, verify=False).train) == 30
    with pytest.raises(DataError, match=r"dat\.mat has md5:.* the published file md5:8138a0902307"):
        _ = load("smallnorb", data_dir=tmp_path).train
    labels = tmp_path / LABELS
    labels.write_bytes(made_up.norb_matrix(np.zeros(29, np.int32)))
    with pytest.raises(DataError, match="30 train pairs but 29 values of labels"):
        _ = load("smallnorb", data_dir=tmp_path, verify=False).train
    (tmp_path / f"{STEMS['train']}-dat.mat").write_bytes(made_up.norb_matrix(np.zeros((2, 2, 64, 64), np.uint8)))
    with pytest.raises(DataError, match="holds 2 x 2 x 64 x 64, smallNORB's -dat is N x 2 x 96 x 96"):
        _ = load("smallnorb", data_dir=tmp_path, verify=False).train


def test_missing_says_what_to_put_where(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"smallnorb is not here: looked in --data .* data fetch smallnorb.*\.mat files"
    ):
        load("smallnorb", data_dir=tmp_path)
