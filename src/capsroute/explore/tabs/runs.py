"""The controls of Runs: which of those in the folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr

from capsroute.errors import CapsrouteError
from capsroute.explore import markup, runs
from capsroute.explore.tabs import LIVE

AT_FIRST = 4


class RunsTab:
    """A list to choose from, above what is compared."""

    def __init__(self, folder: Path, page: gr.Blocks) -> None:
        self.folder = folder
        known = runs.names(folder)
        again = gr.Button("look again", size="sm")
        chosen = gr.CheckboxGroup(known, value=known[:AT_FIRST], label=f"runs in {folder}", elem_id="chosen-runs")
        view = gr.HTML(elem_id="runs-view", apply_default_css=False)
        chosen.change(self.show, chosen, view, **LIVE)
        again.click(self.refresh, chosen, chosen, **LIVE).then(self.show, chosen, view, **LIVE)
        page.load(self.show, chosen, view, **LIVE)

    def show(self, names: list[str]) -> str:
        try:
            return runs.describe(self.folder, names)
        except CapsrouteError as error:
            return markup.alert(str(error))

    def refresh(self, names: list[str]) -> Any:
        found = runs.names(self.folder)
        return gr.update(choices=found, value=[name for name in names if name in found] or found[:AT_FIRST])
