from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

from capsroute.data import Split, Transform
from capsroute.data.transforms import THIRTEEN_CROPS

PAPER = Transform(crop=32, standardise="image", brightness=2.0, contrast=0.5)


def standardised(images: np.ndarray) -> np.ndarray:
    """The definition, one image at a time."""
    values = images.astype(np.float64) / 255
    return np.stack([(v - v.mean()) / max(v.std(), 1 / np.sqrt(v.size)) for v in values])


def test_test_time_is_the_standardised_centre(toys: Split) -> None:
    out = PAPER.apply(toys, range(7), epoch=0, seed=0, train=False)
    expected = standardised(np.asarray(toys.images[:7]))[:, :, 8:40, 8:40]
    assert out.dtype == torch.float32
    np.testing.assert_allclose(out.numpy(), expected, atol=1e-5)


def test_training_crop_is_a_window_of_the_image_with_new_levels(toys: Split) -> None:
    """Undo brightness and contrast by standardising the crop: then it must be one of the 17 x 17 windows."""
    out = PAPER.apply(toys, [3], epoch=5, seed=2, train=True)[0, 0].double().numpy()
    image = np.asarray(toys.images[3])[0].astype(np.float64)
    windows = np.lib.stride_tricks.sliding_window_view(image, (32, 32)).reshape(-1, 32, 32)
    levelled = (windows - windows.mean((1, 2), keepdims=True)) / windows.std((1, 2), keepdims=True)
    mine = (out - out.mean()) / out.std()
    assert np.abs(levelled - mine).max((1, 2)).min() < 1e-4


def test_brightness_and_contrast_stay_in_their_ranges(toys: Split) -> None:
    plain = replace(PAPER, crop=None, brightness=0.0, contrast=0.0)
    noisy = replace(plain, brightness=2.0, contrast=0.5)
    before = plain.apply(toys, range(300), epoch=0, seed=0, train=True).numpy()
    after = noisy.apply(toys, range(300), epoch=0, seed=0, train=True).numpy()
    added = after.mean((2, 3)) - before.mean((2, 3))
    factor = after.std((2, 3)) / before.std((2, 3))
    np.testing.assert_allclose(added[:, 0], added[:, 1], atol=1e-4)  # both cameras alike
    assert -2.0 <= added.min() < -1.8
    assert 1.8 < added.max() <= 2.0
    assert 0.5 <= factor.min() < 0.55
    assert 1.45 < factor.max() <= 1.5001


def test_crops_reach_every_corner(toys: Split) -> None:
    marked = np.arange(48 * 48, dtype=np.int64).reshape(48, 48)
    images = np.stack([marked // 256, marked % 256]).astype(np.uint8)[None].repeat(2000, axis=0)
    out = Transform(crop=32).apply(Split.of(images, np.zeros(2000)), range(2000), epoch=0, seed=0, train=True)
    corner = (out[:, :, 0, 0] * 255).round().long()
    place = corner[:, 0] * 256 + corner[:, 1]
    top, left = place // 48, place % 48
    assert (top.min(), top.max(), left.min(), left.max()) == (0, 16, 0, 16)
    assert len(place.unique()) > 250  # of 289


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"standardise": "crop"},
        {"standardise": "fixed", "mean": (0.5,), "std": (0.2, 0.3)},
        {"rotation": 20.0, "scale": 0.2, "shear": 0.2, "fill": "edge"},
        {"pad_to": 56, "shift": 3, "flip": True, "cutout": 9},
        {"curve": 0.5, "noise": 0.3, "soften": 0.7},
    ],
)
def test_a_sample_looks_the_same_in_any_batch(toys: Split, options: dict) -> None:
    transform = replace(PAPER, **options)
    together = transform.apply(toys, range(40), epoch=3, seed=7, train=True)
    alone = torch.cat([transform.apply(toys, [i], epoch=3, seed=7, train=True) for i in range(40)])
    chosen = toys.subset(np.arange(39, -1, -1))
    reversed_subset = transform.apply(chosen, range(40), epoch=3, seed=7, train=True).flip(0)
    assert torch.equal(together, alone)
    assert torch.equal(together, reversed_subset)
    assert torch.isfinite(together).all()
    assert not torch.equal(together, transform.apply(toys, range(40), epoch=4, seed=7, train=True))
    assert not torch.equal(together, transform.apply(toys, range(40), epoch=3, seed=8, train=True))


