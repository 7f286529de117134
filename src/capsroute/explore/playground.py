"""The playground: the toy problem, its votes to be dragged, and the objective of eq. 2 at every iteration."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from capsroute.analysis.toy import Cluster, Consensus, Toy, consensus, sample
from capsroute.explore import markup
from capsroute.figures.style import BLUE, GREEN, YELLOW

# the part of the plane that is shown, and how many units of the drawing one unit of it has
LEFT, RIGHT, LOW, HIGH, SCALE = -4.0, 4.0, -1.2, 4.6, 60.0
FLAT_AREA = 60.0
SEEDS = 10_000


class Settings(NamedTuple):
    """Where the sliders stand."""

    kernel: str = "cosine"
    width1: float = 1.0
    width2: float = 2.0
    lambda1: float = 0.1
    lambda2: float = 0.1
    iterations: int = 5


class Shape(NamedTuple):
    """How the clusters are made."""

    separation: float = 80.0
    spread: float = 0.6
    elongation: float = 1.8
    sharpness: float = 12.0
    votes: int = 25
    seed: int = 0


def make_toy(shape: Shape) -> Toy:
    """Two clusters at the same distance from the origin, `separation` degrees apart, each stretched its own way."""
    middle, radius = 90.0, 3.0
    clusters = []
    for side, (tilt, size) in zip((0.5, -0.5), ((-15.0, 1.0), (20.0, 0.8)), strict=True):
        angle = math.radians(middle + side * shape.separation)
        mean = (radius * math.cos(angle), radius * math.sin(angle))
        long = size * shape.spread * math.sqrt(shape.elongation)
        short = size * shape.spread / math.sqrt(shape.elongation)
        clusters.append(Cluster(mean, (long, short), math.degrees(angle) + tilt))
    return sample(clusters, size=shape.votes, covariance_scale=shape.sharpness, seed=shape.seed % SEEDS)


def route(toy: Toy, settings: Settings) -> Consensus:
    """The routing with the sliders' values; both lambdas at zero would divide by nothing, so a hair is kept."""
    return consensus(
        toy.votes,
        toy.activations,
        lambda1=max(float(settings.lambda1), 1e-3),
        lambda2=max(float(settings.lambda2), 0.0),
        kernel=settings.kernel,
        widths=(float(settings.width1), float(settings.width2)),
        iterations=int(settings.iterations),
    )


def drag(toy: Toy, moves: Any) -> Toy:
    """The problem with votes put elsewhere, each as [number, x, y]; what a page sends is checked."""
    votes = toy.votes.copy()
    for move in moves if isinstance(moves, list) else []:
        if not (isinstance(move, list) and len(move) == 3 and all(isinstance(v, (int, float)) for v in move)):
            continue
        number, x, y = move
        if number in range(len(votes)) and math.isfinite(x) and math.isfinite(y):
            votes[int(number)] = np.clip(x, LEFT, RIGHT), np.clip(y, LOW, HIGH)
    return toy._replace(votes=votes)


def draw(toy: Toy, found: Consensus) -> str:
    """Votes as bubbles: blue by coupling, green rings by activation; the pose's way from its start, in yellow."""
    parts = [
        f"<path d='M{_x(-0.15):.1f} {_y(0):.1f}H{_x(0.15):.1f}M{_x(0):.1f} {_y(-0.15):.1f}V{_y(0.15):.1f}' "
        "stroke='currentColor'/>"
    ]
    couplings, count = found.couplings[-1], len(toy.votes)
    for number, ((x, y), c, a) in enumerate(zip(toy.votes, couplings, toy.activations, strict=True)):
        told = f"<title>vote {number + 1}: coupling {c:.4f}, activation {a:.4f}</title>"
        parts.append(
            f"<g data-vote='{number}' transform='translate({_x(x):.1f} {_y(y):.1f})' style='cursor:grab'>{told}"
            f"<circle r='{_radius(a * count):.1f}' fill='none' stroke='{GREEN}'/>"
            f"<circle r='{_radius(c * count):.1f}' fill='{BLUE}' fill-opacity='.6'/>"
            "<circle r='11' fill='transparent'/></g>"
        )
    way = " ".join(f"{_x(x):.1f},{_y(y):.1f}" for x, y in found.poses)
    x, y = found.poses[-1]
    parts.append(f"<polyline points='{way}' fill='none' stroke='currentColor' stroke-dasharray='4 3'/>")
    parts.append(
        f"<circle id='pose' cx='{_x(x):.1f}' cy='{_y(y):.1f}' r='8' fill='{YELLOW}' stroke='black' stroke-width='1.5'>"
        f"<title>output pose {x:.2f}, {y:.2f}</title></circle>"
    )
    box = f"0 0 {_x(RIGHT):.0f} {_y(LOW):.0f}"
    label = "votes in the plane; Page Up and Page Down choose one, arrow keys move it"
    opened = f"<svg class='cr-plot cr-space' viewBox='{box}' tabindex='0' role='application' aria-label='{label}'>"
    return f"{opened}{''.join(parts)}</svg>"


