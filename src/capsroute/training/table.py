"""The paper's results table with our numbers beside the published ones, as text, Markdown and PNG.

Where several runs of a row exist, the one with the lowest validation error is shown, never the one with the lowest test
error; runs that differ from it in the seed alone give mean and deviation. Validation errors of different splits cannot
be compared: runs validated on held-out toys go before those validated on random images, and those before the rest.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capsroute.errors import RunError
from capsroute.training.config import ConfigError
from capsroute.training.published import PUBLISHED
from capsroute.training.recipes import kind_of
from capsroute.training.run import brought_up, read_json
from capsroute.training.watch import clock

ORDER = ("similarity", "connectionist", "em", "variational", "dynamic", "entropy", "uniform", "cnn", "others")
TITLES = {
    "mnist": "MNIST",
    "smallnorb": "smallNORB",
    "fashion-mnist": "Fashion-MNIST",
    "affnist": "affNIST (made here)",
}
TITLES |= {"multimnist": "MultiMNIST (made here)", "digits": "digits (8 x 8)"}
COPIES = {"jpeg": " (JPEG copy)", "png": " (PNG copy)"}
_SPLITS = ("by_instance", "random", "none")
_NEEDED = (
    "recipe",
    "dataset",
    "source",
    "cameras",
    "routing",
    "seed",
    "val_error",
    "val_split",
    "test_error",
    "config",
)

Row = tuple[str, ...]


@dataclass(frozen=True)
class Entry:
    """The runs of one cell: the one that validation chose, and its siblings of other seeds, itself included."""

    chosen: dict[str, Any]
    seeds: list[dict[str, Any]]

    @property
    def text(self) -> str:
        error = f"{self.chosen['test_error']:.2f}"
        if len(self.seeds) < 2:
            return error
        errors = [result["test_error"] for result in self.seeds]
        mean, deviation = statistics.mean(errors), statistics.stdev(errors)
        return f"{error} ({mean:.2f} ± {deviation:.2f}, {len(errors)} seeds)"


def collect(paths: Iterable[Path | str]) -> list[dict[str, Any]]:
    """The results in these files, runs, or folders of either."""
    results = []
    for path in map(Path, paths):
        if path.is_dir():
            files = sorted({*path.glob("*.json"), *path.glob("*/result.json")} - set(path.glob("config.json")))
        else:
            files = [path]
        found = [result for result in map(_read, files) if result is not None]
        if not found:
            raise RunError(f"{path} holds no results: pass run folders, result files, or a folder of either")
        results += found
    return results


def _read(path: Path) -> dict[str, Any] | None:
    value = read_json(path)
    return value if isinstance(value, dict) and all(key in value for key in _NEEDED) else None


def column(result: dict[str, Any]) -> str:
    """The data set by name, saying which copy of it and which cameras."""
    title = TITLES.get(result["dataset"], result["dataset"]) + COPIES.get(result["source"], "")
    return f"{title}, {result['cameras']}" if result["cameras"] else title


def label(result: dict[str, Any]) -> str:
    """The row: a recipe's name without its data set (`similarity`, `similarity-deep`), else the routing."""
    return kind_of(result["recipe"]) or str(result["routing"])


def entries(results: Sequence[dict[str, Any]]) -> dict[tuple[str, str], Entry]:
    """By row and data set, what is shown."""
    cells: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for result in results:
        cells.setdefault((label(result), column(result)), []).append(result)
    return {cell: _chosen(runs) for cell, runs in cells.items()}


def _chosen(runs: list[dict[str, Any]]) -> Entry:
    def rank(result: dict[str, Any]) -> tuple[int, float, int]:
        split = result["val_split"]
        place = _SPLITS.index(split) if split in _SPLITS else len(_SPLITS)
        error = float("inf") if result["val_error"] is None else result["val_error"]
        return place, error, result["seed"]

    best = min(runs, key=rank)
    siblings = {result["seed"]: result for result in runs if _but_seed(result) == _but_seed(best)}
    return Entry(best, [siblings[seed] for seed in sorted(siblings)])


def _but_seed(result: dict[str, Any]) -> str:
    """The configuration without its seed, so that runs of versions with fewer options are still the same."""
    config = result["config"]
    with suppress(ConfigError):  # of a newer version: comparable as it is written
        config = brought_up(config)
    return json.dumps({**config, "seed": None}, sort_keys=True)


