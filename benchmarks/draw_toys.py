"""Draws toys of smallNORB's five classes, each another one, as its two cameras would see them, to train on as well.

    python benchmarks/draw_toys.py drawn-toys.npz --pairs 10000 --seed 2
    capsroute train smallnorb-similarity-drawn

Five toys a class leave open where a class ends. What a car, a truck or an animal is can be said in a few lines: boxes,
balls and cylinders whose sizes are drawn at random within bounds. Kinds and bounds were set by the names of the classes
and by looking at the training toys; how large toys appear, and how grey the ground is, follow the training set.

A toy stands on the ground z = 0, looking along x. Pictures come from draw_toys.cpp, which g++ compiles first. `--sheet`
draws a sheet of them instead. Pixels may differ by rounding from one processor to another.
"""

from __future__ import annotations

import argparse
import ctypes
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Point = Sequence[float] | Array
CLASSES = ("animal", "human", "airplane", "truck", "car")
BOX, BALL, CYLINDER = range(3)
SIDES = (-1, 1)
# Of the training set: how much of a picture's side a toy takes, and the greys of the ground, of 1.
EXTENT = {"animal": 0.56, "human": 0.50, "airplane": 0.63, "truck": 0.63, "car": 0.63}
GREYS = [0.5, 0.53, 0.69, 0.87, 0.89, 0.97, 0.99]
SIDE = 96


class Dice(np.random.Generator):
    """Random numbers in the words used below."""

    def __init__(self, seed: int) -> None:
        super().__init__(np.random.PCG64(seed))

    def between(self, low: float, high: float) -> float:
        return float(self.uniform(low, high))

    def chance(self, share: float) -> bool:
        return bool(self.random() < share)

    def one_of(self, *kinds: str) -> str:
        return str(self.choice(kinds))

    def below(self, low: int, high: int) -> int:
        return int(self.integers(low, high))


def turned(yaw: float = 0, pitch: float = 0, roll: float = 0) -> Array:
    """Axes turned by degrees about z, y and x."""
    a, b, c = np.radians([yaw, pitch, roll])
    about_z = np.array([[np.cos(a), -np.sin(a), 0], [np.sin(a), np.cos(a), 0], [0, 0, 1]])
    about_y = np.array([[np.cos(b), 0, np.sin(b)], [0, 1, 0], [-np.sin(b), 0, np.cos(b)]])
    about_x = np.array([[1, 0, 0], [0, np.cos(c), -np.sin(c)], [0, np.sin(c), np.cos(c)]])
    axes: Array = about_z @ about_y @ about_x
    return axes


class Toy:
    """Parts, each added to those before it or cut out of them: what `Part` of draw_toys.cpp lists, a row each."""

    def __init__(self) -> None:
        self.parts: list[list[float]] = []

    def add(
        self,
        kind: int,
        centre: Point,
        half: Point,
        round: float = 0.02,
        axes: Array | None = None,
        taper: tuple[float, float] = (0, 0),
        cut: bool = False,
        blend: float = 0.0,
    ) -> None:
        """`half` the size; `taper`: narrower at the top, in x and y; `blend`: melted together over that width."""
        edge = 0 if kind == BALL else min(round, min(half) * 0.98)
        axes = np.eye(3) if axes is None else axes
        self.parts.append([kind, *centre, *half, edge, *axes.flatten(), *taper, cut, blend])

    def box(self, centre: Point, half: Point, **how: object) -> None:
        self.add(BOX, centre, half, **how)  # type: ignore[arg-type]

    def ball(self, centre: Point, half: Point, **how: object) -> None:
        self.add(BALL, centre, half, **how)  # type: ignore[arg-type]

    def wheel(self, centre: Point, radius: float, half: float, **how: object) -> None:
        self.add(CYLINDER, centre, (radius, half, radius), **how)  # type: ignore[arg-type]

    def limb(self, start: Point, end: Point, radius: float, blend: float = 0.03) -> None:
        """A rounded rod."""
        a, b = np.array(start, float), np.array(end, float)
        length = float(np.linalg.norm(b - a)) + 1e-6
        z = (b - a) / length
        x = np.cross(z, [0, 1, 0.1])
        x /= np.linalg.norm(x)
        axes = np.stack([x, np.cross(z, x), z], 1)
        self.add(BOX, (a + b) / 2, (radius, radius, length / 2 + radius), round=radius, axes=axes, blend=blend)

    def wing(
        self,
        root: Point,
        chord: float,
        span: float,
        thick: float,
        sweep: float,
        taper: float,
        side: int,
        rise: float = 0,
    ) -> None:
        """Swept back, and narrower towards its tip."""
        along = np.array([-sweep, side, rise])
        length = span * float(np.linalg.norm(along))
        z = along / np.linalg.norm(along)
        x = np.array([1.0, 0, 0]) - z * z[0]
        x /= np.linalg.norm(x)
        axes = np.stack([x, np.cross(z, x), z], 1)
        half = (chord, thick, length / 2)
        self.box(np.array(root) + z * length / 2, half, round=thick * 0.8, axes=axes, taper=(taper, 0.3), blend=0.03)

    def wheels(self, places: Sequence[float], y: float, radius: float, half: float) -> None:
        """Arches cut into the body, wheels in them, and their rims."""
        for x in places:
            for side in SIDES:
                arch = (radius * 1.15, half * 1.2, radius * 1.15)
                self.box((x, side * y, radius * 0.9), arch, round=radius * 0.8, cut=True)
        for x in places:
            for side in SIDES:
                self.wheel((x, side * y, radius), radius, half, round=0.02)
        for x in places:
            for side in SIDES:
                self.wheel((x, side * (y + half), radius), radius * 0.55, 0.015, round=0.005, cut=True)

    def windows(self, x0: float, x1: float, y: float, z0: float, z1: float, count: int) -> None:
        """Cut into both sides."""
        width = (x1 - x0) / count
        for i in range(count):
            for side in SIDES:
                centre = (x0 + width * (i + 0.5), side * y, (z0 + z1) / 2)
                self.box(centre, (width / 2 - 0.025, 0.02, (z1 - z0) / 2), round=0.015, cut=True)


