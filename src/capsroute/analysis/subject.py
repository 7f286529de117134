"""What is looked into: a trained network with the data it was trained on, found by run folder or by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from torch import Tensor

from capsroute import pretrained
from capsroute.analysis.tracing import softmax
from capsroute.data import DataSet, Split, Transform
from capsroute.data.dataset import Part
from capsroute.errors import DataError, RunError
from capsroute.training.config import Config
from capsroute.training.material import load_data, prepare
from capsroute.training.run import Run, read_json


@dataclass(frozen=True, eq=False)
class Subject:
    """A network, how its images are prepared, and its data set, where that is at hand.

    `no_data` says why it is not; pictures of one's own can be looked at all the same. `compares` is True where training
    compared class logits with each other (cross-entropy), so that only their softmax means something.
    """

    name: str
    net: pretrained.Network
    transform: Transform
    classes: tuple[str, ...]
    data: DataSet | None
    no_data: str = ""
    compares: bool = True

    def scores(self, logits: Tensor) -> Tensor:
        """Class scores between 0 and 1, as training made them mean something: probabilities or activations."""
        return softmax(logits) if self.compares else logits.sigmoid()

    @property
    def score_name(self) -> str:
        return "class probabilities" if self.compares else "class activations"

    @property
    def dataset(self) -> DataSet:
        """The data set; its absence is the user's to mend."""
        if self.data is None:
            raise DataError(self.no_data)
        return self.data

    @property
    def dataset_name(self) -> str:
        """What it was trained on, nothing where that is not at hand."""
        return "" if self.data is None else self.data.name

    def split(self, part: Part = "test") -> Split:
        """The part of the data set of that name."""
        return self.dataset.test if part == "test" else self.dataset.train

    def images(self, rows: Sequence[int] | npt.NDArray[np.int64], part: Part = "test") -> Tensor:
        """Images as the network sees them [b, C, h, w]."""
        split = self.split(part)
        wrong = [int(row) for row in rows if not 0 <= row < len(split)]
        if wrong:
            raise DataError(f"image {wrong[0]}: the {part} set of {self.dataset.name} has 0 to {len(split) - 1}")
        return self.transform.apply(split, np.asarray(rows, dtype=np.int64), epoch=0, seed=0, train=False)

    def picture(self, pixels: npt.NDArray[np.uint8]) -> Tensor:
        """A picture of one's own, uint8 [C, h, w] in the network's size, prepared like the rest [1, C, h, w]."""
        whole = replace(self.transform.without_noise(), pad_to=None, crop=None)
        return whole.apply(Split.of(pixels[None], [0]), [0], epoch=0, seed=0, train=False)


def open_subject(name: str | Path, data_dir: Path | str | None = None, *, need_data: bool = True) -> Subject:
    """The network of a run folder, of a folder that `save_pretrained` wrote, or one that ships with capsroute."""
    run = Run(name)
    folder = pretrained.locate(run.model if (run.model / "config.json").is_file() else name)
    config = _training_config(run, folder)
    net = pretrained.load(folder)
    no_data = ""
    dataset: DataSet | None = None
    try:
        dataset = load_data(config.data, data_dir)
        # the split is opened only when used; a data set that is not there says so now
        transform = prepare(dataset, config.data.transform)
    except DataError as error:
        if need_data:
            raise
        no_data = str(error)
        transform = Transform(**config.data.transform)
    classes = tuple(map(str, range(net.classes))) if dataset is None else dataset.classes
    return Subject(Path(name).name, net, transform, classes, dataset, no_data, config.loss.name == "cross_entropy")


def _training_config(run: Run, folder: Path) -> Config:
    if (folder / "training.json").is_file():
        return Config.from_dict(read_json(folder / "training.json"))
    if run.exists and "config" in run.about:
        return run.config
    raise RunError(f"{folder} does not say what it was trained on (no training.json); pass a run folder")
