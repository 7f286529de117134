"""Algorithm 2 and equation 14, written out vote by vote with torch's LSTM cell."""

from __future__ import annotations

import torch
from torch import nn

from capsroute.layers import DenseCapsules
from capsroute.routing import connectionist
from capsroute.testing import random_capsules


def mlp(state, prefix, x):
    """The network whose weights start with `prefix`: ReLU between layers, by hand."""
    numbers = sorted(int(k.split(".")[-2]) for k in state if k.startswith(prefix) and k.endswith("weight"))
    for n in numbers:
        x = state[f"{prefix}.{n}.weight"] @ x + state[f"{prefix}.{n}.bias"]
        if n != numbers[-1]:
            x = x.clamp(min=0)
    return x


def test_equals_a_plain_loop_over_votes():
    layer = DenseCapsules(
        4, 2, routing=connectionist(units=3, f_hidden=(5, 4), g_hidden=(6,), iterations=3), pose=(2, 3), fused=False
    ).double()
    caps = random_capsules(2, (), 4, (2, 3), torch.float64)
    out = layer(caps)
    state = {name: p.detach() for name, p in layer.named_parameters()}
    cell = nn.LSTMCell(14, 3).double()
    cell.load_state_dict({k: state[f"routing.compatibility.cell.{k}"] for k in cell.state_dict()})
    for b in range(2):
        for j in range(2):
            weights = state["weight"]
            v = [(weights[i, j] / weights[i, j].norm() @ caps.poses[b, i]).flatten() for i in range(4)]
            a = torch.sigmoid(caps.logits[b])
            c = torch.full((4,), 0.25, dtype=torch.float64)
            mu = sum(c[i] * v[i] for i in range(4))
            memory = [(torch.zeros(1, 3, dtype=torch.float64),) * 2 for _ in range(4)]
            for _ in range(3):
                scores = torch.zeros(4, dtype=torch.float64)
                for i in range(4):
                    x = torch.cat([mu, c[i].view(1), v[i], a[i].view(1)])
                    memory[i] = cell(x[None], memory[i])
                    scores[i] = mlp(state, "routing.compatibility.score", memory[i][0][0])
                c = torch.softmax(scores, 0)
                mu = sum(c[i] * v[i] for i in range(4))
            summary = sum(c[i] * memory[i][1][0] for i in range(4))
            logit = mlp(state, "routing.activation.judge", summary)
            torch.testing.assert_close(out.poses[b, j].flatten(), mu)
            torch.testing.assert_close(out.logits[b, j], logit[0])
