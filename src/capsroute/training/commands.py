"""What the commands `train` and `evaluate` do; mistakes in their options are told before torch is imported."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from capsroute.training.config import Config, ConfigError
from capsroute.training.recipes import DEFAULT, recipe
from capsroute.training.run import Run

if TYPE_CHECKING:
    from capsroute.training.verdict import Verdict

MISSED = 5  # objects that are named


def run_training(
    name: str | None,
    *,
    settings: list[str],
    epochs: int | None,
    seed: int | None,
    data: Path | None,
    out: Path | None,
    resume: bool,
    force: bool,
    precision: str | None,
    accelerator: str,
    threads: int | None,
    tensorboard: bool,
) -> None:
    """`capsroute train`."""
    if precision is not None:
        settings = [*settings, f"precision={precision}"]
    config = _chosen(name, out, resume).with_settings(settings).with_values(epochs=epochs, seed=seed)
    from capsroute.training.loop import train

    train(
        config,
        out=out,
        data_dir=data,
        resume=resume,
        force=force,
        accelerator=accelerator,
        threads=threads,
        tensorboard=tensorboard,
    )


def run_evaluation(
    run: Path | None,
    pretrained: str | None,
    *,
    data: Path | None,
    affine: bool,
    overlapping: bool,
    multicrop: bool,
    mirrored: bool,
    robust: bool,
    beyond: bool,
    out: Path | None,
    as_json: bool,
    threads: int | None,
) -> None:
    """`capsroute evaluate`."""
    asked = {
        "affine": affine,
        "overlapping": overlapping,
        "multicrop": multicrop,
        "mirrored": mirrored,
        "robust": robust,
    }
    if beyond and (run is not None or pretrained is not None or any(asked.values())):
        raise ConfigError("--beyond knows which networks to compare, and on what: pass it alone")
    if not beyond and (run is None) == (pretrained is None):
        raise ConfigError("pass either a run's folder or --pretrained NAME")
    from capsroute.training.ranks import set_threads
    from capsroute.training.verdict import draw, judge, load_trained

    set_threads(threads)
    if beyond:
        _print_beyond(data, as_json)
        return
    trained = load_trained(pretrained or str(run), data)
    verdicts = judge(trained, **asked, data_dir=data)
    folder = out or (Path("evaluation") / str(pretrained) if run is None else run / "evaluation")
    drawn = draw(verdicts[0], trained.dataset.classes, folder)
    if as_json:
        print(json.dumps([verdict.to_dict() for verdict in verdicts], indent=2))
        return
    for verdict in verdicts:
        low, high = verdict.found.interval
        print(
            f"{verdict.title}: test error {verdict.found.error:.2f} % (95 % interval {low:.2f} to {high:.2f}, "
            f"{len(verdict.split):,} images)"
        )
    if verdicts[0].found.labels.dim() == 1:
        _print_confusion(verdicts[0], trained.dataset.classes)
        _print_missed(verdicts[0], trained.dataset.classes)
    print("\n".join(f"picture: {path}" for path in drawn))


def _print_beyond(data: Path | None, as_json: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    from capsroute.training.verdict import beyond

    rows = beyond(data)
    if as_json:
        print(json.dumps([{"network": name, **verdict.to_dict()} for row in rows for name, verdict in row], indent=2))
        return
    for names, compared in groupby(rows, key=lambda row: [name for name, _ in row]):
        table = Table("test error in per cent", "images", "capsules", "CNN", "better", title=" and ".join(names))
        for (_, capsules), (_, cnn) in compared:
            (low, high), (other_low, other_high) = capsules.found.interval, cnn.found.interval
            better = "capsules" if high < other_low else "CNN" if other_high < low else "even"
            errors = (f"{verdict.found.error:.2f}" for verdict in (capsules, cnn))
            table.add_row(capsules.title, f"{len(capsules.split):,}", *errors, better)
        Console(width=100).print(table)
    print("better: their 95 % intervals do not touch")


def _print_confusion(verdict: Verdict, classes: tuple[str, ...]) -> None:
    from rich.console import Console
    from rich.table import Table

    from capsroute.training.evaluate import confusion

    table = Table("is \\ taken for", *classes)
    for name, row in zip(classes, confusion(verdict.found).tolist(), strict=True):
        table.add_row(name, *(str(count) if count else "" for count in row))
    Console().print(table)


def _print_missed(verdict: Verdict, classes: tuple[str, ...]) -> None:
    from capsroute.training.evaluate import missed

    objects = missed(verdict.found, verdict.split)
    if objects:
        most = (f"{classes[one.label]} {one.instance}: {one.wrong} of {one.views:,}" for one in objects[:MISSED])
        print(f"most mistakes are views of {', '.join(most)}")


def _chosen(name: str | None, out: Path | None, resume: bool) -> Config:
    """The recipe; a run that goes on needs none."""
    if name is None and resume and out is not None and Run(out).exists:
        return Run(out).config
    return recipe(name or DEFAULT)
