from __future__ import annotations

import errno
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from capsroute.data import store
from capsroute.errors import DataError

SHAPE = (64, 1, 8, 8)


def recipe() -> store.Recipe:
    images = np.arange(np.prod(SHAPE), dtype=np.uint64).astype(np.uint8).reshape(SHAPE)
    columns = {"labels": np.arange(64) % 3, "instance": np.arange(64)}
    return store.Recipe(SHAPE, (images[start : start + 10] for start in range(0, 64, 10)), columns)


def never() -> store.Recipe:
    raise AssertionError("the cache was built again")


def left_in(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "arrays").iterdir() if not path.name.endswith(".lock"))


def test_built_once_then_memory_mapped(own_cache: Path) -> None:
    first = store.cached("toy-1", recipe)
    again = store.cached("toy-1", never)
    for split in (first, again):
        assert split.images.shape == SHAPE
        assert np.array_equal(split.images[63], np.arange(63 * 64, 64 * 64).astype(np.uint8).reshape(1, 8, 8))
        assert split.labels.tolist() == [i % 3 for i in range(64)]
        assert split.meta["instance"].tolist() == list(range(64))
    mapped = again.images.stored
    assert isinstance(mapped.base, np.memmap)
    assert not mapped.flags.writeable
    assert left_in(own_cache) == ["toy-1"]


@pytest.mark.parametrize("name", ["images.npy", "labels.npy", "complete.json"])
@pytest.mark.parametrize("damage", ["truncated", "grown", "removed", "garbage"])
def test_a_damaged_cache_is_built_again(own_cache: Path, name: str, damage: str) -> None:
    store.cached("toy-1", recipe)
    path = own_cache / "arrays" / "toy-1" / name
    if damage == "removed":
        path.unlink()
    else:
        old = path.read_bytes()
        path.write_bytes({"truncated": old[:-1], "grown": old + b"\0", "garbage": b"garbage"}[damage])
    built = []
    split = store.cached("toy-1", lambda: built.append(1) or recipe())
    assert built == [1]
    assert int(np.asarray(split.images).sum()) == int(np.concatenate(list(recipe().chunks)).sum())
    assert store.cached("toy-1", never).labels.tolist() == split.labels.tolist()


def test_no_pickle_is_ever_opened(own_cache: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple:
            return (os.system, ("touch " + str(own_cache / "exploded"),))

    store.cached("toy-1", recipe)
    path = own_cache / "arrays" / "toy-1" / "labels.npy"
    size = path.stat().st_size
    path.write_bytes(pickle.dumps(Bomb()).ljust(size, b"\0"))
    store.cached("toy-1", recipe)
    assert not (own_cache / "exploded").exists()


PROGRAM = """
    import sys, time
    import numpy as np
    from capsroute.data import store

    name, pause = sys.argv[1], float(sys.argv[2])

    def chunks():
        print(name, "builds", flush=True)
        for start in range(8):
            time.sleep(pause)
            yield np.full((8, 1, 8, 8), start, np.uint8)

    recipe = lambda: store.Recipe((64, 1, 8, 8), chunks(), {"labels": np.arange(64)})
    split = store.cached("toy-2", recipe)
    print(name, "sums to", int(np.asarray(split.images).sum()), flush=True)
"""
WHOLE = sum(range(8)) * 8 * 64


def run(name: str, pause: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), name, str(pause)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ))


def test_two_processes_build_one_cache(own_cache: Path) -> None:
    processes = [run("first", 0.1), run("second", 0.1)]
    lines = "".join(process.communicate(timeout=60)[0] for process in processes).splitlines()
    assert [process.returncode for process in processes] == [0, 0]
    assert len([line for line in lines if line.endswith("builds")]) == 1
    assert len([line for line in lines if line.endswith(f"sums to {WHOLE}")]) == 2
    assert left_in(own_cache) == ["toy-2"]


def test_a_killed_builder_leaves_nothing_that_is_used(own_cache: Path) -> None:
    victim = run("victim", 5.0)
    assert victim.stdout is not None
    assert victim.stdout.readline() == "victim builds\n"
    deadline = time.monotonic() + 20
    while not list((own_cache / "arrays").glob("*.partial-*")) and time.monotonic() < deadline:
        time.sleep(0.01)
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    victim.stdout.close()
    assert len(list((own_cache / "arrays").glob("toy-2.partial-*"))) == 1
    assert store.cached("toy-2", recipe).meta["instance"].tolist() == list(range(64))
    assert left_in(own_cache) == ["toy-2"]


def full_after(chunks: int) -> Iterator[np.ndarray]:
    for _ in range(chunks):
        yield np.zeros((10, 1, 8, 8), np.uint8)
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_one_line_and_leaves_nothing(own_cache: Path) -> None:
    with pytest.raises(
        DataError, match=r"arrays cannot be written: the disk is full; free space or point XDG_CACHE_HOME"
    ) as caught:
        store.cached("toy-1", lambda: store.Recipe(SHAPE, full_after(3), {"labels": np.arange(64)}))
    assert "\n" not in str(caught.value)
    assert left_in(own_cache) == []
    assert len(store.cached("toy-1", recipe)) == 64


def test_a_really_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", small], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no small disk can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        monkeypatch.setenv("XDG_CACHE_HOME", str(small))
        blank = (np.zeros((64, 1, 32, 32), np.uint8) for _ in range(8))
        with pytest.raises(DataError, match="the disk is full"):
            store.cached("toy-1", lambda: store.Recipe((512, 1, 32, 32), blank, {"labels": np.arange(512)}))
        assert left_in(small / "capsroute") == []
        assert len(store.cached("toy-1", recipe)) == 64
    finally:
        subprocess.run(["umount", small], check=True)


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(DataError, match="cannot be written: Not a directory"):
        store.cached("toy-1", recipe)


def test_recipes_that_do_not_keep_their_word(own_cache: Path) -> None:
    with pytest.raises(DataError, match="toy: 64 images came where 65 were announced"):
        store.cached("toy-1", lambda: store.Recipe((65, 1, 8, 8), recipe().chunks, {"labels": np.arange(65)}))
    assert left_in(own_cache) == []


def test_fingerprints_tell_versions_apart(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("one")
    before = store.fingerprint(store.file_mark(path))
    assert store.fingerprint(store.file_mark(path)) == before
    path.write_text("three")
    assert store.fingerprint(store.file_mark(path)) != before


def test_a_read_only_data_folder(tmp_path: Path, own_cache: Path) -> None:
    """Nothing is written beside the data, so folders need no write permission."""
    import made_up

    from capsroute.data import load

    folder = tmp_path / "data"
    made_up.write_zip(folder / "smallnorb.zip", made_up.Toys(10).files())
    made_up.write_mnist(folder / "mnist")
    before = {path: path.stat().st_mtime_ns for path in (folder, *folder.rglob("*"))}
    for path in before:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        for name, options in (("smallnorb", {}), ("affnist", {"verify": False}), ("multimnist", {"verify": False})):
            data = load(name, data_dir=folder, **options)
            assert len(data.train)
            assert len(data.test)
        assert {path: path.stat().st_mtime_ns for path in (folder, *folder.rglob("*"))} == before
        assert len(left_in(own_cache)) == 5
    finally:
        for path in before:
            path.chmod(0o755)


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        store.read(tmp_path)
