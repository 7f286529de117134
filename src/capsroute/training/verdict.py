"""`capsroute evaluate`: a trained network on its test set, with variations where the data set has them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import nn

from capsroute import data, pretrained
from capsroute.data import DataSet, Split, Transform
from capsroute.data.transforms import THIRTEEN_CROPS
from capsroute.errors import RunError
from capsroute.training.config import Config, ConfigError
from capsroute.training.evaluate import Predictions, confusion, predict
from capsroute.training.material import load_data, prepare
from capsroute.training.pictures import confusion_matrix
from capsroute.training.report import draw_mistakes, worst_mistakes
from capsroute.training.run import read_json

CANVAS = 40  # pixels a side of the affine digits
# What `robust` looks at: contrast and brightness (of 255) of the stored pixels, and crops away from the centre.
LIGHTS = {"64 brighter": (1.0, 64.0), "64 darker": (1.0, -64.0), "half the contrast": (0.5, 0.0)}
MOVES = (4, 8)
# What `beyond` compares: shipped networks of about the same size, and what each data set has to try them with.
BEYOND: dict[tuple[str, ...], dict[str, bool]] = {
    ("affnist-similarity-deep", "affnist-cnn-deep"): {"affine": True, "overlapping": True},
    ("affnist-similarity-deep-1", "affnist-cnn-deep-1"): {"affine": True, "overlapping": True},
    ("smallnorb-similarity-cut-mirror", "smallnorb-cnn-cut-mirror"): {"robust": True},
    ("smallnorb-similarity-cut-mirror-1", "smallnorb-cnn-cut-mirror-1"): {"robust": True},
}


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
    trained: Trained,
    *,
    affine: bool = False,
    overlapping: bool = False,
    multicrop: bool = False,
    mirrored: bool = False,
    robust: bool = False,
    data_dir: Path | None = None,
) -> list[Verdict]:
    """The test set, and what else was asked for."""
    net, test, transform, title = trained.net, trained.dataset.test, trained.transform, trained.dataset.title
    verdicts = [_judge(net, title, test, transform)]
    if multicrop:
        try:
            verdicts.append(_judge(net, f"{title}, 13 crops", test, transform, THIRTEEN_CROPS))
        except ValueError as error:
            raise ConfigError(f"--multicrop is not for {trained.config.data.name}: {error}") from error
    if mirrored:
        try:
            verdicts.append(_judge(net, f"{title}, with its mirror image", test, transform, mirrored=True))
        except ValueError as error:
            raise ConfigError(f"--mirrored is not for {trained.config.recipe}: {error}") from error
    if robust:
        verdicts += [_judge(net, f"{title}, {how}", relit(test, *light), transform) for how, light in LIGHTS.items()]
        room = 0 if transform.crop is None else (test.images.shape[2] - transform.crop) // 2
        moves = [step for step in MOVES if step <= room]
        verdicts += [
            _judge(net, f"{title}, crop {step} pixels down and right", test, transform, [(step, step)])
            for step in moves
        ]
    if affine:
        verdicts.append(_on_canvas(trained, "--affine", data_dir))
    if overlapping:
        verdicts.append(_on_canvas(trained, "--overlapping", data_dir))
    return verdicts


def beyond(data_dir: Path | None = None) -> list[list[tuple[str, Verdict]]]:
    """What shipped networks learned that their test set does not show: a table's rows, each verdict with its network.

    The rows of networks that are compared with each other have the same titles.
    """
    rows = []
    for names, options in BEYOND.items():
        judged = {name: judge(load_trained(name, data_dir), **options, data_dir=data_dir) for name in names}
        rows += [list(zip(names, row, strict=True)) for row in zip(*judged.values(), strict=True)]
    return rows


def relit(split: Split, contrast: float, brightness: float) -> Split:
    """The same images under other light: differences from an image's mean times `contrast`, plus `brightness`."""
    stored = split.images.stored[split.images.rows]
    changed = np.empty_like(stored)
    for number, image in enumerate(stored):
        mean = image.mean()
        changed[number] = np.clip(np.rint(contrast * (image - mean) + mean + brightness), 0, 255)
    return Split.of(changed, split.labels)


def _judge(
    net: nn.Module,
    title: str,
    split: Split,
    transform: Transform,
    crops: Sequence[tuple[int, int]] = (),
    mirrored: bool = False,
) -> Verdict:
    return Verdict(title, split, transform, predict(net, split, transform, crops=crops, mirrored=mirrored))


def _on_canvas(trained: Trained, asked: str, data_dir: Path | None) -> Verdict:
    """Digits of another data set on the canvas that a network knows: affine ones (plain ones if it was trained on
    affine ones), or two that overlap, where the two most active classes must be right."""
    name, size = trained.config.data.name, trained.config.model["image_size"]
    if name not in ("mnist", "affnist") or size != CANVAS:
        raise ConfigError(
            f"{asked} is for digits on a canvas of {CANVAS} x {CANVAS}, this network sees {name} at {size} x {size}; "
            "train affnist-similarity (plain digits moved about that canvas)"
        )
    checked = {key: value for key, value in trained.config.data.options.items() if key == "verify"}
    wanted = "multimnist" if asked == "--overlapping" else "affnist" if name == "mnist" else "mnist"
    other = data.load(wanted, data_dir=data_dir, **checked)
    return _judge(trained.net, f"{other.title} on {CANVAS} x {CANVAS}", other.test, Transform(pad_to=CANVAS))


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
