"""What the commands `train`, `evaluate` and `table` do, once torch may be imported."""

from __future__ import annotations

from pathlib import Path

from capsroute.training.config import Config
from capsroute.training.loop import train
from capsroute.training.recipes import DEFAULT, recipe
from capsroute.training.run import Run


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
    config = _chosen(name, out, resume).with_values(epochs=epochs, seed=seed)
    if precision is not None:
        settings = [*settings, f"precision={precision}"]
    run = train(
        config.with_settings(settings),
        out=out,
        data_dir=data,
        resume=resume,
        force=force,
        accelerator=accelerator,
        threads=threads,
        tensorboard=tensorboard,
    )
    result = run.result
    low, high = result["test_interval"]
    print(f"test error {result['test_error']:.2f} % (95 % interval {low:.2f} to {high:.2f})")
    print(f"report: {run.report}")


def _chosen(name: str | None, out: Path | None, resume: bool) -> Config:
    """The recipe; a run that goes on needs none."""
    if name is None and resume and out is not None and Run(out).exists:
        return Run(out).config
    return recipe(name or DEFAULT)
