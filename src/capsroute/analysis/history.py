"""What runs wrote down while they trained: curves and routing health."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from capsroute.errors import RunError
from capsroute.training.run import Run, find_run


def read_curve(folder: Path | str) -> list[dict[str, Any]]:
    """One entry an epoch: losses and errors of training and validation, learning rate, routing health."""
    run = find_run(folder)
    curve = [entry for entry in run.metrics if "epoch" in entry]
    if not curve:
        raise RunError(f"{folder} has no finished epoch yet; wait for its first")
    return curve


def find_runs(folder: Path | str) -> list[Run]:
    """The runs in a folder, those with at least one finished epoch, newest first."""
    files = sorted(Path(folder).glob("*/metrics.jsonl"), key=lambda path: path.stat().st_mtime, reverse=True)
    found = [Run(path.parent) for path in files]
    return [run for run in found if run.exists and any("epoch" in entry for entry in run.metrics)]
