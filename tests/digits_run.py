"""A network trained on the embedded digits for some seconds, once for all test processes: a fixture to import."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def digits_run(tmp_path_factory) -> Path:
    """The folder of a finished run of `digits-similarity`."""
    from capsroute.training.loop import train
    from capsroute.training.recipes import recipe
    from capsroute.training.run import Run
    from capsroute.training.watch import Watcher

    own = tmp_path_factory.getbasetemp()
    # processes of one session share the folder above their own
    shared = own.parent if own.name.startswith("popen-") else own
    run = Run(shared / "runs" / "digits-run")
    run.folder.parent.mkdir(exist_ok=True)
    with (shared / "digits-run.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not run.finished:
            config = recipe("digits-similarity", epochs=3, record_from=1)
            train(config, out=run.folder, force=True, accelerator="cpu", threads=1, watcher=Watcher())
    return run.folder
