"""What data there is on this machine: `capsroute data list`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from capsroute.data import mnist, smallnorb
from capsroute.data.catalogue import load
from capsroute.data.dataset import Part
from capsroute.data.store import NotFound
from capsroute.errors import DataError

_PARTS: tuple[Part, Part] = ("train", "test")


@dataclass(frozen=True)
class Entry:
    """One data set: where it lies, how many examples a split has, and what of it was compared with published digests.

    `problem` says why it cannot be used: "not found", or what is wrong with it.
    """

    name: str
    where: str = ""
    source: str = ""
    train: int | None = None
    test: int | None = None
    verified: str = ""
    examples: str = "images"
    problem: str = ""


def survey(data_dir: Path | None = None) -> list[Entry]:
    """Look at every data set; files are read and checked, pictures only counted."""
    digits = _look("mnist", partial(_idx, mnist.MNIST), data_dir)
    fashion = _look("fashion-mnist", partial(_idx, mnist.FASHION), data_dir)
    made = [_made(name, digits) for name in ("affnist", "multimnist")]
    return [_embedded(), digits, fashion, _look("smallnorb", _smallnorb, data_dir), *made]


def _look(name: str, look: Callable[[Path | None], Entry], data_dir: Path | None) -> Entry:
    try:
        return look(data_dir)
    except NotFound:
        return Entry(name, problem="not found")
    except DataError as error:
        return Entry(name, problem=str(error))


def _embedded() -> Entry:
    digits = load("digits")
    return Entry("digits", "in scikit-learn", "embedded", len(digits.train), len(digits.test), "not needed")


def _idx(which: mnist.Published, data_dir: Path | None) -> Entry:
    folder = mnist.find(which, data_dir)
    train, test = (len(mnist.open_part(which, folder, True, part)) for part in _PARTS)
    return Entry(which.name, str(folder), "idx", train, test, verified="sha256")


def _made(name: str, base: Entry) -> Entry:
    if base.problem:
        return replace(base, name=name, problem=f"made from mnist, {base.problem}")
    examples = "pairs of digits" if name == "multimnist" else base.examples
    return replace(base, name=name, where=f"made from {base.where}", source="generated", examples=examples)


def _smallnorb(data_dir: Path | None) -> Entry:
    source = smallnorb.find(data_dir)
    train, test = (source.count(part) for part in _PARTS)
    return Entry("smallnorb", str(source.path), source.kind, train, test, source.verified(), "stereo pairs")
