"""Does routing matter? The same trunk and budget with and without it, on smallNORB pairs; two seeds each.

    python benchmarks/does_routing_matter.py --trunk deep --data DIR --out runs/routing --results results/routing

Finished runs are kept, stopped ones go on. `--case` and `--seed` choose some; `--table` only prints what is there. The
deep trunk is that of the `-deep` recipes, with all training pairs; the paper's is slower, and gets 4,000 unless told.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
from pathlib import Path
from typing import Any

from capsroute.training import recipe, train

# What is changed in the recipe; all else is the same.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "uniform": ("uniform", {}),
    "iterations-1": ("similarity", {"iterations": 1}),
    "iterations-2": ("similarity", {"iterations": 2}),
    "iterations-3": ("similarity", {"iterations": 3}),
    "iterations-5": ("similarity", {"iterations": 5}),
    "fixed-kernel": ("similarity", {"iterations": 3, "learn_kernel": False}),
}
PAIRS = 21_870
# What follows the routing in the recipe's name, what is set there, and how many pairs are trained on.
TRUNKS: dict[str, tuple[str, tuple[str, ...], int]] = {
    "deep": ("-deep", (), PAIRS),
    "paper": (
        "",
        (
            "schedule.name=cosine",
            "ema=0.999",
            "record_from=1",
            "data.transform.standardise=crop",
            "data.transform.brightness=0",
            "data.transform.contrast=0",
            "data.transform.rotation=15",
            "data.transform.scale=0.15",
            "data.transform.shear=0.15",
            "data.transform.fill=edge",
        ),
        4000,
    ),
}


def run(case: str, seed: int, given: argparse.Namespace) -> None:
    """Train one case, or go on with it, and keep its result."""
    (routing, options), (suffix, settings, pairs) = CASES[case], TRUNKS[given.trunk]
    config = recipe(f"smallnorb-{routing}{suffix}", seed=seed, epochs=given.epochs).with_settings(
        [*settings, f"data.limit={given.limit or pairs}", f"model.routing_options={json.dumps(options)}"]
    )
    out = given.out / given.trunk / f"{case}-{seed}"
    done = train(config, out=out, data_dir=given.data, resume=True, threads=given.threads)
    results = given.results / given.trunk
    results.mkdir(parents=True, exist_ok=True)
    shutil.copy(done.folder / "result.json", results / f"{case}-{seed}.json")


def table(results: Path) -> str:
    """What is there, in Markdown."""
    lines = ["| case | test error, each seed | mean | training error | minutes a run |", "|---|---|---|---|---|"]
    for case in CASES:
        found = [json.loads(path.read_text()) for path in sorted(results.glob(f"{case}-[0-9].json"))]
        if not found:
            continue
        errors = [result["test_error"] for result in found]
        trained = statistics.mean(result["curve"][-1]["train_error"] for result in found)
        minutes = statistics.mean(result["wall_seconds"] for result in found) / 60
        each = ", ".join(f"{error:.2f}" for error in errors)
        lines.append(f"| {case} | {each} | {statistics.mean(errors):.2f} | {trained:.2f} | {minutes:.1f} |")
    return "\n".join(lines)


def main() -> None:
    """Train what is asked for, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="where smallNORB lies")
    parser.add_argument("--out", type=Path, default=Path("runs/routing"))
    parser.add_argument("--results", type=Path, default=Path("results/routing"))
    parser.add_argument("--trunk", choices=TRUNKS, default="deep")
    parser.add_argument("--case", choices=CASES, action="append", help="all unless told; repeatable")
    parser.add_argument("--seed", type=int, action="append", help="0 and 1 unless told; repeatable")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--limit", type=int, help=f"training pairs, of {PAIRS:,}")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--table", action="store_true", help="print the table and train nothing")
    given = parser.parse_args()
    if not given.table:
        for seed in given.seed or (0, 1):
            for case in given.case or CASES:
                run(case, seed, given)
    print(table(given.results / given.trunk))


if __name__ == "__main__":
    main()
