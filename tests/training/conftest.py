"""Every test of training works in a folder of its own."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def _without_reports(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing a report takes longer than a tiny run; tests that want one use the fixture `reports`."""
    if "reports" not in request.fixturenames:
        monkeypatch.setattr("capsroute.training.report.write_report", lambda *_: None)


@pytest.fixture
def reports() -> None:
    """Runs write their reports."""
