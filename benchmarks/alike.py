"""Do thinned networks still say what they said? Lanes and their teachers on toys drawn by a program, in per cent.

    python benchmarks/draw_toys.py new-toys.npz --pairs 2000 --seed 3 --side 96
    python benchmarks/alike.py smallnorb-similarity-thin new-toys.npz

Of a network whose lanes had a teacher each (`loss.apart`): how often a lane and its teacher take a toy for different
classes, and how far their class shares diverge (D_KL, in nats); beside it the same of each two teachers, and of all
lanes together and all teachers together. No label is read, and no test set. Prints one line each, and one of JSON.
"""

from __future__ import annotations

import argparse
import json
from itertools import combinations
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from capsroute.data import Split, Transform
from capsroute.lanes import LaneNet, mean_share
from capsroute.training import ranks
from capsroute.training.recipes import recipe
from capsroute.training.teaching import Teachers

BATCH = 100


def compared(name: str, wanted: Tensor, said: Tensor) -> dict[str, object]:
    """How two networks, or sets of them, differ; by logits of their classes."""
    differ = 100 * float((wanted.argmax(1) != said.argmax(1)).float().mean())
    apart = float(F.kl_div(said.log_softmax(1), wanted.log_softmax(1), log_target=True, reduction="batchmean"))
    print(f"{name}: differ in {differ:.2f} %, divergence {apart:.4f}", flush=True)
    return {"name": name, "differ": round(differ, 2), "divergence": round(apart, 4)}


def main() -> None:
    """Ask all of them, and print what they said."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", help="a shipped network's name, or the folder of one")
    parser.add_argument("toys", type=Path, help="an .npz of draw_toys.py, of 96 x 96 pixels")
    parser.add_argument("--recipe", default="smallnorb-similarity-thin", help="which names its teachers")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    ranks.set_threads(given.threads)
    names = recipe(given.recipe).loss.teachers
    net = LaneNet.from_pretrained(given.network)
    teachers = Teachers(names, net.in_channels, net.classes)
    with np.load(given.toys) as file:
        toys = Split.of(file["images"], file["labels"])
    whole = Transform(standardise="crop")
    asked: list[Tensor] = []
    told: list[Tensor] = []
    with torch.no_grad():
        for rows in np.array_split(np.arange(len(toys)), max(1, len(toys) // BATCH)):
            images = whole.apply(toys, rows, epoch=0, seed=0, train=False)
            told.append(teachers.each(images))
            asked.append(torch.stack([caps.logits for caps in net.heads(images) if caps.logits is not None]))
    said, wanted = torch.cat(asked, 1), torch.cat(told, 1)
    found = [compared(f"{name}, thinned and whole", w, s) for name, w, s in zip(names, wanted, said, strict=True)]
    for (first, a), (second, b) in combinations(zip(names, wanted, strict=True), 2):
        found.append(compared(f"{first} and {second}", a, b))
    found.append(compared("all together, thinned and whole", mean_share(wanted), mean_share(said)))
    print(json.dumps({"network": given.network, "toys": len(toys), "pairs": found}))


if __name__ == "__main__":
    main()
