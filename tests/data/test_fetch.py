"""Downloads, from a small server in this process."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import made_up
import numpy as np
import pytest

from capsroute.data import fetch, load, mnist, smallnorb, store
from capsroute.errors import DataError


@dataclass
class Server:
    """What is offered, what was asked for, and where the connection breaks (bytes of a file, once)."""

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    breaks: dict[str, int] = field(default_factory=dict)
    ranges: bool = True


@pytest.fixture
def server() -> Iterator[Server]:
    offer = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range") if offer.ranges else None
            offer.asked.append((self.path, wanted))
            content = offer.files.get(self.path)
            if content is None:
                self.send_error(404)
                return
            start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted else 0
            if start >= len(content):
                self.send_error(416)
                return
            body = content[start:]
            self.send_response(206 if wanted else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: offer.breaks.pop(self.path, len(body))])

        def log_message(self, *args: object) -> None:
            pass

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listener.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    offer.address = f"http://127.0.0.1:{listener.server_port}/"
    yield offer
    listener.shutdown()
    listener.server_close()
    thread.join()


@pytest.fixture
def offered(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    """A made-up MNIST at /good/, whose digests are the published ones as far as capsroute knows."""
    made_up.write_mnist(tmp_path / "origin", train=500)
    digests = []
    for name in mnist.FILES.values():
        packed = (tmp_path / "origin" / f"{name}.gz").read_bytes()
        server.files[f"/good/{name}.gz"] = packed
        digests.append(store.digest(gzip.decompress(packed)).removeprefix("sha256:"))
    mirrors = (f"{server.address}bad/", f"{server.address}good/")
    monkeypatch.setattr(mnist, "MNIST", replace(mnist.MNIST, mirrors=mirrors, digests=tuple(digests)))
    return server


IMAGES = "/good/train-images-idx3-ubyte.gz"


def test_fetched_from_a_mirror_into_the_user_cache(offered: Server, own_cache: Path) -> None:
    folder = fetch.fetch("mnist")
    assert folder == own_cache / "mnist"
    assert sorted(path.name for path in folder.iterdir()) == sorted(f"{name}.gz" for name in mnist.FILES.values())
    assert ("/bad/train-images-idx3-ubyte.gz", None) in offered.asked  # the official address comes first
    assert len(load("mnist").train) == 500
    offered.asked.clear()
    fetch.fetch("mnist")
    assert offered.asked == []  # what is there and whole is kept


def test_a_damaged_file_is_fetched_again(offered: Server, tmp_path: Path) -> None:
    folder = fetch.fetch("mnist", tmp_path)
    (folder / IMAGES.rsplit("/")[-1]).write_bytes(b"damaged")
    fetch.fetch("mnist", tmp_path)
    assert len(load("mnist", data_dir=tmp_path).train) == 500


@pytest.mark.parametrize("ranges", [True, False])
def test_an_interrupted_download_is_resumed(offered: Server, tmp_path: Path, ranges: bool) -> None:
    offered.ranges = ranges
    offered.breaks[IMAGES] = 10_000
    with pytest.raises(DataError, match=r"broke after 10000 of \d+ bytes.*Run again to resume") as caught:
        fetch.fetch("mnist", tmp_path)
    assert "\n" not in str(caught.value)
    folder = tmp_path / "mnist"
    assert not (folder / IMAGES.rsplit("/")[-1]).exists()  # half a file never has the name of a whole one
    fetch.fetch("mnist", tmp_path)
    assert ((IMAGES, "bytes=10000-") in offered.asked) == ranges
    assert len(load("mnist", data_dir=tmp_path).train) == 500
    assert not list(folder.glob("*.part"))


def test_halves_from_two_mirrors_are_not_put_together(offered: Server, tmp_path: Path) -> None:
    """The same content, packed otherwise: what came from the first mirror does not continue at the second."""
    other = gzip.compress(gzip.decompress(offered.files[IMAGES]), compresslevel=1)
    assert other != offered.files[IMAGES]
    offered.files[IMAGES.replace("good", "bad")] = other
    offered.breaks[IMAGES.replace("good", "bad")] = 10_000
    fetch.fetch("mnist", tmp_path)
    assert len(load("mnist", data_dir=tmp_path).train) == 500


def test_a_part_that_is_already_whole(offered: Server, tmp_path: Path) -> None:
    folder = tmp_path / "mnist"
    folder.mkdir()
    (folder / f"{IMAGES.rsplit('/')[-1]}.1.part").write_bytes(offered.files[IMAGES])
    fetch.fetch("mnist", tmp_path)
    assert len(load("mnist", data_dir=tmp_path).train) == 500


def test_wrong_content_is_refused(offered: Server, tmp_path: Path) -> None:
    offered.files[IMAGES] = gzip.compress(made_up.idx(np.zeros((500, 28, 28))))
    with pytest.raises(DataError, match=r"bad/: HTTP 404; .*good/train-images.* has sha256:"):
        fetch.fetch("mnist", tmp_path)
    assert list((tmp_path / "mnist").iterdir()) == []


def test_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mnist, "MNIST", replace(mnist.MNIST, mirrors=("http://127.0.0.1:9/",)))
    with pytest.raises(DataError, match=r"could not be fetched: http://127\.0\.0\.1:9/: .*refused.*or copy it to"):
        fetch.fetch("mnist", tmp_path)


def test_a_folder_that_cannot_be_written(offered: Server, tmp_path: Path) -> None:
    (tmp_path / "mnist").write_text("in the way")
    with pytest.raises(DataError, match="mnist cannot be written: File exists; use --data DIR"):
        fetch.fetch("mnist", tmp_path)


def test_what_can_be_fetched() -> None:
    assert len(fetch.downloads("mnist")) == len(fetch.downloads("fashion-mnist")) == 4
    names = [file.name for file in fetch.downloads("smallnorb")]
    assert len(names) == 6
    assert f"{smallnorb.STEMS['train']}-info.mat.gz" in names
    with pytest.raises(DataError, match="'digits' cannot be fetched; mnist, fashion-mnist and smallnorb can"):
        fetch.downloads("digits")
