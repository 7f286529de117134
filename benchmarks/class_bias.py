"""Do class biases fitted to toys that are new to a network help it with others?

    python benchmarks/class_bias.py smallnorb-similarity-deep --test

A network that has seen five toys a class may lean towards one of two classes that are alike. For each of five folds of
training toys a network is trained without them, as in `new_toys.py`; one scale and five biases of the class logits are
then fitted to the held-out toys of all folds, by cross-entropy. Printed are the errors on new toys without biases, and
with biases fitted to the other four folds. `--test` adds those of all five to the logits of that pretrained network,
and reads the test set once.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from capsroute import data, pretrained
from capsroute.training.evaluate import Predictions, predict
from capsroute.training.material import prepare
from capsroute.training.recipes import recipe
from new_toys import TOYS, unseen


def fitted(logits: Tensor, labels: Tensor) -> Tensor:
    """The biases, in units of the logits as they are, with mean zero."""
    scale = torch.zeros((), dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(logits.shape[1], dtype=torch.float64, requires_grad=True)
    search = torch.optim.LBFGS([scale, bias], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        search.zero_grad()
        value = F.cross_entropy(scale.exp() * (logits.double() + bias), labels)
        value.backward()
        return value

    search.step(loss)
    return (bias - bias.mean()).detach()


def main() -> None:
    """Train the folds, fit, and test if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--epochs", type=int, default=5, help="of the network of each fold")
    parser.add_argument("--test", action="store_true")
    parser.add_argument("--data", type=Path, help="where smallNORB lies")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    how = {"epochs": given.epochs, "seed": given.seed, "data": given.data, "threads": given.threads}
    found = []
    for fold in range(TOYS):
        found.append(unseen(given.recipe, fold, **how))
        print(f"fold {fold}: {found[-1].error:.2f} % of new toys", flush=True)
    plain, helped = [], []
    for fold, held in enumerate(found):
        others = [each for n, each in enumerate(found) if n != fold]
        bias = fitted(torch.cat([each.logits for each in others]), torch.cat([each.labels for each in others]))
        plain.append(held.error)
        helped.append(Predictions(held.logits + bias, held.labels).error)
        print(f"fold {fold}: {plain[-1]:.2f} %, with biases of the other folds {helped[-1]:.2f} %")
    print(f"mean: {sum(plain) / TOYS:.2f} %, with biases {sum(helped) / TOYS:.2f} %")
    bias = fitted(torch.cat([each.logits for each in found]), torch.cat([each.labels for each in found]))
    toys = data.load("smallnorb", data_dir=given.data, cameras="stereo")
    print("biases: " + ", ".join(f"{name} {float(b):+.2f}" for name, b in zip(toys.classes, bias, strict=True)))
    if given.test:
        test = predict(pretrained.load(given.recipe), toys.test, prepare(toys, recipe(given.recipe).data.transform))
        biased = Predictions(test.logits + bias, test.labels)
        print(f"test error: {test.error:.2f} %, with biases {biased.error:.2f} %")


if __name__ == "__main__":
    main()
