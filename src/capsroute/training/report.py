"""report.html: a run on one self-contained page, pictures and all."""

from __future__ import annotations

import base64
import html
import io
import json
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from capsroute.data import DataSet, Split, Transform
from capsroute.training import pictures
from capsroute.training.evaluate import Predictions, confusion
from capsroute.training.run import Run
from capsroute.training.watch import clock
from capsroute.training.writing import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = 24  # mistakes
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; color: #1a202c }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2rem }
img { max-width: 100%; height: auto } table { border-collapse: collapse }
th { white-space: nowrap } td, th { padding: .15rem .8rem .15rem 0; text-align: left; vertical-align: top }
pre { background: #f7fafc; padding: 1rem; overflow-x: auto; font-size: 12px } .big { font-size: 1.8rem }
"""


def write_report(run: Run, dataset: DataSet, transform: Transform, found: Predictions) -> None:
    """Write the page; everything but the test predictions is read from the run's folder."""
    write_atomically(run.report, report(run, dataset, transform, found).encode())


def report(run: Run, dataset: DataSet, transform: Transform, found: Predictions) -> str:
    """The page as text."""
    result, about = run.result, run.about
    epochs = [entry for entry in run.metrics if "health" in entry]
    chosen = next((entry["epoch"] for entry in reversed(epochs) if entry["best"]), None)
    low, high = result["test_interval"]
    parts = [
        f"<h1>{html.escape(result['recipe'])}, seed {result['seed']}</h1>",
        f"<p><span class='big'>{result['test_error']:.2f} %</span> test error on {html.escape(dataset.title)} "
        f"({len(found.labels):,} images; 95 % interval {low:.2f} to {high:.2f} %)</p>",
        _facts(result, about, chosen),
        "<h2>Curves</h2>",
        _picture(pictures.curves(result["curve"], chosen), "loss and error over the epochs"),
        *_test_pictures(dataset, transform, found),
        *_health(epochs),
        "<h2>Configuration</h2>",
        f"<pre>{html.escape(json.dumps(result['config'], indent=2))}</pre>",
    ]
    title = html.escape(f"{result['recipe']} · capsroute")
    return (
        f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>{title}</title><style>{_STYLE}</style>"
        f"</head><body>{''.join(parts)}</body></html>\n"
    )


def _facts(result: dict[str, Any], about: dict[str, Any], chosen: int | None) -> str:
    held = "none: the last parameters were tested" if result["val_error"] is None else f"{result['val_error']:.2f} %"
    loss = result["config"]["loss"]["name"].replace("_", "-")
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    rows = {
        "validation error": f"{held} (split: {result['val_split']}; epoch {chosen} of {result['epochs']} was chosen)",
        "data": " · ".join(filter(None, [result["dataset"], result["source"], result["cameras"]])),
        "routing, loss": f"{result['routing']}, {loss}",
        "learned parameters": f"{result['parameters']:,}",
        "training time": f"{clock(result['wall_seconds'])}, threads: {result['threads']}",
        "commit": result["commit"] or "not from a checkout",
        "versions": versions,
    }
    return "<table>" + "".join(f"<tr><th>{k}</th><td>{html.escape(v)}</td></tr>" for k, v in rows.items()) + "</table>"


def _test_pictures(dataset: DataSet, transform: Transform, found: Predictions) -> list[str]:
    parts = []
    if found.labels.dim() == 1:
        drawn = pictures.confusion_matrix(confusion(found).numpy(), dataset.classes)
        parts += ["<h2>Confusion matrix</h2>", _picture(drawn, "how often a class was taken for another")]
    worst = worst_mistakes(found)
    if len(worst):
        drawn = draw_mistakes(dataset.test, transform, dataset.classes, found, worst)
        parts += ["<h2>The worst mistakes</h2>", _picture(drawn, "test images that were most surely taken for another")]
    return parts


def worst_mistakes(found: Predictions, count: int = SHOWN) -> Tensor:
    """Rows of the wrong predictions, those first that prefer a wrong class by most."""
    rows = torch.nonzero(~found.right).flatten()
    labels = found.labels.reshape(len(found.labels), -1)[rows]
    logits = found.logits[rows]
    true = logits.gather(1, labels).amin(1)
    wrong = logits.scatter(1, labels, -torch.inf).amax(1)
    return rows[(wrong - true).argsort(descending=True)[:count]]


def draw_mistakes(
    split: Split, transform: Transform, classes: tuple[str, ...], found: Predictions, rows: Tensor
) -> Figure:
    """The images at `rows`, each with what it is and what it was taken for."""
    images = transform.apply(split, rows.numpy(), epoch=0, seed=0, train=False).numpy()
    labels = found.labels.reshape(len(found.labels), -1)
    guesses = found.logits.topk(labels.shape[1], dim=1).indices

    def names(numbers: Tensor) -> str:
        return "+".join(classes[int(n)] for n in numbers.sort().values)

    return pictures.mistakes(images, [f"{names(labels[r])} → {names(guesses[r])}" for r in rows])


def _health(epochs: list[dict[str, Any]]) -> list[str]:
    states = [entry["health"] for entry in epochs]
    if not states or not states[0]:
        return []
    numbers = [entry["epoch"] for entry in epochs]
    last = states[-1]
    rows = "".join(
        f"<tr><td>{n}</td><td>{layer['entropy'][0]:.2f}</td><td>{layer['entropy'][-1]:.2f}</td>"
        f"<td>{100 * layer['dead']:.0f} %</td><td>{layer['activation']:.3f}</td><td>{layer['pose_norm']:.2f}</td></tr>"
        for n, layer in enumerate(last, 1)
    )
    parts = [
        "<h2>Routing health</h2>",
        "<table><tr><th>layer</th><th>entropy, flat</th><th>routed</th><th>dead types</th>"
        f"<th>mean activation</th><th>mean pose norm</th></tr>{rows}</table>",
        _picture(pictures.entropies(numbers, states), "coupling entropy of each layer over the epochs"),
    ]
    learned = pictures.learned_values(numbers, states)
    return [*parts, _picture(learned, "what the routings learned")] if learned else parts


def _picture(drawn: Figure, alt: str) -> str:
    buffer = io.BytesIO()
    drawn.savefig(buffer, format="png", dpi=110)
    encoded = base64.b64encode(buffer.getvalue()).decode()
    return f"<p><img alt='{html.escape(alt)}' src='data:image/png;base64,{encoded}'></p>"
