"""What the documentation shows is so: Python blocks run, page by page, in order; commands and links exist."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
from pathlib import Path

import pytest

from capsroute.bench.compare import Row
from capsroute.bench.report import ratios
from capsroute.data import store
from capsroute.errors import RunError
from capsroute.training import table

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
LANGUAGES = {"python", "bash", "text", "json"}


def blocks(page: Path, language: str) -> list[str]:
    return [code for found, code in FENCE.findall(page.read_text()) if found == language]


def shell_lines() -> dict[str, list[str]]:
    """The words of each command that the pages show, by page and text; what follows a pipe is a command of its own."""
    lines = {}
    for page in PAGES:
        for block in blocks(page, "bash"):
            for line in block.replace("\\\n", " ").splitlines():
                for part in re.split(r"&&|\|", line):
                    words = shlex.split(part.split(">")[0], comments=True)
                    if words := list(itertools.dropwhile(re.compile(r"[A-Z_]+=").match, words)):
                        lines[f"{page.relative_to(ROOT)}: {' '.join(words)}"] = words
    return lines


def arguments(words: list[str]) -> list[str] | None:
    """What a command gives to capsroute, also as a module, or None where it runs something else."""
    if words[0] == "capsroute":
        return words[1:]
    if words[0] in ("python", "torchrun") and ("-m", "capsroute") in itertools.pairwise(words):
        return words[words.index("capsroute") + 1 :]
    return None


SHELL = shell_lines()
CAPSROUTE = {at: given for at, words in SHELL.items() if (given := arguments(words)) is not None}
MAKE = {at: words[1:] for at, words in SHELL.items() if words[0] == "make"}


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_languages(page):
    unknown = {language for language, _ in FENCE.findall(page.read_text())} - LANGUAGES
    assert not unknown, f"blocks in {unknown} would not be checked; use one of {LANGUAGES}"


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=named)
def test_code_runs(page, tmp_path, monkeypatch):
    """In a folder and a data cache of their own; compiled operators are the user's."""
    monkeypatch.setenv("CAPSROUTE_CACHE", os.environ.get("CAPSROUTE_CACHE", str(store.cache_dir())))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    names = {"__name__": f"docs_{page.stem}"}
    for number, block in enumerate(blocks(page, "python"), start=1):
        exec(compile(block, f"{page.name}, block {number}", "exec"), names)


@pytest.mark.parametrize("words", CAPSROUTE.values(), ids=CAPSROUTE.keys())
def test_command_parses(words):
    """The command line's own parser takes the words: no unknown command, option or choice, nothing missing."""
    from typer.main import get_command

    from capsroute.cli import app

    command, rest = get_command(app), list(words)
    while rest and rest[0] in getattr(command, "commands", {}):
        command = command.commands[rest.pop(0)]
    if hasattr(command, "commands"):
        assert not rest or rest[0].startswith("-"), f"{rest[0]!r} is no command"
    if rest != ["--help"]:
        command.make_context("capsroute", rest)


@pytest.mark.parametrize(
    "words", [words for words in CAPSROUTE.values() if words[:1] == ["train"]], ids=lambda words: " ".join(words)
)
def test_training_is_configured(words):
    """Recipes exist, and so does what `--set` changes in them."""
    from capsroute.training.recipes import DEFAULT, recipe

    name = words[1] if len(words) > 1 and not words[1].startswith("-") else DEFAULT
    settings = [value for option, value in itertools.pairwise(words) if option == "--set"]
    recipe(name).with_settings(settings)


@pytest.mark.parametrize("targets", MAKE.values(), ids=MAKE.keys())
def test_make_targets_exist(targets):
    known = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    asked = {word for word in targets if "=" not in word}
    assert asked <= known, f"the Makefile has no {asked - known}"


def test_readme_links_exist():
    links = [link for link in LINK.findall((ROOT / "README.md").read_text()) if "://" not in link]
    assert links
    missing = [link for link in links if not (ROOT / link).exists()]
    assert not missing


def test_results_are_those_of_the_runs():
    """README holds what `capsroute table results/ --markdown` prints; without runs, no row of ours."""
    readme = (ROOT / "README.md").read_text()
    try:
        results = table.collect([ROOT / "results"])
    except RunError:
        assert "| capsroute |" not in readme
        return
    assert table.markdown(results) in readme, "paste the output of `capsroute table results/ --markdown` into README.md"


def measured(path: Path) -> str:
    """The table of a measurement that `capsroute bench --json` wrote, for the page on performance."""
    found = json.loads(path.read_text())
    rows = [Row(**row) for row in found["rows"]]
    where = found["machine"]
    lines = [
        f"{where['processor']}, {where['threads']} threads, torch {where['torch']}, load {where['load']}:",
        "",
        "| routing | path | phase | ms an image | faster by | MB an image | smaller by | steps |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        ratio = ratios(rows, row)
        faster, smaller = ("", "") if ratio is None else (f"{ratio[0]:.1f} x", f"{ratio[1]:.0f} x")
        numbers = f"{row.ms_per_image:.2f} | {faster} | {row.extra_mb_per_image:.2f} | {smaller} | {row.steps}"
        lines.append(f"| {row.routing} | {row.path} | {row.phase} | {numbers} |")
    return "\n".join(lines)


def test_speeds_are_those_measured():
    """The page on performance holds the table of each measurement in results/; without any, no number."""
    page = (ROOT / "docs" / "performance.md").read_text()
    files = sorted((ROOT / "results").glob("bench*.json"))
    assert files or "faster by" not in page
    for file in files:
        assert measured(file) in page, f"paste this into docs/performance.md:\n{measured(file)}"


def test_published_figures_have_one_source():
    published = table.markdown([]).split("\n\n")[0]
    assert published in (ROOT / "docs" / "paper.md").read_text()


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs", reason="the site needs the extra `docs`: make docs")
    pytest.importorskip("mkdocstrings", reason="the site needs the extra `docs`: make docs")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    folder = tmp_path_factory.mktemp("site")
    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True))  # a warning raises
    return folder


def test_site_asks_nobody(site):
    """No page loads a script, style, font or picture from another machine."""
    loaded = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href)=[\"']?((?:https?:)?//[^\"'\s>]+)")
    pages = list(site.rglob("*.html"))
    assert len(pages) > 10
    asked = {address for page in pages for address in loaded.findall(page.read_text())}
    styles = {
        file.name for file in site.rglob("*.css") if re.search(r"(?:@import|url\()\W*(?:https?:)?//", file.read_text())
    }
    assert not asked
    assert not styles


def test_pictures_are_small():
    heavy = [p.name for p in (ROOT / "docs" / "images").rglob("*") if p.is_file() and p.stat().st_size > 200_000]
    assert not heavy, "keep pictures of the documentation under 200 KB each"