def car(g: Dice) -> Toy:
    """Low, with a cabin, an open one, or a racing car."""
    toy = Toy()
    kind = g.one_of("sedan", "sedan", "sedan", "coupe", "coupe", "wagon", "open", "open", "race")
    length, width = g.between(0.85, 1.05), g.between(0.36, 0.46)
    clear, body, radius = g.between(0.06, 0.11), g.between(0.11, 0.16), g.between(0.15, 0.19)
    if kind == "race":
        _race(g, toy, length, width, clear)
        return toy
    middle = clear + body
    top = middle + body
    edge = g.between(0.05, 0.1)
    toy.box((0, 0, middle), (length, width, body), round=edge, taper=(g.between(0.02, 0.1), g.between(0.03, 0.12)))
    if g.chance(0.6):  # the bonnet slopes
        toy.box((length, 0, top + 0.12), (0.35, 1, 0.12), axes=turned(0, g.between(6, 14)), cut=True)
    cabin = g.between(0.13, 0.2)
    if kind == "open":
        place, size = g.between(-0.25, -0.05), g.between(0.3, 0.42)
        toy.box((place, 0, top + 0.02), (size, width * 0.78, 0.12), round=0.04, cut=True)
        place = g.between(0.25, 0.4)
        pane = turned(0, g.between(-40, -25))
        toy.box((place, 0, top + cabin * 0.6), (0.03, width * 0.8, cabin * 0.8), axes=pane, round=0.015)
        for side in SIDES:
            y = side * width * 0.4
            toy.box((-0.15, y, top - 0.02), (0.1, 0.12, 0.06), round=0.03)
            toy.box((-0.25, y, top + 0.06), (0.04, 0.12, 0.12), round=0.03, axes=turned(0, -12))
            if g.chance(0.3):
                toy.ball((-0.15, y, top + 0.17), (0.07, 0.07, 0.08))
    else:
        _cabin(g, toy, kind, length, width, top, cabin)
    if g.chance(0.25):
        toy.box((-length * 0.93, 0, top + g.between(0.08, 0.14)), (0.07, width * 0.85, 0.015))
        toy.box((-length * 0.93, 0, top + 0.03), (0.03, width * 0.5, 0.06))
    if g.chance(0.5):
        for side in SIDES:
            lamp = (length * 0.97, side * width * 0.7, middle + body * 0.4)
            toy.ball(lamp, (0.05, 0.07, 0.05), cut=g.chance(0.5))
    if g.chance(0.5):
        for x in (length, -length):
            toy.box((x, 0, clear + 0.06), (0.05, width * 0.95, 0.05), round=0.03)
    places = (-g.between(0.55, 0.68) * length, g.between(0.55, 0.68) * length)
    toy.wheels(places, width - 0.03, radius, g.between(0.05, 0.08))
    return toy


def _race(g: Dice, toy: Toy, length: float, width: float, clear: float) -> None:
    narrow = g.between(0.13, 0.2)
    toy.box((0, 0, clear + 0.1), (length, narrow, 0.09), round=0.06, taper=(g.between(0, 0.2), 0.2))
    toy.box((-0.3 * length, 0, clear + 0.15), (0.4 * length, narrow * 1.6, 0.09), round=0.05)
    toy.ball((-0.1, 0, clear + 0.25), (0.1, 0.09, 0.12))
    toy.box((-0.35 * length, 0, clear + 0.3), (0.25 * length, 0.08, 0.1), round=0.05, taper=(0.5, 0.3))
    high = clear + g.between(0.3, 0.45)
    toy.box((-length, 0, high), (0.1, width, 0.03), axes=turned(0, g.between(-15, 15)))
    toy.box((-length, 0, clear + 0.2), (0.06, 0.03, 0.15))
    toy.box((length, 0, clear + 0.05), (0.1, width, 0.025))
    radius = g.between(0.16, 0.22)
    for x in (-0.68 * length, 0.68 * length):
        for side in SIDES:
            toy.wheel((x, side * width, radius), radius, g.between(0.08, 0.13))
            toy.limb((x, 0, radius), (x, side * width, radius), 0.025)


