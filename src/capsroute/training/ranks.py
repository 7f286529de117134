"""Processes, devices and precision, through lightning-fabric.

On one process nothing is to be said. `torchrun --nproc-per-node 2 -m capsroute train ...` starts several, on one
machine or many; each then finds itself here by torchrun's environment variables.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from capsroute.errors import RunError
from capsroute.training.config import Config, ConfigError

if TYPE_CHECKING:
    from lightning_fabric import Fabric

_LOST = re.compile("gloo|nccl|connection|peer|socket|tcp", re.IGNORECASE)
_PRECISION = {"32": "32-true", "medium": "32-true", "bf16": "bf16-mixed"}


def start(config: Config, accelerator: str = "auto") -> Fabric:
    """The fabric of this process: gloo between CPUs, nccl between GPUs."""
    from lightning_fabric import Fabric
    from lightning_fabric.strategies.ddp import DDPStrategy

    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    torch.set_float32_matmul_precision("medium" if config.precision == "medium" else "highest")

    world = int(os.environ.get("WORLD_SIZE", "1"))
    options: dict[str, Any] = {"accelerator": accelerator, "precision": _PRECISION[config.precision], "devices": 1}
    if world > 1:
        local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        # looking for parameters without a gradient takes time: only where there may be some
        unused = config.model.get("routing") == "uniform" or bool(config.model.get("decoder"))
        ranks = DDPStrategy(find_unused_parameters=unused)
        options |= {"devices": local, "num_nodes": world // local, "strategy": ranks}
        warnings.filterwarnings("ignore", "torch.distributed.nn.functional.all_reduce is deprecated", FutureWarning)
    try:
        fabric = Fabric(**options)
    except (ValueError, RuntimeError) as error:
        raise ConfigError(f"--accelerator {accelerator}: {error}") from error
    fabric.launch()
    return fabric


def leave(fabric: Fabric) -> None:
    """Wait for the others at the end of a job."""
    if fabric.world_size > 1:
        fabric.barrier()
        torch.distributed.destroy_process_group()


def share(batch_size: int, world_size: int) -> int:
    """The batch of one rank."""
    if batch_size % world_size:
        raise ConfigError(
            f"batch_size={batch_size} cannot be shared equally by {world_size} ranks; use a multiple of {world_size}"
        )
    return batch_size // world_size


def set_threads(threads: int | None) -> int:
    """Let torch use so many threads (all cores, shared between the ranks of a machine, unless told); says how many."""
    if threads is None:
        threads = max(1, (os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    if threads < 1:
        raise ConfigError(f"--threads {threads}: at least 1")
    torch.set_num_threads(threads)
    return threads


@contextmanager
def telling_lost_ranks(world_size: int) -> Iterator[None]:
    """A call to other ranks that fails means that one of them is gone."""
    try:
        yield
    except RuntimeError as error:
        if world_size == 1 or isinstance(error, RunError) or not _LOST.search(str(error)):
            raise
        # gloo begins with its source file, and ends with advice that is not for our users
        reason = re.sub(r"^\[[^]]*\]\s*", "", str(error).strip()).split(". ")[0]
        raise RunError(
            f"another rank was lost or could not be reached ({reason}); go on from the last checkpoint with --resume, "
            "on any number of ranks"
        ) from error


class Interrupts:
    """Turns the first SIGINT or SIGTERM into a wish to stop after the current step; a second one stops at once."""

    def __init__(self) -> None:
        self.wanted = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self._before[number] = signal.signal(number, self._note)
            except ValueError:  # not the main thread: whoever runs us there handles signals
                break
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.wanted = True
        signal.signal(number, signal.SIG_DFL)
