import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charter.engines.project import load_project
from charter.errors import InfeasibleError, MissingExtraError
from charter.physics.fitted import Pace
from charter.plan.machine import Machine
from charter.plan.probe import (
    LayoutProbe,
    StageProbe,
    full_steps,
    micro_batches,
    not_probed,
    paces_of,
    planned_step_seconds,
    short_project,
    with_micro_batch,
)
from charter.plan.probe import _nearest as nearest
from charter.plan.project_plan import plan_project
from charter.run import preflight
from charter.run.graph import build_pipeline
from charter.run.planned import measured_paces
from charter.run.probe import probe_project
from charter.spec.project import Serving
from charter.templates.shipped import find_template, write_template

MACHINE = Machine(name="test", cores=2, memory_bytes=16e9, flops_per_second=1e11, memory_bytes_per_second=2e10)


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    root = tmp_path_factory.mktemp("smoke") / "p"
    write_template(find_template("cai-smoke"), root, force=False)
    project = load_project(root / "charter.yaml", overrides=(), env={})
    return project, root, plan_project(project, root, machine=MACHINE)


def test_a_short_project_keeps_what_a_step_is(smoke):
    project, root, _ = smoke
    short = short_project(project, root, steps=dict.fromkeys(project.pipeline, 4))
    for name, stage in project.pipeline.items():
        cut = short.pipeline[name]
        for field in ("global_batch", "seq_len", "rollout_batch", "minibatch", "max_new_tokens", "dtype", "init"):
            assert getattr(cut, field, None) == getattr(stage, field, None)
    assert short.pipeline["sft"].steps == 4
    assert short.pipeline["ppo"].episodes == 4 * 8
    assert short.pipeline["ppo"].value_warmup_rollouts == 0
    assert short.pipeline["label"].candidates == ("pairs_b-probe",)
    assert short.data["pairs_b-probe"].limit == 32
    assert all(Path(spec.path).is_absolute() for spec in short.data.values())
    assert short.budget is None


@given(st.integers(1, 512), st.integers(1, 12))
def test_layouts_are_within_the_batch_and_the_planned_one_is_first(batch, count):
    for first in (1, batch, max(1, batch // 3)):
        found = nearest(first, batch, count)
        assert found[0] == first
        assert len(set(found)) == len(found) <= count
        assert all(1 <= micro <= batch for micro in found)


def test_every_stage_of_a_local_plan_has_layouts_steps_and_a_reason_if_not(smoke):
    project, _, plan = smoke
    tried = {name: micro_batches(stage, plan.stage(name), 2) for name, stage in project.pipeline.items()}
    assert tried["sft"] == (8, 4)
    assert tried["pm"] == (8, 4)
    assert tried["ppo"] == (0,)
    steps = {name: full_steps(stage, plan.stage(name)) for name, stage in project.pipeline.items()}
    assert (steps["pretrain"], steps["pm"], steps["ppo"], steps["critique"]) == (60, 20, 20, 2)
    reasons = {name: not_probed(stage, plan.stage(name), project) for name, stage in project.pipeline.items()}
    assert {name for name, why in reasons.items() if why} == {"label", "eval"}


def test_a_measured_pace_stands_for_other_programs_too(smoke, monkeypatch):
    project, root, _ = smoke
    directory = build_pipeline(project, root).stages["sft"].directory
    directory.mkdir(parents=True)
    lines = [json.dumps({"step": step, "time": 100.0 + 0.5 * step}) for step in range(1, 9)]
    (directory / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    (directory / "progress.json").write_text(json.dumps({"step": 8, "target_step": 20}))
    factors = []
    for busy_cores in (0.0, 6.0):
        monkeypatch.setattr(
            "charter.run.planned.probe_machine", lambda busy=busy_cores: replace(MACHINE, busy_cores=busy)
        )
        factors += [pace.factor for pace in measured_paces(project, root)]
    assert len(factors) == 2
    assert factors[0] == factors[1] > 1


def test_pairs_are_two_sequences_to_the_planner(smoke):
    project, root, _ = smoke
    fixed = with_micro_batch(project, {"sft": 4, "pm": 4})
    assert fixed.pipeline["sft"].resources.micro_batch == 4
    assert fixed.pipeline["pm"].resources.micro_batch == 8
    plan = plan_project(fixed, root, machine=MACHINE)
    assert plan.stage("sft").option.layout.accumulation == 2
    assert plan.stage("pm").option.layout.accumulation == 2


def test_the_planned_step_is_the_plan_over_its_steps(smoke):
    project, _, plan = smoke
    useful = plan.stage("sft").option.overhead.useful_seconds
    assert planned_step_seconds(project.pipeline["sft"], plan, "sft") == pytest.approx(useful / 20)


def test_an_endpoint_is_not_asked_by_a_probe(smoke):
    project, _, plan = smoke
    served = replace(project, serving={"sft": Serving(endpoint="http://judge:8000/v1")})
    assert "endpoint" in not_probed(served.pipeline["critique"], plan.stage("critique"), served)


def stage_probe(name="a", kind="sft", seconds=(2.0, 1.5), planned=1.0):
    layouts = tuple(
        LayoutProbe(label=f"mb{i}", micro_batch=i + 1, planned_seconds=planned, measured_seconds=item, steps=5)
        for i, item in enumerate(seconds)
    )
    return StageProbe(name=name, kind=kind, accelerator="cpu", full_steps=10, layouts=layouts)


def test_measured_layouts_are_ranked_and_the_pace_is_the_planned_ones():
    probe = stage_probe()
    assert [item.label for item in probe.measured] == ["mb1", "mb0"]
    assert [item.label for item in probe.faster] == ["mb1"]
    assert probe.pace.factor == 2.0
    assert stage_probe(seconds=(2.0, 1.95)).faster == ()
    assert stage_probe(seconds=(None, 1.5)).pace is None


def test_a_faster_layout_is_told_in_the_sequences_that_the_file_counts():
    for kind, expected in (("sft", 2), ("preference_model", 4)):
        probe = stage_probe(kind=kind)
        assert probe.sequences(probe.faster[0]) == expected


def test_new_paces_replace_old_ones_of_the_same_kind_only():
    old = [Pace(accelerator="cpu", kind=kind, factor=9.0, steps=3, source="run") for kind in ("sft", "ppo")]
    found = {pace.kind: pace.factor for pace in paces_of([stage_probe()], old)}
    assert found == {"sft": pytest.approx(2.0), "ppo": 9.0}


def test_without_the_engine_nothing_starts(smoke, monkeypatch):
    project, root, _ = smoke
    monkeypatch.setattr(preflight, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError) as caught:
        probe_project(project, root, layouts=1, machine=MACHINE)
    assert caught.value.exit_code == 7


def test_a_plan_for_other_machines_cannot_be_probed_here(tmp_path, monkeypatch):
    monkeypatch.setattr(preflight, "find_spec", lambda name: object())
    write_template(find_template("cai-8b"), tmp_path / "p", force=False)
    project = load_project(tmp_path / "p" / "charter.yaml", overrides=(), env={})
    with pytest.raises(InfeasibleError, match="which is not this machine") as caught:
        probe_project(project, tmp_path / "p", layouts=1, machine=MACHINE)
    assert caught.value.exit_code == 3
    assert not (tmp_path / "p" / "calibration.json").exists()
    assert not (tmp_path / "p" / "run").exists()
