"""From a configuration to what is trained: the data, the splits, the network."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from capsroute import data, pretrained
from capsroute.data import DataSet, Split, Transform
from capsroute.data.extra import with_extra
from capsroute.training.config import Config, ConfigError, DataConfig, nearest


@dataclass(frozen=True)
class Material:
    """A configuration in which nothing is left open, and the data it speaks of."""

    config: Config
    dataset: DataSet
    transform: Transform

    def splits(self) -> tuple[Split, Split | None]:
        """What is trained on, and what is held out; the test set is not touched."""
        wanted = self.config.data
        train, held = self.dataset.train, None
        if wanted.val_split != "none":
            train, held = data.split_validation(
                train, wanted.val_split, wanted.val_fraction, wanted.val_seed, wanted.val_fold
            )
        if wanted.limit is not None and wanted.limit < len(train):
            train = train.subset(
                np.sort(np.random.default_rng(wanted.val_seed).permutation(len(train))[: wanted.limit])
            )
        if wanted.extra is not None:
            train = with_extra(train, wanted.extra, len(self.dataset.classes))
        return train, held

    def network(self) -> pretrained.Network:
        """The network as it starts, decided by the seed and by the network it borrows from, if any."""
        torch.manual_seed(self.config.seed)
        try:
            net = pretrained.build(dict(self.config.model))
        except (ValueError, TypeError) as error:
            raise ConfigError(f"the network cannot be built: {error}") from error
        if self.config.start is not None:
            pretrained.borrow(net, self.config.start)
        return net


def gather(config: Config, data_dir: Path | str | None = None) -> Material:
    """Find the data, and write what it decides into the configuration: preparation, image size, channels, classes."""
    dataset = load_data(config.data, data_dir)
    transform = prepare(dataset, config.data.transform)
    model = {
        **config.model,
        "image_size": transform.output_size(dataset.image_size),
        "in_channels": dataset.channels,
        "classes": len(dataset.classes),
    }
    resolved = replace(config, data=replace(config.data, transform=asdict(transform)), model=model)
    # what has been through JSON compares equal to what is read back
    return Material(Config.from_dict(resolved.to_dict()), dataset, transform)


def load_data(config: DataConfig, data_dir: Path | str | None = None) -> DataSet:
    """The data set that a configuration names."""
    options = dict(config.options)
    if config.cameras is not None:
        options["cameras"] = config.cameras
    return data.load(config.name, data_dir=data_dir, **options)


def prepare(dataset: DataSet, changes: Any) -> Transform:
    """The data set's own preparation with some entries changed."""
    known = [entry.name for entry in fields(Transform)]
    for name in changes:
        if name not in known:
            raise ConfigError(f"unknown option 'data.transform.{name}'{nearest(name, known)}; there are {known}")
    try:
        return replace(dataset.default_transform(train=True), **changes)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"data.transform: {error}") from error