def test_one_option_does_not_disturb_the_draws_of_another(toys: Split) -> None:
    crop = Transform(crop=32)
    cut = replace(crop, cutout=4, flip=False)
    plain = crop.apply(toys, range(50), epoch=0, seed=0, train=True)
    holed = cut.apply(toys, range(50), epoch=0, seed=0, train=True)
    kept = holed != 0
    assert torch.equal(plain[kept], holed[kept])
    assert 4 <= ((holed == 0) & (plain != 0)).sum() / 100 <= 16


def test_padding_and_shift_of_a_digit() -> None:
    image = np.full((1, 1, 28, 28), 255, np.uint8)
    digit = Split.of(image, [0])
    padded = Transform(pad_to=32).apply(digit, [0], epoch=0, seed=0, train=False)[0, 0]
    assert torch.equal(padded, torch.nn.functional.pad(torch.ones(28, 28), (2, 2, 2, 2)))
    seen = set()
    for epoch in range(200):
        moved = Transform(pad_to=32, shift=2).apply(digit, [0], epoch=epoch, seed=0, train=True)[0, 0]
        rows, columns = moved.sum(1).nonzero().flatten(), moved.sum(0).nonzero().flatten()
        assert moved.sum() == 28 * 28
        seen.add((int(rows[0]), int(columns[0])))
    assert seen == {(y, x) for y in range(5) for x in range(5)}


def test_rotation_turns_by_the_angle_and_keeps_the_centre() -> None:
    yy, xx = np.mgrid[:41, :41] - 20
    bar = ((np.abs(yy) <= 1) & (np.abs(xx) <= 15)).astype(np.uint8) * 255
    split = Split.of(bar[None, None].repeat(200, axis=0), np.zeros(200))
    out = Transform(rotation=30.0).apply(split, range(200), epoch=0, seed=0, train=True)[:, 0].double().numpy()
    mass = out.sum((1, 2))
    assert np.abs((out * xx).sum((1, 2)) / mass).max() < 0.05
    angle = 0.5 * np.arctan2(2 * (out * xx * yy).sum((1, 2)), (out * (xx**2 - yy**2)).sum((1, 2)))
    degrees = np.rad2deg(angle)
    assert -30.5 < degrees.min() < -28
    assert 28 < degrees.max() < 30.5


def test_scale_is_the_size_of_what_is_seen() -> None:
    yy, xx = np.mgrid[:41, :41] - 20
    disc = (yy**2 + xx**2 <= 100).astype(np.uint8) * 255
    split = Split.of(disc[None, None].repeat(300, axis=0), np.zeros(300))
    out = Transform(scale=0.2).apply(split, range(300), epoch=0, seed=0, train=True)
    area = out.sum((1, 2, 3)) / (disc.sum() / 255)
    assert 0.62 < area.min() < 0.68  # 0.8 squared
    assert 1.38 < area.max() < 1.47  # 1.2 squared


def test_thirteen_crops(toys: Split) -> None:
    windows = PAPER.crops(toys, range(4))
    assert windows.shape == (4, 13, 2, 32, 32)
    whole = standardised(np.asarray(toys.images[:4]))
    for k, (down, right) in enumerate(THIRTEEN_CROPS):
        expected = whole[:, :, 8 + down : 40 + down, 8 + right : 40 + right]
        np.testing.assert_allclose(windows[:, k].numpy(), expected, atol=1e-5)
    assert torch.equal(windows[:, 0], PAPER.apply(toys, range(4), epoch=0, seed=0, train=False))
    with pytest.raises(ValueError, match="crop=44 of 48 pixels leaves less than 3"):
        replace(PAPER, crop=44).crops(toys, [0])


def test_flat_images_stay_finite() -> None:
    flat = Split.of(np.full((2, 1, 48, 48), 77, np.uint8), [0, 1])
    for standardise in ("image", "crop"):
        out = replace(PAPER, standardise=standardise).apply(flat, [0, 1], epoch=0, seed=0, train=False)
        assert out.abs().max() < 1e-4


