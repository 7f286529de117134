"""What a data set is to the rest of the library: `DataSet` with two `Split`s, each opened only when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from capsroute.errors import DataError

if TYPE_CHECKING:
    from capsroute.data.transforms import Transform

Pixels = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]
Part = Literal["train", "test"]


class Moments:
    """Mean and standard deviation of stored images on the scale 0 to 1, computed when first needed, then kept."""

    def __init__(self, stored: Pixels) -> None:
        self._stored = stored
        self._sums: npt.NDArray[np.float64] | None = None

    def sums(self, rows: Numbers) -> npt.NDArray[np.float64]:
        """Sum and sum of squares of all channels, [b, 2]: whole numbers, so the order of adding does not matter."""
        if self._sums is None:
            self._sums = np.full((len(self._stored), 2), np.nan)
        missing = np.unique(rows[np.isnan(self._sums[rows, 0])])
        for start in range(0, len(missing), 1024):
            chunk = missing[start : start + 1024]
            values = self._stored[chunk].reshape(len(chunk), -1).astype(np.float64)
            self._sums[chunk, 0] = values.sum(axis=1)
            self._sums[chunk, 1] = np.einsum("ij,ij->i", values, values)
        return self._sums[rows]


class Images:
    """Rows of a stored uint8 array, chosen but not copied: reads like an array [N, C, H, W]."""

    def __init__(self, stored: Pixels, rows: Numbers | None = None, moments: Moments | None = None) -> None:
        self.stored = stored
        self.rows = np.arange(len(stored)) if rows is None else rows
        self.moments = moments or Moments(stored)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        channels, height, width = self.stored.shape[1:]
        return len(self.rows), channels, height, width

    @property
    def dtype(self) -> np.dtype[np.uint8]:
        return self.stored.dtype

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, key: Any) -> Pixels:
        first, rest = (key[0], key[1:]) if isinstance(key, tuple) else (key, ())
        taken: Pixels = self.stored[self.rows[first]]
        kept = () if taken.ndim < self.stored.ndim else (slice(None),)
        chosen: Pixels = taken[(*kept, *rest)]
        return chosen

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.array(self.stored[self.rows], dtype=dtype)

    def select(self, indices: npt.NDArray[Any]) -> Images:
        return Images(self.stored, self.rows[indices], self.moments)


@dataclass(frozen=True, eq=False)
class Split:
    """Images with their labels, kept as stored; a `Transform` makes of them what the network sees.

    `images` is uint8 [N, C, H, W], `labels` [N] (or [N, 2] for pairs), `meta` what else the files say of each sample
    (`instance`; `elevation` and `azimuth` in degrees; `lighting`). `ids` number the samples and survive `subset`, so
    that a sample is augmented alike in whichever subset it lies.
    """

    images: Images
    labels: Numbers
    ids: Numbers
    meta: Mapping[str, Numbers] = field(default_factory=dict)

    @classmethod
    def of(cls, images: Pixels, labels: npt.ArrayLike, meta: Mapping[str, npt.ArrayLike] | None = None) -> Split:
        """A split of everything that is stored."""
        numbers = np.asarray(labels, dtype=np.int64)
        known = {name: np.asarray(values, dtype=np.int64) for name, values in (meta or {}).items()}
        for what, values in {"labels": numbers, **known}.items():
            if len(values) != len(images):
                raise DataError(f"{len(images)} images but {len(values)} {what}: each image needs one; check the files")
        return cls(Images(images), numbers, np.arange(len(images)), known)

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def look_alikes(self) -> Numbers:
        """Partners of each sample to be joined with (`capsroute.data.chimera`), found when first needed."""
        from capsroute.data import chimera  # which knows splits

        return chimera.look_alikes(self)

    def subset(self, indices: npt.ArrayLike) -> Split:
        """The samples at these positions (or where a mask is true); images are not copied."""
        chosen = np.asarray(indices)
        if chosen.dtype == np.bool_:
            chosen = np.flatnonzero(chosen)
        chosen = chosen.astype(np.int64)
        meta = {name: values[chosen] for name, values in self.meta.items()}
        return replace(
            self, images=self.images.select(chosen), labels=self.labels[chosen], ids=self.ids[chosen], meta=meta
        )


@dataclass(frozen=True, eq=False)
class DataSet:
    """A named data set: where it comes from, what the network will see of it, and its two splits.

    `opener("train")` and `opener("test")` read the files; neither runs before the split is used, so a training run
    that never asks for `test` never reads it.
    """

    name: str
    source: str
    classes: tuple[str, ...]
    channels: int
    image_size: int
    transform: Transform
    opener: Callable[[Part], Split] = field(repr=False)
    cameras: str | None = None
    title: str = ""

    @cached_property
    def train(self) -> Split:
        return self.opener("train")

    @cached_property
    def test(self) -> Split:
        return self.opener("test")

    def default_transform(self, train: bool) -> Transform:
        """How the paper prepares this data set; for validation and test without anything random."""
        return self.transform if train else self.transform.without_noise()

    def describe(self) -> dict[str, str]:
        """What every result says of its data."""
        told = {"dataset": self.name, "source": self.source}
        return told if self.cameras is None else {**told, "cameras": self.cameras}
