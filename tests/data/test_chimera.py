from __future__ import annotations

import numpy as np
import pytest
import torch

from capsroute.data import Split, Transform
from capsroute.data.chimera import ALIKE, joined, look_alikes
from capsroute.data.counter import Counter

SIDE = 24


def bars(angles: np.ndarray, width: np.ndarray) -> np.ndarray:
    """Dark bars on a light ground, [N, 2, SIDE, SIDE], the second camera a pixel to the side."""
    down, right = np.mgrid[:SIDE, :SIDE] - (SIDE - 1) / 2
    far = right * np.sin(angles)[:, None, None] - down * np.cos(angles)[:, None, None]
    left = np.where(np.abs(far) < width[:, None, None], 60, 200).astype(np.uint8)
    return np.stack([left, np.roll(left, 1, axis=2)], axis=1)


@pytest.fixture
def toys() -> Split:
    """Two classes of four toys (bars of their own width), each seen under 30 angles."""
    label, toy, view = (grid.ravel() for grid in np.meshgrid([0, 1], range(4), range(30), indexing="ij"))
    images = bars(np.pi * view / 30, 1.5 + 0.5 * toy + label)
    return Split.of(images, label, {"instance": toy, "view": view})


def test_partners_are_other_toys_of_the_class_under_nearly_the_same_angle(toys: Split) -> None:
    partners = look_alikes(toys)
    assert partners.shape == (len(toys), ALIKE)
    assert (toys.labels[partners] == toys.labels[:, None]).all()
    assert (toys.meta["instance"][partners] != toys.meta["instance"][:, None]).all()
    turned = np.abs(toys.meta["view"][partners] - toys.meta["view"][:, None])
    assert np.minimum(turned, 30 - turned).max() <= 2


def test_partners_are_the_definition_on_small_numbers(toys: Split) -> None:
    """The nearest by correlation of the coarse image, one pair at a time; alike ones may change places."""
    few = toys.subset(np.arange(0, len(toys), 3))
    pixels = np.asarray(few.images)[:, 0].astype(np.float64)
    edges = np.arange(16) * SIDE // 16
    coarse = np.add.reduceat(np.add.reduceat(pixels, edges, 1), edges, 2).reshape(len(few), -1)
    likeness = np.corrcoef(coarse)
    for i, found in enumerate(look_alikes(few, count=3)):
        other = (few.labels == few.labels[i]) & (few.meta["instance"] != few.meta["instance"][i])
        best = np.sort(likeness[i][other])[-3:]
        np.testing.assert_allclose(np.sort(likeness[i][found]), best, atol=1e-3)


def test_without_instances_every_image_is_its_own_toy(toys: Split) -> None:
    plain = Split.of(np.asarray(toys.images), toys.labels)
    assert (look_alikes(plain) != np.arange(len(plain))[:, None]).all()


def test_who_has_no_partner_stays_as_he_is(toys: Split) -> None:
    lonely = toys.subset((toys.labels == 0) & (toys.meta["instance"] == 2))
    assert (look_alikes(lonely) == np.arange(len(lonely))[:, None]).all()
    chosen = np.arange(10)
    out = joined(lonely, chosen, 1.0, Counter(0, 0, lonely.ids[chosen]))
    np.testing.assert_array_equal(np.asarray(out), lonely.images[chosen])
    two = toys.subset([0, 31])  # fewer than the partners that are drawn from
    assert set(look_alikes(two)[0]) == {0, 1}


def test_held_out_toys_are_nobodys_partners(toys: Split) -> None:
    kept = toys.subset(toys.meta["instance"] != 1)
    assert 1 not in kept.meta["instance"][kept.look_alikes]
    assert len(toys.look_alikes) == len(toys)


def test_a_joined_image_is_one_toy_on_one_side_and_another_on_the_other(toys: Split) -> None:
    chosen = np.arange(60)
    draws = Counter(3, 1, toys.ids[chosen])
    own = toys.images[chosen].astype(int)
    out = np.asarray(joined(toys, chosen, 1.0, draws)).astype(int)
    changed = (np.abs(out - own) > 20).any(axis=(1, 2, 3))
    assert changed.mean() > 0.5
    partners = toys.images[look_alikes(toys)[chosen].ravel()].reshape(60, ALIKE, *own.shape[1:]).astype(int)
    low, high = np.minimum(own, partners.min(1)), np.maximum(own, partners.max(1))
    assert (out >= low - 1).all()
    assert (out <= high + 1).all()
    ours = np.abs(out - own) <= 2
    theirs = (np.abs(out[:, None] - partners) <= 2).any(axis=1)
    assert (ours | theirs).mean() > 0.9  # all but where one passes into the other
    assert not ours[changed].all(axis=(1, 2, 3)).any()
    assert not theirs[changed].all(axis=(1, 2, 3)).all()
    np.testing.assert_array_equal(np.asarray(joined(toys, chosen, 0.0, draws)), toys.images[chosen])
    half = np.asarray(joined(toys, chosen, 0.5, draws))
    kept = (half == toys.images[chosen]).all(axis=(1, 2, 3))
    assert kept[~changed].all()
    assert 0.2 < (changed & ~kept).sum() / changed.sum() < 0.8


def test_the_partner_gets_the_light_of_the_image(toys: Split) -> None:
    images = np.asarray(toys.images)
    images[toys.meta["instance"] % 2 == 1] //= 2
    lit = Split.of(images, toys.labels, toys.meta)
    chosen = np.arange(120)
    out = np.asarray(joined(lit, chosen, 1.0, Counter(0, 0, lit.ids[chosen])))
    ground = np.median(images[chosen].reshape(120, -1), axis=1)
    ends = out[:, :, [0, -1]].reshape(120, -1)
    assert np.abs(np.median(ends, axis=1) - ground).max() <= 3


def test_chimeras_do_not_depend_on_the_batch_and_act_in_training_alone(toys: Split) -> None:
    transform = Transform(chimera=0.7, crop=20, rotation=10, fill="edge", standardise="crop")
    together = transform.apply(toys, range(40), epoch=3, seed=7, train=True)
    alone = torch.cat([transform.apply(toys, [i], epoch=3, seed=7, train=True) for i in range(40)])
    assert torch.equal(together, alone)
    plain = Transform(crop=20, rotation=10, fill="edge", standardise="crop")
    changed = (together != plain.apply(toys, range(40), epoch=3, seed=7, train=True)).flatten(1).any(1)
    assert 0.3 < changed.float().mean() < 0.95
    tested = [each.apply(toys, range(40), epoch=0, seed=0, train=False) for each in (transform, plain)]
    assert torch.equal(*tested)
    assert transform.apply(toys, [], epoch=0, seed=0, train=True).shape == (0, 2, 20, 20)


@pytest.mark.parametrize("share", [-0.1, 1.5])
def test_a_share_beyond_its_range_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match=f"chimera={share}"):
        Transform(chimera=share)
