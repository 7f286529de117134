"""Data sets, how they are prepared, and their batches: `load`, `split_validation`, `Transform`, `Loader`.

Names are imported when first used, so that the command line does not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import capsroute.data.viewpoints as viewpoints
    from capsroute.data.catalogue import NAMES, load
    from capsroute.data.dataset import DataSet, Images, Split
    from capsroute.data.loader import Batch, Loader
    from capsroute.data.splits import split_validation
    from capsroute.data.transforms import Transform

_HOME = {
    "NAMES": "catalogue",
    "load": "catalogue",
    "DataSet": "dataset",
    "Images": "dataset",
    "Split": "dataset",
    "Batch": "loader",
    "Loader": "loader",
    "split_validation": "splits",
    "Transform": "transforms",
}

__all__ = [
    "NAMES",
    "Batch",
    "DataSet",
    "Images",
    "Loader",
    "Split",
    "Transform",
    "load",
    "split_validation",
    "viewpoints",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"capsroute.data.{_HOME[name]}"), name)
    if name == "viewpoints":
        return importlib.import_module("capsroute.data.viewpoints")
    raise AttributeError(f"module 'capsroute.data' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
