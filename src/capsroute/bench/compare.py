"""Candidates side by side: they take turns, so that a machine's noise hits all alike, and medians are compared."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from capsroute.bench.candidates import Candidate
from capsroute.bench.worker import Seconds, Worker

Say = Callable[[str], None]


@dataclass(frozen=True)
class Row:
    """What was measured of one candidate in one phase.

    `core_ms_per_image` counts the work of all cores, and nothing that other processes did meanwhile. `batch` is smaller
    than asked for where one step would take too long or need too much memory.
    """

    routing: str
    path: str
    phase: str
    ms_per_image: float
    core_ms_per_image: float
    extra_mb_per_image: float
    batch: int
    steps: int


def compare(
    candidates: Sequence[Candidate],
    phases: Iterable[str],
    *,
    batch: int = 32,
    seconds: float = 30.0,
    say: Say = lambda _: None,
) -> list[Row]:
    """Measure candidates against each other, for about `seconds` in each phase once they run."""
    rows = []
    with ExitStack() as stack:
        workers = [Worker(candidate) for candidate in candidates]
        for worker in workers:
            stack.callback(worker.stop)
        for phase in phases:
            rows += _phase(workers, phase, batch, seconds, say)
    return rows


def _phase(workers: Sequence[Worker], phase: str, batch: int, seconds: float, say: Say) -> list[Row]:
    needs = {}
    for worker in workers:
        say(f"{worker.candidate.routing} {worker.candidate.path} {phase}: starting")
        needs[worker.candidate] = _need(worker, phase, batch, seconds)
    taken: dict[Candidate, list[Seconds]] = {candidate: [] for candidate in needs}
    say(f"{workers[0].candidate.routing} {phase}: taking turns for {seconds:.0f} s")
    began = time.perf_counter()
    longest = 0.0
    while longest == 0.0 or time.perf_counter() - began + longest <= seconds:
        round_began = time.perf_counter()
        for worker in workers:
            taken[worker.candidate].append(worker.step(phase, needs[worker.candidate].batch))
        longest = max(longest, time.perf_counter() - round_began)
    return [
        Row(
            candidate.routing,
            candidate.path,
            phase,
            ms_per_image=round(1e3 * statistics.median(step.wall for step in steps) / needs[candidate].batch, 4),
            core_ms_per_image=round(1e3 * statistics.median(step.cores for step in steps) / needs[candidate].batch, 4),
            extra_mb_per_image=round(needs[candidate].bytes_per_image / 2**20, 4),
            batch=needs[candidate].batch,
            steps=len(steps),
        )
        for candidate, steps in taken.items()
    ]


class Need(NamedTuple):
    """The batch that a candidate is measured with, and its memory."""

    batch: int
    bytes_per_image: float


def _need(worker: Worker, phase: str, batch: int, seconds: float) -> Need:
    """The batch asked for, or the largest power of two that a step of `seconds` and half the free memory allow.

    Steps with one image come first, and warm up what is to be measured; a compiled network, which would have to be
    compiled for that size too, is warmed up with the batch itself. Memory is measured with a smaller batch where that
    one would take long and votes are held, as many for each image; an operator has buffers that all images share.
    """
    if worker.candidate.path == "compiled":
        worker.step(phase, batch)
        return Need(batch, worker.memory(phase, batch))
    pace = worker.step(phase, 1).wall
    if pace < 1.0:  # the first step is no measure, unless a later one would only cost time
        pace = worker.step(phase, 1).wall
    one = worker.memory(phase, 1)
    room = available_memory() / 2 / max(one, 1.0)
    size = _power_of_two(batch, min(seconds / pace, room))
    small = _power_of_two(batch, room if worker.candidate.path == "fused" else min(seconds / 4 / pace, room))
    return Need(size, one if small == 1 else worker.memory(phase, small))


def _power_of_two(batch: int, fits: float) -> int:
    return batch if fits >= batch else 2 ** int(math.log2(max(fits, 1.0)))


def available_memory() -> float:
    """Bytes that a process may still take."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return 1024.0 * int(next(line.split()[1] for line in lines if line.startswith("MemAvailable:")))
