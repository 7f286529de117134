"""`python -m capsroute.explore.screenshots docs/images`: pictures of each tab, by a real browser.

Needs playwright (Python package) and Debian's Chromium; playwright's own browsers are not used.
"""

from __future__ import annotations

import io
import shutil
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image

from capsroute.errors import CapsrouteError

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def find_chromium() -> str | None:
    """Where Chromium is, if it is installed."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


@contextmanager
def chromium() -> Iterator[Any]:
    """A headless browser."""
    from playwright.sync_api import sync_playwright

    path = find_chromium()
    if path is None:
        raise CapsrouteError("there is no chromium on this machine; install it with apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def served(chosen: str | None, runs: Path) -> Iterator[str]:
    """The explorer on a free port of this machine; its address."""
    from capsroute.explore import page
    from capsroute.explore.gallery import Gallery, starting_network

    built = page.build(Gallery(starting_network(chosen, runs, print), runs))
    try:
        yield page.launch(built, "127.0.0.1", free_port())
    finally:
        built.close(verbose=False)


def open_tab(view: Any, name: str) -> None:
    """Click on a tab, which on a narrow page may lie behind the menu."""
    tab = view.get_by_role("tab", name=name)
    if tab.count() and tab.first.is_visible():
        tab.first.click()
    else:
        view.locator(".overflow-menu > button").first.click()
        view.locator(".overflow-dropdown button", has_text=name).click()


def shoot(address: str, folder: Path, browser: Any) -> list[Path]:
    """Pictures of the four tabs, each with something going on."""
    view = browser.new_page(viewport={"width": 1280, "height": 860})
    view.goto(address)
    view.locator("#votes svg").wait_for()
    _set(view, "#lambda2", "0.5")
    written = [_picture(view, folder, "playground")]
    open_tab(view, "Inspect")
    view.locator("#number input").fill("12")
    view.locator("#second input").click()
    view.get_by_role("option", name="the same, untrained").click()
    view.locator("#view-2 .cr-bars").wait_for()
    written.append(_picture(view, folder, "inspect"))
    open_tab(view, "Equivariance")
    _set(view, "#rotation", "25")
    view.locator("#moved .cr-matrix").first.wait_for()
    written.append(_picture(view, folder, "equivariance"))
    open_tab(view, "Runs")
    view.locator("#runs-view").wait_for()
    written.append(_picture(view, folder, "runs"))
    view.close()
    return written


def _set(view: Any, slider: str, value: str) -> None:
    box = view.locator(f"{slider} input[type=number]")
    box.fill(value)
    box.press("Enter")


def _picture(view: Any, folder: Path, name: str) -> Path:
    view.wait_for_timeout(1500)
    path = folder / f"explorer-{name}.png"
    # written anew, without transparency and well packed: a third of the size
    Image.open(io.BytesIO(view.screenshot())).convert("RGB").save(path, optimize=True)
    return path


def main() -> None:
    """Write the pictures into the folder named on the command line."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/images")
    runs = Path(sys.argv[2] if len(sys.argv) > 2 else "runs")
    folder.mkdir(parents=True, exist_ok=True)
    with served(None, runs) as address, chromium() as browser:
        for path in shoot(address, folder, browser):
            print(f"{path} ({path.stat().st_size // 1024} KB)")


if __name__ == "__main__":
    main()
