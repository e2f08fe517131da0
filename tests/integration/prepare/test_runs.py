"""Whole runs of a prepare stage by the command, with real SIGKILLs; and what a later stage reads of it."""

import json
import sys

import forks
import pytest
from prepare_case import results

PROJECT = """\
name: preparing
models: {base: meta-llama/Llama-3.1-8B}
data: {raw: raw.jsonl, test: test.jsonl}
pipeline:
  clean: {kind: prepare, data: raw, held_out: test}
"""
WITHOUT_DATASKETCH = """\
import importlib.util as util, sys
find = util.find_spec
util.find_spec = lambda name, *more: None if name == "datasketch" else find(name, *more)
sys.argv = ["charter", "run", "--yes", "-C", {root!r}]
from charter.cli.main import entry
entry()
"""
WORDS = ["herb", "balcony", "winter", "city", "north", "shade", "water", "stone", "bread", "river", "lamp"]


def question(number):
    """A question of twenty words that is unlike every other."""
    return " ".join(f"{WORDS[(number * 7 + at * at) % 11]}{(number * 31 + at * 17) % 1009}" for at in range(20))


@pytest.fixture(scope="session")
def prepare_project(new_workplace):
    def make(root):
        place = new_workplace(root)
        (root / "charter.yaml").write_text(PROJECT)
        rows = [{"id": str(n), "prompt": question(n % 4000)} for n in range(4500)]
        rows += [{"id": f"t{n}", "prompt": f"please say: {question(9000 + n)}"} for n in range(20)]
        (root / "raw.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (root / "test.jsonl").write_text("".join(json.dumps({"prompt": question(9000 + n)}) + "\n" for n in range(20)))
        return place

    return make


@pytest.fixture(scope="session")
def calm(prepare_project, tmp_path_factory):
    place = prepare_project(tmp_path_factory.mktemp("calm") / "project")
    done = place.charter("run", "--yes")
    assert done.code == 0, done.err
    return place


def test_what_is_kept_and_what_is_not(calm):
    kept, rejected, summary = results(calm.stage_dir("clean") / "outputs")
    assert [row["id"] for row in kept] == [str(number) for number in range(4000)]
    assert (summary["rejected_duplicate"], summary["rejected_overlap"], len(rejected)) == (500, 20, 520)
    again = calm.charter("run", "--yes")
    assert "nothing to be done" in again.out


@pytest.mark.parametrize(
    "kill",
    [
        {"CHARTER_KILL": "clean:checkpoint:2:before:all"},
        pytest.param({"CHARTER_KILL": "clean:checkpoint:2:after:all"}, marks=pytest.mark.thorough),
        pytest.param({"CHARTER_KILL": "clean:outputs:3:after:all"}, marks=pytest.mark.thorough),
        {"CHARTER_FAULT_AT": "14:torn"},
    ],
    ids=lambda kill: "".join(kill.values()),
)
def test_after_a_kill_the_same_command_gives_the_same_bits(prepare_project, calm, tmp_path, kill):
    place = prepare_project(tmp_path / "project")
    place.charter("run", "--yes", **kill)
    done = place.charter("run", "--yes")
    assert done.code == 0, done.err
    assert place.status()["clean"]["attempts"] == 2
    assert place.outputs() == calm.outputs()
    assert place.status()["clean"]["fingerprint"] == calm.status()["clean"]["fingerprint"]


def test_a_renamed_data_set_prepares_nothing_anew(calm):
    calm.edit("raw: raw.jsonl", "renamed: raw.jsonl")
    calm.edit("data: raw", "data: renamed")
    assert "nothing to be done" in calm.charter("run", "--yes").out
    calm.edit("renamed: raw.jsonl", "raw: raw.jsonl")
    calm.edit("data: renamed", "data: raw")


def test_bad_rows_stop_the_run_before_it_starts(prepare_project, tmp_path):
    place = prepare_project(tmp_path / "project")
    with (tmp_path / "project" / "raw.jsonl").open("a") as file:
        file.write('{"prompt": NaN}\n')
    done = place.charter("run", "--yes")
    assert (done.code, "raw.jsonl:4521: NaN is not a JSON value" in done.err) == (8, True)
    assert not (tmp_path / "project" / "run" / "stages").exists()


def test_without_the_library_it_says_what_to_install(prepare_project, tmp_path):
    place = prepare_project(tmp_path / "project")
    code = WITHOUT_DATASKETCH.format(root=str(place.root))
    done = forks.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, "pip install '.[data]'" in done.stderr) == (7, True)


def test_the_plan_of_a_prepare_stage_needs_no_accelerator(calm):
    plan = json.loads(calm.charter("plan", "--json").out)
    stage = plan["stages"][0]
    assert (stage["accelerator"], stage["count"], stage["gpu_hours"]["p90"]) == ("cpu", 0, 0.0)
    assert 0 < stage["seconds"]["p50"] < 60
