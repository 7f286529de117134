"""A run small enough for a test: a few dozen digits, a few hundred weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from capsroute.training import Config, recipe
from capsroute.training import train as train_with_all_cores
from capsroute.training.watch import Watcher

TINY = (
    "data.limit=96",
    "batch_size=16",
    "epochs=3",
    "record_from=2",
    "model.stem=[8,3,2]",
    "model.stem_padding=0",
    "model.primary=2",
    "model.capsules=[[2,2,1]]",
    "model.fused=false",
)

# one thread, since tests share the machine with each other
train = partial(train_with_all_cores, threads=1)


def tiny(*settings: str, name: str = "digits-similarity") -> Config:
    """The configuration of a tiny run, 3 epochs of 6 steps, with settings as on the command line."""
    options = [s for s in TINY if not (name.endswith("-cnn") and s.startswith("model."))]
    return recipe(name).with_settings([*options, *settings])


class Notes(Watcher):
    """Remembers what a run told, and can do something after a step."""

    def __init__(self, after: dict[int, Callable[[], Any]] | None = None) -> None:
        self.notes: list[str] = []
        self.entries: list[dict[str, Any]] = []
        self.losses: list[float] = []
        self.steps = 0
        self._after = after or {}

    def step(self, epoch: int, loss: float, accuracy: float, images: int) -> None:
        self.steps += 1
        self.losses.append(loss)
        self._after.get(self.steps, lambda: None)()

    def epoch(self, entry: dict[str, Any]) -> None:
        self.entries.append(entry)

    def note(self, text: str) -> None:
        self.notes.append(text)
