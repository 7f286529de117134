"""Everything that training changes, as one value that can be captured and restored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from capsroute.errors import RunError
from capsroute.pretrained import Network
from capsroute.training.checkpoint import Snapshot
from capsroute.training.config import Config
from capsroute.training.optim import Average, build_optimizer, unique_tensors


@dataclass
class Best:
    """The recorded parameters with the lowest validation error; of equals, the lower validation loss."""

    epoch: int
    val_error: float | None = None
    val_loss: float | None = None

    def beats(self, other: Best | None) -> bool:
        if other is None or self.val_error is None or other.val_error is None:
            return True  # without validation the latest is the one
        return (self.val_error, self.val_loss) < (other.val_error, other.val_loss)


@dataclass
class Progress:
    """Where the run stands: `batch` is the next batch of `epoch`, both from 0; sums are of the epoch under way."""

    epoch: int = 0
    batch: int = 0
    loss_sum: float = 0.0
    hits: int = 0
    seen: int = 0
    wall_seconds: float = 0.0
    best: Best | None = None
    curve: list[dict[str, Any]] = field(default_factory=list)

    def next_epoch(self) -> None:
        self.epoch, self.batch, self.loss_sum, self.hits, self.seen = self.epoch + 1, 0, 0.0, 0, 0


class Learner:
    """The trained network, its average, the optimizer, the best parameters so far, and the progress."""

    def __init__(self, net: Network, config: Config) -> None:
        self.net = net
        self.average = None if config.ema is None else Average(net, config.ema)
        self.optimizer = build_optimizer(net, config.optimizer)
        self.progress = Progress()
        self.best: dict[str, Tensor] | None = None

    @property
    def candidate(self) -> nn.Module:
        """The network that is validated: the average where there is one."""
        return self.net if self.average is None else self.average.net

    def record(self, best: Best) -> bool:
        """Remember the candidate's parameters if they are the best so far."""
        if not best.beats(self.progress.best):
            return False
        self.progress.best = best
        self.best = {name: tensor.detach().clone() for name, tensor in unique_tensors(self.candidate).items()}
        return True

    def capture(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """All tensors by name, and all else as JSON."""
        tensors = {f"net/{name}": tensor for name, tensor in unique_tensors(self.net).items()}
        if self.average is not None:
            tensors |= {f"average/{name}": tensor for name, tensor in unique_tensors(self.average.net).items()}
        tensors |= {f"best/{name}": tensor for name, tensor in (self.best or {}).items()}
        for number, entries in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer/{number}/{name}": tensor for name, tensor in entries.items()}
        return tensors, asdict(self.progress)

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a captured state."""
        parts: dict[str, dict[str, Tensor]] = {}
        for name, tensor in snapshot.tensors.items():
            part, _, rest = name.partition("/")
            parts.setdefault(part, {})[rest] = tensor
        fill(self.net, parts.get("net", {}), snapshot)
        if self.average is not None:
            fill(self.average.net, parts.get("average", {}), snapshot)
        self.best = parts.get("best")
        state: dict[int, dict[str, Tensor]] = {}
        for name, tensor in parts.get("optimizer", {}).items():
            number, _, entry = name.partition("/")
            state.setdefault(int(number), {})[entry] = tensor
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": state})
        values = dict(snapshot.state)
        best = values.pop("best")
        self.progress = Progress(**values, best=Best(**best) if best else None)


@torch.no_grad()
def fill(net: nn.Module, tensors: Mapping[str, Tensor], snapshot: Snapshot | None = None) -> None:
    """Copy tensors into a network whose names and shapes must match."""
    own = unique_tensors(net)
    where = f"checkpoint {snapshot.path}" if snapshot else "the recorded parameters"
    if set(own) != set(tensors):
        odd = sorted(set(own) ^ set(tensors))[0]
        raise RunError(f"{where} and the network disagree about {odd!r}: they are of different versions")
    for name, tensor in own.items():
        if tensor.shape != tensors[name].shape:
            raise RunError(
                f"{where} has {name!r} of shape {list(tensors[name].shape)}, the network {list(tensor.shape)}"
            )
        tensor.copy_(tensors[name])
