"""The command line: quick to answer, one line for each error, and every command reachable."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.training.tiny import TINY

from capsroute import cli

SETTINGS = [part for setting in (*TINY, "epochs=1") for part in ("--set", setting)]
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def capsroute(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """Runs a command in a folder of its own; gives exit code, output and errors."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["capsroute", *arguments])
        code = 0
        try:
            cli.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return run


def seconds(*arguments: str) -> float:
    before = os.times()
    subprocess.run([sys.executable, "-m", "capsroute", *arguments], check=True, capture_output=True)
    after = os.times()
    return after.children_user - before.children_user + after.children_system - before.children_system


def test_help_answers_at_once() -> None:
    """Measured as processor time, since the machine may be busy; nothing heavy is imported."""
    assert min(seconds("--help") for _ in range(3)) < 1.0
    code = "import sys, capsroute.cli; sys.exit(any(m in sys.modules for m in ('torch', 'numpy', 'matplotlib')))"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_command_is_there(capsroute: Command) -> None:
    _, out, _ = capsroute("--help")
    for name in ("train", "evaluate", "table", "figure", "explore", "bench", "data"):
        assert name in out
        assert capsroute(name, "--help")[0] == 0


def test_train_evaluate_table(capsroute: Command) -> None:
    code, out, _ = capsroute("train", "digits-similarity", *SETTINGS, "--threads", "1", "--out", "first")
    assert code == 0
    assert out.splitlines()[-1] == "the report is first/report.html"
    assert Path("first/report.html").is_file()
    result = json.loads(Path("first/result.json").read_text())
    code, out, _ = capsroute("evaluate", "first", "--threads", "1")
    assert code == 0
    assert f"test error {result['test_error']:.2f} %" in out
    assert Path("first/evaluation/mistakes.png").is_file()
    code, out, _ = capsroute("evaluate", "first", "--threads", "1", "--json")
    assert json.loads(out)[0]["test_error"] == result["test_error"]
    code, out, _ = capsroute("table", "first", "--markdown", "--png", "table.png")
    assert code == 0
    assert f"{result['test_error']:.2f}" in out
    assert Path("table.png").is_file()
    code, out, _ = capsroute("train", "--resume", "--out", "first", "--threads", "1")
    assert code == 0
    assert "finished already" in out


def test_options_go_over_settings(capsroute: Command) -> None:
    capsroute("train", *SETTINGS, "--seed", "3", "--epochs", "2", "--threads", "1", "--precision", "bf16")
    config = json.loads(Path("runs/digits-similarity-3-1/config.json").read_text())["config"]
    assert (config["recipe"], config["seed"], config["epochs"]) == ("digits-similarity", 3, 2)
    assert config["precision"] == "bf16"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("train", "minst-em"), "unknown recipe 'minst-em' (did you mean 'mnist-em'?)"),
        (("train", "--set", "optimizer.lrr=1"), "unknown option 'optimizer.lrr' (did you mean 'lr'?)"),
        (("train", "--set", "batch_size=4000"), "samples do not fill one batch of 4000"),
        (("train", "--threads", "0"), "--threads 0: at least 1"),
        (("train", "mnist-em", "--data", "nowhere"), "nowhere"),
        (("train", "--accelerator", "abacus"), "--accelerator abacus"),
        (("evaluate", "nowhere"), "no network at nowhere"),
        (("evaluate",), "pass either a run's folder or --pretrained NAME"),
        (("evaluate", "--pretrained", "nothing"), "no network at nothing"),
        (("table", "nowhere"), "nowhere cannot be read"),
    ],
)
def test_errors_are_one_line(
    capsroute: Command, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], told: str
) -> None:
    monkeypatch.delenv("CAPSROUTE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "empty")
    code, _, err = capsroute(*arguments)
    assert code == 2
    lines = [line for line in err.splitlines() if line.strip()]
    assert len(lines) == 1, err
    assert lines[0].startswith("capsroute: ")
    assert told in lines[0]


def test_an_unwritable_folder(capsroute: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    code, _, err = capsroute("train", *SETTINGS, "--threads", "1", "--out", "file/run")
    assert code == 2
    assert "file/run/config.json cannot be written" in err
    assert "choose another folder" in err


def test_as_a_module_with_a_wrong_recipe() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "capsroute", "train", "nothing-at-all"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.startswith("capsroute: unknown recipe 'nothing-at-all'")
