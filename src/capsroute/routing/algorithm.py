"""Algorithm 1: the generic routing, of which every routing here is an instance.

    c_i <- 1/|γ|;  μ <- Σ c_i v_i / Σ c_i;  p <- activation(μ, s, V, C, A)
    for t iterations:
        c_i, s_i <- compatibility(c_i, s_i, v_i, a_i, μ, p)
        μ <- Σ c_i v_i / Σ c_i;  p <- activation(μ, s, V, C, A)

γ are the inputs of one output capsule, s is what a routing remembers of them between iterations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from capsroute.geometry import Field

Votes = Float[Tensor, "B P I J D"]
Edges = Float[Tensor, "B P I J"]
Poses = Float[Tensor, "B P J D"]
Outputs = Float[Tensor, "B P J"]
Memory = Any  # whatever a routing keeps between iterations: an LSTM state, variances, nothing
Competition = Literal["inputs", "window", "parents"]


class Inputs(NamedTuple):
    """How active the inputs of each position are; kept as logits, so that log a is exact where a rounds to 0 or 1.

    Where `mask` is False there is padding: votes there are arbitrary, and their coupling is always 0.
    """

    logits: Float[Tensor, "B P I"]
    mask: Bool[Tensor, "P I"]

    @property
    def activations(self) -> Float[Tensor, "B P I"]:
        return torch.sigmoid(self.logits)

    @property
    def log_activations(self) -> Float[Tensor, "B P I"]:
        return F.logsigmoid(self.logits)


class RoutingState(NamedTuple):
    """All that one iteration hands to the next, and all that the explorer draws."""

    coupling: Edges
    poses: Poses
    logits: Outputs
    memory: Memory

    @property
    def activations(self) -> Outputs:
        return torch.sigmoid(self.logits)


class Compatibility(nn.Module):
    """Scores how well each vote fits the capsule as it stands; `Routing` turns scores into couplings."""

    def forward(self, votes: Votes, inputs: Inputs, state: RoutingState) -> tuple[Edges, Memory]:
        raise NotImplementedError(f"{type(self).__name__} needs forward(votes, inputs, state) -> (scores, memory)")


class Activation(nn.Module):
    """Says from the coupled votes how present the output capsule is, as a logit."""

    def forward(self, votes: Votes, inputs: Inputs, coupling: Edges, poses: Poses, memory: Memory) -> Outputs:
        raise NotImplementedError(f"{type(self).__name__} needs forward(votes, inputs, coupling, poses, memory)")


class Aggregation(nn.Module):
    """Forms the pose of an output capsule from its coupled votes."""

    def forward(self, votes: Votes, inputs: Inputs, coupling: Edges, memory: Memory) -> tuple[Poses, Memory]:
        raise NotImplementedError(f"{type(self).__name__} needs forward(votes, inputs, coupling, memory)")


class WeightedMean(Aggregation):
    """μ = Σ c_i v_i / Σ c_i                                                               (Algorithm 1, eq. 4)"""

    def forward(self, votes: Votes, inputs: Inputs, coupling: Edges, memory: Memory) -> tuple[Poses, Memory]:
        mass = coupling.sum(2).clamp_min(torch.finfo(coupling.dtype).tiny)
        return weighted_sum(coupling, votes) / mass.unsqueeze(-1), memory


def weighted_sum(weights: Edges, votes: Votes) -> Poses:
    """Σ_i w_ij v_ij."""
    return torch.einsum("bpij,bpijd->bpjd", weights.to(votes.dtype), votes)


def check_iterations(iterations: int) -> int:
    """`iterations`, if a routing can do that many."""
    if isinstance(iterations, bool) or not isinstance(iterations, int) or iterations < 1:
        raise ValueError(
            f"iterations={iterations!r}: a routing needs an integer >= 1; for flat couplings use 'uniform'"
        )
    return iterations


class Routing(nn.Module):
    """Algorithm 1: alternate between coupling votes to a capsule and forming the capsule from its coupled votes.

    Args:
        compatibility: scores each vote.
        activation: gives the output capsule's logit.
        aggregation: forms the pose; a weighted mean unless said otherwise.
        iterations: how often, at least once.
        competition: over what couplings sum to one: the `inputs` of one output capsule (the paper's two routings), the
            output types of one `window`, or all `parents` of a child, output positions included.
        counts_first: whether the first forming, from flat couplings, counts as an iteration, as Hinton et al. and
            Sabour et al. count; Algorithm 1 does not.
    """

    def __init__(
        self,
        compatibility: Compatibility,
        activation: Activation,
        aggregation: Aggregation | None = None,
        *,
        iterations: int = 3,
        competition: Competition = "inputs",
        counts_first: bool = False,
    ) -> None:
        super().__init__()
        if competition not in ("inputs", "window", "parents"):
            raise ValueError(f"competition={competition!r}: choose 'inputs', 'window' or 'parents'")
        self.compatibility = compatibility
        self.aggregation = WeightedMean() if aggregation is None else aggregation
        self.activation = activation
        self.iterations = check_iterations(iterations)
        self.competition = competition
        self.counts_first = counts_first

    @property
    def updates(self) -> int:
        """How often the couplings are updated."""
        return self.iterations - 1 if self.counts_first else self.iterations

    @property
    def couples_positions(self) -> bool:
        """Whether one position's couplings depend on another's, so that positions cannot be routed apart."""
        return self.competition == "parents"

    def steps(self, votes: Votes, inputs: Inputs, field: Field) -> Iterator[RoutingState]:
        """Yield the state after each forming of the capsules: the reference that fused operators must match."""
        flat = self.normalise(torch.zeros_like(votes[..., 0]), field)
        state = self._form(votes, inputs, flat, None)
        yield state
        for _ in range(self.updates):
            scores, memory = self.compatibility(votes, inputs, state)
            state = self._form(votes, inputs, self.normalise(scores, field), memory)
            yield state

    def forward(self, votes: Votes, inputs: Inputs, field: Field) -> RoutingState:
        """The last state."""
        for state in self.steps(votes, inputs, field):  # noqa: B007  the last one is the result
            pass
        return state

    def normalise(self, scores: Edges, field: Field) -> Edges:
        """Couplings from scores: a softmax over the axis of competition; padding is never coupled."""
        mask = field.mask[:, :, None]
        if self.competition == "inputs":
            coupling = torch.softmax(scores.masked_fill(~mask, torch.finfo(scores.dtype).min), dim=2)
        elif self.competition == "window":
            coupling = torch.softmax(scores, dim=3)
        else:
            coupling = torch.exp(scores - field.logsumexp_over_parents(scores))
        return coupling.masked_fill(~mask, 0.0)

    def _form(self, votes: Votes, inputs: Inputs, coupling: Edges, memory: Memory) -> RoutingState:
        poses, memory = self.aggregation(votes, inputs, coupling, memory)
        return RoutingState(coupling, poses, self.activation(votes, inputs, coupling, poses, memory), memory)

    def extra_repr(self) -> str:
        return f"iterations={self.iterations}, competition={self.competition!r}"


class LayerShape(NamedTuple):
    """What a routing may need to know of its layer to size its parameters."""

    inputs: int
    outputs: int
    pose: tuple[int, int]

    @property
    def pose_size(self) -> int:
        return self.pose[0] * self.pose[1]


RoutingFactory = Callable[[LayerShape], Routing]
