"""What was measured, as a table for people and as JSON for programs."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

    from capsroute.bench.compare import Row


def machine(threads: int) -> dict[str, Any]:
    """Where it was measured; the load is what other processes did meanwhile, averaged over a minute."""
    import torch

    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": threads,
        "load": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def as_json(rows: Sequence[Row], where: dict[str, Any]) -> dict[str, Any]:
    """One object: the machine and the rows."""
    return {"machine": where, "rows": [asdict(row) for row in rows]}


def ratios(rows: Sequence[Row], row: Row) -> tuple[float, float] | None:
    """How many times faster and smaller a row is than the reference of its routing and phase, if that was measured."""
    for other in rows:
        if (other.routing, other.path, other.phase) == (row.routing, "reference", row.phase):
            return other.ms_per_image / row.ms_per_image, other.extra_mb_per_image / max(row.extra_mb_per_image, 1e-3)
    return None


def table(rows: Sequence[Row]) -> Table:
    """A line for each row, a rule after each routing."""
    from rich.table import Table

    made = Table("routing", "path", "phase", box=None, pad_edge=False)
    for name in ("ms an image", "faster by", "core ms", "MB an image", "smaller by", "batch", "steps"):
        made.add_column(name, justify="right")
    previous = None
    for row in rows:
        if previous not in (None, row.routing):
            made.add_section()
        previous = row.routing
        ratio = ratios(rows, row)
        faster, smaller = ("", "") if ratio is None else (f"{ratio[0]:.1f} x", f"{ratio[1]:.0f} x")
        time, cores, memory = (f"{x:.2f}" for x in (row.ms_per_image, row.core_ms_per_image, row.extra_mb_per_image))
        measured = (str(row.batch), str(row.steps))
        made.add_row(row.routing, row.path, row.phase, time, faster, cores, memory, smaller, *measured)
    return made
