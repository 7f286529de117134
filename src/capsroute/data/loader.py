"""Batches of one epoch after another, the same whatever the number of ranks and wherever an epoch is entered."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from capsroute.data.counter import Counter
from capsroute.data.dataset import Split
from capsroute.data.transforms import Transform
from capsroute.errors import DataError

_SHUFFLE = 1_000_000  # a draw number of its own, beside those of `transforms.Draw`


class Batch(NamedTuple):
    """images float32 [b, C, h, w], labels int64 [b] (or [b, 2]), ids int64 [b]."""

    images: Tensor
    labels: Tensor
    ids: Tensor


class Loader:
    """The batches of `split`, shuffled anew each epoch in training, in order otherwise.

    `batch_size` is what one rank gets. Batch k is cut from one global order, which depends on seed and epoch alone, and
    dealt out to the ranks like cards: W ranks of batch b / W see together what one rank of batch b sees. An incomplete
    last batch is dropped in training; when it is kept, ranks may get one sample less than others, or none.
    `prefetch` batches are prepared ahead by one thread; 0 prepares them when asked, with the same result.
    """

    def __init__(
        self,
        split: Split,
        transform: Transform,
        *,
        batch_size: int,
        seed: int = 0,
        train: bool,
        rank: int = 0,
        world_size: int = 1,
        drop_last: bool | None = None,
        prefetch: int = 0,
    ) -> None:
        if batch_size < 1 or prefetch < 0:
            raise ValueError(f"batch_size={batch_size}, prefetch={prefetch}: need at least 1 and 0")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank={rank} is not among world_size={world_size} ranks, which count from 0")
        self.split, self.transform, self.seed, self.train = split, transform, seed, train
        self.rank, self.world_size, self.prefetch = rank, world_size, prefetch
        self.global_batch = batch_size * world_size
        self.drop_last = train if drop_last is None else drop_last
        if len(self) == 0:
            raise DataError(
                f"{len(split)} samples do not fill one batch of {self.global_batch}; use a smaller batch or more data"
            )

    def __len__(self) -> int:
        """Batches in an epoch."""
        whole, rest = divmod(len(self.split), self.global_batch)
        return whole if self.drop_last else whole + bool(rest)

    def order(self, epoch: int) -> npt.NDArray[np.int64]:
        """The order in which this epoch visits the samples, over all ranks."""
        if not self.train:
            return np.arange(len(self.split))
        return np.argsort(Counter(self.seed, epoch, self.split.ids).words(_SHUFFLE), kind="stable")

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from batch `start` on; those before it cost nothing."""
        batches = self._batches(number, start)
        return _ahead(batches, self.prefetch) if self.prefetch else batches

    def _batches(self, number: int, start: int) -> Iterator[Batch]:
        order = self.order(number)
        for first in range(start * self.global_batch, len(self) * self.global_batch, self.global_batch):
            share = order[first : first + self.global_batch][self.rank :: self.world_size]
            images = self.transform.apply(self.split, share, epoch=number, seed=self.seed, train=self.train)
            yield Batch(images, torch.from_numpy(self.split.labels[share]), torch.from_numpy(self.split.ids[share]))


class _Failed(NamedTuple):
    error: BaseException


def _ahead(batches: Iterator[Batch], depth: int) -> Iterator[Batch]:
    """Hand on `batches`, prepared by a thread that ends when they end or when the reader stops reading."""
    ready: queue.Queue[Batch | _Failed | None] = queue.Queue(maxsize=depth)
    stopped = threading.Event()

    def hand_over(item: Batch | _Failed | None) -> bool:
        while not stopped.is_set():
            try:
                ready.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def work() -> None:
        try:
            for batch in batches:
                if not hand_over(batch):
                    return
            hand_over(None)
        except BaseException as error:
            hand_over(_Failed(error))

    def read() -> Iterator[Batch]:
        thread = threading.Thread(target=work, name="capsroute-prefetch", daemon=True)
        thread.start()
        try:
            while (item := ready.get()) is not None:
                if isinstance(item, _Failed):
                    raise item.error
                yield item
        finally:
            stopped.set()
            thread.join()

    return read()
