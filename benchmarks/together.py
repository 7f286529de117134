"""Do networks err less together? Test errors of shipped networks or runs, each alone and all averaged.

    python benchmarks/together.py smallnorb-similarity-cut smallnorb-similarity-fine-cut

Class shares are averaged, each network seeing the test set as it was prepared for it, once even where it would look
twice (`model.mirror`); with the mirror image too where all were trained on mirrored images. Prints each error, the most
frequent mistakes, and one line of JSON.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from capsroute.analysis.subject import open_subject
from capsroute.lanes import mean_share
from capsroute.models import count_parameters, look_once
from capsroute.training import ranks
from capsroute.training.evaluate import Predictions, predict
from new_toys import mistakes

SHOWN = 4


def _tell(name: str, found: Predictions, classes: tuple[str, ...]) -> float:
    print(f"{name}: {found.error:.2f} % ({mistakes(found, classes, SHOWN)})", flush=True)
    return round(found.error, 2)


def main() -> None:
    """Evaluate the networks and print what they gave."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="+", metavar="NETWORK", help="a shipped network's name, or a run folder")
    parser.add_argument("--data", type=Path, help="where the data lies")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    ranks.set_threads(given.threads)
    subjects = [open_subject(name, given.data) for name in given.networks]
    for subject in subjects:
        look_once(subject.net)
    classes = subjects[0].classes
    weights = sum(count_parameters(subject.net, routing=True) for subject in subjects)
    told: dict[str, object] = {"networks": given.networks, "parameters": weights}
    views = (False, True) if all(subject.transform.flip for subject in subjects) else (False,)
    for mirrored in views:
        kind = "mirrored" if mirrored else "one look"
        each = [predict(s.net, s.dataset.test, s.transform, mirrored=mirrored) for s in subjects]
        alone = [_tell(f"{s.name}, {kind}", found, classes) for s, found in zip(subjects, each, strict=True)]
        shares = mean_share(torch.stack([found.logits for found in each]))
        together = _tell(f"all, {kind}", Predictions(shares, each[0].labels), classes)
        told[kind] = {"alone": alone, "together": together}
    print(json.dumps(told))


if __name__ == "__main__":
    main()
