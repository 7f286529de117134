# `make train` and `make test` set up all they need in .venv; the other targets build on the same stamp.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: setup train test lint test-slow test-browser sanitize bench docs clean

setup: $(STAMP)

# torch comes first and alone, so that nothing else decides its build; operators that cannot be compiled only say so.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) -e '.[dev]'
	$(BIN)/python -m capsroute.ops.build
	touch $@

train: setup
	$(BIN)/capsroute train

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest -m "not slow and not browser" -n 2 --dist worksteal

test-slow: setup
	$(BIN)/python -m pytest -m slow

# A real browser: Debian's, since Playwright's own download may not be had. Without one the tests say why they skip.
test-browser: setup
	-$(PIP) -e '.[browser]'
	command -v chromium >/dev/null || { apt-get update -qq && apt-get install -y -qq chromium; } || true
	$(BIN)/python -m pytest -m browser tests/explore -rs

sanitize: setup
	$(BIN)/python tests/ops/sanitize.py

bench: setup
	$(BIN)/capsroute bench

# The variable silences the theme's advertisement of its successor, which is not about this site.
docs: setup
	$(PIP) -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) site build dist .mypy_cache .ruff_cache .pytest_cache
