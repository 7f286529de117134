"""The similarity kernels of a network as curves over the distance between a pose and a vote."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from capsroute import pretrained
from capsroute.analysis.tracing import capsule_network
from capsroute.errors import RunError
from capsroute.layers import CapsuleLayer
from capsroute.models import CapsNet
from capsroute.routing import Compatibility
from capsroute.routing.kernels import GaussianMixture, Kernel, LaplaceMixture
from capsroute.routing.similarity import KernelCompatibility

Reals = npt.NDArray[np.float64]


class KernelProfile(NamedTuple):
    """<μ, v> of one layer at each of `distances` [n], before and after training [channels, n].

    `channels` is 1 where the layer shares its kernel. Lambdas are the layer's, one for each output type.
    """

    distances: Reals
    before: Reals
    after: Reals
    widths: Reals
    lambda1: Reals
    lambda2: Reals


def kernel_profiles(net: CapsNet, reach: float = 8.0, points: int = 200) -> list[KernelProfile]:
    """The kernels of every routed layer; how they were before training follows from the network's configuration."""
    network = capsule_network(net)
    config = {"network": type(network).__name__, **network.config}
    start = pretrained.build(config)
    assert isinstance(start, CapsNet)
    distances = np.linspace(0.0, reach, points)
    profiles = []
    for old, new in zip(start.layers, network.layers, strict=True):
        assert isinstance(old, CapsuleLayer)
        assert isinstance(new, CapsuleLayer)
        profiles.append(_profile(old.routing.compatibility, new.routing.compatibility, distances))
    return profiles


@torch.no_grad()
def _profile(old: Compatibility, new: Compatibility, distances: Reals) -> KernelProfile:
    if not isinstance(new, KernelCompatibility) or not isinstance(new.kernel, (GaussianMixture, LaplaceMixture)):
        raise RunError(
            f"{type(new).__name__} learns no similarity kernel; choose a run of similarity routing with a gaussian or "
            "laplace kernel"
        )
    assert isinstance(old, KernelCompatibility)
    return KernelProfile(
        distances,
        _values(old.kernel, distances),
        _values(new.kernel, distances),
        new.kernel.widths().double().numpy(),
        new.lambda1().double().numpy(),
        new.lambda2().double().numpy(),
    )


def _values(kernel: Kernel, distances: Reals) -> Reals:
    """The kernel at votes that lie so far from a pose of zero, [channels, n]."""
    votes = torch.tensor(distances, dtype=torch.float32)[None, None, :, None, None]
    similarity = kernel(torch.zeros(1, 1, 1, 1), votes)
    result: Reals = similarity[0, 0].double().numpy().T
    return result
