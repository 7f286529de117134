"""Equivariance: rotate, shift and scale the input, and watch the class pose and activation follow."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from capsroute.analysis import Path, Subject, affine, affine_frames, capsule_network, follow
from capsroute.analysis.equivariance import MAPS, UNITS, Map
from capsroute.explore import markup

STEPS = 15


class Change(NamedTuple):
    """Where the sliders stand: degrees, shares of the image's side, a factor."""

    rotation: float = 0.0
    right: float = 0.0
    down: float = 0.0
    scale: float = 1.0

    def apply(self, image: Tensor) -> Tensor:
        return affine(image, rotation=self.rotation, shift=(self.right, self.down), scale=self.scale)

    def value(self, what: Map) -> float:
        return {"rotation": self.rotation, "shift": self.right, "scale": self.scale, "shear": 0.0}[what]


class Rest(NamedTuple):
    """The class that wins for the unchanged image, its pose, and its path through one change alone."""

    label: int
    pose: np.ndarray[tuple[int, int], np.dtype[np.float32]]
    path: Path


def at_rest(subject: Subject, image: Tensor, what: Map) -> Rest:
    """What the changed image is compared with."""
    net = capsule_network(subject.net)
    values = np.linspace(*MAPS[what], STEPS)
    frames = affine_frames(image, what, values)
    with torch.no_grad():
        caps = net.eval()(image)
    label = int(caps.logits[0].argmax())
    return Rest(label, caps.poses[0, label].numpy(), follow(net, frames, values, [label], score=subject.scores))


def describe(subject: Subject, image: Tensor, change: Change, what: Map, rest: Rest) -> str:
    """The page's part: the changed image, activations, the pose now and before, and the path of the pose."""
    net = subject.net
    moved = change.apply(image)
    with torch.no_grad():
        caps = net.eval()(moved)
    values = subject.scores(caps.logits[0]).numpy()
    pose = caps.poses[0, rest.label].numpy()
    name = subject.classes[rest.label]
    limit = float(np.abs(rest.path.poses).max())
    away = float(np.linalg.norm(pose - rest.pose) / max(float(np.linalg.norm(rest.pose)), 1e-9))
    taken = subject.classes[int(values.argmax())]
    verdict = f"taken for {taken}; the pose of {name} has moved by {100 * away:.0f} % of its length"
    matrices = [
        f"<figure>{markup.matrix(matrix, limit)}<figcaption>{caption}</figcaption></figure>"
        for matrix, caption in ((rest.pose, "pose at rest"), (pose, "pose now"))
    ]
    return "".join(
        [
            f"<p class='cr-verdict'>{markup.escape(verdict)}</p>",
            markup.row(
                [
                    markup.picture(markup.levels(image[0].numpy()), "at rest"),
                    markup.picture(markup.levels(moved[0].numpy()), "now"),
                    *matrices,
                ]
            ),
            markup.heading(subject.score_name),
            markup.bars(subject.classes, values.tolist(), (rest.label,)),
            _paths(rest, change, what, name),
        ]
    )


def _paths(rest: Rest, change: Change, what: Map, name: str) -> str:
    unit = UNITS.get(what, "share of the side" if what == "shift" else "factor")
    values = rest.path.values.tolist()
    flat = rest.path.poses[:, 0].reshape(len(values), -1)
    moving = np.argsort(-flat.std(0))[:6]
    rows, columns = rest.pose.shape
    assert rows * columns == flat.shape[1]
    series = {f"row {n // columns + 1}, column {n % columns + 1}": (values, flat[:, n].tolist()) for n in moving}
    axis = f"{what} ({unit})"
    here = change.value(what)
    score = {f"score of {name}": (values, rest.path.scores[:, 0].tolist())}
    return (
        markup.heading(f"{what} alone: the pose should move, elements that move most")
        + markup.lines(series, axis, "pose element", at=here, points=False)
        + markup.heading(f"{what} alone: the class score should stay")
        + markup.lines(score, axis, "class score", from_zero=True, at=here)
    )
