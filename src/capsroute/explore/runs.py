"""Runs: curves and routing health of the runs in a folder, compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from capsroute.analysis.history import find_runs, read_curve
from capsroute.explore import markup
from capsroute.training.run import Run

Curve = list[dict[str, Any]]


def names(folder: Path) -> list[str]:
    """The runs in the folder, newest first."""
    return [run.folder.name for run in find_runs(folder)]


def describe(folder: Path, chosen: list[str]) -> str:
    """Tables and charts of the chosen runs; names that are not in the folder are passed over."""
    known = set(names(folder))
    curves = {name: read_curve(folder / name) for name in chosen if name in known}
    if not curves:
        return markup.note("choose a run above" if known else f"there are no runs in {folder} yet: `capsroute train`")
    charts = []
    for title, key, unit in (
        ("validation error", "val_error", "%"),
        ("validation loss", "val_loss", ""),
        ("training loss", "train_loss", ""),
    ):
        series = {name: _series(curve, key) for name, curve in curves.items()}
        drawn = markup.lines(series, "epoch", unit or "loss", from_zero=True, points=False)
        charts.append(markup.heading(title) + drawn)
    results = markup.heading("results") + _results(folder, list(curves))
    return results + markup.grid([*charts, *_health(curves)])


def _series(curve: Curve, key: str) -> tuple[list[float], list[float]]:
    known = [(float(entry["epoch"]), float(entry[key])) for entry in curve if entry.get(key) is not None]
    return [x for x, _ in known], [y for _, y in known]


def _results(folder: Path, chosen: list[str]) -> str:
    rows = []
    for name in chosen:
        run = Run(folder / name)
        curve = read_curve(run.folder)
        config = run.about["config"]
        routing = config["model"].get("routing", "cnn")
        if run.finished:
            result = run.result
            low, high = result["test_interval"]
            test = f"{result['test_error']:.2f} % ({low:.2f} to {high:.2f})"
        else:
            test = "unfinished"
        best = min((e["val_error"] for e in curve if e["val_error"] is not None), default=None)
        held = "none" if best is None else f"{best:.2f} %"
        rows.append((name, config["data"]["name"], routing, f"{len(curve)} of {config['epochs']}", held, test))
    return markup.table(("run", "data", "routing", "epochs", "best validation error", "test error (95 %)"), rows)


def _health(curves: dict[str, Curve]) -> list[str]:
    """Couplings' entropy as a share of flat ones, and dead capsule types, layer by layer."""
    healthy = {name: [entry for entry in curve if entry.get("health")] for name, curve in curves.items()}
    layers = max((len(curve[0]["health"]) for curve in healthy.values() if curve), default=0)
    parts = []
    for layer in range(layers):
        entropy, dead = {}, {}
        for name, curve in healthy.items():
            if not curve or len(curve[0]["health"]) <= layer:
                continue
            epochs = [float(entry["epoch"]) for entry in curve]
            states = [entry["health"][layer] for entry in curve]
            entropy[name] = (epochs, [s["entropy"][-1] / max(s["entropy"][0], 1e-12) for s in states])
            dead[name] = (epochs, [100 * s["dead"] for s in states])
        title = f"capsule layer {layer + 1}"
        parts += [
            markup.heading(f"{title}: coupling entropy, 1 is flat")
            + markup.lines(entropy, "epoch", "entropy / flat", points=False),
            markup.heading(f"{title}: dead capsule types")
            + markup.lines(dead, "epoch", "%", from_zero=True, points=False),
        ]
    return parts
