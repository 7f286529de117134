"""Inspect: one image through a network: class activations, couplings by layer and iteration, credit over the image."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from capsroute import pretrained
from capsroute.analysis import Credit, LayerTrace, Subject, coupling_maps, credit, trace
from capsroute.errors import CapsrouteError
from capsroute.explore import markup
from capsroute.explore.pictures import fit_digit, fit_photo, to_channels
from capsroute.figures.inside import layer_name
from capsroute.layers import CapsuleLayer
from capsroute.models import CapsNet

KEPT = 12  # images whose traces are kept, so that moving through the iterations costs nothing


class Shown(NamedTuple):
    """The image to look at: a test image of the first network's data by number, or a picture."""

    number: int | None = None
    picture: Image.Image | None = None
    drawn: bool = False
    invert: bool = False


class Look(NamedTuple):
    """All that is drawn of one image in one network."""

    image: npt.NDArray[np.float32]
    scores: npt.NDArray[np.float32]
    traces: list[LayerTrace]
    maps: list[npt.NDArray[np.float32]]
    credits: list[Credit]


def prepare(subject: Subject, shown: Shown, first: Subject) -> tuple[Tensor, tuple[int, ...]]:
    """The image as `subject` sees it [1, C, h, w], and its true labels where they are known."""
    side, channels = subject.net.image_size[0], subject.net.in_channels
    if shown.number is not None:
        seen = first.images([shown.number])
        labels = tuple(int(n) for n in np.atleast_1d(first.split().labels[shown.number]))
        if subject.dataset_name == first.dataset_name:
            return (seen if subject.transform == first.transform else subject.images([shown.number])), labels
        stored = first.split().images[shown.number]
        pixels = np.moveaxis(stored, 0, -1) if len(stored) == 3 else stored[0]
        return subject.picture(to_channels(fit_photo(Image.fromarray(pixels), side), channels)), ()
    if shown.picture is None:
        raise CapsrouteError("there is no image yet: choose a test image, draw a digit or upload a picture")
    if shown.drawn:
        # embedded digits fill their frame; those of 28 pixels and more keep a margin, as MNIST does
        image = fit_digit(shown.picture, side, 0.0 if side < 16 else 0.19)
    else:
        image = fit_photo(shown.picture, side)
    return subject.picture(to_channels(image, channels, shown.invert)), ()


def untrained(subject: Subject) -> Subject:
    """The same network before training."""
    torch.manual_seed(0)
    net = pretrained.build({"network": type(subject.net).__name__, **subject.net.config}).eval()
    return replace(subject, name=f"{subject.name}, untrained", net=net)


class Looker:
    """Looks into networks, and remembers the last images."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, bytes], Look] = OrderedDict()

    def look(self, subject: Subject, image: Tensor) -> Look:
        key = (subject.name, image.numpy().tobytes())
        if key not in self._kept:
            self._kept[key] = _look(subject, image)
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]


def _look(subject: Subject, image: Tensor) -> Look:
    net = subject.net
    if not isinstance(net, CapsNet):
        with torch.no_grad():
            scores = subject.scores(net.eval()(image).logits).numpy()
        return Look(image[0].numpy(), scores, [], [], [])
    traces = trace(net, image)
    steps = max(len(layer.couplings) for layer in traces)
    credits = [credit(net, image, iteration=step, traces=traces) for step in range(steps)]
    maps = [m[:, 0] for m in coupling_maps(traces, credits[-1])]
    scores = subject.scores(torch.from_numpy(traces[-1].logits[:, 0, 0])).numpy()
    return Look(image[0].numpy(), scores, traces, maps, credits)


def steps_of(subject: Subject) -> int:
    """The last iteration of a network's routing, 0 where it has none."""
    if not isinstance(subject.net, CapsNet):
        return 0
    return max(layer.routing.updates for layer in subject.net.layers if isinstance(layer, CapsuleLayer))