def _x(value: float) -> float:
    return (value - LEFT) * SCALE


def _y(value: float) -> float:
    return (HIGH - value) * SCALE


def _radius(share: float) -> float:
    return math.sqrt(FLAT_AREA * max(share, 0.0) / math.pi)


def report(found: Consensus, settings: Settings) -> str:
    """The objective and its terms over the iterations, and what the last ones come to."""
    steps = list(range(len(found.objective)))
    chart = markup.lines({"objective (eq. 2)": (steps, found.objective.tolist())}, "iteration", "objective")
    last = found.couplings[-1]
    heard = math.exp(-float((last * np.log(np.maximum(last, 1e-300))).sum()))
    x, y = found.poses[-1]
    rows = [
        ("objective", f"{found.objective[-1]:.4f}"),
        ("agreement Σ c <μ, v>", f"{found.agreement[-1]:.4f}"),
        (f"λ₁ D(C‖U), λ₁ = {settings.lambda1:g}", f"{settings.lambda1 * found.nonuniformity[-1]:.4f}"),
        (f"λ₂ D(C‖A), λ₂ = {settings.lambda2:g}", f"{settings.lambda2 * found.surprise[-1]:.4f}"),
        ("output pose μ", f"{x:.3f}, {y:.3f}"),
        ("votes heard", f"{heard:.1f} of {len(last)}"),
    ]
    return markup.heading("objective at each iteration") + chart + markup.table((), rows)


# Votes are dragged by pointer or moved by keys. The page draws each step at once; it asks for the consensus of what has
# moved since it last asked, and asks again only once it was answered.
SCRIPT = f"""
const scale = {SCALE}, left = {LEFT}, high = {HIGH};
let held = null, chosen = -1, keyed = false, asked = 0, moved = new Map();
const plot = () => element.querySelector('svg');
const votes = () => [...element.querySelectorAll('[data-vote]')];
const draw = () => moved.forEach(([x, y], number) => {{
  const vote = votes()[number];
  if (vote) vote.setAttribute('transform', `translate(${{x}} ${{y}})`);
}});
const ask = () => {{
  if (!moved.size || Date.now() - asked < 1000) return;
  const moves = [...moved].map(([number, [x, y]]) => [number, x / scale + left, high - y / scale]);
  moved.clear();
  asked = Date.now();
  setTimeout(ask, 1010);  // an answer that changes nothing is not announced
  trigger('input', {{moves}});
}};
const move = (number, x, y) => {{ moved.set(number, [x, y]); draw(); ask(); }};
const place = (event) => {{
  const box = plot().getBoundingClientRect(), view = plot().viewBox.baseVal;
  return [(event.clientX - box.left) / box.width * view.width, (event.clientY - box.top) / box.height * view.height];
}};
const mark = () => votes().forEach(
  (vote, number) => vote.lastElementChild.setAttribute('stroke', number === chosen ? '#D55E00' : 'none'));
element.addEventListener('pointerdown', (event) => {{
  const vote = event.target.closest('[data-vote]');
  if (!vote) return;
  held = Number(vote.dataset.vote);
  event.preventDefault();
}});
window.addEventListener('pointermove', (event) => {{ if (held !== null) move(held, ...place(event)); }});
window.addEventListener('pointerup', (event) => {{
  if (held !== null) move(held, ...place(event));
  held = null;
}});
element.addEventListener('keydown', (event) => {{
  const all = votes(), step = 0.1 * scale;
  const ways = {{ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, -step], ArrowDown: [0, step]}};
  if (event.key === 'PageDown') chosen = (chosen + 1) % all.length;
  else if (event.key === 'PageUp') chosen = (chosen + all.length - 1) % all.length;
  else if (event.key in ways && all[chosen]) {{
    const now = all[chosen].transform.baseVal[0].matrix;
    move(chosen, now.e + ways[event.key][0], now.f + ways[event.key][1]);
  }} else return;
  event.preventDefault();
  mark();
}});
element.addEventListener('focusin', () => {{ keyed = true; }});
element.addEventListener('focusout', (event) => {{ if (event.relatedTarget) keyed = false; }});
watch('value', () => {{
  asked = 0;
  draw();
  mark();
  if (keyed && plot() && document.activeElement === document.body) plot().focus({{preventScroll: true}});
  ask();
}});
"""
