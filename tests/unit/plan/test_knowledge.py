"""What a calibration changes in a plan: constants, widths, and the pace of a project's own steps."""

from dataclasses import replace
from math import exp

import pytest

from charter.catalog import accelerators
from charter.catalog.accelerators import processor
from charter.physics.constants import TrainingConstants
from charter.physics.fitted import WIDEST, Pace
from charter.plan.assemble import NO_NATIVE_ROW
from charter.plan.knowledge import TRAINING, TRAINING_MEMORY, Knowledge, shipped
from charter.plan.make import make_plan
from charter.report.plan_notes import note_groups
from charter.spec.ppo_stage import PpoStage
from charter.spec.project import DataSpec, ModelSpec, Project, Resources
from charter.spec.stage import SftStage

H100 = accelerators.get("H100")
SFT = SftStage(init="base", data=("chat",), epochs=1, global_batch=128, seq_len=2048)


def whole_plan(lab, knowledge: Knowledge):
    project = Project(
        name="paced",
        models={"base": ModelSpec(model="base")},
        data={"chat": DataSpec(path="absent.jsonl", rows=100_000, mean_tokens=500)},
        pipeline={"sft": SFT},
        resources=Resources(infra="aws", accelerators=("H100:8",), num_nodes=1),
    )
    return make_plan(project, architectures={"base": lab.LLAMA_8B}, data_facts={}, knowledge=knowledge)


def plan(lab, knowledge: Knowledge):
    return whole_plan(lab, knowledge).stages[0]


def test_the_shipped_constants_are_not_the_priors():
    assert float(shipped().training.matmul_share) != float(TrainingConstants().matmul_share)
    assert shipped().source == "measurements.csv"


def test_a_measured_pace_scales_the_time_and_narrows_it(lab):
    pace = Pace(accelerator=H100.name, kind="sft", factor=1.5, steps=5, source="steps of a run")
    plain, paced = plan(lab, shipped()), plan(lab, replace(shipped(), paces=(pace,)))
    assert paced.option.layout == plain.option.layout
    useful = plain.option.overhead.useful_seconds
    assert paced.option.overhead.useful_seconds == pytest.approx(1.5 * useful)
    term = next(term for term in paced.option.time_terms if term.name == "measured pace")
    assert term.value == pytest.approx(0.5 * useful)
    assert term.source == "steps of a run"
    spread = [stage.option.seconds.p90 / stage.option.seconds.p10 for stage in (plain, paced)]
    assert spread[1] < spread[0]


def test_a_pace_of_another_kind_or_device_changes_nothing(lab):
    others = (
        Pace(accelerator="cpu", kind="sft", factor=9.0, steps=5, source=""),
        Pace(accelerator=H100.name, kind="ppo", factor=9.0, steps=5, source=""),
    )
    known = replace(shipped(), paces=others)
    assert plan(lab, known).to_json() == plan(lab, shipped()).to_json()


def test_the_ninetieth_percentile_of_a_full_device_still_fits():
    width = shipped().half_width(TRAINING_MEMORY, "training memory")
    assert shipped().usable_bytes(H100) * exp(width) == pytest.approx(H100.memory_bytes)


def test_widths_follow_what_is_known():
    known = shipped()
    machine = processor(flops_per_second=1e11, memory_bytes_per_second=2e10, memory_bytes=8e9, cores=2)
    dense, moe = (known.time_sigma(SFT, H100, moe=sparse) for sparse in (False, True))
    ppo = PpoStage(policy="a", reward="b", prompts=("p",), episodes=64)
    assert dense < moe
    assert dense < known.time_sigma(ppo, H100, moe=False)
    assert known.time_sigma(SFT, machine, moe=False) == 0.30


def test_a_plan_says_that_no_accelerator_row_of_native_exists(lab):
    rented = whole_plan(lab, shipped())
    assert NO_NATIVE_ROW in rented.assumptions
    trust = dict(note_groups(rented))["How far to trust it"]
    assert any("with the memory of its own tensors" in line.plain for line in trust)
    local = lab.one(SFT, Resources(infra="local", accelerators=("cpu",)), architecture=lab.TINY)
    assert NO_NATIVE_ROW not in local.assumptions


def test_own_rows_or_steps_end_the_warning_of_native(lab):
    pace = Pace(accelerator=H100.name, kind="sft", factor=1.5, steps=5, source="steps of a run")
    calibrated = {**shipped().situations, TRAINING: "calibrated"}
    for known in (replace(shipped(), paces=(pace,)), replace(shipped(), situations=calibrated)):
        assert NO_NATIVE_ROW not in whole_plan(lab, known).assumptions


def test_an_interval_is_told_with_the_error_of_its_kind(lab):
    stage = plan(lab, shipped())
    error = shipped().errors[TRAINING]["training dense"]["seen"]
    assert f"training dense of sources left out is {error:.0%} off in the median" in stage.time_source
    assert "off in the median" in stage.peak_range.source
    assert "off in the median" not in plan(lab, replace(shipped(), errors={})).time_source


def test_ppo_of_an_engine_without_rows_has_the_widest_interval():
    known = shipped()
    assert known.rl_half_width("openrlhf") == known.rl_half_width("native") == WIDEST
    assert known.half_width("rl step", "rl time") == WIDEST
    assert known.rl_half_width("nemo-rl") == known.spreads["rl step"].half_width("rl time", "unseen")
    own = replace(known, rl_situations={**known.rl_situations, "native": "calibrated"})
    assert own.rl_half_width("native") == known.spreads["rl step"].half_width("rl time", "calibrated")
