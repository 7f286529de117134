"""`capsroute evaluate`: a trained network on its test set, with variations where the data set has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from capsroute import data, pretrained
from capsroute.data import DataSet, Split, Transform
from capsroute.errors import RunError
from capsroute.training.config import Config, ConfigError
from capsroute.training.evaluate import Predictions, confusion, predict
from capsroute.training.material import load_data, prepare
from capsroute.training.pictures import confusion_matrix
from capsroute.training.report import draw_mistakes, worst_mistakes
from capsroute.training.run import read_json

CANVAS = 40  # pixels a side of the affine digits


class Verdict(NamedTuple):
    """What a network does on one set of test images."""

    title: str
    split: Split
    transform: Transform
    found: Predictions

    def to_dict(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "images": len(self.split),
            "test_error": self.found.error,
            "test_interval": list(self.found.interval),
        }


class Trained(NamedTuple):
    """A network with the data that it was trained for."""

    net: nn.Module
    config: Config
    dataset: DataSet
    transform: Transform


def load_trained(name: Path | str, data_dir: Path | None = None) -> Trained:
    """The network in a run, in a folder, or that ships by name."""
    path = Path(name)
    folder = pretrained.locate(path / "model" if (path / "model").is_dir() else name)
    if not (folder / "training.json").is_file():
        raise RunError(f"{folder} does not say what its network was trained on: there is no training.json")
    config = Config.from_dict(read_json(folder / "training.json"))
    dataset = load_data(config.data, data_dir)
    return Trained(pretrained.load(folder), config, dataset, prepare(dataset, config.data.transform))


def judge(
    trained: Trained, *, affine: bool = False, multicrop: bool = False, data_dir: Path | None = None
) -> list[Verdict]:
    """The test set, and what else was asked for."""
    verdicts = [_judge(trained.net, trained.dataset.title, trained.dataset.test, trained.transform)]
    if multicrop:
        title = f"{trained.dataset.title}, 13 crops"
        try:
            verdicts.append(_judge(trained.net, title, trained.dataset.test, trained.transform, multicrop=True))
        except ValueError as error:
            raise ConfigError(f"--multicrop is not for {trained.config.data.name}: {error}") from error
    if affine:
        verdicts += _affine(trained, data_dir)
    return verdicts


def _judge(net: nn.Module, title: str, split: Split, transform: Transform, multicrop: bool = False) -> Verdict:
    return Verdict(title, split, transform, predict(net, split, transform, multicrop=multicrop))


def _affine(trained: Trained, data_dir: Path | None) -> list[Verdict]:
    """Plain and affine test digits on the same canvas."""
    name, size = trained.config.data.name, trained.config.model["image_size"]
    if name not in ("mnist", "affnist") or size != CANVAS:
        raise ConfigError(
            f"--affine is for digits on a canvas of {CANVAS} x {CANVAS}, this network sees {name} at {size} x {size}; "
            "train affnist-similarity (plain digits moved about that canvas)"
        )
    checked = {key: value for key, value in trained.config.data.options.items() if key == "verify"}
    other = data.load("affnist" if name == "mnist" else "mnist", data_dir=data_dir, **checked)
    transform = Transform(pad_to=CANVAS)
    return [_judge(trained.net, f"{other.title} on {CANVAS} x {CANVAS}", other.test, transform)]


def draw(verdict: Verdict, classes: tuple[str, ...], folder: Path) -> list[Path]:
    """Confusion matrix and worst mistakes as pictures in `folder`."""
    drawn = {}
    if verdict.found.labels.dim() == 1:
        drawn["confusion.png"] = confusion_matrix(confusion(verdict.found).numpy(), classes)
    worst = worst_mistakes(verdict.found)
    if len(worst):
        drawn["mistakes.png"] = draw_mistakes(verdict.split, verdict.transform, classes, verdict.found, worst)
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in drawn.items():
        figure.savefig(folder / name, dpi=110)
    return [folder / name for name in drawn]
