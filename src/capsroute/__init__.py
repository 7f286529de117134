"""capsroute: capsule networks whose routing is learned.

Names are imported when first used, so that the command line does not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "Capsules": "capsules",
    "CapsNet": "models",
    "ConvCapsules1d": "layers",
    "ConvCapsules2d": "layers",
    "ConvCapsules3d": "layers",
    "DenseCapsules": "layers",
    "LaneNet": "lanes",
    "PrimaryCapsules": "layers",
}
_MODULES = ("analysis", "data", "figures", "losses", "models", "ops", "routing", "testing", "training")

__all__ = [
    "CapsNet",
    "Capsules",
    "ConvCapsules1d",
    "ConvCapsules2d",
    "ConvCapsules3d",
    "DenseCapsules",
    "LaneNet",
    "PrimaryCapsules",
    "analysis",
    "data",
    "figures",
    "losses",
    "models",
    "ops",
    "routing",
    "testing",
    "training",
]

if TYPE_CHECKING:
    from capsroute import analysis, data, figures, losses, models, ops, routing, testing, training
    from capsroute.capsules import Capsules
    from capsroute.lanes import LaneNet
    from capsroute.layers import ConvCapsules1d, ConvCapsules2d, ConvCapsules3d, DenseCapsules, PrimaryCapsules
    from capsroute.models import CapsNet


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"capsroute.{_HOME[name]}"), name)
    if name in _MODULES:
        return importlib.import_module(f"capsroute.{name}")
    raise AttributeError(f"module 'capsroute' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
