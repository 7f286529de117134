"""A run is a folder: config.json, metrics.jsonl, checkpoints/, model/, result.json, report.html.

`result.json` is written last but for the report: a run that has one is finished.
"""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import asdict, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from capsroute.errors import RunError
from capsroute.training.config import Config, differences
from capsroute.training.writing import one_line, write_atomically

RUNS = Path("runs")
_PACKAGES = ("capsroute", "torch", "numpy", "lightning-fabric", "safetensors")


class Run:
    """Where the parts of a run lie, and reading them back."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self.config_file = self.folder / "config.json"
        self.metrics_file = self.folder / "metrics.jsonl"
        self.checkpoints = self.folder / "checkpoints"
        self.model = self.folder / "model"
        self.result_file = self.folder / "result.json"
        self.report = self.folder / "report.html"
        self.board = self.folder / "tensorboard"

    @property
    def exists(self) -> bool:
        return self.config_file.is_file()

    @property
    def finished(self) -> bool:
        return self.result_file.is_file()

    @property
    def config(self) -> Config:
        return Config.from_dict(self.about["config"])

    @property
    def about(self) -> dict[str, Any]:
        """The configuration, with versions, commit and machine."""
        return read_json(self.config_file)

    @property
    def result(self) -> dict[str, Any]:
        return read_json(self.result_file)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """All lines of metrics.jsonl that are whole."""
        return _lines(self.metrics_file)

    def append(self, entry: dict[str, Any]) -> None:
        """Add a line to metrics.jsonl."""
        with one_line(self.metrics_file), self.metrics_file.open("a") as file:
            file.write(json.dumps(entry) + "\n")

    def forget_after(self, step: int) -> None:
        """Drop metrics of steps that will be done again."""
        kept = [json.dumps(entry) for entry in self.metrics if entry["step"] <= step]
        write_atomically(self.metrics_file, "".join(f"{line}\n" for line in kept).encode())

    def write_json(self, path: Path, value: dict[str, Any]) -> None:
        write_atomically(path, (json.dumps(value, indent=2) + "\n").encode())

    def clear(self) -> None:
        """Remove the parts of a run, and nothing else."""
        with one_line(self.config_file):
            for path in (self.config_file, self.metrics_file, self.result_file, self.report):
                path.unlink(missing_ok=True)
        for folder in (self.checkpoints, self.model, self.board):
            shutil.rmtree(folder, ignore_errors=True)


def find_run(folder: Path | str) -> Run:
    """The run in a folder that a user named."""
    run = Run(folder)
    if not run.exists:
        raise RunError(f"{folder} holds no run: there is no config.json; pass a folder that `capsroute train` wrote")
    return run


def open_run(
    config: Config, out: Path | None, *, resume: bool, force: bool, threads: int, notify: Callable[[str], None]
) -> Run:
    """The folder to train in: a new one, or one to go on with; a finished run is never overwritten unasked."""
    run = Run(out or _default_folder(config, resume))
    if run.exists and resume:
        changed = differences(brought_up(run.about["config"]), config.to_dict())
        if changed:
            more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
            raise RunError(
                f"{run.folder} is a run of another configuration ({changed[0]}{more}); choose another --out, "
                "or --force to start again"
            )
        return run
    if run.exists and not force:
        state = "a finished" if run.finished else "an unfinished"
        way = "" if run.finished else "--resume goes on with it, "
        raise RunError(f"{run.folder} holds {state} run; {way}--force starts it again, --out chooses another folder")
    run.clear()
    run.write_json(
        run.config_file,
        {
            "config": config.to_dict(),
            "commit": commit(),
            "threads": threads,
            "versions": {"python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}},
            "machine": f"{platform.system()} {platform.machine()}",
        },
    )
    if resume:
        notify(f"there is no run to go on with in {run.folder} yet: starting afresh")
    return run


def read_json(path: Path) -> dict[str, Any]:
    try:
        value: dict[str, Any] = json.loads(path.read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise RunError(f"{path} cannot be read ({error})") from error
    return value


def commit() -> str | None:
    """The commit of the source that runs, with `-dirty` where files differ from it; None outside of a checkout."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        asked = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return asked.stdout.strip() or None if asked.returncode == 0 else None


def brought_up(written: dict[str, Any]) -> dict[str, Any]:
    """A configuration of an older version: options it did not know have the values that leave everything as it was."""
    from capsroute.data.transforms import Transform  # and torch, which --help does without

    config = Config.from_dict(written)
    whole = {**asdict(Transform()), **config.data.transform}
    return replace(config, data=replace(config.data, transform=whole)).to_dict()


def _default_folder(config: Config, resume: bool) -> Path:
    """runs/RECIPE-SEED-N with the next free N; to go on, the newest that is unfinished."""
    stem = f"{config.recipe}-{config.seed}-"
    taken = {int(p.name[len(stem) :]): p for p in RUNS.glob(f"{stem}*") if p.name[len(stem) :].isdigit()}
    if resume:
        for number in sorted(taken, reverse=True):
            if Run(taken[number]).exists and not Run(taken[number]).finished:
                return taken[number]
    return RUNS / f"{stem}{max(taken, default=0) + 1}"


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _lines(path: Path) -> list[dict[str, Any]]:
    entries = []
    for line in path.read_text().splitlines() if path.is_file() else []:
        try:
            entries.append(json.loads(line))
        except json.JSONDecodeError:
            break  # the end of a killed process
    return entries
