"""Which recipe is best on toys it was not trained on? Five-fold cross-validation by toy; the test set is not read.

    python benchmarks/new_toys.py smallnorb-similarity-deep --set data.transform.bend=0

Each fold holds out one of the five training toys of every class, so that all 25 are new to some network once. Prints,
for each fold, error and loss on new toys after every epoch and what they were taken for in the end; then one line of
JSON: the error of each fold, their mean, and the mean training error, after the last epoch.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from capsroute.training import loop, ranks, watch
from capsroute.training.config import Config
from capsroute.training.evaluate import Predictions, confusion, predict
from capsroute.training.material import gather
from capsroute.training.recipes import recipe
from capsroute.training.run import open_run

TOYS = 5


def trained(config: Config, number: int, data: Path | None, threads: int) -> loop.Trainer:
    """Train without the toys of that fold, which are held out."""
    config = config.with_settings(["data.val_split=by_instance", f"data.val_fold={number}"])
    ranks.set_threads(threads)
    trainer = loop.Trainer(ranks.start(config, "cpu"), gather(config, data))
    with tempfile.TemporaryDirectory() as folder:
        run = open_run(
            trainer.material.config, Path(folder) / "run", resume=False, force=False, threads=threads, notify=print
        )
        trainer.fit(run, watch.Watcher())
    return trainer


def unseen(name: str, number: int, *, epochs: int, seed: int, data: Path | None, threads: int) -> Predictions:
    """What a recipe, trained on all other toys for so many epochs, says of the toys of that fold."""
    config = recipe(name, seed=seed, epochs=epochs).with_settings(["ema=0.998", "data.limit=19440"])
    trainer = trained(config, number, data, threads)
    assert trainer.held is not None
    return predict(trainer.learner.candidate, trainer.held, trainer.material.transform)


def mistakes(found: Predictions, classes: Sequence[str], shown: int | None = None) -> str:
    """What was taken for what, the most frequent first."""
    taken = confusion(found).tolist()
    wrong = sorted(((n, a, b) for a, row in enumerate(taken) for b, n in enumerate(row) if n and a != b), reverse=True)
    return ", ".join(f"{classes[a]} for {classes[b]} {n}" for n, a, b in wrong[:shown]) or "none"


def _tell(number: int, trainer: loop.Trainer) -> None:
    curve = [f"{entry['val_error']:.2f} % ({entry['val_loss']:.3f})" for entry in trainer.learner.progress.curve]
    print(f"fold {number}, new toys by epoch: {', '.join(curve)}", flush=True)
    assert trainer.held is not None
    material, classes = trainer.material, trainer.material.dataset.classes
    net = trainer.learner.candidate
    if material.transform.flip:
        both = predict(net, trainer.held, material.transform, mirrored=True)
        print(f"fold {number}, with the mirror image: {both.error:.2f} %", flush=True)
    wrong = mistakes(predict(net, trainer.held, material.transform), classes)
    print(f"fold {number}, taken for another of {len(trainer.held):,}: {wrong}", flush=True)


def main() -> None:
    """Train the folds and print what they gave."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", dest="settings")
    parser.add_argument("--data", type=Path, help="where smallNORB lies")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--limit", type=int, default=6000, help="training pairs, of 19,440")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fold", type=int, action="append", help="0 to 4, all unless told; repeatable")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    config = recipe(given.recipe, seed=given.seed, epochs=given.epochs).with_settings(
        ["ema=0.99", f"data.limit={given.limit}", *given.settings]
    )
    began, errors, known = time.perf_counter(), [], []
    for number in given.fold or range(TOYS):
        trainer = trained(config, number, given.data, given.threads)
        _tell(number, trainer)
        last = trainer.learner.progress.curve[-1]
        errors.append(last["val_error"])
        known.append(last["train_error"])
    print(
        json.dumps(
            {
                "recipe": given.recipe,
                "settings": given.settings,
                "folds": [round(error, 2) for error in errors],
                "new_toys": round(statistics.mean(errors), 2),
                "train": round(statistics.mean(known), 2),
                "seconds": round(time.perf_counter() - began),
            }
        )
    )


if __name__ == "__main__":
    main()