def test_transform_survives_a_trip_through_json() -> None:
    transform = Transform(standardise="fixed", mean=(0.1,), std=(0.3,))
    assert Transform(**{**asdict(transform), "mean": [0.1], "std": [0.3]}) == transform


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"standardise": "always"}, "standardise='always' is unknown"),
        ({"fill": "mirror"}, "fill='mirror' is unknown"),
        ({"standardise": "fixed"}, "go together"),
        ({"mean": (0.5,), "std": (1.0,)}, "go together"),
        ({"shift": -1}, "shift=-1 is negative"),
        ({"bend": -1}, "bend=-1 is negative"),
        ({"pliancy": (1, 1.5)}, r"pliancy=\[1, 1.5\] are shares"),
        ({"noise": -0.5}, "noise=-0.5 is negative"),
    ],
)
def test_wrong_options_are_named(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Transform(**options)


def test_impossible_sizes_are_named(toys: Split) -> None:
    with pytest.raises(ValueError, match="crop=64 is larger than the image's 48 pixels; pad_to=64 first"):
        Transform(crop=64).apply(toys, [0], epoch=0, seed=0, train=False)
    with pytest.raises(ValueError, match="48 x 48 pixels cannot be padded to a square of 32"):
        Transform(pad_to=32).apply(toys, [0], epoch=0, seed=0, train=False)


def test_stretch_changes_the_sides_and_keeps_the_area() -> None:
    yy, xx = np.mgrid[:61, :61] - 30
    disc = (yy**2 + xx**2 <= 100).astype(np.uint8) * 255
    split = Split.of(disc[None, None].repeat(300, axis=0), np.zeros(300))
    out = Transform(stretch=0.5).apply(split, range(300), epoch=0, seed=0, train=True)[:, 0].double().numpy()
    mass = out.sum((1, 2))
    np.testing.assert_allclose(mass, disc.sum() / 255, rtol=0.02)
    ratio = np.sqrt((out * xx**2).sum((1, 2)) / (out * yy**2).sum((1, 2)))
    assert 1 / 1.53 < ratio.min() < 0.69
    assert 1.45 < ratio.max() < 1.53


def test_bends_move_each_part_its_own_way_and_smoothly() -> None:
    """Two gratings, whose phases tell where each pixel was looked up."""
    side, bend = 40, 3.0
    ramp = np.tile(np.arange(side, dtype=np.uint8) * 6, (side, 1))
    images = np.stack([ramp, ramp.T])[None].repeat(200, axis=0)
    split = Split.of(images, np.zeros(200))
    out = Transform(bend=bend, fill="edge").apply(split, range(200), epoch=0, seed=0, train=True).double() * 255 / 6
    moved = (out - torch.from_numpy(images / 6.0))[:, :, 8:-8, 8:-8]
    assert 1.5 < moved.abs().max() <= bend
    assert moved.diff(dim=-1).abs().max() < 0.6  # a pixel moves about as its neighbour does
    assert moved[:, :, 0, 0].sub(moved[:, :, -1, -1]).abs().max() > 1  # and corners do not go together
    assert moved.mean(0).abs().max() < 0.4  # no way is preferred
    one = Transform(bend=bend, fill="edge").apply(split, [7], epoch=0, seed=0, train=True).double() * 255 / 6
    assert torch.equal(one[0], out[7])


def test_noise_has_up_to_the_deviation_and_no_pattern() -> None:
    split = Split.of(np.zeros((300, 2, 24, 24), np.uint8), np.zeros(300))
    out = Transform(noise=0.6).apply(split, range(300), epoch=0, seed=0, train=True).double()
    spread = out.std((1, 2, 3))
    assert spread.max() < 0.64
    assert spread.min() < 0.02
    assert 0.27 < spread.mean() < 0.33
    units = out / spread[:, None, None, None]
    assert units.mean().abs() < 0.01
    assert units.mean(0).abs().max() < 0.3  # no pixel is preferred
    for step in (units[..., 1:] * units[..., :-1], units[:, 1:] * units[:, :1], units[1:] * units[:-1]):
        assert step.mean().abs() < 0.02  # and none knows of its neighbour, the other camera or the next image


def test_a_curve_moves_the_ends_and_keeps_the_middle_and_the_order() -> None:
    ramp = np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16).repeat(200, axis=0)
    split = Split.of(ramp, np.zeros(200))
    plain = Transform(standardise="crop").apply(split, [0], epoch=0, seed=0, train=False)[0].flatten()
    out = Transform(standardise="crop", curve=0.8).apply(split, range(200), epoch=0, seed=0, train=True).flatten(1)
    assert (out.diff(dim=1) > 0).all()
    middle, ends = out[:, 127:129] - plain[127:129], out[:, [0, -1]] - plain[[0, -1]]
    assert middle.abs().max() < 1e-3
    assert 0.5 < ends.max() < 0.8 * 0.75 + 1e-3  # x² / (1 + x²) is 3 / 4 where a ramp ends, at the root of 3
    assert -0.6 - 1e-3 < ends.min() < -0.5
    torch.testing.assert_close(ends[:, 0], ends[:, 1], rtol=0.02, atol=1e-4)


