"""Time and memory of a training step against batch, image size, capsule types and iterations."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capsroute.bench import report
from capsroute.bench.candidates import Candidate
from capsroute.bench.compare import Row, Say, compare
from capsroute.errors import RunError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SWEEPS: dict[str, tuple[int, ...]] = {
    "batch": (1, 4, 16, 64),
    "image_size": (24, 32, 48, 64),
    "types": (4, 8, 16, 32),
    "iterations": (1, 2, 3, 5),
}
AXES = {
    "batch": "images a step",
    "image_size": "side of an image",
    "types": "capsule types",
    "iterations": "iterations",
}
DEFAULT_PATHS = ("reference", "tiled", "fused")
Points = dict[str, list[tuple[int, Row]]]


def draw(routings: Sequence[str], paths: Sequence[str], folder: Path, threads: int, say: Say) -> None:
    """Measure, and write `bench-ROUTING.png` and its numbers, `bench-ROUTING.json`, for each routing."""
    from capsroute.figures import style

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{folder} cannot be made ({error.strerror}); choose another --plots") from error
    for name in routings:
        points = measure(name, paths or DEFAULT_PATHS, threads, say)
        numbers = {
            "machine": report.machine(threads),
            "rows": [{"axis": axis, "value": value, **asdict(row)} for axis in points for value, row in points[axis]],
        }
        (folder / f"bench-{name}.json").write_text(json.dumps(numbers, indent=2) + "\n")
        style.save(picture(name, points), folder / f"bench-{name}.png")
        say(f"{name}: drawn into {folder / f'bench-{name}.png'}")


def measure(
    routing: str, paths: Sequence[str], threads: int, say: Say, sweeps: dict[str, tuple[int, ...]] = SWEEPS
) -> Points:
    """A training step at every value of every sweep, all else as in the paper."""
    points: Points = {}
    for axis, values in sweeps.items():
        points[axis] = []
        for value in values:
            say(f"{routing}, {AXES[axis]}: {value}")
            change: dict[str, Any] = {} if axis == "batch" else {axis: value}
            candidates = [replace(Candidate(routing, path, threads=threads), **change) for path in paths]
            rows = compare(candidates, ["train"], batch=value if axis == "batch" else 32, seconds=4.0)
            points[axis] += [(value, row) for row in rows]
    return points


def picture(routing: str, points: Points) -> Figure:
    """Time above, memory below, a column for each axis, a line for each path; all axes logarithmic."""
    from capsroute.figures import style

    with style.styled():
        drawn = style.blank(style.PAGE, 3.4)
        grid = drawn.subplots(2, len(points), sharey="row", squeeze=False)
        for column, (axis, found) in enumerate(points.items()):
            for path in dict.fromkeys(row.path for _, row in found):
                own = [(value, row) for value, row in found if row.path == path]
                values = [value for value, _ in own]
                grid[0][column].plot(values, [row.ms_per_image for _, row in own], "o-", markersize=3, label=path)
                grid[1][column].plot(values, [row.extra_mb_per_image for _, row in own], "o-", markersize=3, label=path)
            for axes in (grid[0][column], grid[1][column]):
                axes.set(xscale="log", yscale="log")
                axes.set_xticks(sorted({value for value, _ in found}), minor=False)
                axes.set_xticks([], minor=True)
                axes.xaxis.set_major_formatter("{x:.0f}")
            grid[1][column].set_xlabel(AXES[axis])
        grid[0][0].set_ylabel("ms an image")
        grid[1][0].set_ylabel("extra MB an image")
        grid[0][0].set_title(f"{routing}, training step", loc="left")
        grid[0][-1].legend()
        return drawn