def _cabin(g: Dice, toy: Toy, kind: str, length: float, width: float, top: float, high: float) -> None:
    """A closed car's: where it begins, how long it is, how its windows lean."""
    place = {"sedan": g.between(-0.2, -0.05), "coupe": g.between(-0.3, -0.1), "wagon": g.between(-0.4, -0.25)}[kind]
    half = {"sedan": g.between(0.48, 0.6), "coupe": g.between(0.42, 0.55), "wagon": g.between(0.6, 0.72)}[kind]
    lean = {"sedan": g.between(0.3, 0.45), "coupe": g.between(0.4, 0.6), "wagon": g.between(0.15, 0.25)}[kind]
    inward = g.between(0.1, 0.25)
    if kind == "coupe":
        high *= 0.85
    x, half = place * length, half * length
    box = (half, width * 0.9, high)
    toy.box((x, 0, top + high - 0.03), box, round=0.05, taper=(lean, inward), blend=0.03)
    middle = top + high * 0.95
    if g.chance(0.8):
        y, span = width * 0.9 * (1 - inward * 0.5), half * 0.6
        toy.windows(x - span, x + span, y, middle - high * 0.5, middle + high * 0.45, g.below(1, 4))
    angle = np.degrees(np.arctan2(half * lean, 2 * high))
    if g.chance(0.8):
        for side in SIDES:
            pane = (x + side * half * (1 - lean * 0.5), 0, middle)
            toy.box(pane, (0.02, width * 0.7, high * 0.6), axes=turned(0, -side * angle), cut=True, round=0.01)


def truck(g: Dice) -> Toy:
    """High: a van, an off-road car, a pickup, or a cab with something behind it."""
    toy = Toy()
    kind = g.one_of("box", "box", "pickup", "pickup", "suv", "van", "van", "tanker", "dump")
    length, width = g.between(0.85, 1.1), g.between(0.34, 0.44)
    radius, clear, tyre = g.between(0.15, 0.22), g.between(0.12, 0.22), g.between(0.05, 0.09)
    if kind in ("suv", "van"):
        _van(g, toy, kind, length, width, clear)
        places = [-g.between(0.5, 0.62) * length, g.between(0.5, 0.62) * length]
    else:
        cab, high = g.between(0.22, 0.32), g.between(0.26, 0.38)
        toy.box((0, 0, clear + 0.06), (length, width * 0.85, 0.06), round=0.02)
        nose = g.chance(0.4)
        if kind == "pickup":
            _pickup(g, toy, length, width, clear)
            places = [-g.between(0.5, 0.62) * length, g.between(0.5, 0.62) * length]
        else:
            _cab_and_load(g, toy, kind, nose, (length, width, clear), cab, high)
            places = [length * 0.68, -length * 0.6]
            if g.chance(0.4):
                places.append(-length * 0.6 + 2.3 * radius)
    toy.wheels(places, width - 0.02, radius, tyre)
    return toy


def _van(g: Dice, toy: Toy, kind: str, length: float, width: float, clear: float) -> None:
    body = g.between(0.17, 0.24)
    middle = clear + body
    toy.box((0, 0, middle), (length * 0.92, width, body), round=g.between(0.03, 0.07))
    top, high = middle + body, g.between(0.16, 0.26)
    half = g.between(0.55, 0.7) if kind == "suv" else g.between(0.75, 0.88)
    x = (-0.92 + half) * length if kind == "suv" else g.between(-0.1, 0.0) * length
    half *= length
    lean = g.between(0.05, 0.2)
    upper = (half, width * 0.95, high)
    toy.box((x, 0, top + high - 0.02), upper, round=0.04, taper=(lean, g.between(0.03, 0.12)))
    if g.chance(0.85):
        low, roof = top + high * 0.5, top + high * 1.5
        toy.windows(x - half * 0.8, x + half * 0.75, width * 0.95, low, roof, g.below(2, 5))
    for side in SIDES:
        pane = (x + side * half * 0.95, 0, top + high)
        toy.box(pane, (0.03, width * 0.75, high * 0.6), cut=True, round=0.01)
    if g.chance(0.3):
        toy.wheel((-length * 0.97, 0, middle), 0.17, 0.05)
    if g.chance(0.4):
        for _ in range(g.below(1, 4)):
            place = (x + g.between(-0.4, 0.4), g.between(-0.1, 0.1), top + 2 * high)
            toy.box(place, (g.between(0.03, 0.12), g.between(0.1, 0.3), 0.03))


