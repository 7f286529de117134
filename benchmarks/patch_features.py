"""A network without training by labels: how well do whitened patches and one linear map tell new toys apart?

    python benchmarks/patch_features.py --features 800 --data DIR
    python benchmarks/patch_features.py --features 400 --beside smallnorb-similarity-deep --data DIR

After Coates, Lee & Ng (2011): patches of 6 x 6 pixels of both cameras, images of 32 x 32, are whitened and clustered
(k-means by angle; a pair of clusters is one and its mirror image with the cameras swapped, so half of them are stored).
A feature is how far the likeness to a cluster exceeds a threshold, averaged over 3 x 3 fields of the image. Classes are
read off by least squares with a ridge, which is chosen, by toy, from cross-validation as in `new_toys.py`. `--beside`
trains that recipe on the same folds, adds its class logits, and chooses by the same folds how much the features count.
`--test` then fits all training toys and reads the test set once; with `--beside`, beside that pretrained network, and
beside it and its answer to the mirror image. `--ridge` and `--share` are for what folds have told before.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from capsroute import data, pretrained
from capsroute.data import Split
from capsroute.training import ranks
from capsroute.training.evaluate import predict
from capsroute.training.material import prepare
from capsroute.training.recipes import recipe
from new_toys import TOYS, unseen

PATCH, FLOOR, WHITEN, THRESHOLD, FIELDS, CLASSES = 6, 10.0, 0.1, 0.5, 3, 5
RIDGES = (0.01, 0.1, 0.3, 1.0, 3.0)
SHARES = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0)


class Filters(NamedTuple):
    """Half of the clusters; the others are their mirror images."""

    weight: Tensor
    bias: Tensor

    def both(self) -> tuple[Tensor, Tensor]:
        return torch.cat([self.weight, self.weight.flip(1, 3)]), torch.cat([self.bias, self.bias])


def shrunk(split: Split) -> Tensor:
    """Pairs of 96 x 96 pixels as 32 x 32."""
    return F.avg_pool2d(torch.from_numpy(split.images.stored[split.images.rows]).float(), 3)


def levelled(patches: Tensor) -> Tensor:
    """Each patch with mean zero and deviation about one."""
    patches = patches - patches.mean(-1, keepdim=True)
    return patches / (patches.var(-1, keepdim=True) + FLOOR).sqrt()


def clusters(images: Tensor, features: int, seed: int, sample: int = 4000, each: int = 75) -> Filters:
    """Whitened directions around which patches gather."""
    draw = torch.Generator().manual_seed(seed)
    chosen = images[torch.randperm(len(images), generator=draw)[:sample]]
    patches = F.unfold(chosen, PATCH).transpose(1, 2)
    places = torch.randint(patches.shape[1], (len(chosen), each, 1), generator=draw)
    patches = levelled(patches.gather(1, places.expand(-1, -1, patches.shape[-1])).flatten(0, 1))
    mean = patches.mean(0)
    values, vectors = torch.linalg.eigh(torch.cov((patches - mean).T))
    whitening = vectors @ torch.diag((values + WHITEN).rsqrt()) @ vectors.T
    points = ((patches - mean) @ whitening).view(-1, 2, PATCH, PATCH)
    points = torch.cat([points, points.flip(1, 3)]).flatten(1)
    centres = F.normalize(points[torch.randperm(len(points), generator=draw)[: features // 2]], dim=1)
    for _ in range(12):
        near, nearest = torch.cat([part @ centres.T for part in points.split(50_000)]).max(1)
        centres = F.normalize(torch.zeros_like(centres).index_add_(0, nearest, points * near[:, None]), dim=1)
    weight = centres @ whitening
    bias = -weight @ mean - THRESHOLD
    return Filters((weight - weight.mean(1, keepdim=True)).view(-1, 2, PATCH, PATCH), bias)


def described(images: Tensor, filters: Filters) -> Tensor:
    """The features of each image, [n, features x fields]."""
    weight, bias = filters.both()
    ones = torch.ones(1, 2, PATCH, PATCH)
    count = ones.numel()
    rows = []
    for part in images.split(100):
        mean = F.conv2d(part, ones) / count
        variance = (F.conv2d(part * part, ones) / count - mean * mean).clamp_min(0) * count / (count - 1)
        likeness = F.conv2d(part, weight) / (variance + FLOOR).sqrt() + bias[:, None, None]
        rows.append(F.adaptive_avg_pool2d(F.relu(likeness), FIELDS).flatten(1))
    return torch.cat(rows)


def standardised(described_: Tensor, like: Tensor) -> Tensor:
    """Columns with the mean and deviation of `like`, and one of ones."""
    deviation = like.std(0) + 1e-3 * like.std()
    return torch.cat([(described_ - like.mean(0)) / deviation, torch.ones(len(described_), 1)], 1)


def fitted(rows: Tensor, labels: Tensor, ridges: tuple[float, ...]) -> list[Tensor]:
    """The linear map to +1 for the class and -1 for others, for each ridge."""
    targets = 2.0 * F.one_hot(labels, CLASSES) - 1
    gram, right = rows.T @ rows, rows.T @ targets
    return [torch.linalg.solve(gram + ridge * len(rows) * torch.eye(len(gram)), right) for ridge in ridges]


def error(scores: Tensor, labels: Tensor) -> float:
    """In per cent."""
    return 100 * float((scores.argmax(1) != labels).float().mean())


def judged(given: argparse.Namespace, train: Split, rows: Tensor) -> tuple[float, float]:
    """Cross-validation by toy: prints errors, returns the ridge and what the features count."""
    labels = torch.from_numpy(train.labels)
    scores: list[list[Tensor]] = []
    wanted, logits = [], []
    for fold in range(TOYS):
        _, held = data.split_validation(train, "by_instance", fold=fold)
        mask = torch.isin(torch.from_numpy(train.ids), torch.from_numpy(held.ids))
        scores.append([rows[mask] @ found for found in fitted(rows[~mask], labels[~mask], RIDGES)])
        wanted.append(labels[mask])
        how = {"epochs": given.epochs, "seed": given.seed, "data": given.data, "threads": given.threads}
        logits.append(unseen(given.beside, fold, **how).logits if given.beside else torch.zeros(1, CLASSES))
        line = ", ".join(f"{error(each, wanted[-1]):.2f}" for each in scores[-1])
        network = f"; {given.beside} {error(logits[-1], wanted[-1]):.2f}" if given.beside else ""
        print(f"fold {fold}, new toys, ridges {RIDGES}: {line}{network}", flush=True)
    pairs = [(number, share) for number in range(len(RIDGES)) for share in (SHARES if given.beside else (1.0,))]
    means = {}
    for number, share in pairs:
        mixed = [logits[n] + share * scores[n][number] for n in range(TOYS)]
        means[number, share] = sum(error(mixed[n], wanted[n]) for n in range(TOYS)) / TOYS
    for (number, share), mean in sorted(means.items(), key=lambda item: item[1])[:5]:
        print(f"ridge {RIDGES[number]}, features count {share:g}: {mean:.2f} % of new toys")
    if given.beside:
        alone = [sum(error(scores[n][number], wanted[n]) for n in range(TOYS)) / TOYS for number in range(len(RIDGES))]
        print(f"{given.beside} alone: {means[0, 0.0]:.2f} %; features alone: {min(alone):.2f} %")
    number, share = min(means, key=lambda pair: means[pair])
    return RIDGES[number], share


def main() -> None:
    """Judge by toys, then, if asked, test."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--features", type=int, default=400)
    parser.add_argument("--beside", metavar="RECIPE")
    parser.add_argument("--epochs", type=int, default=5, help="of the network beside, on each fold")
    parser.add_argument("--ridge", type=float, choices=RIDGES, help="not to be chosen by folds; with --share")
    parser.add_argument("--share", type=float, help="what the features count beside the network; with --ridge")
    parser.add_argument("--test", action="store_true")
    parser.add_argument("--data", type=Path, help="where smallNORB lies")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    if (given.ridge is None) != (given.share is None):
        parser.error("--ridge and --share go together: give both, or neither to have folds choose them")
    ranks.set_threads(given.threads)
    toys = data.load("smallnorb", data_dir=given.data, cameras="stereo", side=96)
    images = shrunk(toys.train)
    filters = clusters(images, given.features, given.seed)
    plain = described(images, filters)
    rows = standardised(plain, plain)
    print(f"{filters.weight.numel() + filters.bias.numel() + CLASSES * rows.shape[1]:,} weights", flush=True)
    ridge, share = (given.ridge, given.share) if given.ridge else judged(given, toys.train, rows)
    if not given.test:
        return
    labels = torch.from_numpy(toys.test.labels)
    (linear,) = fitted(rows, torch.from_numpy(toys.train.labels), (ridge,))
    scores = standardised(described(shrunk(toys.test), filters), plain) @ linear
    print(f"test error of the features alone: {error(scores, labels):.2f} %")
    if given.beside:
        net, asked = pretrained.load(given.beside), recipe(given.beside).data
        seen = data.load("smallnorb", data_dir=given.data, cameras="stereo", **asked.options)
        transform = prepare(seen, asked.transform)
        for mirrored in (False, True) if transform.flip else (False,):
            found = predict(net, seen.test, transform, mirrored=mirrored)
            print(f"of {given.beside} {'and the mirror image' if mirrored else 'alone'}: {found.error:.2f} %; ", end="")
            print(f"with features counting {share:g}: {error(found.logits + share * scores, labels):.2f} %", flush=True)


if __name__ == "__main__":
    main()
