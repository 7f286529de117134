"""Kills a training run again and again, and lets it go on: started by `test_kill_at_any_moment`.

The library is loaded once; each run is a forked process that saves after every step. A third of the kills waits
for a checkpoint to be half written.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from sklearn import datasets  # noqa: F401  loaded before forking, as all that follows
from tests.training.tiny import tiny, train

from capsroute.training import Run, checkpoint
from capsroute.training.watch import Watcher

KILLS = 22
CONFIG = tiny("epochs=8")


def child(folder: Path) -> None:
    real = os.fsync

    def slow(descriptor: int) -> None:
        time.sleep(0.004)  # a slow disk: more moments to be killed at
        real(descriptor)

    os.fsync = slow
    train(CONFIG, out=folder, resume=True, watcher=Watcher(), checkpoint_seconds=0)


def start(folder: Path) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            child(folder)
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return pid


def finished(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("checkpoints/*.safetensors")}


def half_written(folder: Path) -> bool:
    return any(path.suffix == ".unfinished" for path in folder.glob("checkpoints/*"))


def wait_until(seen: Callable[[], bool], pid: int) -> bool:
    """Whether it was seen before the run ended; a busy machine may take its time."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        if seen():
            return True
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return False
    return False


def main(root: Path) -> None:
    folder, rng = root / "killed", random.Random(0)
    kills = during = resumed = 0
    while kills < KILLS:
        if checkpoint.latest(folder / "checkpoints", print) is not None:
            resumed += 1
        before = finished(folder)
        pid = start(folder)
        # every third kill falls anywhere, also before the first checkpoint; the others after one more was written,
        # at any moment or during the next write
        if kills % 3:
            wait_until(lambda before=before: bool(finished(folder) - before), pid)
        writing = kills % 3 == 2 and wait_until(lambda: half_written(folder), pid)
        if not writing:
            time.sleep(rng.uniform(0.0, 0.3))
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        if os.WIFSIGNALED(status):
            kills += 1
            during += writing and half_written(folder)
        else:
            assert os.WEXITSTATUS(status) == 0, "the run failed by itself"
            assert Run(folder).finished
            Run(folder).clear()  # it got to the end: once more from the start
    for name in (folder, root / "whole"):
        _, status = os.waitpid(start(name), 0)
        assert status == 0
    print(json.dumps({"kills": kills, "during_write": during, "resumed": resumed}))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
