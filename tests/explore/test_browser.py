"""The explorer in a real browser: headless Chromium opens each tab, moves, draws, uploads, and sees the page change."""

from __future__ import annotations

import re
import socket
import struct
import subprocess
import sys
import zlib

import pytest

pytest.importorskip("gradio", reason="the extra 'explore' is not installed: pip install 'capsroute[explore]'")
pytest.importorskip("playwright", reason="playwright is not installed: make test-browser installs it")

from PIL import Image
from playwright.sync_api import expect

from capsroute.explore.screenshots import chromium, find_chromium, free_port, open_tab, shoot

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(find_chromium() is None, reason="no chromium on this machine: apt-get install chromium"),
]
TABS = ("Playground", "Inspect", "Equivariance", "Runs")
PATIENCE = 30_000  # milliseconds; the machine may be busy


@pytest.fixture(scope="session")
def server(digits_run):
    """The command itself, in a process of its own."""
    port = free_port()
    command = [sys.executable, "-m", "capsroute", "explore", digits_run, "--runs", digits_run.parent, "--port", port]
    process = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        assert f"http://127.0.0.1:{port}" in line, line
        yield f"http://127.0.0.1:{port}"
        assert process.poll() is None, "the server went down"
    finally:
        process.terminate()
        process.wait(timeout=30)


@pytest.fixture(scope="session")
def browser():
    expect.set_options(timeout=PATIENCE)
    with chromium() as opened:
        yield opened


class Watched:
    """A page that remembers what it complained about and whom it asked."""

    def __init__(self, browser, address, **options):
        self.complaints, self.asked = [], set()
        self.view = browser.new_page(**{"viewport": {"width": 1280, "height": 900}, **options})
        self.view.set_default_timeout(PATIENCE)
        self.view.on("console", lambda m: self.complaints.append(m.text) if m.type == "error" else None)
        self.view.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.view.on("request", lambda request: self.asked.add(request.url))
        self.view.goto(address)
        self.view.locator("#votes svg").wait_for()


@pytest.fixture
def watched(browser, server):
    page = Watched(browser, server)
    yield page
    page.view.close()
    assert page.complaints == []
    outside = [url for url in page.asked if not url.startswith((server, "data:", "blob:"))]
    assert outside == []


@pytest.fixture
def view(watched):
    return watched.view


def pose(view):
    mark = view.locator("#pose")
    return float(mark.get_attribute("cx")), float(mark.get_attribute("cy"))


def set_slider(view, slider, value):
    box = view.locator(f"{slider} input[type=number]")
    box.fill(str(value))
    box.press("Enter")


