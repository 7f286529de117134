from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import made_up
import numpy as np
import pytest
import typer
from PIL import Image
from typer.testing import CliRunner

from capsroute.bench import data as bench
from capsroute.data import mnist
from capsroute.data.commands import app
from capsroute.errors import DataError

runner = CliRunner()


def run(*arguments: str) -> str:
    result = runner.invoke(app, arguments, catch_exceptions=False, env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.usefixtures("no_package")
def test_list_as_json(tmp_path: Path) -> None:
    made_up.write_zip(tmp_path / "smallnorb.zip", made_up.Toys().files())
    made_up.write_mnist(tmp_path / "mnist")
    entries = {entry["name"]: entry for entry in json.loads(run("list", "--data", str(tmp_path), "--json"))}
    assert list(entries) == ["digits", "mnist", "fashion-mnist", "smallnorb", "affnist", "multimnist"]
    assert (entries["digits"]["train"], entries["digits"]["test"]) == (1438, 359)
    norb = entries["smallnorb"]
    assert (norb["train"], norb["test"], norb["source"], norb["verified"]) == (30, 30, "png", "no")
    assert norb["where"].endswith("smallnorb.zip")
    assert norb["examples"] == "stereo pairs"
    assert "the published file" in entries["mnist"]["problem"]  # there, but not the real one
    assert entries["affnist"]["problem"].startswith("made from mnist, ")


@pytest.fixture
def no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without Debian's Fashion-MNIST."""
    monkeypatch.setattr(mnist, "FASHION", replace(mnist.FASHION, installed=None))


@pytest.mark.usefixtures("no_package")
def test_list_as_a_table(tmp_path: Path) -> None:
    output = run("list", "--data", str(tmp_path))
    assert "1,438" in output
    assert "not found" in output
    assert f"Looked in --data ({tmp_path}), CAPSROUTE_DATA (not set)" in output


def test_fetch_of_what_needs_none() -> None:
    assert "comes with scikit-learn" in run("fetch", "digits")


@pytest.mark.parametrize("name", ["digits", "smallnorb", "folder"])
def test_show_draws_a_sheet(tmp_path: Path, name: str) -> None:
    if name == "smallnorb":
        made_up.write_zip(tmp_path / "smallnorb.zip", made_up.Toys().files())
    if name == "folder":
        for label in ("a", "b"):
            for number in range(4):
                shade = np.full((9, 9, 3), (10 * number, 0, 99), np.uint8)
                made_up.write_files(tmp_path, {f"own/{label}/{number}.png": made_up.picture(shade)})
        name = f"folder:{tmp_path / 'own'}"
    target = tmp_path / "sheet.png"
    output = run("show", name, "-o", str(target), "--data", str(tmp_path), "--split", "test", "--columns", "3")
    assert f"wrote {target}" in output
    with Image.open(target) as sheet:
        assert min(sheet.size) > 200
        assert len(sheet.convert("L").getcolors()) > 10


def test_show_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the sheet cannot be written to"):
        run("show", "digits", "--columns", "1", "-o", str(tmp_path / "no" / "sheet.png"))
    with pytest.raises(DataError, match=r"the sheet cannot be written to .*sheet\.txt"):
        run("show", "digits", "--columns", "1", "-o", str(tmp_path / "sheet.txt"))


def test_help_does_not_wait_for_torch() -> None:
    program = "import sys, capsroute.data.commands, capsroute.bench.data; print([m for m in HEAVY if m in sys.modules])"
    heavy = ["torch", "numpy", "sklearn", "matplotlib", "PIL"]
    out = subprocess.run(
        [sys.executable, "-c", f"HEAVY = {heavy}; {program}"], capture_output=True, text=True, check=True
    ).stdout
    assert out.strip() == "[]"


def test_bench_measures(tmp_path: Path) -> None:
    made_up.write_zip(tmp_path / "pictures" / "smallnorb.zip", made_up.Toys(70).files())
    result = bench.measure("smallnorb", data_dir=tmp_path / "pictures", seconds=0.2)
    assert (result["dataset"], result["cameras"], result["image"]) == ("smallnorb", "stereo", [2, 32, 32])
    assert result["images_per_core_second"] > 0
    tool = typer.Typer()
    tool.command()(bench.command)
    output = CliRunner().invoke(tool, ["smallnorb", "--data", str(tmp_path / "pictures"), "--seconds", "0.1"]).output
    assert "images per second" in output
    assert "20,000 images a second from one core" in output
    printed = CliRunner().invoke(tool, ["digits", "--seconds", "0.1", "--json"]).output
    assert json.loads(printed)["images_per_second"] > 0
