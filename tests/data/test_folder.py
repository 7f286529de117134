from __future__ import annotations

import io
from pathlib import Path

import made_up
import numpy as np
import pytest
from PIL import Image

from capsroute.data import load
from capsroute.errors import DataError


def save(path: Path, pixels: np.ndarray, **options: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)


def write_classes(root: Path, count: int = 10, colour: bool = False, side: int = 40) -> None:
    random = np.random.default_rng(0)
    for name in ("apples", "pears"):
        for number in range(count):
            shape = (side + number, side, 3) if colour else (side + number, side)
            save(root / name / f"{number}.png", random.integers(0, 256, shape).astype(np.uint8))


@pytest.mark.parametrize("colour", [True, False])
def test_one_folder_a_class(tmp_path: Path, colour: bool) -> None:
    write_classes(tmp_path, colour=colour)
    (tmp_path / "apples" / "notes.txt").write_text("no image")
    (tmp_path / ".hidden").mkdir()
    data = load(f"folder:{tmp_path}", size=24)
    assert data.classes == ("apples", "pears")
    assert (data.source, data.channels, data.image_size) == ("folder", 3 if colour else 1, 24)
    assert data.train.images.shape == (16, 3 if colour else 1, 24, 24)
    assert np.bincount(data.test.labels).tolist() == [2, 2]
    out = data.default_transform(train=True).apply(data.train, range(16), epoch=0, seed=0, train=True)
    assert out.shape == (16, 3 if colour else 1, 24, 24)
    train = {image.tobytes() for image in np.asarray(data.train.images)}
    assert not train & {image.tobytes() for image in np.asarray(data.test.images)}
    assert load(f"folder:{tmp_path}", colour=not colour).channels == (1 if colour else 3)


def test_given_splits_are_kept_and_test_is_not_read(tmp_path: Path) -> None:
    write_classes(tmp_path / "train", 3)
    write_classes(tmp_path / "test", 2)
    (tmp_path / "test" / "pears" / "1.png").write_bytes(b"not to be read")
    data = load(f"folder:{tmp_path}")
    assert len(data.train) == 6
    with pytest.raises(DataError, match=r"test/pears/1\.png does not decode as an image"):
        _ = data.test


def test_a_picture_keeps_its_split_when_others_come(tmp_path: Path) -> None:
    write_classes(tmp_path, 20)
    before = {image.tobytes() for image in np.asarray(load(f"folder:{tmp_path}").test.images)}
    save(tmp_path / "pears" / "new.png", np.zeros((32, 32), np.uint8))
    after = {image.tobytes() for image in np.asarray(load(f"folder:{tmp_path}").test.images)}
    assert len(before - after) <= 1
    assert load(f"folder:{tmp_path}").train.images.shape[0] == 33


def test_scaling_is_the_area_mean_of_the_centred_square(tmp_path: Path) -> None:
    wide = np.arange(64 * 96).reshape(64, 96).astype(np.uint8)
    for name in ("a", "b"):
        for number in range(2):
            save(tmp_path / name / f"{number}.png", wide)
    stored = load(f"folder:{tmp_path}", size=32).train.images[0, 0].astype(float)
    expected = wide[:, 16:80].reshape(32, 2, 32, 2).mean((1, 3))
    assert np.abs(stored - expected).max() <= 0.51


def test_kinds_of_pictures(tmp_path: Path) -> None:
    """Palettes, transparency, 16 bits, black and white, one pixel: all become grey squares."""
    level = np.full((20, 30), 100, np.uint8)
    kinds = {
        "palette.gif": Image.fromarray(level).convert("P"),
        "alpha.png": Image.fromarray(np.dstack([level] * 3 + [level])),
        "deep.png": Image.fromarray(np.full((20, 30), 100 * 257, np.uint16)),
        "bits.png": Image.fromarray(level > 50),
        "pixel.bmp": Image.fromarray(level[:1, :1]),
    }
    for name in ("x", "y"):
        (tmp_path / name).mkdir()
        for file, image in kinds.items():
            image.save(tmp_path / name / file)
    data = load(f"folder:{tmp_path}", size=16, test_fraction=0.1)
    levels = sorted({int(v) for split in (data.train, data.test) for v in np.unique(np.asarray(split.images))})
    assert levels == [100, 255]
    assert len(data.train) + len(data.test) == 10


def test_photographs_are_turned_upright(tmp_path: Path) -> None:
    lying = np.zeros((32, 32), np.uint8)
    lying[:, :16] = 255  # bright on the left
    turned = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held upright: turn by 90 degrees clockwise
    Image.fromarray(lying).save(turned, "JPEG", exif=exif, quality=95)
    for name in ("a", "b"):
        for number in range(2):
            made_up.write_files(tmp_path, {f"{name}/{number}.jpg": turned.getvalue()})
    stored = load(f"folder:{tmp_path}", size=32).train.images[0, 0]
    assert stored[:14].mean() > 240
    assert stored[18:].mean() < 15


def test_changed_pictures_are_read_again(tmp_path: Path) -> None:
    write_classes(tmp_path / "train", 2)
    first = load(f"folder:{tmp_path}").train.images[0].copy()
    save(tmp_path / "train" / "apples" / "0.png", np.zeros((50, 50), np.uint8))
    assert first.any()
    assert not load(f"folder:{tmp_path}").train.images[0].any()


def test_folders_that_are_no_data_sets(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere is no folder; folder:PATH needs one"):
        load(f"folder:{tmp_path}/nowhere")
    with pytest.raises(DataError, match="has 0 class folders"):
        load(f"folder:{tmp_path}")
    write_classes(tmp_path, 3)
    (tmp_path / "plums").mkdir()
    with pytest.raises(DataError, match=r"the class folder .*plums has no images"):
        load(f"folder:{tmp_path}")
    save(tmp_path / "plums" / "only.png", np.zeros((8, 8), np.uint8))
    with pytest.raises(DataError, match="plums has one image; a class needs two"):
        _ = load(f"folder:{tmp_path}").train
    with pytest.raises(DataError, match="size=0"):
        load(f"folder:{tmp_path}", size=0)
    with pytest.raises(DataError, match="has no option 'sizes'"):
        load(f"folder:{tmp_path}", sizes=3)


def test_splits_that_do_not_match(tmp_path: Path) -> None:
    write_classes(tmp_path / "train", 2)
    with pytest.raises(DataError, match="test is not there; add it"):
        _ = load(f"folder:{tmp_path}").test
    write_classes(tmp_path / "test", 2)
    save(tmp_path / "test" / "plums" / "0.png", np.zeros((8, 8), np.uint8))
    with pytest.raises(DataError, match=r"differ in their classes \(plums\)"):
        _ = load(f"folder:{tmp_path}").test


def test_an_image_that_does_not_decode_is_named(tmp_path: Path) -> None:
    write_classes(tmp_path, 12)
    path = tmp_path / "pears" / "9.png"
    path.write_bytes(path.read_bytes()[:200])
    data = load(f"folder:{tmp_path}", colour=False)
    with pytest.raises(DataError, match=r"pears/9\.png does not decode as an image") as caught:
        _ = data.train, data.test
    assert "\n" not in str(caught.value)
