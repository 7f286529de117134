"""The connectionist approach (section 4.2): compatibility and activation are neural networks.

    x_i      = concat(μ, c_i, v_i, a_i)
    h_i, s_i = LSTM(x_i, h_i, s_i)                                                              (Algorithm 2)
    c_i      = softmax_i f_θ(h_i)
    p        = sigmoid(g_β(Σ c_i s_i))                                                             (eq. 14)

LSTM, f_θ and g_β are shared by all votes of a layer; f_θ and g_β are perceptrons.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from capsroute.routing.algorithm import (
    Activation,
    Compatibility,
    Edges,
    Inputs,
    LayerShape,
    Memory,
    Outputs,
    Poses,
    Routing,
    RoutingFactory,
    RoutingState,
    Votes,
    check_iterations,
)


class LSTMMemory(NamedTuple):
    """The LSTM's state for each vote."""

    hidden: Float[Tensor, "B P I J U"]
    cell: Float[Tensor, "B P I J U"]


def perceptron(inputs: int, hidden: Sequence[int]) -> nn.Sequential:
    """A network with ReLU after each hidden layer and one output."""
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [nn.Linear(inputs, width), nn.ReLU()]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, 1))


class LSTMCompatibility(Compatibility):
    """An LSTM cell follows each vote through the iterations; f_θ scores it from the hidden state (Algorithm 2)."""

    def __init__(self, pose_size: int, units: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(2 * pose_size + 2, units)
        self.score = perceptron(units, hidden)

    def forward(self, votes: Votes, inputs: Inputs, state: RoutingState) -> tuple[Edges, Memory]:
        edges = votes.shape[:-1]
        activations = inputs.activations.unsqueeze(-1).expand(edges)
        x = torch.cat(
            [
                state.poses.unsqueeze(2).expand_as(votes),
                state.coupling.unsqueeze(-1),
                votes,
                activations.unsqueeze(-1),
            ],
            dim=-1,
        )
        before = None if state.memory is None else (state.memory.hidden.flatten(0, 3), state.memory.cell.flatten(0, 3))
        hidden, cell = self.cell(x.flatten(0, 3), before)
        scores = self.score(hidden).view(edges)
        return scores, LSTMMemory(hidden.unflatten(0, edges), cell.unflatten(0, edges))


class LSTMActivation(Activation):
    """logit p = g_β(Σ c_i s_i); before the first iteration every s_i is zero                       (eq. 14)"""

    def __init__(self, units: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.units = units
        self.judge = perceptron(units, hidden)

    def forward(self, votes: Votes, inputs: Inputs, coupling: Edges, poses: Poses, memory: Memory) -> Outputs:
        if memory is None:
            summary = poses.new_zeros(*poses.shape[:-1], self.units)
        else:
            summary = torch.einsum("bpij,bpiju->bpju", coupling.to(memory.cell.dtype), memory.cell)
        logits: Outputs = self.judge(summary).squeeze(-1)
        return logits


def _build(
    shape: LayerShape, units: int, f_hidden: tuple[int, ...], g_hidden: tuple[int, ...], iterations: int
) -> Routing:
    return Routing(
        LSTMCompatibility(shape.pose_size, units, f_hidden),
        LSTMActivation(units, g_hidden),
        iterations=iterations,
    )


def connectionist(
    *,
    units: int = 16,
    f_hidden: Sequence[int] = (32, 32),
    g_hidden: Sequence[int] = (64, 64),
    iterations: int = 3,
) -> RoutingFactory:
    """The connectionist routing; the defaults are the paper's for its second convolutional capsule layer.

    Args:
        units: of the LSTM's hidden and cell states.
        f_hidden: widths of the hidden layers of f_θ, which scores votes.
        g_hidden: widths of the hidden layers of g_β, which gives the activation.
        iterations: the couplings are updated this often.
    """
    return partial(
        _build,
        units=units,
        f_hidden=tuple(f_hidden),
        g_hidden=tuple(g_hidden),
        iterations=check_iterations(iterations),
    )