def _pickup(g: Dice, toy: Toy, length: float, width: float, clear: float) -> None:
    body = g.between(0.14, 0.2)
    top = clear + 2 * body
    toy.box((0, 0, clear + body), (length, width, body), round=0.05)
    bed = g.between(0.35, 0.5)
    toy.box((-length + bed, 0, top), (bed - 0.05, width - 0.07, body * 1.4), round=0.02, cut=True)
    x = -length + 2 * bed + g.between(0.22, 0.36)
    high, half = g.between(0.14, 0.22), g.between(0.25, 0.38)
    lean = (g.between(0.15, 0.35), g.between(0.08, 0.15))
    toy.box((x, 0, top + high - 0.02), (half, width * 0.92, high), round=0.04, taper=lean)
    toy.windows(x - half * 0.7, x + half * 0.7, width * 0.88, top + high * 0.4, top + high * 1.5, g.below(1, 3))
    for side in SIDES:
        pane = (x + side * half * 0.88, 0, top + high)
        toy.box(pane, (0.03, width * 0.7, high * 0.6), axes=turned(0, -side * 20), cut=True)
    if g.chance(0.4):
        toy.box((-length * 0.3, 0, top + 0.25), (0.03, width * 0.9, 0.03))


def _cab_and_load(
    g: Dice, toy: Toy, kind: str, nose: bool, sizes: tuple[float, float, float], cab: float, high: float
) -> None:
    length, width, clear = sizes
    x = length - cab
    if nose:
        toy.box((length - 0.15, 0, clear + high * 0.6), (0.18, width * 0.8, high * 0.55), round=0.05)
        x = length - 0.3 - cab
    lean = (g.between(0, 0.15), g.between(0, 0.06))
    toy.box((x, 0, clear + high), (cab, width * 0.95, high), round=0.05, taper=lean)
    toy.box((x + cab, 0, clear + high * 1.4), (0.03, width * 0.75, high * 0.35), cut=True, round=0.01)
    toy.windows(x - cab * 0.5, x + cab * 0.8, width * 0.95, clear + high * 1.1, clear + high * 1.75, 1)
    front = x - cab - g.between(0.02, 0.08)
    half, x = (front + length) / 2, (front - length) / 2
    if kind == "box":
        load = g.between(0.28, 0.5)
        size = (half, width * g.between(0.95, 1.12), load)
        toy.box((x, 0, clear + 0.1 + load), size, round=g.between(0.01, 0.05))
        if g.chance(0.4):
            g.below(2, 6)  # ribs, which are not drawn; the number is, so that a seed's toys stay what they were
    elif kind == "tanker":
        toy.add(CYLINDER, (x, 0, clear + 0.35), (g.between(0.26, 0.34), half, 0.3), round=0.06, axes=turned(90))
    else:
        load = g.between(0.15, 0.3)
        tilt = turned(0, g.between(-2, 12))
        toy.box((x, 0, clear + 0.1 + load), (half, width * 1.02, load), round=0.02, axes=tilt)
        toy.box((x, 0, clear + 0.2 + 2 * load), (half * 0.92, width * 0.9, load * 1.2), round=0.02, cut=True)
        if g.chance(0.5):
            heap = (half * 0.8, width * 0.8, load * g.between(0.8, 1.6))
            toy.ball((x, 0, clear + 0.15 + load * 1.2), heap)


def airplane(g: Dice) -> Toy:
    """An airliner, one with a propeller, a fighter, or little more than two wings."""
    toy = Toy()
    kind = g.one_of("liner", "liner", "prop", "prop", "fighter", "delta")
    z, length, radius = g.between(0.14, 0.3), g.between(0.85, 1.0), g.between(0.09, 0.14)
    if kind in ("liner", "prop"):
        _liner(g, toy, kind, z, length, radius)
    elif kind == "fighter":
        toy.ball((0, 0, z), (length, radius * 0.9, radius))
        toy.box((-0.2, 0, z), (length * 0.7, radius * 1.3, radius * 0.7), round=0.05)
        toy.ball((0.35, 0, z + radius * 0.8), (0.22, 0.07, 0.08))
        sweep = g.between(0.5, 1.0)
        for side in SIDES:
            toy.wing((0, 0, z), g.between(0.25, 0.4), g.between(0.5, 0.7), 0.02, sweep, g.between(0.5, 0.8), side)
            toy.wing((-length * 0.75, 0, z), 0.15, 0.35, 0.02, 0.6, 0.5, side)
            if g.chance(0.7):
                fin = (-length * 0.75, side * 0.12, z + 0.18)
                toy.box(fin, (0.14, 0.015, 0.15), axes=turned(0, -25, side * 15), taper=(0.5, 0))
            if g.chance(0.5):
                toy.box((-0.1, side * 0.35, z - 0.06), (0.2, 0.025, 0.025), round=0.02)
    else:
        for side in SIDES:
            sizes = (g.between(0.55, 0.7), g.between(0.6, 0.85), 0.035)
            toy.wing((0.2, 0, z), *sizes, g.between(0.7, 1.1), g.between(0.6, 0.85), side)
            upright = turned(0, -20, side * g.between(-10, 15))
            toy.box((-0.45, side * 0.3, z + 0.1), (0.15, 0.015, 0.12), axes=upright)
        toy.ball((0.1, 0, z + 0.03), (length * 0.8, 0.12, 0.1))
        toy.ball((0.35, 0, z + 0.1), (0.2, 0.06, 0.07))
    return toy


