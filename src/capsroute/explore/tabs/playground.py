"""The playground's controls."""

from __future__ import annotations

from typing import Any

import gradio as gr

from capsroute.analysis.toy import Toy
from capsroute.explore import playground
from capsroute.explore.playground import Settings, Shape
from capsroute.explore.tabs import EVERY, LIVE
from capsroute.routing.kernels import KERNELS

INTRODUCTION = (
    "Votes (blue, by coupling; green rings, by activation) agree on one output pose (yellow). Drag a vote, or move the "
    "sliders. The cross is the origin, from which cosine similarity is seen."
)
Answer = tuple[Any, ...]


class PlaygroundTab:
    """Sliders beside the plane of votes and the objective."""

    def __init__(self) -> None:
        start, shape = Settings(), Shape()
        toy = playground.make_toy(shape)
        found = playground.route(toy, start)
        gr.Markdown(INTRODUCTION)
        with gr.Row():
            with gr.Column(scale=1, min_width=280):
                self.settings = _settings(start)
                with gr.Accordion("the votes", open=False):
                    self.shapes = _shapes(shape)
                again = gr.Button("new votes", elem_id="resample")
            with gr.Column(scale=2, min_width=300):
                plot = gr.HTML(
                    playground.draw(toy, found), js_on_load=playground.SCRIPT, elem_id="votes", apply_default_css=False
                )
            with gr.Column(scale=1, min_width=260):
                told = gr.HTML(playground.report(found, start), elem_id="objective", apply_default_css=False)
        votes, seed = gr.State(toy), gr.State(shape.seed)
        for control in self.settings:
            control.change(self.settle, [votes, *self.settings], [plot, told], **LIVE)
        every = [seed, *self.shapes, *self.settings]
        for control in self.shapes:
            control.change(self.reshape, every, [votes, plot, told], **LIVE)
        again.click(self.resample, every, [seed, votes, plot, told], **LIVE)
        plot.input(self.dragged, [votes, *self.settings], [votes, plot, told], **EVERY)

    def settle(self, toy: Toy, *values: Any) -> Answer:
        """Route the votes as they lie."""
        chosen = Settings(*values)
        found = playground.route(toy, chosen)
        return playground.draw(toy, found), playground.report(found, chosen)

    def reshape(self, seed: int, *values: Any) -> Answer:
        """Draw the votes anew, from clusters of another shape."""
        count = len(self.shapes)
        separation, spread, elongation, sharpness, votes = values[:count]
        toy = playground.make_toy(Shape(separation, spread, elongation, sharpness, int(votes), seed))
        return toy, *self.settle(toy, *values[count:])

    def resample(self, seed: int, *values: Any) -> Answer:
        return seed + 1, *self.reshape(seed + 1, *values)

    def dragged(self, event: gr.EventData, toy: Toy, *values: Any) -> Answer:
        moved = playground.drag(toy, (event._data or {}).get("moves"))
        return moved, *self.settle(moved, *values)


def _settings(start: Settings) -> list[Any]:
    kernels = ["cosine", *(name for name in KERNELS if name != "cosine")]
    return [
        gr.Radio(kernels, value=start.kernel, label="kernel"),
        gr.Slider(0.1, 5, start.width1, step=0.1, label="width 1 (gaussian, laplace)"),
        gr.Slider(0.1, 5, start.width2, step=0.1, label="width 2"),
        gr.Slider(0, 3, start.lambda1, step=0.01, label="λ₁: stay uniform", elem_id="lambda1"),
        gr.Slider(0, 3, start.lambda2, step=0.01, label="λ₂: follow activations", elem_id="lambda2"),
        gr.Slider(1, 20, start.iterations, step=1, label="iterations", elem_id="iterations"),
    ]


def _shapes(shape: Shape) -> list[Any]:
    return [
        gr.Slider(0, 180, shape.separation, step=1, label="angle between the clusters"),
        gr.Slider(0.1, 1.5, shape.spread, step=0.05, label="spread"),
        gr.Slider(1, 5, shape.elongation, step=0.1, label="elongation"),
        gr.Slider(1, 60, shape.sharpness, step=1, label="covariance scale of the activations"),
        gr.Slider(3, 60, shape.votes, step=1, label="votes of each cluster"),
    ]
