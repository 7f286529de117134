"""The data sets by name: `load("smallnorb", cameras="left")`."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from capsroute.data.dataset import DataSet
from capsroute.errors import DataError

# name: (module, function). Modules are imported when their data set is asked for.
_OPENERS = {
    "digits": ("digits", "open_digits"),
    "mnist": ("mnist", "open_mnist"),
    "fashion-mnist": ("mnist", "open_fashion_mnist"),
    "smallnorb": ("smallnorb", "open_smallnorb"),
    "affnist": ("affnist", "open_affnist"),
    "multimnist": ("multimnist", "open_multimnist"),
}
NAMES = tuple(_OPENERS)
_FOLDER = "folder:"


def load(name: str, *, data_dir: Path | str | None = None, **options: Any) -> DataSet:
    """The data set of this name; `folder:PATH` is your own, one folder a class.

    Files are looked for in `data_dir`, then in `$CAPSROUTE_DATA`, then in the user cache, and are read when `train` or
    `test` is first used. Options depend on the data set; a wrong one is refused with those there are.
    """
    opener = _opener(name)
    accepted = [key for key in inspect.signature(opener).parameters if key not in ("data_dir", "path")]
    for option in options:
        if option not in accepted:
            known = ", ".join(accepted) or "none"
            raise DataError(f"{name} has no option {option!r}{_nearest(option, accepted)}; its options: {known}")
    try:
        return opener(Path(data_dir).expanduser() if data_dir else None, **options)
    except OSError as error:
        raise DataError(f"{name} cannot be opened: {error.filename}: {error.strerror}") from error


def _opener(name: str) -> Callable[..., DataSet]:
    if name.startswith(_FOLDER):
        from capsroute.data.folder import open_folder

        return partial(open_folder, path=Path(name.removeprefix(_FOLDER)).expanduser())
    if name not in _OPENERS:
        raise DataError(f"there is no data set {name!r}{_nearest(name, NAMES)}; use {', '.join(NAMES)} or folder:PATH")
    module, function = _OPENERS[name]
    opener: Callable[..., DataSet] = getattr(importlib.import_module(f"capsroute.data.{module}"), function)
    return opener


def _nearest(word: str, words: tuple[str, ...] | list[str]) -> str:
    close = difflib.get_close_matches(word, words, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