def _liner(g: Dice, toy: Toy, kind: str, z: float, length: float, radius: float) -> None:
    toy.ball((0, 0, z), (length, radius, radius * g.between(1, 1.15)))
    toy.box((0.05, 0, z), (length * 0.72, radius * 0.92, radius * 0.92), round=radius * 0.9, blend=0.03)
    sweep = g.between(0.3, 0.7) if kind == "liner" else g.between(-0.02, 0.1)
    span, chord = g.between(0.7, 1.0), g.between(0.13, 0.24)
    at = z + (g.between(-0.08, -0.03) if g.chance(0.7) else radius)
    for side in SIDES:
        root = (g.between(0.1, 0.2), 0, at)
        toy.wing(root, chord, span, 0.025, sweep, g.between(0.3, 0.65), side, g.between(0, 0.12))
        toy.wing((-length * 0.85, 0, z + 0.02), chord * 0.55, span * 0.38, 0.02, sweep, 0.5, side)
    place = (-length * 0.88, 0, z + g.between(0.16, 0.24))
    half = (0.12, 0.02, g.between(0.16, 0.24))
    toy.box(place, half, axes=turned(0, g.between(-30, -10)), taper=(0.5, 0), round=0.015)
    for number in range(g.below(1, 3) if kind == "liner" else g.below(0, 3)):
        for side in SIDES:
            y = span * (0.3 + 0.3 * number)
            engine = (0.25 - sweep * y, side * y, at - g.between(0.04, 0.08))
            toy.box(engine, (0.15, 0.055, 0.055), round=0.05)
    if kind == "prop":
        blade = (0.02, 0.03, g.between(0.2, 0.3))
        toy.box((length, 0, z), blade, axes=turned(0, 0, g.between(0, 180)))
        toy.ball((length, 0, z), (0.08, 0.06, 0.06))
        toy.ball((0.1, 0, z + radius), (0.2, 0.07, 0.09))
        if g.chance(0.4):  # a second pair of wings
            toy.box((0.1, 0, z + 0.3), (chord * 0.8, span * 0.9, 0.02))


def human(g: Dice) -> Toy:
    """A figure that stands or kneels, on a base as a rule, with something in its hands as a rule."""
    toy = Toy()
    height, base = g.between(0.85, 1.0), g.chance(0.75)
    if base and g.chance(0.6):
        toy.ball((0, 0, 0.02), (g.between(0.25, 0.4), g.between(0.2, 0.32), 0.035))
    elif base:
        toy.box((0, 0, 0.02), (g.between(0.25, 0.35), g.between(0.18, 0.28), 0.03))
    hip = 0.3 if g.chance(0.3) else 0.5 * height * 2 * 0.45
    stout, stride = g.between(0.9, 1.15), g.between(0.05, 0.3)
    shoulder, lean = hip + g.between(0.42, 0.52), g.between(-0.1, 0.2)
    half = g.between(0.13, 0.18) * stout
    for side in SIDES:
        x = side * stride * (1 if g.chance(0.8) else -1)
        foot = (x, side * g.between(0.08, 0.16), 0.06)
        knee = (x / 2 + g.between(0.02, 0.12), side * 0.11, hip * 0.52)
        toy.limb((0, side * 0.08, hip), knee, 0.075 * stout)
        toy.limb(knee, foot, 0.06 * stout)
        toy.box((foot[0] + 0.05, foot[1], 0.045), (0.1, 0.05, 0.045), round=0.03)
    trunk = turned(g.between(-25, 25), float(np.degrees(np.arctan2(lean, shoulder - hip))))
    size = (0.1 * stout, half, (shoulder - hip) / 2 + 0.05)
    toy.box((lean / 2, 0, (hip + shoulder) / 2), size, round=0.08, axes=trunk, blend=0.05)
    head = (lean + g.between(0, 0.05), 0, shoulder + g.between(0.15, 0.2))
    toy.ball(head, (0.085, 0.08, 0.11))
    toy.limb((lean, 0, shoulder), head, 0.05)
    hat = g.one_of("none", "brim", "helmet")
    if hat == "brim":
        toy.ball((head[0], 0, head[2] + 0.07), (g.between(0.14, 0.2), g.between(0.14, 0.2), 0.02))
        toy.ball((head[0], 0, head[2] + 0.1), (0.09, 0.09, 0.07))
    elif hat == "helmet":
        toy.ball((head[0], 0, head[2] + 0.04), (0.12, 0.11, 0.1))
    _arms(g, toy, lean, half, shoulder, stout)
    if g.chance(0.35):
        toy.box((lean - 0.16, 0, shoulder - 0.17), (0.08, 0.12, 0.16), round=0.04)
    if g.chance(0.2):
        toy.box((-0.05, 0, hip - 0.05), (0.15, 0.17, 0.2), round=0.08, taper=(0.3, 0.3))
    return toy


