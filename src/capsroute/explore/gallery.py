"""The networks that can be chosen on the page: the one asked for, runs with a saved network, shipped ones."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from capsroute import pretrained
from capsroute.analysis import Subject, open_subject
from capsroute.analysis.history import find_runs
from capsroute.errors import RunError

DIGITS = "digits-similarity"


class Gallery:
    """Names, and the networks behind them, opened when first used. A name that is not listed is never opened."""

    def __init__(self, chosen: str | None, runs: Path, data_dir: Path | None = None) -> None:
        self.runs = runs
        self.data_dir = data_dir
        self._places: dict[str, str | Path] = {}
        if chosen is not None:
            self._add(chosen)
        for run in find_runs(runs):
            if (run.model / "config.json").is_file():
                self._add(run.folder)
        for name in pretrained.shipped_names():
            self._add(name)
        # an instance's own cache: networks are looked at again and again, and are small
        self.open = lru_cache(maxsize=8)(self._open)

    def _add(self, place: str | Path) -> None:
        name = Path(place).name
        if str(place) not in map(str, self._places.values()):
            while name in self._places:
                name += "'"
            self._places[name] = place

    @property
    def names(self) -> list[str]:
        return list(self._places)

    def _open(self, name: str) -> Subject:
        if name not in self._places:
            raise RunError(f"there is no network {name!r} here; reload the page")
        return open_subject(self._places[name], self.data_dir, need_data=False)


def starting_network(asked: str | None, runs: Path, tell: Callable[[str], None]) -> str | None:
    """What the page opens with: what was asked for, else what is there, else digits, trained once in a few seconds."""
    if asked is not None:
        return asked
    if DIGITS in pretrained.shipped_names():
        return DIGITS
    if any((run.model / "config.json").is_file() for run in find_runs(runs)):
        return None
    return str(train_digits(tell))


def train_digits(tell: Callable[[str], None]) -> Path:
    """A small network for the embedded digits, kept in the user's cache."""
    from capsroute.training.run import Run

    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    run = Run(cache / "capsroute" / "explore" / DIGITS)
    if not run.finished:
        tell("training a small network on the embedded digits, once; this takes some seconds")
        from capsroute.training.loop import train
        from capsroute.training.recipes import recipe

        config = recipe(DIGITS, epochs=6, record_from=1)
        train(config, out=run.folder, force=True, accelerator="cpu", threads=1)
    return run.folder
