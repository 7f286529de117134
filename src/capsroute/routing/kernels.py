"""Similarity kernels <x, x'>_θ between an output pose and the votes for it (section 4.1)."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from capsroute.routing.algorithm import Edges, LayerShape, Poses, Votes


def inverse_softplus(value: Tensor) -> Tensor:
    """x such that softplus(x) = value, for a positive value."""
    return value + torch.log(-torch.expm1(-value))


class Positive(nn.Module):
    """A learned tensor that stays positive: the softplus of a free parameter."""

    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.free = nn.Parameter(inverse_softplus(start))

    def forward(self) -> Tensor:
        return F.softplus(self.free)


class Kernel(nn.Module):
    """How alike a pose and a vote are; larger is more alike."""

    def forward(self, poses: Poses, votes: Votes) -> Edges:
        raise NotImplementedError(f"{type(self).__name__} needs forward(poses, votes) -> similarities")

    def typical(self) -> float:
        """The similarity to expect before training, where activations should start undecided."""
        return 0.0


def squared_distance(poses: Poses, votes: Votes) -> Edges:
    """||μ_j - v_ij||²."""
    return (votes - poses.unsqueeze(2)).square().sum(-1)


class _Mixture(Kernel):
    """Heights θ₁ and widths θ₂ of Q components, shared by the layer or one set for each output type."""

    def __init__(self, shape: LayerShape, components: int, per_channel: bool) -> None:
        super().__init__()
        if components < 1:
            raise ValueError(f"components={components}: a mixture kernel needs at least one")
        channels = shape.outputs if per_channel else 1
        # votes of unit-scale poses lie about sqrt(columns) apart; widths cover that distance from both sides
        self._distance = math.sqrt(shape.pose[1])
        middle = [0.5] if components == 1 else [q / (components - 1) for q in range(components)]
        widths = torch.tensor([self._distance * 4 ** (m - 0.5) for m in middle])
        self.heights = Positive(torch.full((channels, components), 1.0 / components))
        self.widths = Positive(widths.repeat(channels, 1))


class GaussianMixture(_Mixture):
    """<x, x'> = Σ_q θ₁^q exp(-||x - x'||² / 2(θ₂^q)²)                                          (eq. 15)"""

    def forward(self, poses: Poses, votes: Votes) -> Edges:
        rate = 0.5 / self.widths().square()
        distance = squared_distance(poses, votes).unsqueeze(-1)
        values: Tensor = self.heights() * torch.exp(-rate * distance)
        return values.sum(-1)

    @torch.no_grad()
    def typical(self) -> float:
        # squared distances vary about as much as they measure: the mean over an exponential law has a closed form
        rate = 0.5 / self.widths().square()
        return float((self.heights() / (1 + rate * self._distance**2)).sum(-1).mean())


class LaplaceMixture(_Mixture):
    """<x, x'> = Σ_q θ₁^q exp(-||x - x'|| / θ₂^q)"""

    def forward(self, poses: Poses, votes: Votes) -> Edges:
        # the square root has no slope at zero, where a vote equals the pose
        distance = torch.sqrt(squared_distance(poses, votes) + 1e-12).unsqueeze(-1)
        values: Tensor = self.heights() * torch.exp(-distance / self.widths())
        return values.sum(-1)

    @torch.no_grad()
    def typical(self) -> float:
        return float((self.heights() * torch.exp(-self._distance / self.widths())).sum(-1).mean())


class Cosine(Kernel):
    """<x, x'> = x·x' / (||x|| ||x'||), the kernel of the paper's toy figure; 0 where either is zero"""

    def forward(self, poses: Poses, votes: Votes) -> Edges:
        return torch.einsum("bpjd,bpijd->bpij", _unit(poses), _unit(votes))

    def typical(self) -> float:
        return 0.5


class Linear(Kernel):
    """<x, x'> = x·x', for which eq. 4 is the exact minimiser of eq. 2 over μ"""

    def forward(self, poses: Poses, votes: Votes) -> Edges:
        return torch.einsum("bpjd,bpijd->bpij", poses, votes)


def _unit(vectors: Float[Tensor, "*any D"]) -> Float[Tensor, "*any D"]:
    return vectors * torch.rsqrt(vectors.square().sum(-1, keepdim=True) + 1e-12)


KERNELS = {"gaussian": GaussianMixture, "laplace": LaplaceMixture, "cosine": Cosine, "linear": Linear}


def build_kernel(name: str, shape: LayerShape, components: int, per_channel: bool) -> Kernel:
    """The kernel of that name, sized for a layer."""
    if name in ("gaussian", "laplace"):
        return (GaussianMixture if name == "gaussian" else LaplaceMixture)(shape, components, per_channel)
    if name == "cosine":
        return Cosine()
    if name == "linear":
        return Linear()
    raise ValueError(f"kernel={name!r}: choose one of {', '.join(KERNELS)}")
