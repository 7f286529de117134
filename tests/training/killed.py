"""Kills a training run again and again, and lets it go on: started by `test_kill_at_any_moment`.

The library is loaded once; each run is a forked process that saves after every step. Half of the kills wait for a
checkpoint to be half written.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
from sklearn import datasets  # noqa: F401  loaded before forking, as all that follows
from tests.training.tiny import tiny, train

from capsroute.training import Run, checkpoint
from capsroute.training.watch import Watcher

KILLS = 24
CONFIG = tiny("epochs=12")


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


def wait_for_write(folder: Path, pid: int) -> bool:
    """Whether a half-written checkpoint was seen before the run ended."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        if any(path.suffix == ".unfinished" for path in folder.glob("checkpoints/*")):
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
        pid = start(folder)
        writing = wait_for_write(folder, pid) if kills % 2 else False
        if not writing:
            time.sleep(rng.uniform(0.0, 0.6))
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        if os.WIFSIGNALED(status):
            kills += 1
            during += writing and any(path.suffix == ".unfinished" for path in folder.glob("checkpoints/*"))
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