def describe(subject: Subject, look: Look, labels: tuple[int, ...], iteration: int) -> str:
    """The page's part about one network."""
    step = min(iteration, len(look.scores) - 1)
    values = look.scores[step]
    top = int(values.argmax())
    truth = " and ".join(subject.classes[n] for n in labels if n < len(subject.classes))
    told = f"taken for {subject.classes[top]}" + (f"; it is {truth}" if truth else "")
    parts = [f"<h3>{markup.escape(subject.name)}</h3>", f"<p class='cr-verdict'>{markup.escape(told)}</p>"]
    pictures = [markup.picture(markup.levels(look.image), "as the network sees it")]
    if look.credits:
        given = look.credits[min(iteration, len(look.credits) - 1)].pixels[0]
        pictures.append(markup.picture(markup.overlay(look.image, given), f"credit after iteration {step}"))
    parts += [
        markup.row(pictures),
        markup.heading(subject.score_name),
        markup.bars(subject.classes, values.tolist(), labels),
    ]
    if not look.traces:
        return "".join(parts) + markup.note("a convolutional network: no capsules, no routing to look into")
    parts.append(markup.heading("where the capsules behind this class listen"))
    parts.append(markup.note("in brackets how evenly they listen, 1 is flat; the frame marks the iteration chosen"))
    for number, (layer, maps) in enumerate(zip(look.traces, look.maps, strict=True), 1):
        parts.append(markup.note(layer_name(number, len(look.maps))))
        high = float(max(m.max() for m in maps))
        evenness = layer.entropy[:, 0].mean((1, 2))
        parts.append(
            markup.row(
                [
                    markup.picture(
                        markup.heat(m, high), f"iteration {n} ({evenness[n]:.3f})", width=88, chosen=n == step
                    )
                    for n, m in enumerate(maps)
                ]
            )
        )
    return "".join(parts)


# A square to draw on with pointer or keys: arrows move the pen, the space bar puts it down and lifts it.
PAD = """
<canvas class='cr-pad' width='224' height='224' tabindex='0' role='application'
 aria-label='drawing pad; arrow keys move the pen, space puts it down or lifts it'
 style='background:black;touch-action:none;border-radius:4px;cursor:crosshair;max-width:100%'></canvas>
<br><button type='button' class='cr-clear'>clear the drawing</button>
<p class='cr-note'>Draw with mouse, finger or pen; by keyboard, arrows move the pen and space puts it down.</p>
"""
PAD_SCRIPT = """
const canvas = element.querySelector('canvas'), pen = canvas.getContext('2d');
let down = false, at = null, keys = {x: 112, y: 40, down: false};
const clear = () => { pen.fillStyle = 'black'; pen.fillRect(0, 0, 224, 224); };
const stroke = (x, y) => {
  pen.strokeStyle = 'white'; pen.lineWidth = 22; pen.lineCap = pen.lineJoin = 'round';
  pen.beginPath(); pen.moveTo(at ? at[0] : x, at ? at[1] : y); pen.lineTo(x, y + 0.01); pen.stroke(); at = [x, y];
};
const place = (event) => {
  const box = canvas.getBoundingClientRect();
  return [(event.clientX - box.left) * 224 / box.width, (event.clientY - box.top) * 224 / box.height];
};
const tell = () => trigger('input', {png: canvas.toDataURL('image/png')});
clear();
canvas.addEventListener('pointerdown', (e) => {
  down = true; at = null; canvas.setPointerCapture(e.pointerId); stroke(...place(e));
});
canvas.addEventListener('pointermove', (e) => { if (down) stroke(...place(e)); });
canvas.addEventListener('pointerup', () => { if (down) { down = false; tell(); } });
canvas.addEventListener('keydown', (event) => {
  const moves = {ArrowLeft: [-8, 0], ArrowRight: [8, 0], ArrowUp: [0, -8], ArrowDown: [0, 8]};
  if (event.key === ' ') { keys.down = !keys.down; at = null; if (keys.down) stroke(keys.x, keys.y); tell(); }
  else if (event.key in moves) {
    keys.x = Math.min(213, Math.max(11, keys.x + moves[event.key][0]));
    keys.y = Math.min(213, Math.max(11, keys.y + moves[event.key][1]));
    if (keys.down) { stroke(keys.x, keys.y); tell(); }
  } else if (event.key === 'Delete' || event.key === 'Backspace') { clear(); tell(); }
  else return;
  event.preventDefault();
});
element.querySelector('.cr-clear').addEventListener('click', () => { clear(); keys.down = false; tell(); });
"""
