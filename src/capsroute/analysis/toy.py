"""The paper's toy problem: votes in the plane from two Gaussian clusters, and the consensus that routing finds.

The consensus is computed by the library's own similarity routing on one output capsule, with λ₁, λ₂ and the kernel
given instead of learned.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from capsroute.geometry import dense_field
from capsroute.routing.algorithm import Inputs, LayerShape, Routing
from capsroute.routing.kernels import GaussianMixture, Kernel, LaplaceMixture, build_kernel, inverse_softplus
from capsroute.routing.similarity import KernelActivation, KernelCompatibility, divergence

Reals = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Cluster:
    """A Gaussian in the plane: where it lies, its deviations along its own axes, and how far these are turned."""

    mean: tuple[float, float]
    deviations: tuple[float, float]
    angle: float = 0.0

    def covariance(self) -> Reals:
        cos, sin = math.cos(math.radians(self.angle)), math.sin(math.radians(self.angle))
        turn = np.array([[cos, -sin], [sin, cos]])
        result: Reals = turn @ np.diag(np.square(self.deviations)) @ turn.T
        return result


# seen from the origin the second is the more compact, so similarity alone prefers it; activations prefer the first
CLUSTERS = (Cluster((-0.4, 3.0), (0.55, 0.8), -15.0), Cluster((3.2, 1.2), (0.9, 0.45), 20.0))


class Toy(NamedTuple):
    """Votes [n, 2], how active each voter is [n] (normalised to sum to one), and the cluster it was drawn from [n]."""

    votes: Reals
    activations: Reals
    cluster: npt.NDArray[np.int64]


class Consensus(NamedTuple):
    """The routing's states, flat couplings first: couplings [T, n], pose [T, 2], and eq. 2 with its three terms [T].

    `objective = -agreement + λ₁ nonuniformity + λ₂ surprise`.
    """

    couplings: Reals
    poses: Reals
    objective: Reals
    agreement: Reals
    nonuniformity: Reals
    surprise: Reals


def sample(
    clusters: Sequence[Cluster] = CLUSTERS, *, size: int = 40, covariance_scale: float = 12.0, seed: int = 0
) -> Toy:
    """`size` votes from each cluster.

    A vote's activation is its responsibility under the first cluster once all covariances are scaled by
    `covariance_scale`: the larger the scale, the less sharply activations tell the clusters apart.
    """
    if size < 1 or covariance_scale <= 0:
        raise ValueError(
            f"size={size}, covariance_scale={covariance_scale}: need at least one vote and a positive scale"
        )
    random = np.random.default_rng(seed)
    votes = np.concatenate([random.multivariate_normal(c.mean, c.covariance(), size) for c in clusters])
    return Toy(votes, responsibilities(votes, clusters, covariance_scale), np.repeat(np.arange(len(clusters)), size))


def responsibilities(votes: Reals, clusters: Sequence[Cluster], covariance_scale: float) -> Reals:
    """How much of each vote the first cluster explains, normalised over the votes, as in the paper's figure."""
    scores = []
    for cluster in clusters:
        covariance = covariance_scale * cluster.covariance()
        away = votes - np.asarray(cluster.mean)
        distance = np.einsum("ni,ij,nj->n", away, np.linalg.inv(covariance), away)
        scores.append(-0.5 * (distance + np.linalg.slogdet(covariance)[1]))
    peak = np.max(scores, axis=0)
    first = np.exp(scores[0] - peak) / np.exp(np.asarray(scores) - peak).sum(0)
    # an activation of exactly zero could never be listened to, whatever its vote
    first = np.maximum(first, 1e-12)
    result: Reals = first / first.sum()
    return result


@torch.no_grad()
def consensus(
    votes: npt.ArrayLike,
    activations: npt.ArrayLike,
    *,
    lambda1: float,
    lambda2: float,
    kernel: str = "cosine",
    widths: Sequence[float] = (1.0,),
    heights: Sequence[float] | None = None,
    iterations: int = 100,
) -> Consensus:
    """Route votes [n, d] with activations [n] to one output capsule.

    The defaults iterate until nothing changes any more: the optimal couplings of the paper's figure. `widths` and
    `heights` (which share one unless given) are those of a Gaussian or Laplace mixture.
    """
    if lambda1 < 0 or lambda2 < 0 or lambda1 + lambda2 <= 0:
        raise ValueError(f"lambda1={lambda1}, lambda2={lambda2}: neither may be negative, nor both zero")
    cast = torch.as_tensor(np.asarray(votes, dtype=np.float64))
    count, size = cast.shape
    similar = _kernel(LayerShape(count, 1, (size, 1)), kernel, widths, heights)
    compatibility = KernelCompatibility(similar, 1, lambda1, lambda2)
    activation = KernelActivation(similar, 1, 1.0, 1.0, 0.0)
    routing = Routing(compatibility, activation, iterations=iterations).double()
    active = torch.as_tensor(np.asarray(activations, dtype=np.float64)).clamp(1e-12, 1 - 1e-12)
    field = dense_field((count,), 1, cast.device)
    inputs = Inputs(torch.logit(active)[None, None], field.mask)
    states = list(routing.steps(cast[None, None, :, None], inputs, field))
    coupling = torch.stack([state.coupling[0, 0, :, 0] for state in states])
    poses = torch.stack([state.poses[0, 0, 0] for state in states])
    similarity = torch.stack([similar(s.poses, cast[None, None, :, None]) for s in states])
    agreement = (coupling * similarity[:, 0, 0, :, 0]).sum(1)
    nonuniformity = _divergence(coupling, torch.full_like(active, 1 / count).log())
    surprise = _divergence(coupling, inputs.log_activations[0, 0])
    objective = -agreement + lambda1 * nonuniformity + lambda2 * surprise
    return Consensus(*(t.numpy() for t in (coupling, poses, objective, agreement, nonuniformity, surprise)))


def _divergence(coupling: torch.Tensor, log_reference: torch.Tensor) -> torch.Tensor:
    """D_KL(C ‖ reference) of each state [T, n]."""
    return divergence(coupling[:, None, :, None], log_reference.expand_as(coupling)[:, None])[:, 0, 0]


def _kernel(shape: LayerShape, name: str, widths: Sequence[float], heights: Sequence[float] | None) -> Kernel:
    kernel = build_kernel(name, shape, len(widths), per_channel=False)
    if isinstance(kernel, (GaussianMixture, LaplaceMixture)):
        tall = [1.0 / len(widths)] * len(widths) if heights is None else list(heights)
        if len(tall) != len(widths) or min(*widths, *tall) <= 0:
            raise ValueError(f"widths={list(widths)}, heights={tall}: give as many of each, all positive")
        kernel.widths.free.copy_(inverse_softplus(torch.tensor([list(widths)], dtype=torch.float64)))
        kernel.heights.free.copy_(inverse_softplus(torch.tensor([tall], dtype=torch.float64)))
    return kernel
