"""Fused connectionist routing (paper, section 4.2): an LSTM follows each vote, f scores it, g gives the activation."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from capsroute import ops
from capsroute.ops.connectionist.op import connectionist
from capsroute.routing.algorithm import Routing, WeightedMean
from capsroute.routing.connectionist import LSTMActivation, LSTMCompatibility


def _operator(
    routing: Routing, poses: Tensor, logits: Tensor, matrices: Tensor, offset: Tensor | None, index: Tensor
) -> tuple[Tensor, Tensor]:
    compatibility = cast(LSTMCompatibility, routing.compatibility)
    cell = compatibility.cell
    score = [(layer.weight, layer.bias) for layer in compatibility.score if isinstance(layer, nn.Linear)]
    out, summary = connectionist(
        poses,
        logits,
        matrices,
        offset,
        index,
        cell.weight_ih,
        cell.weight_hh,
        cell.bias_ih + cell.bias_hh,
        score,
        routing.updates,
    )
    # g sees one vector for each output capsule: nothing that would be worth fusing
    new_logits: Tensor = cast(LSTMActivation, routing.activation).judge(summary).squeeze(-1)
    return out, new_logits


def _accepts(routing: Routing) -> bool:
    """Couplings that sum to one over the inputs, updated at least once."""
    return routing.competition == "inputs" and routing.updates > 0


ops.register((LSTMCompatibility, WeightedMean, LSTMActivation), _operator, name="connectionist", accepts=_accepts)