def build(results: Sequence[dict[str, Any]]) -> tuple[Row, list[Row]]:
    """Header and rows of the paper's table."""
    cells = entries(results)
    first = ["MNIST", "smallNORB"]
    columns = first + sorted({title for _, title in cells} - set(first), key=_column_order)
    rows: list[Row] = []
    for routing in sorted({*ORDER, *(name for name, _ in cells)}, key=_row_order):
        own = {title: entry for (name, title), entry in cells.items() if name == routing}
        if own:
            weights = sorted(entry.chosen["parameters"] for entry in own.values())
            span = "–".join(dict.fromkeys(f"{n / 1000:.0f}K" for n in (weights[0], weights[-1])))
            texts = [own[title].text if title in own else "–" for title in columns]
            rows.append((routing, "capsroute", span, *texts, "this code"))
        for known in PUBLISHED:
            if known.routing == routing:
                texts = [{"MNIST": known.mnist, "smallNORB": known.smallnorb}.get(title, "") for title in columns]
                rows.append((routing, known.system, known.weights, *texts, known.source))
    return ("routing", "system", "weights", *columns, "source"), rows


def details(results: Sequence[dict[str, Any]]) -> tuple[Row, list[Row]]:
    """Header and rows of what stands behind our numbers."""
    header = ("routing", "data", "test error", "95 % interval", "validation", "loss", "epochs", "time", "seeds")
    rows: list[Row] = []
    for (routing, title), entry in sorted(entries(results).items(), key=lambda item: (item[0][1], item[0][0])):
        run = entry.chosen
        low, high = run["test_interval"]
        held = "none" if run["val_error"] is None else f"{run['val_error']:.2f} ({run['val_split']})"
        loss = "teachers" if _teachers(run) else run["config"]["loss"]["name"].replace("_", "-")
        seeds = ", ".join(str(result["seed"]) for result in entry.seeds)
        rows.append(
            (
                routing,
                title,
                f"{run['test_error']:.2f}{', two looks' if _has(run, 'mirror') else ''}",
                f"{low:.2f} to {high:.2f}",
                held,
                loss,
                _epochs(run),
                clock(run["wall_seconds"]),
                seeds,
            )
        )
    return header, rows


def _epochs(run: dict[str, Any]) -> str:
    """How often it went through how much, what it began with and who taught it, where that is not all and nothing."""
    data, began = run["config"].get("data", {}), run["config"].get("start")
    limited = f" of {data['limit']:,} images" if data.get("limit") else ""
    extra = f" with {Path(data['extra']).name}" if data.get("extra") else ""
    by = f", taught by {_teachers(run)} networks" if _teachers(run) else ""
    after = f" after {began if isinstance(began, str) else f'{len(began)} networks'}" if began else ""
    return f"{run['epochs']}{limited}{extra}{after}{', thinned' if _has(run, 'thin') else ''}{by}"


def _teachers(run: dict[str, Any]) -> int:
    """How many networks it learned from."""
    return len(run["config"]["loss"].get("teachers", {}))


def _has(run: dict[str, Any], option: str) -> bool:
    """Whether its network, or one of its lanes, has an option of `CapsNet` set."""
    model = run["config"].get("model", {})
    return any(part.get(option) for part in (model, *model.get("lanes", ())))


def _row_order(name: str) -> tuple[int, str]:
    routing = name.partition("-")[0]
    return ORDER.index(routing) if routing in ORDER else len(ORDER), name


def _column_order(title: str) -> tuple[int, str]:
    known = list(TITLES.values())
    return next((n for n, name in enumerate(known) if title.startswith(name)), len(known)), title


NOTE = (
    "Test errors in per cent. capsroute: the run chosen by validation, in brackets mean ± deviation over seeds; its "
    "weights include those of the routing, the paper's 86K do not; of thinned networks, those that are not zero."
)


def markdown(results: Sequence[dict[str, Any]]) -> str:
    """Both tables in Markdown."""
    return f"{_markdown(*build(results))}\n{NOTE}\n\n{_markdown(*details(results))}"


def _markdown(header: Row, rows: list[Row]) -> str:
    lines = [header, tuple("---" for _ in header), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def show(results: Sequence[dict[str, Any]]) -> None:
    """Print both tables."""
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if Console().is_terminal else 200)
    for header, rows in (build(results), details(results)):
        table = Table(*header)
        for row in rows:
            table.add_row(*row, style="bold" if row[1] == "capsroute" else None)
        console.print(table)
    console.print(NOTE)


def picture(results: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw the paper's table."""
    from capsroute.training.pictures import table_picture

    header, rows = build(results)
    table_picture(header, rows, NOTE).savefig(path, dpi=150)
