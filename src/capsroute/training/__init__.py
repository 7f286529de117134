"""Recipes, the training loop, runs and their results: `train(recipe("digits-similarity"))`.

Names are imported when first used, so that the command line does not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from capsroute.training.config import Config
    from capsroute.training.evaluate import Predictions, predict
    from capsroute.training.loop import train
    from capsroute.training.recipes import RECIPES, recipe
    from capsroute.training.run import Run

_HOME = {
    "RECIPES": "recipes",
    "Config": "config",
    "Predictions": "evaluate",
    "Run": "run",
    "predict": "evaluate",
    "recipe": "recipes",
    "train": "loop",
}

__all__ = ["RECIPES", "Config", "Predictions", "Run", "predict", "recipe", "train"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"capsroute.training.{_HOME[name]}"), name)
    raise AttributeError(f"module 'capsroute.training' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
