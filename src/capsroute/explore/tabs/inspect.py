"""The controls of Inspect: which networks, which image, which iteration."""

from __future__ import annotations

from typing import Any

import gradio as gr

from capsroute.analysis import Subject
from capsroute.errors import CapsrouteError
from capsroute.explore import inspect, markup
from capsroute.explore.gallery import Gallery
from capsroute.explore.inspect import Looker, Shown
from capsroute.explore.pictures import MAX_BYTES, read_drawing, read_file
from capsroute.explore.tabs import EVERY, LIVE

NOBODY, UNTRAINED = "nothing", "the same, untrained"
SOURCES = ("test image", "draw", "upload")
Answer = tuple[Any, ...]


class InspectTab:
    """An image on the left, what one or two networks make of it on the right."""

    def __init__(self, gallery: Gallery) -> None:
        self.gallery, self.looker = gallery, Looker()
        names = gallery.names
        steps = inspect.steps_of(gallery.open(names[0]))
        with gr.Row():
            with gr.Column(scale=1, min_width=280):
                first = gr.Dropdown(names, value=names[0], label="network", elem_id="first")
                second = gr.Dropdown([NOBODY, UNTRAINED, *names], value=NOBODY, label="beside it", elem_id="second")
                groups = self._images()
                iteration = gr.Slider(0, max(steps, 1), steps, step=1, label="iteration", elem_id="iteration")
                told = gr.HTML("", elem_id="told", apply_default_css=False)
            with gr.Column(scale=3, min_width=300), gr.Row():
                _, at_first, _ = self.view(Shown(number=0), names[0], NOBODY, steps)
                views = [
                    gr.HTML(at_first, elem_id="view-1", min_width=300, apply_default_css=False),
                    gr.HTML("", elem_id="view-2", min_width=300, visible=False, apply_default_css=False),
                ]
        self._wire(groups, [first, second, iteration], [told, *views])
        first.change(self.reach, first, iteration, **LIVE)

    def _images(self) -> list[gr.Group]:
        """Three ways to give an image, of which one is seen at a time."""
        self.shown = gr.State(Shown(number=0))
        self.source = gr.Radio(SOURCES, value=SOURCES[0], label="picture to look at", elem_id="source")
        with gr.Group() as by_number:
            self.number = gr.Number(0, precision=0, minimum=0, label="number of the test image", elem_id="number")
            with gr.Row():
                self.before = gr.Button("previous", size="sm", min_width=80)
                self.after = gr.Button("next", size="sm", min_width=80, elem_id="next")
        with gr.Group(visible=False) as by_drawing:
            self.pad = gr.HTML(
                inspect.PAD, js_on_load=inspect.PAD_SCRIPT, elem_id="pad", padding=True, apply_default_css=False
            )
        with gr.Group(visible=False) as by_file:
            limit = f"a picture, up to {MAX_BYTES // 2**20} MB"
            self.file = gr.File(label=limit, type="filepath", height=140, elem_id="file")
            self.invert = gr.Checkbox(False, label="dark on light: turn it round")
        return [by_number, by_drawing, by_file]

    def _wire(self, groups: list[gr.Group], choices: list[Any], views: list[Any]) -> None:
        live = {**LIVE, "show_progress": "minimal"}
        outputs = [self.shown, *views]
        self.source.change(self.choose, self.source, groups, **LIVE)
        self.number.change(self.numbered, [self.number, *choices], outputs, **live)
        self.before.click(lambda row: max(0, int(row or 0) - 1), self.number, self.number, **LIVE)
        self.after.click(lambda row: int(row or 0) + 1, self.number, self.number, **LIVE)
        self.pad.input(self.drawn, choices, outputs, **EVERY)
        self.file.change(self.uploaded, [self.file, self.invert, *choices], outputs, **live)
        self.invert.change(self.uploaded, [self.file, self.invert, *choices], outputs, **live)
        for control in choices:
            control.change(self.view, [self.shown, *choices], views, **live)

    def view(self, shown: Shown, first: str, second: str, iteration: float) -> Answer:
        """A message, and what each network makes of the image."""
        try:
            subject = self.gallery.open(first)
            parts = []
            for each in [subject, *self._beside(subject, second)]:
                image, labels = inspect.prepare(each, shown, subject)
                parts.append(inspect.describe(each, self.looker.look(each, image), labels, int(iteration)))
        except CapsrouteError as error:
            return markup.alert(str(error)), "", ""
        return "", parts[0], gr.update(value="".join(parts[1:]), visible=len(parts) > 1)

    def _beside(self, subject: Subject, second: str) -> list[Subject]:
        if second == NOBODY:
            return []
        return [inspect.untrained(subject) if second == UNTRAINED else self.gallery.open(second)]

    def choose(self, kind: str) -> Answer:
        return tuple(gr.update(visible=kind == source) for source in SOURCES)

    def numbered(self, row: float | None, *choices: Any) -> Answer:
        shown = Shown(number=int(row or 0))
        return shown, *self.view(shown, *choices)

    def drawn(self, event: gr.EventData, *choices: Any) -> Answer:
        """The pad was drawn on, or cleared."""
        try:
            picture = read_drawing((event._data or {}).get("png", ""))
        except CapsrouteError as error:
            return Shown(), markup.alert(str(error)), "", ""
        if picture is None:
            return Shown(), markup.note("draw a digit"), "", ""
        shown = Shown(picture=picture, drawn=True)
        return shown, *self.view(shown, *choices)

    def uploaded(self, path: str | None, turned: bool, *choices: Any) -> Answer:
        """A file came, went, or is to be turned round."""
        if path is None:
            return Shown(), markup.note("upload a picture"), "", ""
        try:
            shown = Shown(picture=read_file(path), invert=bool(turned))
        except CapsrouteError as error:
            return Shown(), markup.alert(str(error)), "", ""
        return shown, *self.view(shown, *choices)

    def reach(self, name: str) -> Any:
        """The iterations that a network has."""
        last = inspect.steps_of(self.gallery.open(name))
        return gr.update(maximum=max(last, 1), value=last)
