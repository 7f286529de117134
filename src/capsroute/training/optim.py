"""Optimizer, learning rate and averaged weights."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn

from capsroute import thinning
from capsroute.routing import Routing
from capsroute.training.config import OptimizerConfig, ScheduleConfig


def build_optimizer(net: nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    """As configured; weight decay acts on matrices and convolutions, not on biases, norms or what a routing learned."""
    own = {id(p) for module in net.modules() if isinstance(module, Routing) for p in module.parameters()}
    left = {id(p) for p in thinning.values(net)}
    decayed: list[nn.Parameter] = []
    free: list[nn.Parameter] = []
    for parameter in net.parameters():
        matrix = (parameter.dim() > 1 and id(parameter) not in own) or id(parameter) in left
        (decayed if matrix else free).append(parameter)
    groups = [
        {"params": params, "weight_decay": decay}
        for params, decay in ((decayed, config.weight_decay), (free, 0.0))
        if params
    ]
    if config.name == "sgd":
        momentum = config.betas[0]
        return torch.optim.SGD(groups, lr=config.lr, momentum=momentum, nesterov=momentum > 0, fused=True)
    kind = torch.optim.AdamW if config.name == "adamw" else torch.optim.Adam
    return kind(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=True)


def learning_rate(config: ScheduleConfig, base: float, step: int, steps: int, steps_per_epoch: int) -> float:
    """The rate of step `step` of `steps`: no state, so that a resumed run needs none."""
    warm = min(config.warmup * steps_per_epoch, steps / 2)
    if step < warm:
        return base * (step + 1) / (warm + 1)
    share = (step - warm) / max(steps - warm, 1)
    if config.name == "exponential":
        return base * math.pow(config.final, share)
    if config.name == "cosine":
        return base * (config.final + (1 - config.final) * 0.5 * (1 + math.cos(math.pi * share)))
    return base


def unique_tensors(net: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers of a network's state by name; what several layers share appears once."""
    saved = set(net.state_dict())
    return {name: t for name, t in (*net.named_parameters(), *net.named_buffers()) if name in saved}


class Average:
    """A copy of a network whose weights and running statistics are an exponential average of the trained ones."""

    def __init__(self, net: nn.Module, decay: float) -> None:
        self.net = copy.deepcopy(net)
        self.decay = decay
        self._pairs = list(zip(unique_tensors(self.net).values(), unique_tensors(net).values(), strict=True))

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Move towards the trained network; faster in the first steps, so that the start is soon forgotten."""
        decay = min(self.decay, (1 + step) / (10 + step))
        for mean, value in self._pairs:
            if mean.is_floating_point():
                mean.lerp_(value, 1 - decay)
            else:
                mean.copy_(value)
