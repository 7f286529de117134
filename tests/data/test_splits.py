from __future__ import annotations

import numpy as np
import pytest

from capsroute.data import DataSet, Split, Transform, load, split_validation, viewpoints
from capsroute.data.counter import Counter
from capsroute.errors import DataError


def test_random_validation_is_stratified_and_seeded(toys: Split) -> None:
    train, validation = split_validation(toys, fraction=0.1, seed=3)
    assert np.bincount(validation.labels).tolist() == [6] * 5
    assert sorted([*train.ids, *validation.ids]) == list(range(300))
    assert np.array_equal(validation.ids, split_validation(toys, fraction=0.1, seed=3)[1].ids)
    assert not np.array_equal(validation.ids, split_validation(toys, fraction=0.1, seed=4)[1].ids)


def test_folds_by_instance_hold_out_every_toy_once(toys: Split) -> None:
    count = len(np.unique(toys.meta["instance"]))
    held = [split_validation(toys, how="by_instance", fold=fold)[1] for fold in range(count)]
    assert sorted(np.concatenate([part.ids for part in held])) == sorted(toys.ids)
    assert all(len(np.unique(part.meta["instance"])) == 1 for part in held)
    with pytest.raises(DataError, match=f"fold={count}: class 0 has {count} instances"):
        split_validation(toys, how="by_instance", fold=count)


def test_by_instance_holds_out_one_toy_of_each_class(toys: Split) -> None:
    picks = set()
    for seed in range(8):
        train, validation = split_validation(toys, how="by_instance", seed=seed)
        assert len(train) + len(validation) == 300
        for label in range(5):
            held = set(validation.meta["instance"][validation.labels == label])
            kept = set(train.meta["instance"][train.labels == label])
            assert len(held) == 1
            assert len(kept) == 4
            assert not held & kept
            picks.add((label, *held))
    assert len(picks) > 10  # the seed decides, and classes do not all lose the same toy


def test_splits_that_cannot_be_made(toys: Split) -> None:
    with pytest.raises(ValueError, match="how='by_toy' is no way to split"):
        split_validation(toys, how="by_toy")
    with pytest.raises(ValueError, match="fraction=1"):
        split_validation(toys, fraction=1.0)
    with pytest.raises(DataError, match="does not say which object"):
        split_validation(load("digits").train, how="by_instance")
    with pytest.raises(DataError, match=r"class 0 has 2 samples, too few to hold out 0\.1"):
        split_validation(toys.subset(toys.labels * 100 + toys.ids < 10), fraction=0.1)
    with pytest.raises(DataError, match="class 0 has one instance, 2"):
        split_validation(toys.subset(toys.meta["instance"] == 2), how="by_instance")


def test_subset_keeps_what_belongs_together(toys: Split) -> None:
    chosen = toys.subset([7, 3]).subset([1])
    assert chosen.ids.tolist() == [3]
    assert chosen.labels.tolist() == [toys.labels[3]]
    assert chosen.meta["azimuth"].tolist() == [toys.meta["azimuth"][3]]
    assert np.array_equal(np.asarray(chosen.images), np.asarray(toys.images[[3]]))
    assert chosen.images.shape == (1, 2, 48, 48)
    assert np.array_equal(chosen.images[0, 1], toys.images[3][1])
    assert np.array_equal(chosen.images[:, 0], toys.images[[3], 0])


def test_counts_that_do_not_match() -> None:
    with pytest.raises(DataError, match="3 images but 2 labels"):
        Split.of(np.zeros((3, 1, 8, 8), np.uint8), [0, 1])


def test_counter_is_uniform_and_depends_on_everything() -> None:
    ids = np.arange(20000)
    numbers = Counter(1, 2, ids).uniform(3)
    assert abs(numbers.mean() - 0.5) < 0.01
    assert abs(numbers.var() - 1 / 12) < 0.003
    assert numbers.min() >= 0
    assert numbers.max() < 1
    for other in (Counter(0, 2, ids).uniform(3), Counter(1, 3, ids).uniform(3), Counter(1, 2, ids).uniform(4)):
        assert abs(np.corrcoef(numbers, other)[0, 1]) < 0.03
    assert np.bincount(Counter(1, 2, ids).integers(5, 7)).min() > 2600


def posed(toys: Split, train_has_pose: bool) -> DataSet:
    bare = Split(toys.images, toys.labels, toys.ids, {"instance": toys.meta["instance"]})
    splits = {"train": toys if train_has_pose else bare, "test": toys}
    return DataSet("smallnorb", "jpeg", tuple("abcde"), 2, 32, Transform(crop=32), splits.__getitem__)


@pytest.mark.parametrize(("by", "familiar"), [("azimuth", {0, 20, 40}), ("elevation", {30, 35, 40})])
def test_published_viewpoints(toys: Split, by: str, familiar: set[int]) -> None:
    views = viewpoints.published(posed(toys, train_has_pose=True), by)
    assert views.name == f"novel-{by}"
    assert set(views.train.meta[by]) == set(views.familiar.meta[by]) == familiar
    assert set(views.novel.meta[by]) == set(toys.meta[by]) - familiar
    assert len(views.familiar) + len(views.novel) == 300


def test_published_viewpoints_are_refused_without_training_poses(toys: Split) -> None:
    with pytest.raises(DataError, match=r"no azimuth for its training images.*training -info\.mat.*within_test_toys"):
        viewpoints.published(posed(toys, train_has_pose=False))
    with pytest.raises(ValueError, match="by='roll'"):
        viewpoints.published(posed(toys, train_has_pose=True), "roll")


@pytest.mark.parametrize("by", ["azimuth", "elevation"])
def test_viewpoints_within_the_test_toys(toys: Split, by: str) -> None:
    views = viewpoints.within_test_toys(posed(toys, train_has_pose=False), by)
    assert views.name == f"test-toys-{by}"
    trained = {(c, i) for c, i in zip(views.train.labels, views.train.meta["instance"], strict=True)}
    for part in (views.familiar, views.novel):
        assert not trained & {(c, i) for c, i in zip(part.labels, part.meta["instance"], strict=True)}
    assert not set(views.train.meta[by]) & set(views.novel.meta[by])
    assert set(views.familiar.meta[by]) <= set(views.train.meta[by])
    assert len(views.train)
    assert len(views.novel)
