"""Small pieces of a page as text: pictures, heat maps, bars, lines, tables. No script, no font, no address outside."""

from __future__ import annotations

import base64
import html
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib import colormaps
from PIL import Image

from capsroute.figures.style import CYCLE

Array = npt.NDArray[Any]

CSS = """
.cr-row { display: flex; flex-wrap: wrap; gap: .8rem; align-items: flex-start; margin: .2rem 0 .8rem }
.cr-row figure { margin: 0; text-align: center; font-size: .8rem }
.cr-row figcaption { max-width: 10rem; margin: .15rem auto 0 }
.cr-pixels { image-rendering: pixelated; display: block; border-radius: 3px;
  border: 1px solid var(--border-color-primary) }
.cr-chosen .cr-pixels { outline: 3px solid #D55E00; outline-offset: 1px }
.cr-bars { display: grid; grid-template-columns: max-content minmax(6rem, 18rem) max-content; gap: .15rem .5rem;
  align-items: center; font-size: .85rem; margin: .3rem 0 .8rem }
.cr-bar { background: var(--background-fill-secondary); border-radius: 3px; height: .9rem; overflow: hidden }
.cr-bar i { display: block; height: 100%; background: #0072B2 }
.cr-bars b { font-weight: 600 } .cr-top i { background: #D55E00 }
.cr-plot { width: 100%; height: auto; color: var(--body-text-color); display: block; touch-action: none }
.cr-lines { max-width: 34rem } .cr-space { border: 1px solid var(--border-color-primary); border-radius: 6px }
.cr-plot text { fill: currentColor; font-size: 12px }
.cr-plot:focus-visible, .cr-pad:focus-visible { outline: 3px solid #E69F00; outline-offset: 2px }
.cr-legend { font-size: .8rem; display: flex; flex-wrap: wrap; gap: .2rem .9rem }
.cr-legend span::before { content: ""; display: inline-block; width: 1rem; height: .25rem; margin-right: .3rem;
  vertical-align: middle; background: var(--line) }
.cr-table { border-collapse: collapse; font-size: .85rem; display: block; overflow-x: auto }
.cr-table td, .cr-table th { padding: .2rem .8rem .2rem 0; text-align: left; white-space: nowrap }
.cr-matrix { border-collapse: collapse; font-size: .75rem; font-variant-numeric: tabular-nums }
.cr-matrix td { width: 3.1rem; height: 2.2rem; text-align: center; color: black;
  border: 1px solid var(--border-color-primary) }
.cr-grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 21rem), 1fr)); gap: .5rem 1.5rem }
.cr-note { font-size: .85rem; opacity: .85; margin: .2rem 0 .5rem }
.cr-alert { border-left: 4px solid #D55E00; padding: .3rem .7rem; margin: .3rem 0 }
.cr-head { font-weight: 600; margin: .5rem 0 .1rem }
"""


def escape(text: object) -> str:
    """Text that comes from files or users, made harmless."""
    return html.escape(str(text))


def note(text: str) -> str:
    return f"<p class='cr-note'>{escape(text)}</p>"


def alert(text: str) -> str:
    """A message that a screen reader announces."""
    return f"<div class='cr-alert' role='alert'>{escape(text)}</div>"


def heading(text: str) -> str:
    return f"<p class='cr-head'>{escape(text)}</p>"


def grid(parts: Sequence[str]) -> str:
    """Side by side as far as the page is wide."""
    return f"<div class='cr-grid'>{''.join(f'<div>{part}</div>' for part in parts)}</div>"


def row(parts: Sequence[str]) -> str:
    return f"<div class='cr-row'>{''.join(parts)}</div>"