def _arms(g: Dice, toy: Toy, lean: float, half: float, shoulder: float, stout: float) -> None:
    pose = g.one_of("rifle", "rifle", "down", "up", "wide")
    hands: list[Array] = []
    for side in SIDES:
        if pose == "rifle":
            elbow = (lean + g.between(0.1, 0.2), side * (half + 0.05), shoulder - g.between(0.12, 0.22))
            hand = (lean + (0.25 if side < 0 else 0.45), side * 0.05, shoulder - g.between(0.05, 0.2))
        elif pose == "down":
            elbow = (lean + g.between(-0.1, 0.1), side * (half + 0.1), shoulder - 0.22)
            hand = (lean + g.between(-0.1, 0.25), side * (half + g.between(0.05, 0.15)), shoulder - 0.42)
        elif pose == "up":
            elbow = (lean + 0.1, side * (half + 0.12), shoulder + g.between(-0.1, 0.1))
            hand = (lean + g.between(0, 0.2), side * (half + g.between(0, 0.2)), shoulder + g.between(0.1, 0.35))
        else:
            elbow = (lean, side * (half + 0.2), shoulder - g.between(-0.05, 0.15))
            hand = (lean + g.between(-0.1, 0.2), side * (half + 0.4), shoulder + g.between(-0.2, 0.2))
        toy.limb((lean, side * (half + 0.03), shoulder - 0.02), elbow, 0.055 * stout)
        toy.limb(elbow, hand, 0.045 * stout)
        hands.append(np.array(hand))
    if pose == "rifle" or g.chance(0.3):
        along = hands[1] - hands[0]
        along /= np.linalg.norm(along) + 1e-6
        toy.limb(hands[0] - along * 0.2, hands[1] + along * g.between(0.15, 0.6), g.between(0.022, 0.035))
    elif g.chance(0.5):  # a stick
        low = hands[1] - np.array([0, 0, g.between(0.1, 0.4)])
        toy.limb(low, hands[1] + np.array([g.between(-0.2, 0.3), 0, g.between(0.1, 0.5)]), 0.022)


def animal(g: Dice) -> Toy:
    """On four legs: light or heavy, standing or lying, some with horns."""
    toy = Toy()
    kind = g.one_of("cat", "hoof", "heavy", "heavy", "lying", "lying", "horn")
    length = g.between(0.38, 0.6)
    body, leg = length * g.between(0.28, 0.5), g.between(0.15, 0.5)
    if kind == "heavy":
        body, leg = length * g.between(0.45, 0.62), g.between(0.1, 0.3)
    lying = kind == "lying"
    leg = 0.04 if lying else leg
    z, bent = leg + body, 2 if lying else 1
    rear, front = g.between(-0.12, 0.12) * bent, g.between(-0.12, 0.12) * bent
    up = g.between(0, 0.2) if lying else g.between(-0.03, 0.08)
    toy.ball((0, 0, z), (length, body * 0.9, body))
    size = (length * 0.5, body * g.between(0.8, 1.05), body * g.between(0.9, 1.2))
    toy.ball((length * 0.55, front, z + up), size, blend=0.08)
    place = (-length * 0.55, rear, z + g.between(-0.03, 0.05))
    toy.ball(place, (length * 0.45, body * g.between(0.8, 1.05), body * g.between(0.85, 1.15)), blend=0.08)
    _legs(g, toy, lying, (length, body, z, leg), g.between(0.045, 0.075) * (1.5 if kind == "heavy" else 1))
    angle = g.between(-0.2, 1.2)
    reach = g.between(0.08, 0.2) if kind == "heavy" else g.between(0.12, 0.5)
    neck = np.array([length * 0.8, front, z + up + body * 0.35])
    head = neck + reach * np.array([np.cos(angle), g.between(-0.3, 0.3), np.sin(angle)])
    toy.limb(neck, head, g.between(0.07, 0.13), blend=0.1)
    large = g.between(0.9, 1.5) * (1.3 if kind == "heavy" else 1)
    toy.ball(head, (0.13 * large, 0.09 * large, 0.1 * large), blend=0.05)
    snout = head + np.array([0.14 * large, 0, -0.05 * large])
    toy.ball(snout, (0.11 * large, 0.06 * large, 0.06 * large), blend=0.04)
    for side in SIDES:
        if g.chance(0.8):
            ear = head + np.array([-0.05, side * 0.08 * large, 0.09 * large])
            toy.ball(ear, (0.03, 0.04 * large, 0.06 * large))
        if kind == "horn" or g.chance(0.12):
            tip = np.array([g.between(-0.15, 0.15), side * g.between(0.1, 0.3), g.between(0.15, 0.35)])
            toy.limb(head + np.array([0, side * 0.06, 0.08]), head + tip, 0.025)
    if kind == "cat" and g.chance(0.4):  # a mane
        toy.ball((neck + head) / 2, (0.17, 0.17, 0.2), blend=0.05)
    angle, reach = g.between(-1.3, 0.9), g.between(0.15, 0.5)
    tail = (-length - reach * np.cos(angle), g.between(-0.15, 0.15), z + reach * np.sin(angle) * 0.8)
    toy.limb((-length * 0.9, 0, z + body * 0.3), tail, g.between(0.025, 0.045))
    if g.chance(0.4):
        toy.limb(tail, (tail[0] - g.between(0, 0.2), tail[1], tail[2] + g.between(-0.2, 0.2)), 0.03)
    if kind == "heavy" and g.chance(0.5):  # a trunk
        toy.limb(head, head + np.array([0.25, 0, -g.between(0.2, 0.4)]), 0.05, blend=0.05)
    return toy


