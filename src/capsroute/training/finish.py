"""The end of a run: the chosen parameters as a network, the test set, the result, the report."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capsroute import pretrained
from capsroute.models import count_parameters
from capsroute.training.evaluate import Predictions, predict
from capsroute.training.learner import Learner, fill
from capsroute.training.material import Material
from capsroute.training.run import Run, commit
from capsroute.training.writing import write_atomically

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def finish(fabric: Fabric, material: Material, run: Run, learner: Learner, threads: int) -> None:
    """Test the chosen parameters, once, and write everything down."""
    assert learner.best is not None
    net = copy.deepcopy(learner.net)
    fill(net, learner.best)
    found = predict(net, material.dataset.test, material.transform, fabric=fabric)
    if not fabric.is_global_zero:
        return
    write_model(run, material, learner)
    run.write_json(run.result_file, result(material, learner, found, threads))
    from capsroute.training.report import write_report

    write_report(run, material.dataset, material.transform, found)


def conclusion(run: Run) -> str:
    """How a finished run ended, and where to read more."""
    result = run.result
    low, high = result["test_interval"]
    return (
        f"test error {result['test_error']:.2f} % (95 % interval {low:.2f} to {high:.2f} %)\nthe report is {run.report}"
    )


def write_model(run: Run, material: Material, learner: Learner) -> None:
    """Put the best parameters so far into the run's `model/`, with the configuration they were trained by."""
    assert learner.best is not None
    net = copy.deepcopy(learner.net).cpu()
    fill(net, learner.best)
    with tempfile.TemporaryDirectory() as folder:
        pretrained.save(net, folder)
        for path in Path(folder).iterdir():
            write_atomically(run.model / path.name, path.read_bytes())
    run.write_json(run.model / "training.json", material.config.to_dict())


def result(material: Material, learner: Learner, found: Predictions, threads: int) -> dict[str, Any]:
    """The evidence of a run; errors are in per cent."""
    config, dataset, best = material.config, material.dataset, learner.progress.best
    assert best is not None
    return {
        "recipe": config.recipe,
        "dataset": dataset.name,
        "source": dataset.source,
        "cameras": dataset.cameras,
        "routing": config.model.get("routing", "cnn"),
        "seed": config.seed,
        "epochs": config.epochs,
        "parameters": count_parameters(learner.net, routing=True),
        "val_error": best.val_error,
        "val_split": config.data.val_split,
        "test_error": found.error,
        "test_interval": list(found.interval),
        "wall_seconds": learner.progress.wall_seconds,
        "threads": threads,
        "commit": commit(),
        "config": config.to_dict(),
        "curve": learner.progress.curve,
    }