def picture(pixels: npt.NDArray[np.uint8], caption: str, *, width: int = 140, chosen: bool = False) -> str:
    """Pixels [h, w] or [h, w, 3] as a figure with its caption."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    source = f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
    told = escape(caption)
    mark = " class='cr-chosen'" if chosen else ""
    return (
        f"<figure{mark}><img class='cr-pixels' src='{source}' alt='{told}' width='{width}' "
        f"height='{round(width * pixels.shape[0] / pixels.shape[1])}'><figcaption>{told}</figcaption></figure>"
    )


def levels(image: Array) -> npt.NDArray[np.uint8]:
    """An image [C, H, W] as it is seen: three channels in colour, else the first, from darkest to brightest."""
    shown = np.moveaxis(image, 0, -1) if len(image) == 3 else np.repeat(image[0][..., None], 3, axis=-1)
    low, high = float(shown.min()), float(shown.max())
    return np.round(255 * (shown - low) / max(high - low, 1e-6)).astype(np.uint8)


def heat(values: Array, high: float, name: str = "viridis") -> npt.NDArray[np.uint8]:
    """A map [h, w] in colours, 0 to `high`; other shapes are laid flat."""
    plane = values if values.ndim == 2 else values.reshape(1, -1)
    coloured: npt.NDArray[np.uint8] = colormaps[name](np.clip(plane / max(high, 1e-12), 0, 1), bytes=True)[..., :3]
    return coloured


def overlay(image: Array, credit: Array) -> npt.NDArray[np.uint8]:
    """Credit [H, W] in colour over the image in grey."""
    strength = np.sqrt(credit / max(float(credit.max()), 1e-12))
    under, over = levels(image).astype(float) * 0.6, heat(strength, 1.0, "magma").astype(float)
    share = np.clip(0.15 + 0.85 * strength, 0, 1)[..., None]
    return np.round(under * (1 - share) + over * share).astype(np.uint8)


def bars(names: Sequence[str], values: Sequence[float], true: Sequence[int] = ()) -> str:
    """One bar for each class, 0 to 1; the longest stands out, what is true is told."""
    top = int(np.argmax(values))
    lines = []
    for number, (name, value) in enumerate(zip(names, values, strict=True)):
        told = f"<b>{escape(name)}</b>" if number in true else escape(name)
        mark = " cr-top" if number == top else ""
        lines.append(
            f"<span>{told}</span><span class='cr-bar{mark}'><i style='width:{100 * value:.1f}%'></i></span>"
            f"<span>{value:.3f}</span>"
        )
    return f"<div class='cr-bars' role='img' aria-label='class scores'>{''.join(lines)}</div>"


def lines(
    series: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    x_name: str,
    y_name: str,
    *,
    from_zero: bool = False,
    at: float | None = None,
    points: bool = True,
) -> str:
    """A chart of lines by name, its legend below; `at` marks a place on the x axis."""
    shown = {name: (list(xs), list(ys)) for name, (xs, ys) in series.items() if len(xs)}
    if not shown:
        return note("nothing to draw yet")
    all_x = [x for xs, _ in shown.values() for x in xs]
    all_y = [y for _, ys in shown.values() for y in ys] + ([0.0] if from_zero else [])
    frame = _Frame(min(all_x), max(all_x), min(all_y), max(all_y))
    parts = [frame.axes(x_name, y_name)]
    if at is not None:
        parts.append(f"<line x1='{frame.x(at):.1f}' x2='{frame.x(at):.1f}' y1='12' y2='208' stroke='#D55E00'/>")
    for number, (name, (xs, ys)) in enumerate(shown.items()):
        colour = line_colour(number)
        path = " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in zip(xs, ys, strict=True))
        parts.append(f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='2'/>")
        for x, y in zip(xs, ys, strict=True) if points and len(xs) <= 60 else ():
            told = f"<title>{escape(name)}: {x:g}, {y:.4g}</title>"
            parts.append(f"<circle cx='{frame.x(x):.1f}' cy='{frame.y(y):.1f}' r='3' fill='{colour}'>{told}</circle>")
    label = escape(f"{y_name} over {x_name}: {', '.join(shown)}")
    drawn = (
        f"<svg class='cr-plot cr-lines' viewBox='0 0 480 250' role='img' aria-label='{label}'>{''.join(parts)}</svg>"
    )
    if len(shown) == 1:
        return drawn
    legend = "".join(
        f"<span style='--line:{line_colour(number)}'>{escape(name)}</span>" for number, name in enumerate(shown)
    )
    return f"{drawn}<div class='cr-legend'>{legend}</div>"


def line_colour(number: int) -> str:
    """A colour for the n-th line that colour-blind readers tell apart; black would vanish on a dark page."""
    colours = CYCLE[:-1]
    return colours[number % len(colours)]


class _Frame:
    """Axes of a chart of 480 x 250 units."""

    def __init__(self, left: float, right: float, low: float, high: float) -> None:
        self.left, self.width = left, max(right - left, 1e-9)
        # a line that never moves still has a height to stand in
        high = high if high - low > 1e-6 * max(abs(low), 1e-3) else low + 1.0
        room = 0.06 * (high - low)
        # nothing lies below a zero that was asked for
        below = 0.0 if low == 0 else room
        self.low, self.height = low - below, high - low + below + room
        self.digits = max(0, 1 - math.floor(math.log10(self.height)))

    def x(self, value: float) -> float:
        return 60 + 405 * (value - self.left) / self.width

    def y(self, value: float) -> float:
        return 208 - 196 * (value - self.low) / self.height

    def axes(self, x_name: str, y_name: str) -> str:
        parts = ["<path d='M60 12V208H465' fill='none' stroke='currentColor' stroke-opacity='.5'/>"]
        for share in (0.0, 0.5, 1.0):
            x, y = self.left + share * self.width, self.low + share * self.height
            parts.append(f"<text x='{self.x(x):.0f}' y='224' text-anchor='middle'>{x:.4g}</text>")
            parts.append(f"<text x='55' y='{self.y(y) + 4:.0f}' text-anchor='end'>{y:.{self.digits}f}</text>")
        parts.append(f"<text x='262' y='243' text-anchor='middle'>{escape(x_name)}</text>")
        parts.append(
            f"<text x='14' y='110' text-anchor='middle' transform='rotate(-90 14 110)'>{escape(y_name)}</text>"
        )
        return "".join(parts)


def matrix(values: Array, limit: float) -> str:
    """A pose as a table of numbers, coloured from -`limit` (blue) to `limit` (orange)."""
    colours = colormaps["PuOr_r"](np.clip(0.5 + 0.5 * values / max(limit, 1e-9), 0.15, 0.85), bytes=True)
    body = "".join(
        "<tr>"
        + "".join(
            f"<td style='background:rgb{tuple(int(c) for c in colour[:3])}'>{value:.2f}</td>"
            for value, colour in zip(line, shades, strict=True)
        )
        + "</tr>"
        for line, shades in zip(values, colours, strict=True)
    )
    return f"<table class='cr-matrix'>{body}</table>"


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Cells by row; no header, no line for it."""
    names = "".join(f"<th scope='col'>{escape(name)}</th>" for name in header)
    head = f"<thead><tr>{names}</tr></thead>" if header else ""
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in line) + "</tr>" for line in rows)
    return f"<table class='cr-table'>{head}<tbody>{body}</tbody></table>"