def _legs(g: Dice, toy: Toy, lying: bool, sizes: tuple[float, float, float, float], radius: float) -> None:
    length, body, z, leg = sizes
    for end in SIDES:
        for side in SIDES:
            x = end * length * 0.7
            if lying:
                foot = (x + g.between(0.1, 0.4), side * body * g.between(1.0, 1.5), 0.05)
                knee = (x + g.between(-0.1, 0.15), side * body * 1.2, g.between(0.08, 0.2))
            else:
                foot = (x + g.between(-0.18, 0.18), side * body * g.between(0.5, 0.8), 0.04)
                knee = ((x + foot[0]) / 2 + g.between(-0.06, 0.06), side * body * 0.65, leg * 0.55)
            toy.limb((x, side * body * 0.6, z - body * 0.3), knee, radius * 1.25, blend=0.06)
            toy.limb(knee, foot, radius)
            toy.ball((foot[0] + 0.03, foot[1], 0.04), (0.08, 0.055, 0.045))


MAKERS = {"animal": animal, "human": human, "airplane": airplane, "truck": truck, "car": car}


class Camera:
    """The compiled renderer."""

    def __init__(self, folder: Path) -> None:
        library = folder / "draw_toys.so"
        source = Path(__file__).with_suffix(".cpp")
        flags = ["-O3", "-march=native", "-ffast-math", "-shared", "-fPIC"]
        try:
            subprocess.run(["g++", *flags, "-o", str(library), str(source)], check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise SystemExit(f"draw_toys.cpp could not be compiled ({error}); install g++") from error
        self._draw = ctypes.CDLL(str(library)).draw

    def take(
        self, parts: Array, bumps: Point, camera: Point, lights: Array, look: Point, around: Point, side: int
    ) -> Array:
        picture = np.zeros((side, side), np.float32)
        rows, lamps, at, how, ball = (
            np.ascontiguousarray(a, np.float32) for a in (parts, lights, camera, look, around)
        )
        where = [a.ctypes.data_as(ctypes.c_void_p) for a in (rows, at, lamps, how, ball, picture)]
        high, dense = (ctypes.c_float(value) for value in bumps)
        self._draw(where[0], len(rows), high, dense, where[1], where[2], len(lamps), where[3], where[4], side, where[5])
        return picture.astype(np.float64)


def pair(g: Dice, toy: Toy, name: str, camera: Camera) -> Array | None:
    """Both cameras' pictures, [2, 96, 96], from 0 to 1; None where nothing of the toy is seen."""
    parts, height = _within_a_sphere(np.array(toy.parts))
    bumps = (float(g.choice([0, 0.004, 0.01, 0.018])) * (1 if name in ("animal", "human") else 0.25), g.between(12, 40))
    lights = []
    for _ in range(g.below(1, 4)):
        a, e = g.between(0, 2 * np.pi), np.radians(g.between(30, 75))
        lights.append([np.cos(a) * np.cos(e), np.sin(a) * np.cos(e), np.sin(e), g.between(0.3, 1)])
    ground = float(g.choice(GREYS)) * g.between(0.97, 1.01)
    toys_own = ground * g.between(0.85, 1.08)
    yaw, elevation = g.between(0, 360), g.between(28, 72)
    look = (g.between(0.4, 2.0), toys_own, ground, g.between(0, 0.15), 3.0)
    far, apart = g.between(3.5, 4.5), g.between(9, 13)
    centre = np.array([0, 0, height])
    around = (*centre, 1.02)
    eyes = []
    for side in SIDES:
        a = np.radians(yaw + side * apart / 2 / np.cos(np.radians(elevation)) ** 0.5)
        e = np.radians(elevation)
        eyes.append(centre + far * np.array([np.cos(a) * np.cos(e), np.sin(a) * np.cos(e), np.sin(e)]))
    # a first, small look, at a black ground, tells where in the picture the toy is
    wide, boxes = 1.05 / far, []
    for eye in eyes:
        seen = camera.take(parts, bumps, (*eye, *centre, wide, 0, 0), np.zeros((0, 4)), (1, 1, 0, 0, 1), around, 40)
        rows, columns = np.where(seen > 0.01)
        if len(rows) < 4:
            return None
        boxes.append([columns.min(), columns.max() + 1, rows.min(), rows.max() + 1])
    box = np.array(boxes) / 40 * 2 - 1
    extent = max((box[:, 1] - box[:, 0]).max(), (box[:, 3] - box[:, 2]).max()) / 2
    close = wide * extent / np.clip(g.normal(EXTENT[name], 0.05), 0.38, 0.78)
    right = box[:, :2].mean() * wide + g.between(-0.05, 0.05) * close
    up = -box[:, 2:].mean() * wide + g.between(-0.03, 0.1) * close
    frames = [(*eye, *centre, close, right, up) for eye in eyes]
    return np.stack([camera.take(parts, bumps, frame, np.array(lights), look, around, SIDE) for frame in frames])


def _within_a_sphere(parts: Array) -> tuple[Array, float]:
    """The toy over the middle of the ground and scaled to a sphere of radius 1 around it; how high its centre is."""
    added = parts[parts[:, 19] == 0]
    centres, sizes = added[:, 1:4], np.linalg.norm(added[:, 4:7], axis=1)
    low, high = (centres - sizes[:, None] * 0.8).min(0), (centres + sizes[:, None] * 0.8).max(0)
    low[2] = 0
    middle = (low + high) / 2
    scale = 1 / (np.linalg.norm(centres - middle, axis=1) + sizes).max()
    parts = parts.copy()
    parts[:, 1:4] = (parts[:, 1:4] - [middle[0], middle[1], 0]) * scale
    parts[:, 4:8] *= scale
    parts[:, 20] *= scale
    return parts, float(middle[2] * scale)


def halved(picture: Array) -> Array:
    """As smallNORB is, to 48 x 48, by means of four pixels."""
    small: Array = picture.reshape(*picture.shape[:-2], SIDE // 2, 2, SIDE // 2, 2).mean((-3, -1))
    return small


def drawn(seed: int, pairs: int, camera: Camera, side: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Pairs of 48 x 48 or 96 x 96 pixels and their classes, which take turns; every pair shows another toy."""
    g = Dice(seed)
    images: list[npt.NDArray[np.uint8]] = []
    while len(images) < pairs:
        name = CLASSES[len(images) % len(CLASSES)]
        pictures = pair(g, MAKERS[name](g), name, camera)
        if pictures is not None:
            sized = pictures if side == SIDE else halved(pictures)
            images.append((sized.clip(0, 1) * 255).round().astype(np.uint8))
            if len(images) % 1000 == 0:
                print(f"{len(images):,} of {pairs:,} pairs", flush=True)
    return np.stack(images), np.arange(pairs) % len(CLASSES)


def sheet(seed: int, camera: Camera, columns: int = 7) -> npt.NDArray[np.uint8]:
    """A row of pairs for each class."""
    g, rows = Dice(seed), []
    for name in CLASSES:
        found = [pair(g, MAKERS[name](g), name, camera) for _ in range(columns)]
        rows.append(np.concatenate([np.concatenate(both, 1) for both in found if both is not None], 1))
    width = min(row.shape[1] for row in rows)
    return (np.concatenate([row[:, :width] for row in rows]).clip(0, 1) * 255).astype(np.uint8)


def main() -> None:
    """Draw, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="drawn-toys.npz; a .png for --sheet")
    parser.add_argument("--pairs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--side", type=int, choices=(SIDE // 2, SIDE), default=SIDE // 2, help="pixels")
    parser.add_argument("--sheet", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        camera = Camera(Path(folder))
        if given.sheet:
            from PIL import Image

            Image.fromarray(sheet(given.seed, camera)).save(given.file)
            return
        images, labels = drawn(given.seed, given.pairs, camera, given.side)
    np.savez(given.file, images=images, labels=labels, instance=1000 + np.arange(given.pairs))


if __name__ == "__main__":
    main()
