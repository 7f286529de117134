from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import torch

from capsroute.data import Batch, Loader, Split, Transform
from capsroute.errors import DataError

NOISY = Transform(crop=32, standardise="image", brightness=2.0, contrast=0.5)


def loader(split: Split, batch_size: int, train: bool = True, **options: int) -> Loader:
    return Loader(split, NOISY, batch_size=batch_size, seed=5, train=train, **options)


def same(one: Batch, other: Batch) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_an_epoch_visits_each_sample_once_in_an_order_of_its_own(toys: Split) -> None:
    batches = loader(toys, 20)
    first = torch.cat([batch.ids for batch in batches.epoch(0)])
    second = torch.cat([batch.ids for batch in batches.epoch(1)])
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(300))
    assert not torch.equal(first, second)
    assert torch.equal(first, torch.cat([batch.ids for batch in loader(toys, 20).epoch(0)]))
    for batch in batches.epoch(0):
        assert torch.equal(batch.labels, torch.from_numpy(toys.labels)[batch.ids])


def test_evaluation_keeps_the_order_and_every_sample(toys: Split) -> None:
    batches = loader(toys, 64, train=False)
    sizes = [len(batch.ids) for batch in batches.epoch(0)]
    assert sizes == [64, 64, 64, 64, 44]
    assert len(batches) == 5
    assert torch.cat([batch.ids for batch in batches.epoch(9)]).tolist() == list(range(300))


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("train", [True, False])
def test_ranks_see_together_what_one_sees(toys: Split, world_size: int, train: bool) -> None:
    alone = loader(toys, 24, train)
    ranks = [loader(toys, 24 // world_size, train, rank=r, world_size=world_size) for r in range(world_size)]
    assert {len(alone)} == {len(rank) for rank in ranks}
    for whole, *shares in zip(alone.epoch(2), *(rank.epoch(2) for rank in ranks), strict=True):
        ids = torch.cat([share.ids for share in shares])
        images = torch.cat([share.images for share in shares])
        assert torch.equal(ids.sort().values, whole.ids.sort().values)
        assert torch.equal(images[ids.argsort()], whole.images[whole.ids.argsort()])


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("standardise", ["image", "crop", None])
def test_a_rank_may_have_no_part_in_the_last_batch(toys: Split, standardise: str | None, train: bool) -> None:
    few = toys.subset(range(25))
    steps = Transform(pad_to=50, standardise=standardise, fill="edge", contrast=0.5, rotation=5.0, flip=True, cutout=3)
    shares = []
    for rank in range(3):
        batches = Loader(few, steps, batch_size=8, train=train, rank=rank, world_size=3, drop_last=False)
        shares.append([tuple(batch.images.shape) for batch in batches.epoch(0)])
    assert shares == [[(8, 2, 50, 50), (last, 2, 50, 50)] for last in (1, 0, 0)]


def test_resuming_in_the_middle_of_an_epoch(toys: Split) -> None:
    batches = loader(toys, 32)
    rest = list(batches.epoch(1))[6:]
    assert len(rest) == 3
    assert all(same(a, b) for a, b in zip(batches.epoch(1, start=6), rest, strict=True))
    assert list(batches.epoch(1, start=9)) == []


def test_skipped_batches_cost_nothing(toys: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    apply = Transform.apply
    monkeypatch.setattr(Transform, "apply", lambda *a, **k: calls.append(1) or apply(*a, **k))
    next(loader(toys, 32).epoch(0, start=7))
    assert len(calls) == 1


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "capsroute-prefetch"]


def test_prefetch_changes_nothing_and_ends(toys: Split) -> None:
    ahead = loader(toys, 32, prefetch=2)
    assert all(same(a, b) for a, b in zip(ahead.epoch(0), loader(toys, 32).epoch(0), strict=True))
    assert threads() == []
    batches = ahead.epoch(0)
    next(batches)
    assert threads() == ["capsroute-prefetch"]
    batches.close()  # type: ignore[attr-defined]
    assert threads() == []


def test_an_error_in_the_prefetch_thread_reaches_the_reader(toys: Split) -> None:
    broken = Loader(toys, Transform(crop=64), batch_size=8, train=True, prefetch=2)
    with pytest.raises(ValueError, match="crop=64"):
        list(broken.epoch(0))
    assert threads() == []


def test_too_little_data_for_a_batch(toys: Split) -> None:
    few = toys.subset(range(10))
    with pytest.raises(DataError, match="10 samples do not fill one batch of 16"):
        loader(few, 16)
    with pytest.raises(DataError, match="10 samples do not fill one batch of 16"):
        loader(few, 8, world_size=2)
    assert len(loader(few, 16, train=False)) == 1
    with pytest.raises(DataError, match="0 samples"):
        loader(toys.subset([]), 16, train=False)


def test_wrong_ranks_are_named(toys: Split) -> None:
    with pytest.raises(ValueError, match="rank=2 is not among world_size=2"):
        loader(toys, 8, rank=2, world_size=2)


def test_at_least_20000_images_a_second_from_one_core() -> None:
    """Counted in seconds of the core, so that a busy machine does not matter."""
    stored = np.random.default_rng(0).integers(0, 256, (2048, 2, 48, 48), dtype=np.uint8)
    batches = loader(Split.of(stored, np.zeros(2048)), 64)
    start = time.thread_time()
    count = sum(len(batch.images) for epoch in range(4) for batch in batches.epoch(epoch))
    assert count / (time.thread_time() - start) > 20_000
