"""What is measured: the paper's network, computed in one of several ways, and the convolutional network beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from capsroute.models import CapsNet, ConvNet

CNN = "cnn"
PATHS = ("reference", "tiled", "compiled", "fused")
PHASES = ("train", "infer")
PRECISIONS = ("32", "medium")
CHANNELS, CLASSES = 2, 5  # smallNORB, both cameras


@dataclass(frozen=True)
class Candidate:
    """One network and one way to compute it.

    Args:
        routing: a routing's name, or `cnn` for the convolutional network with as many weights.
        path: `reference` holds all votes, `tiled` some at a time, `compiled` is torch.compile of the reference, `fused`
            uses an operator.
        image_size, types, iterations: the paper's 32, 16 and 3 unless told.
        precision: `medium` lets matrix products round to bfloat16, where the processor has instructions for it.
    """

    routing: str
    path: str = "reference"
    image_size: int = 32
    types: int = 16
    iterations: int | None = None
    threads: int = 2
    precision: str = "32"

    def build(self) -> CapsNet | ConvNet:
        """The network; candidates that differ in nothing but their path have the same weights."""
        import torch

        from capsroute.models import CapsNet, ConvNet, count_parameters
        from capsroute.routing.tiling import DEFAULT_BUDGET

        shape: dict[str, Any] = {"image_size": self.image_size, "in_channels": CHANNELS, "classes": CLASSES}
        if self.routing == CNN:
            return ConvNet(**shape, parameters=count_parameters(CapsNet(**shape)))
        torch.manual_seed(0)
        net = CapsNet(
            self.routing,
            **shape,
            capsules=((self.types, 3, 2), (self.types, 3, 1)),
            routing_options={} if self.iterations is None else {"iterations": self.iterations},
            fused=self.path == "fused",
            vote_budget=DEFAULT_BUDGET if self.path == "tiled" else None,
        )
        if self.path == "compiled":
            net.route = torch.compile(net.route, dynamic=False)  # type: ignore[method-assign]
        return net
