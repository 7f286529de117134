"""Operators are compiled once, wherever they can be, and their absence is a notice and never a failure."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

import capsroute as cr
from capsroute import ops
from capsroute.capsules import Capsules
from capsroute.ops import build, native
from capsroute.testing import assert_capsules_close

# compiles in a third of the time
QUICK = "-O0"
# the module itself, without the package around it and so without torch, which eight processes would wait for
BUILD_ALONE = f"""
import importlib.util
spec = importlib.util.spec_from_file_location("build", {str(build.__file__)!r})
build = importlib.util.module_from_spec(spec)
spec.loader.exec_module(build)
print(build.build("similarity"))
"""


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """An empty cache, and nothing loaded or complained about yet."""
    monkeypatch.setenv("CAPSROUTE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(build, "_failures", {})
    build.load.cache_clear()
    build._notice.cache_clear()
    yield tmp_path
    build.load.cache_clear()
    build._notice.cache_clear()


def test_eight_processes_compile_once(tmp_path):
    environment = {**os.environ, "CAPSROUTE_CACHE": str(tmp_path), "CAPSROUTE_CXXFLAGS": QUICK}
    command = [sys.executable, "-c", BUILD_ALONE]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, env=environment, **pipes) for _ in range(8)]
    said = [process.communicate(timeout=300) for process in processes]
    assert [process.returncode for process in processes] == [0] * 8, said
    paths = {out.strip() for out, _ in said}
    assert len(paths) == 1
    assert "".join(err for _, err in said).count("compiling the similarity operator") == 1
    library = Path(paths.pop())
    assert library.read_bytes()[:4] == b"\x7fELF"
    assert sorted(path.name for path in library.parent.iterdir()) == [library.name, f"{library.name}.lock"]


def test_a_library_is_found_again_and_needs_no_compiler_then(fresh, monkeypatch, capfd):
    monkeypatch.setenv("CAPSROUTE_CXXFLAGS", QUICK)
    first = build.build("similarity")
    assert "compiling" in capfd.readouterr().err
    monkeypatch.setattr(build, "_run", lambda _: pytest.fail("compiled again"))
    assert build.build("similarity") == first
    assert capfd.readouterr().err == ""


def test_the_cache_tells_builds_apart(monkeypatch):
    keys = {build._key("similarity")}
    monkeypatch.setenv("CAPSROUTE_CXXFLAGS", "-march=x86-64")
    keys.add(build._key("similarity"))
    monkeypatch.setenv("CXX", "g++-12")
    keys.add(build._key("similarity"))
    monkeypatch.setattr(build, "_processor", lambda: "another one")
    keys.add(build._key("similarity"))
    monkeypatch.setattr(Path, "read_text", lambda self: "int changed;")
    keys.add(build._key("similarity"))
    assert len(keys) == 5


def test_a_home_that_cannot_be_written(fresh, monkeypatch):
    monkeypatch.delenv("CAPSROUTE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/no-such-place")
    monkeypatch.setenv("CAPSROUTE_CXXFLAGS", QUICK)
    library = build.build("similarity")
    assert library.is_relative_to(fresh / "tmp")
    assert library.parent.stat().st_mode & 0o077 == 0


def test_a_folder_of_somebody_else_is_not_trusted(fresh, monkeypatch):
    monkeypatch.setattr(build, "_is_ours", lambda folder: False)
    with pytest.warns(RuntimeWarning, match="no folder to build in"):
        assert build.load("similarity") is None
    assert "belongs to another user" in build.reason("similarity")


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("CXX", "/no/such/g++", "no C++ compiler '/no/such/g++' on PATH; install g++ or set CXX"),
        ("CAPSROUTE_CXXFLAGS", "-fno-such-thing", "unrecognized command-line option"),
        ("CAPSROUTE_CXXFLAGS", "-include no-such-file.hpp", "no-such-file.hpp"),
    ],
)
def test_without_a_build_layers_are_tiled_after_one_notice(fresh, monkeypatch, name, value, why):
    monkeypatch.setenv(name, value)
    torch.manual_seed(0)
    layer = cr.DenseCapsules(5, 2, routing="similarity")
    caps = Capsules.from_logits(torch.randn(2, 5, 4, 4), torch.randn(2, 5))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        out = layer(caps)
        layer(caps)
        assert ops.status()["em"].startswith("off: ")
    told = [str(warning.message) for warning in caught if issubclass(warning.category, RuntimeWarning)]
    assert len(told) == 1
    assert "tiled path" in told[0]
    assert why in told[0]
    layer.fused = False
    assert_capsules_close(out, layer(caps), 0.0)
    layer.fused = True
    with pytest.raises(ValueError, match="fused=True, but"):
        layer(caps)


RUNTIMES = """
from pathlib import Path
from capsroute import ops
assert set(ops.status().values()) == {"active"}, ops.status()
mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
print(*(path for path in mapped if Path(path).name.startswith(("libgomp", "libiomp", "libomp"))), sep="\\n")
"""


def test_one_openmp_runtime():
    """In a process of its own: other packages that the tests import may bring a runtime along."""
    run = subprocess.run([sys.executable, "-c", RUNTIMES], capture_output=True, text=True, check=True)
    (runtime,) = run.stdout.splitlines()
    assert Path(runtime).is_relative_to(Path(torch.__file__).parent.parent)


def test_the_number_of_threads_is_torchs():
    poses, weight, index = torch.zeros(1, 2, 4, 4), torch.zeros(2, 3, 4, 4), torch.zeros(1, 2, dtype=torch.int32)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        assert native.geometry(poses, weight, index)[-1] == threads


def test_prebuild_compiles_every_operator():
    built = build.prebuild()
    assert sorted(built) == build.names()
    assert all(isinstance(path, Path) and path.exists() for path in built.values())


VARIANTS = {
    "baseline x86-64": "-march=x86-64 -O1",
    "AVX2": "-march=x86-64-v3 -O1",
    "16 lanes": "-DCAPSROUTE_LANES=16 -O1",
}


@pytest.mark.parametrize(
    "variant", ["baseline x86-64", *(pytest.param(name, marks=pytest.mark.slow) for name in ("AVX2", "16 lanes"))]
)
def test_other_processors(variant):
    """The operators' own tests of agreement pass on builds for other vector widths."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "agrees and stride or extremes"]
    files = sorted(Path(__file__).parent.glob("test_*_operator.py"))
    environment = {**os.environ, "CAPSROUTE_CXXFLAGS": VARIANTS[variant]}
    result = subprocess.run([*command, *files], env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize("operator", build.names())
def test_sanitisers_have_nothing_to_say(operator):
    from sanitize import sanitize

    assert "calls replayed" in sanitize(operator)
