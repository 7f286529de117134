"""The controls of Equivariance: which image, and how it is changed."""

from __future__ import annotations

from typing import Any

import gradio as gr

from capsroute.errors import CapsrouteError
from capsroute.explore import equivariance, markup
from capsroute.explore.equivariance import Change
from capsroute.explore.gallery import Gallery
from capsroute.explore.tabs import LIVE
from capsroute.models import CapsNet

INTRODUCTION = (
    "A capsule's pose should follow the input while its activation, that the thing is there, should stay. Curves show "
    "one change alone; the line marks where the slider stands."
)


class EquivarianceTab:
    """Sliders beside the changed image, its pose and its path."""

    def __init__(self, gallery: Gallery) -> None:
        self.gallery = gallery
        names = [name for name in gallery.names if isinstance(gallery.open(name).net, CapsNet)]
        if not names:
            gr.Markdown("None of these networks has capsules, so there is no pose to follow.")
            return
        gr.Markdown(INTRODUCTION)
        with gr.Row():
            with gr.Column(scale=1, min_width=280):
                name = gr.Dropdown(names, value=names[0], label="network")
                number = gr.Number(0, precision=0, minimum=0, label="number of the test image")
                sliders: list[Any] = [
                    gr.Slider(-45, 45, 0, step=1, label="rotation (degrees)", elem_id="rotation"),
                    gr.Slider(-0.2, 0.2, 0, step=0.01, label="shift to the right (share of the side)"),
                    gr.Slider(-0.2, 0.2, 0, step=0.01, label="shift down"),
                    gr.Slider(0.7, 1.3, 1, step=0.01, label="scale"),
                ]
                what = gr.Radio(["rotation", "shift", "scale"], value="rotation", label="curves over")
                back = gr.Button("back to rest")
            with gr.Column(scale=2, min_width=300):
                at_first = self.show(names[0], 0, "rotation", 0, 0, 0, 1)
                view = gr.HTML(at_first, elem_id="moved", apply_default_css=False)
        inputs: list[Any] = [name, number, what, *sliders]
        for control in inputs:
            control.change(self.show, inputs, view, **LIVE)
        back.click(lambda: (0, 0, 0, 1), None, sliders, **LIVE)

    def show(self, name: str, row: float | None, over: Any, *values: float) -> str:
        try:
            subject = self.gallery.open(name)
            image = subject.images([int(row or 0)])
            rest = equivariance.at_rest(subject, image, over)
            return equivariance.describe(subject, image, Change(*values), over, rest)
        except CapsrouteError as error:
            return markup.alert(str(error))