def wait_for_change(view, read, before):
    """What `read` gives once it differs from `before`."""
    for _ in range(PATIENCE // 100):
        now = read()
        if now != before:
            return now
        view.wait_for_timeout(100)
    raise AssertionError(f"nothing changed: still {before!r:.200}")


def test_every_tab_opens_and_shows_something(view):
    for name, content in zip(
        TABS, ("#votes svg", "#view-1 .cr-bars", "#moved .cr-matrix", "#runs-view svg"), strict=True
    ):
        open_tab(view, name)
        expect(view.locator(content).first).to_be_visible()


def test_sliders_and_kernels_move_the_consensus(view):
    start = pose(view)
    set_slider(view, "#lambda1", 3)
    flat = wait_for_change(view, lambda: pose(view), start)
    told = view.locator("#objective").inner_text()
    view.get_by_label("gaussian", exact=True).check()
    wait_for_change(view, lambda: view.locator("#objective").inner_text(), told)
    set_slider(view, "#iterations", 9)
    expect(view.locator("#objective svg circle")).to_have_count(10)
    assert flat != start


def test_a_slider_moves_by_keyboard(view):
    start = pose(view)
    view.locator("#lambda1 input[type=range]").focus()
    for _ in range(40):
        view.keyboard.press("ArrowRight")
    assert float(view.locator("#lambda1 input[type=number]").input_value()) == pytest.approx(0.5)
    wait_for_change(view, lambda: pose(view), start)


def test_votes_are_dragged_with_the_mouse_and_drawn_anew(view):
    start = pose(view)
    box = view.locator("#votes svg").bounding_box()
    where = view.locator("#votes [data-vote='0'] circle").last.bounding_box()
    x, y = where["x"] + where["width"] / 2, where["y"] + where["height"] / 2
    # votes may lie on top of each other: the uppermost is taken
    find = "([x, y]) => document.elementFromPoint(x, y).closest('[data-vote]').dataset.vote"
    vote = view.locator(f"#votes [data-vote='{view.evaluate(find, [x, y])}']")
    view.mouse.move(x, y)
    view.mouse.down()
    view.mouse.move(box["x"] + 30, box["y"] + 30, steps=6)
    view.mouse.up()
    dragged = wait_for_change(view, lambda: pose(view), start)
    expect(vote).to_have_attribute("transform", re.compile(r"translate\((2|3|4)\d(\.\d+)? (2|3|4)\d(\.\d+)?\)"))
    view.locator("#resample").click()
    wait_for_change(view, lambda: pose(view), dragged)


def test_votes_are_moved_by_keyboard(view):
    start = pose(view)
    view.locator("#votes svg").focus()
    view.keyboard.press("PageDown")
    for _ in range(12):
        view.keyboard.press("ArrowUp")
    wait_for_change(view, lambda: pose(view), start)


def test_images_iterations_and_a_network_beside_it(view):
    open_tab(view, "Inspect")
    first = view.locator("#view-1")
    before = first.inner_html()
    view.locator("#next").click()
    now = wait_for_change(view, first.inner_html, before)
    expect(view.locator("#number input")).to_have_value("1")
    set_slider(view, "#iteration", 1)
    wait_for_change(view, first.inner_html, now)
    chosen = first.locator(".cr-chosen figcaption").first
    expect(chosen).to_contain_text("iteration 1")
    expect(view.locator("#view-2")).to_be_hidden()
    view.locator("#second input").click()
    view.get_by_role("option", name="the same, untrained").click()
    expect(view.locator("#view-2")).to_contain_text("untrained")


def test_a_number_past_the_last_image_is_explained(view):
    open_tab(view, "Inspect")
    view.locator("#number input").fill("99999")
    view.locator("#number input").press("Enter")
    expect(view.locator("#told [role=alert]")).to_contain_text("has 0 to 358")


def stroke(view, points):
    box = view.locator("#pad canvas").bounding_box()
    for number, (x, y) in enumerate(points):
        view.mouse.move(box["x"] + x, box["y"] + y, steps=4)
        if number == 0:
            view.mouse.down()
    view.mouse.up()


def test_a_digit_is_drawn_with_the_mouse(view):
    open_tab(view, "Inspect")
    view.get_by_label("draw", exact=True).check()
    view.locator("#pad canvas").wait_for()
    stroke(view, [(112, 30), (112, 190)])
    first = view.locator("#view-1")
    expect(first).to_contain_text("taken for 1")
    view.locator("#pad .cr-clear").click()
    expect(view.locator("#told")).to_contain_text("draw a digit")
    stroke(view, [(112, 30), (50, 80), (50, 140), (112, 190), (174, 140), (174, 80), (112, 30)])
    expect(first).to_contain_text("taken for 0")


def test_a_digit_is_drawn_by_keyboard(view):
    open_tab(view, "Inspect")
    view.get_by_label("draw", exact=True).check()
    view.locator("#pad canvas").focus()
    view.keyboard.press("Space")
    for _ in range(18):
        view.keyboard.press("ArrowDown")
    expect(view.locator("#view-1")).to_contain_text("taken for 1")


def bomb():
    """A small PNG that would unpack to 81 million pixels."""

    def chunk(name, content):
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", 9_000, 9_000, 8, 0, 0, 0, 0)
    body = chunk(b"IDAT", zlib.compress(bytes(20_000_000), 9))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + body + chunk(b"IEND", b"")


def upload(view, path):
    if view.locator("#file button[aria-label*='emove'], #file button[aria-label*='lear']").count():
        view.locator("#file button[aria-label*='emove'], #file button[aria-label*='lear']").first.click()
    view.locator("#file input[type=file]").set_input_files(str(path))


def test_files_good_and_bad_are_uploaded(view, tmp_path):
    files = {name: tmp_path / name for name in ("good.png", "words.png", "bomb.png", "large.png")}
    Image.effect_noise((80, 50), 90).save(files["good.png"])
    files["words.png"].write_text("this is no picture")
    files["bomb.png"].write_bytes(bomb())
    files["large.png"].write_bytes(bytes(10 * 2**20 + 7))
    open_tab(view, "Inspect")
    view.get_by_label("upload", exact=True).check()
    told, first = view.locator("#told"), view.locator("#view-1")
    upload(view, files["words.png"])
    expect(told.locator("[role=alert]")).to_contain_text("words.png is no picture that can be read here")
    upload(view, files["bomb.png"])
    expect(told.locator("[role=alert]")).to_contain_text("would unpack to 9000 x 9000 pixels")
    upload(view, files["large.png"])
    expect(told.locator("[role=alert]")).to_contain_text("up to 10 MB")
    expect(first).not_to_contain_text("taken for")
    upload(view, files["good.png"])
    expect(first).to_contain_text("taken for")
    expect(told.locator("[role=alert]")).to_have_count(0)


def test_a_file_that_is_far_too_large_is_refused_before_it_is_kept(browser, server, tmp_path):
    path = tmp_path / "enormous.png"
    path.write_bytes(bytes(30 * 2**20))
    page = Watched(browser, server)
    open_tab(page.view, "Inspect")
    page.view.get_by_label("upload", exact=True).check()
    upload(page.view, path)
    expect(page.view.get_by_text(re.compile("size", re.I)).first).to_be_visible()
    page.view.close()
    # the server is there for the next visitor
    Watched(browser, server).view.close()


def test_the_pose_follows_a_rotation(view):
    open_tab(view, "Equivariance")
    verdict = view.locator("#moved .cr-verdict")
    expect(verdict).to_contain_text("has moved by 0 %")
    set_slider(view, "#rotation", 30)
    expect(verdict).to_contain_text(re.compile(r"has moved by [1-9]\d* %"))
    view.get_by_role("button", name="back to rest").click()
    expect(verdict).to_contain_text("has moved by 0 %")
    view.get_by_label("scale", exact=True).last.check()
    expect(view.locator("#moved")).to_contain_text("scale alone")


def test_runs_are_chosen(view):
    open_tab(view, "Runs")
    expect(view.locator("#runs-view")).to_contain_text("validation error")
    view.get_by_role("checkbox", name="digits-run").uncheck()
    expect(view.locator("#runs-view")).to_contain_text("choose a run above")


def test_tabs_are_reached_by_keyboard(view):
    view.get_by_role("tab", name="Playground").focus()
    view.keyboard.press("Tab")
    view.keyboard.press("Enter")
    expect(view.locator("#view-1")).to_be_visible()


def test_a_phone_shows_all_without_scrolling_sideways(browser, server):
    page = Watched(browser, server, viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    for name in TABS:
        open_tab(page.view, name)
        page.view.wait_for_timeout(500)
        assert page.view.evaluate("document.documentElement.scrollWidth") <= 390, name
    assert page.complaints == []
    page.view.close()


def test_only_this_machine_is_served(server):
    port = int(server.rsplit(":", 1)[1])
    with socket.create_connection(("127.0.0.1", port), timeout=10):
        pass
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # no packet is sent; the kernel says which of this machine's addresses would be used
        probe.connect(("192.0.2.1", 9))
        own = probe.getsockname()[0]
    if own.startswith("127."):
        pytest.skip("this machine has no address but its own")
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((own, port), timeout=10)


def test_pictures_for_the_docs_are_made(browser, server, tmp_path):
    for path in shoot(server, tmp_path, browser):
        assert path.stat().st_size < 200_000
        assert Image.open(path).size == (1280, 860)
