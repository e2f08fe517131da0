"""Sweeps: their points, which stages a seed reaches, and what is refused."""

import json

import pytest

from charter.engines.project import load_project
from charter.errors import SpecError
from charter.spec.sweep import Sweep, points_of
from charter.templates.shipped import find_template, write_template

READS = {"sft": (), "pm": ("sft",), "ppo": ("sft", "pm"), "eval": ("ppo", "sft")}


def labels(sweep, seed=7):
    return [point.label for point in points_of(sweep, seed=seed, reads=READS)]


def test_combinations_are_settings_in_the_order_of_the_grid():
    sweep = Sweep(over={"pipeline.ppo.kl_target": (4.0, 8.0), "pipeline.ppo.episodes": (64, 128)}, seeds=2)
    assert labels(sweep)[:3] == [
        "kl_target 4.0, episodes 64, seed +0",
        "kl_target 4.0, episodes 64, seed +1",
        "kl_target 4.0, episodes 128, seed +0",
    ]
    assert len(labels(sweep)) == 8


@pytest.mark.parametrize(
    ("over", "seeded", "overrides"),
    [
        ({"pipeline.ppo.kl_target": (4.0,)}, (), ["pipeline.ppo.seed=8", "pipeline.eval.seed=8"]),
        ({"pipeline.ppo.kl_target": (4.0,)}, ("ppo",), ["pipeline.ppo.seed=8"]),
        ({"constitution": ("other.yaml",)}, (), ["seed=8"]),
        ({}, (), ["seed=8"]),
    ],
)
def test_a_seed_reaches_what_differs_and_what_reads_it(over, seeded, overrides):
    points = points_of(Sweep(over=over, seeds=2, seeded=seeded), seed=7, reads=READS)
    own, other = (point.overrides[len(over) :] for point in points)
    assert (list(own), list(other)) == ([], overrides)


def test_draws_keep_the_first_setting_and_never_repeat_one():
    over = {"pipeline.ppo.episodes": tuple(range(1, 11)), "pipeline.ppo.minibatch": (1, 2, 4)}
    drawn = labels(Sweep(over=over, draws=6))
    assert len(set(drawn)) == 6
    assert drawn[0] == labels(Sweep(over=over))[0]
    assert drawn == labels(Sweep(over=over, draws=6))


def project_with(tmp_path, sweep):
    write_template(find_template("cai-smoke"), tmp_path)
    path = tmp_path / "charter.yaml"
    path.write_text(path.read_text() + f"\nsweeps: {{one: {json.dumps(sweep)}}}\n")
    return load_project(tmp_path)


def test_a_sweep_in_the_file_is_read_and_changes_no_stage(tmp_path):
    sweep = {"over": {"pipeline.ppo.kl_target": [4.0, 8]}, "seeds": 3, "budget": "$5"}
    project = project_with(tmp_path, sweep)
    assert project.sweeps["one"].over == {"pipeline.ppo.kl_target": (4.0, 8)}
    assert project.sweeps["one"].budget == 5.0


@pytest.mark.parametrize(
    ("sweep", "words"),
    [
        ({"over": {"pipeline.ppo.kl_target": []}}, "without values"),
        ({"over": {"pipeline.ppo.kl_target": [1, 1]}}, "stands there twice"),
        ({"over": {"name": ["a"]}}, "no field that a sweep can change"),
        ({"seeded": ["pppo"]}, "there is no stage 'pppo'"),
        ({"metric": {"stage": "ppo", "figure": "x"}}, "no stage of kind eval"),
        ({"seeds": 1001}, "at most 1,000"),
        ({"over": {"seed": [[1]]}}, "sweeps.one.over"),
        ({"sedes": 2}, "unknown key 'sedes'"),
    ],
)
def test_what_makes_no_sweep_is_refused(tmp_path, sweep, words):
    with pytest.raises(SpecError) as refused:
        project_with(tmp_path, sweep)
    assert words in str(refused.value)


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_a_stage_has_a_seed_in_the_range_of_seeds(tmp_path, seed):
    write_template(find_template("cai-smoke"), tmp_path)
    with pytest.raises(SpecError, match="2\\^63"):
        load_project(tmp_path, overrides=[f"pipeline.ppo.seed={seed}"])