def test_softening_blurs_and_sharpens_edges_and_keeps_flat_parts() -> None:
    step = np.zeros((200, 1, 12, 12), np.uint8)
    step[..., 6:] = 200
    split = Split.of(step, np.zeros(200))
    out = Transform(soften=0.9).apply(split, range(200), epoch=0, seed=0, train=True)[:, 0]
    plain = Transform().apply(split, [0], epoch=0, seed=0, train=True)[0, 0]
    flat = [0, 1, -2, -1]
    torch.testing.assert_close(out[:, :, flat], plain[:, flat].expand(200, -1, -1), rtol=1e-6, atol=1e-6)
    jump = (out[:, 5, 6] - out[:, 5, 5]) / (plain[5, 6] - plain[5, 5])
    assert 0.4 < jump.min() < 0.5  # 1 - 0.9 * 2 / 3
    assert 1.5 < jump.max() < 1.6


def test_a_mirrored_pair_changes_cameras() -> None:
    images = np.arange(2 * 6 * 6, dtype=np.uint8).reshape(1, 2, 6, 6).repeat(40, axis=0)
    split = Split.of(images, np.zeros(40))
    plain = Transform().apply(split, [0], epoch=0, seed=0, train=True)[0]
    for flip, mirrored in ((True, plain.flip(2)), ("stereo", plain.flip(2).flip(0))):
        out = Transform(flip=flip).apply(split, range(40), epoch=0, seed=0, train=True)
        turned = [bool(torch.equal(image, mirrored)) for image in out]
        assert 8 < sum(turned) < 32
        assert all(torch.equal(image, plain) for image, was in zip(out, turned, strict=True) if not was)
    with pytest.raises(ValueError, match="flip='both'"):
        Transform(flip="both")


def test_pliancy_says_which_classes_change_their_shape(toys: Split) -> None:
    """Of a class without pliancy only what keeps proportions is left; of one with all of it nothing changes."""
    bent = Transform(crop=40, rotation=10, stretch=0.3, shear=0.2, bend=6, fill="edge")
    stiff = replace(bent, stretch=0, shear=0, bend=0)
    some = replace(bent, pliancy=(1, 1, 1, 0, 0.5))

    def seen(transform: Transform) -> torch.Tensor:
        return transform.apply(toys, range(100), epoch=1, seed=0, train=True)

    labels = torch.from_numpy(toys.labels[:100])
    assert set(labels.tolist()) == {0, 1, 2, 3, 4}
    assert torch.equal(seen(some)[labels < 3], seen(bent)[labels < 3])
    assert torch.equal(seen(some)[labels == 3], seen(stiff)[labels == 3])
    half = seen(some)[labels == 4]
    assert not torch.equal(half, seen(bent)[labels == 4])
    assert not torch.equal(half, seen(stiff)[labels == 4])
    assert torch.equal(
        some.apply(toys, range(9), epoch=0, seed=0, train=False),
        bent.apply(toys, range(9), epoch=0, seed=0, train=False),
    )


def test_pliancy_of_too_few_classes(toys: Split) -> None:
    with pytest.raises(ValueError, match=r"pliancy=\[1, 0\] speaks of 2 classes; give each class one number"):
        Transform(bend=2, pliancy=(1, 0)).apply(toys, range(100), epoch=0, seed=0, train=True)
