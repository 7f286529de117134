"""Several processes: the same curve as one, and a lost rank costs no more than the work since the last checkpoint."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.training.tiny import TINY, Notes, tiny, train

from capsroute.training import Run
from capsroute.training.config import ConfigError
from capsroute.training.ranks import share

ROOT = Path(__file__).parents[2]
EPOCHS = 24
SMOOTH = "optimizer.eps=1e-3"  # with less, Adam makes a whole step of a rounding error where a gradient is near zero


@contextmanager
def two_ranks(folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A job of two processes that does not outlive the test."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    settings = [part for setting in TINY for part in ("--set", setting)]
    train_command = ["-m", "capsroute", "train", "digits-similarity", *settings, "--threads", "1", "--out", str(folder)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    job = subprocess.Popen([*command, *train_command, *options], cwd=ROOT, start_new_session=True, **pipes)
    try:
        yield job
    finally:
        with suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)


def wait_for_epochs(run: Run, count: int, job: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 120
    while len([entry for entry in run.metrics if "health" in entry]) < count:
        assert time.monotonic() < end, "no progress"
        assert job.poll() is None, job.communicate()[0]
        time.sleep(0.02)


def children(pid: int) -> list[int]:
    return [int(number) for number in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def values(run: Run, name: str) -> np.ndarray:
    return np.array([entry[name] for entry in run.result["curve"]])


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="this torch has no gloo")
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="children are found through /proc")
def test_two_ranks_one_dies_and_one_finishes(tmp_path: Path) -> None:
    """Two processes train, one is killed, a single one goes on: all of it on the curve of a single process."""
    alone = train(tiny(f"epochs={EPOCHS}", SMOOTH), out="alone", watcher=Notes())
    run = Run(tmp_path / "ranks")
    with two_ranks(run.folder, "--epochs", str(EPOCHS), "--set", SMOOTH) as job:
        wait_for_epochs(run, 6, job)
        os.kill(children(job.pid)[1], signal.SIGKILL)
        said = job.communicate(timeout=120)[0]
    assert job.returncode != 0
    assert "another rank was lost" in said
    assert "--resume" in said
    done = [entry for entry in run.metrics if "health" in entry]
    assert 6 <= len(done) < EPOCHS
    resumed = train(tiny(f"epochs={EPOCHS}", SMOOTH), out=run.folder, resume=True, watcher=Notes())
    for name in ("train_loss", "val_loss"):
        np.testing.assert_allclose(values(resumed, name), values(alone, name), rtol=2e-4)
    assert np.ptp(values(alone, "train_loss")) > 0.1, "a curve that does not move proves nothing"


@pytest.mark.slow
@pytest.mark.parametrize(
    "norm", ["model.pose_norm=scale", "model.pose_norm=batch", "model.pose_norm=type", "model.class_norm=true"]
)
def test_one_rank_then_two(norm: str, tmp_path: Path) -> None:
    config = tiny("epochs=6", SMOOTH, norm)
    alone = train(config, out="alone", watcher=Notes())
    run = Run(tmp_path / "ranks")
    with pytest.raises(Exception, match="stopped by a signal"):
        train(config, out=run.folder, watcher=Notes({9: lambda: os.kill(os.getpid(), signal.SIGINT)}))
    with two_ranks(run.folder, "--epochs", "6", "--set", SMOOTH, "--set", norm, "--resume") as job:
        said = job.communicate(timeout=200)[0]
    assert job.returncode == 0, said
    assert "the report is" in said
    np.testing.assert_allclose(values(run, "train_loss"), values(alone, "train_loss"), rtol=2e-4)
    assert run.result["test_error"] == pytest.approx(alone.result["test_error"], abs=0.6)


def test_a_batch_must_divide() -> None:
    assert share(64, 2) == 32
    with pytest.raises(ConfigError, match="batch_size=10 cannot be shared equally by 4 ranks; use a multiple of 4"):
        share(10, 4)
