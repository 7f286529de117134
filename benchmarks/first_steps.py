"""How fast a network starts to learn: loss and accuracy over the last epoch of a few steps on some smallNORB pairs.

A quick look at one choice of options, not a result: it says nothing about new toys.

    python benchmarks/first_steps.py similarity --data DIR --options '{"betas": [40, 1]}'
"""

from __future__ import annotations

import argparse
import dataclasses
import json

import numpy as np
import torch

import capsroute as cr

BATCH = 64


def first_steps(given: argparse.Namespace) -> dict[str, float]:
    """Train for so many steps and average the last epoch."""
    seed = given.seed
    data = cr.data.load("smallnorb", data_dir=given.data, cameras="stereo")
    some = data.train.subset(np.random.default_rng(seed).permutation(len(data.train))[: given.images])
    transform = dataclasses.replace(data.default_transform(True), brightness=0.0, contrast=0.0)
    loader = cr.data.Loader(some, transform, batch_size=BATCH, seed=seed, train=True)
    torch.manual_seed(seed)
    net = cr.CapsNet(given.routing, in_channels=2, routing_options=given.options, **given.model)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    seen = []
    for epoch in range(given.steps // len(loader)):
        for batch in loader.epoch(epoch):
            caps = net(batch.images)
            plain = cr.losses.cross_entropy(caps, batch.labels)
            loss = plain if given.margin is None else cr.losses.spread(caps, batch.labels, margin=given.margin)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 5.0)
            optimizer.step()
            right = (caps.logits.argmax(1) == batch.labels).float().mean()
            seen.append((plain.item(), right.item()))
    last = np.mean(seen[-len(loader) :], axis=0)
    return {"cross_entropy": round(float(last[0]), 3), "accuracy": round(float(last[1]), 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("routing", nargs="?", default="similarity")
    parser.add_argument("--options", type=json.loads, default={}, help="of the routing, as JSON")
    parser.add_argument("--model", type=json.loads, default={}, help="arguments of the network, as JSON")
    parser.add_argument("--margin", type=float, help="use the spread loss with this margin instead of cross-entropy")
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--data")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    found = first_steps(given)
    print(json.dumps({"routing": given.routing, "options": given.options, "model": given.model, **found}))


if __name__ == "__main__":
    main()
