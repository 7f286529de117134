"""Tests read data where it lies and write nothing into the user's own cache."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from capsroute.data import store
from capsroute.data.dataset import Split

_REAL = os.environ.get("CAPSROUTE_DATA")
_USERS_CACHE = os.environ.get("XDG_CACHE_HOME", "")


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own, and no data but what the test names."""
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.delenv("CAPSROUTE_DATA", raising=False)
    return cache / "capsroute"


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder with the real files."""
    shared = Path(__file__).resolve().parents[3] / "shared" / "data"
    folder = Path(_REAL) if _REAL else shared
    if not folder.is_dir():
        pytest.skip(f"no real data: CAPSROUTE_DATA is not set and {shared} is not there")
    return folder


@pytest.fixture
def users_cache(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's real cache, to read what is there already; `own_cache` is undone."""
    monkeypatch.setenv("XDG_CACHE_HOME", _USERS_CACHE)
    return store.cache_dir()


@pytest.fixture
def toys() -> Split:
    """What smallNORB looks like, small: 5 classes, 5 toys each, 12 views, stereo."""
    count = 300
    numbers = np.arange(count)
    images = np.random.default_rng(0).integers(0, 256, (count, 2, 48, 48), dtype=np.uint8)
    meta = {"instance": numbers // 5 % 5, "azimuth": numbers // 25 % 12 * 20, "elevation": 30 + numbers % 9 * 5}
    return Split.of(images, numbers % 5, meta)
