"""How fast a network starts to learn: the loss and accuracy of steps 73 to 80 on 512 smallNORB pairs, batch 64.

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

STEPS, BATCH, IMAGES = 80, 64, 512


def first_steps(routing: str, options: dict, loss_name: str, data_dir: str | None, seed: int) -> dict[str, float]:
    """Train for 80 steps and average the last eight."""
    data = cr.data.load("smallnorb", data_dir=data_dir, cameras="stereo")
    some = data.train.subset(np.random.default_rng(seed).permutation(len(data.train))[:IMAGES])
    transform = dataclasses.replace(data.default_transform(True), brightness=0.0, contrast=0.0)
    loader = cr.data.Loader(some, transform, batch_size=BATCH, seed=seed, train=True)
    torch.manual_seed(seed)
    net = cr.CapsNet(routing, in_channels=2, routing_options=options)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    seen = []
    for epoch in range(STEPS // len(loader)):
        for batch in loader.epoch(epoch):
            caps = net(batch.images)
            plain = cr.losses.cross_entropy(caps, batch.labels)
            loss = plain if loss_name == "cross_entropy" else cr.losses.spread(caps, batch.labels, margin=0.6)
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
    parser.add_argument("--loss", choices=["cross_entropy", "spread"], default="cross_entropy")
    parser.add_argument("--data")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    found = first_steps(given.routing, given.options, given.loss, given.data, given.seed)
    print(json.dumps({"routing": given.routing, "options": given.options, "loss": given.loss, **found}))


if __name__ == "__main__":
    main()
