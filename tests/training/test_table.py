"""The results table: which run is shown, what stands beside it, and in which forms."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from capsroute.errors import RunError
from capsroute.training import table
from capsroute.training.published import PUBLISHED


def result(routing: str = "similarity", seed: int = 0, **changes: Any) -> dict[str, Any]:
    lr = changes.pop("lr", 3e-3)
    made = {
        "recipe": f"smallnorb-{routing}",
        "dataset": "smallnorb",
        "source": "jpeg",
        "cameras": "stereo",
        "routing": routing,
        "seed": seed,
        "epochs": 20,
        "parameters": 88_000,
        "val_error": 1.0,
        "val_split": "by_instance",
        "test_error": 5.0,
        "test_interval": [4.7, 5.3],
        "wall_seconds": 3723.0,
        "threads": 2,
        "commit": None,
        "config": {"seed": seed, "optimizer": {"lr": lr}, "loss": {"name": "cross_entropy"}},
        "curve": [],
    }
    return {**made, **changes}


def cells(results: list[dict[str, Any]]) -> dict[str, str]:
    """Our cells of the table by data set."""
    header, rows = table.build(results)
    ours = [row for row in rows if row[1] == "capsroute"]
    assert len(ours) == 1
    return dict(zip(header, ours[0], strict=True))


def test_the_run_chosen_by_validation_is_shown_not_the_best_on_test() -> None:
    lucky = result(val_error=2.0, test_error=1.0, lr=1e-2)
    assert cells([lucky, result()])["smallNORB (JPEG copy), stereo"] == "5.00"


def test_seeds_give_mean_and_deviation_of_the_same_configuration() -> None:
    seeds = [result(seed=n, test_error=e, val_error=v) for n, e, v in ((0, 5.0, 1.0), (1, 6.0, 0.9), (2, 7.0, 1.1))]
    other = result(seed=3, test_error=50.0, val_error=2.0, lr=1e-2)
    assert cells([*seeds, other])["smallNORB (JPEG copy), stereo"] == "6.00 (6.00 ± 1.00, 3 seeds)"


def test_seeds_of_a_version_with_fewer_options_are_of_the_same_configuration() -> None:
    later = result(seed=1, test_error=6.0)
    later["config"]["loss"] |= {"teachers": {}, "apart": False}
    later["config"]["data"] = {"transform": {"chimera": 0.0}}
    assert cells([result(), later])["smallNORB (JPEG copy), stereo"] == "5.00 (5.50 ± 0.71, 2 seeds)"
    newer = result(seed=1, test_error=6.0)
    newer["config"]["not_yet_known"] = 1
    assert cells([result(), newer])["smallNORB (JPEG copy), stereo"] == "5.00", "another setting, and no failure"


def test_a_variant_of_a_recipe_has_a_row_of_its_own() -> None:
    deep = result(test_error=3.0, val_error=0.5, recipe="smallnorb-similarity-deep")
    header, rows = table.build([deep, result()])
    ours = {row[0]: dict(zip(header, row, strict=True)) for row in rows if row[1] == "capsroute"}
    assert [row[0] for row in rows if row[0].startswith(("sim", "conn"))][-1] == "connectionist"
    shown = {name: row["smallNORB (JPEG copy), stereo"] for name, row in ours.items()}
    assert shown == {"similarity": "5.00", "similarity-deep": "3.00"}
    assert table.label(result(recipe="custom")) == "similarity"


def test_a_run_that_began_with_another_network_says_so() -> None:
    began = result()
    began["config"] |= {"start": "smallnorb-uniform", "data": {"limit": 5000}}
    header, (row,) = table.details([began])
    assert dict(zip(header, row, strict=True))["epochs"] == "20 of 5,000 images after smallnorb-uniform"


def test_a_run_that_learned_from_networks_says_so() -> None:
    taught = result()
    taught["config"] |= {"loss": {"name": "cross_entropy", "teachers": {"first": [80], "second": [80, 2]}}}
    header, (row,) = table.details([taught])
    told = dict(zip(header, row, strict=True))
    assert (told["loss"], told["epochs"]) == ("teachers", "20, taught by 2 networks")


def test_a_run_that_began_with_several_networks_and_left_weights_out_says_so() -> None:
    thin = result()
    thin["config"] |= {"start": ["first", "second"], "model": {"lanes": [{"thin": 20_000}, {}]}}
    header, (row,) = table.details([thin])
    assert dict(zip(header, row, strict=True))["epochs"] == "20 after 2 networks, thinned"


def test_a_network_that_looks_twice_says_so() -> None:
    twice = result()
    twice["config"] |= {"model": {"mirror": "stereo"}}
    header, rows = table.details([twice])
    told = dict(zip(header, rows[0], strict=True))
    assert told["test error"] == f"{twice['test_error']:.2f}, two looks"


def test_sizes_that_round_to_the_same_are_written_once() -> None:
    other = result(parameters=88_400, dataset="mnist", source="idx", cameras=None)
    assert cells([result(), {**other, "recipe": "mnist-similarity"}])["weights"] == "88K"


def test_errors_of_different_validation_splits_are_not_compared() -> None:
    easy = result(val_error=0.1, val_split="random", test_error=9.0, lr=1e-2)
    none = result(val_error=None, val_split="none", test_error=2.0, lr=1e-3)
    assert cells([none, easy, result()])["smallNORB (JPEG copy), stereo"] == "5.00"
    assert cells([none])["smallNORB (JPEG copy), stereo"] == "2.00"


def test_copies_and_cameras_are_told_apart() -> None:
    results = [result(), result(cameras="left", test_error=6.0), result(source="mat", test_error=7.0)]
    results += [result(dataset="mnist", source="idx", cameras=None, test_error=0.4, parameters=105_000)]
    ours = cells(results)
    assert ours["smallNORB (JPEG copy), stereo"] == "5.00"
    assert ours["smallNORB (JPEG copy), left"] == "6.00"
    assert ours["smallNORB, stereo"] == "7.00"
    assert ours["MNIST"] == "0.40"
    assert ours["weights"] == "88K–105K"


def test_the_papers_rows_stand_beside_ours() -> None:
    _, rows = table.build([result()])
    paper = {row[0]: row[3:5] for row in rows if row[1] == "this paper"}
    assert paper == {"similarity": ("1.0", "8.19"), "connectionist": ("0.53", "6.7")}
    assert ("0.9", "8.2") in [row[3:5] for row in rows if row[1] == "www0wwwjs1"]
    assert len(rows) == len(PUBLISHED) + 1
    assert all(known.source for known in PUBLISHED)


def test_details_say_what_stands_behind_a_number() -> None:
    header, rows = table.details([result(), result(seed=4)])
    assert dict(zip(header, rows[0], strict=True)) == {
        "routing": "similarity",
        "data": "smallNORB (JPEG copy), stereo",
        "test error": "5.00",
        "95 % interval": "4.70 to 5.30",
        "validation": "1.00 (by_instance)",
        "loss": "cross-entropy",
        "epochs": "20",
        "time": "1:02:03",
        "seeds": "0, 4",
    }


def test_results_are_found_in_files_runs_and_folders(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "a.json").write_text(json.dumps(result()))
    (tmp_path / "results" / "other.json").write_text("{}")
    (tmp_path / "runs" / "one").mkdir(parents=True)
    (tmp_path / "runs" / "one" / "result.json").write_text(json.dumps(result(seed=1)))
    (tmp_path / "runs" / "one" / "config.json").write_text("{}")
    for path, count in (("results", 1), ("runs", 1), ("runs/one", 1), ("results/a.json", 1)):
        assert len(table.collect([tmp_path / path])) == count
    with pytest.raises(RunError, match=r"other\.json holds no results"):
        table.collect([tmp_path / "results" / "other.json"])
    with pytest.raises(RunError, match="cannot be read"):
        table.collect([tmp_path / "nothing"])


def test_text_markdown_and_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = [result(), result("em", test_error=4.2)]
    text = table.markdown(results)
    assert "| similarity | capsroute | 88K | – | – | 5.00 | this code |" in text
    assert "| em | www0wwwjs1 | – | 0.9 | 8.2 |" in text
    table.show(results)
    assert "smallNORB (JPEG copy), stereo" in capsys.readouterr().out
    table.picture(results, tmp_path / "table.png")
    assert (tmp_path / "table.png").read_bytes().startswith(b"\x89PNG")
