import math
from dataclasses import replace

import pytest
from tests.cases.meter_samples import GPU, ROW, with_gpus

from charter.physics.fitted import Pace
from charter.report.estimate_actual import Against, accuracy, accuracy_chart, accuracy_rows, pace_lines, process_memory
from charter.report.overview import overview
from charter.report.read import StageFiles, read_run
from charter.tracking import summarise


def against(actual, *, final=True):
    return Against(p10=8.0, p50=10.0, p90=15.0, actual=actual, is_final=final)


def test_actual_values_are_inside_above_or_below_the_band():
    assert [against(value).place for value in (7.9, 8.0, 10.0, 15.0, 15.1)] == [
        "below", "inside", "inside", "inside", "above",
    ]  # fmt: skip
    assert against(12.0, final=False).place == "open"
    assert against(12.0, final=False).ratio is None, "an unfinished stage says nothing yet"
    assert against(None).place == "open"
    assert Against(p10=None, p50=None, p90=None, actual=1.0, is_final=True).ratio is None


def test_a_finished_run_against_its_plan(finished):
    run = read_run(finished)
    found = accuracy(run, overview(run))
    stages = {stage.name: stage for stage in found.stages}
    assert stages["sft"].seconds.ratio == pytest.approx(8.1 / 9.0, rel=0.01)
    assert stages["sft"].seconds.place == "inside"
    assert stages["sft"].usd.ratio == pytest.approx(8.1 / 9.0, rel=0.01), "one price, so cost goes as time"
    inside, told = found.inside("seconds")
    assert 0 < inside <= told == 9
    ratios = [stage.seconds.ratio for stage in found.stages]
    assert found.bias("seconds") == pytest.approx(math.prod(ratios) ** (1 / len(ratios)))
    assert found.bias("tensor_bytes") is found.bias("process_bytes") is None, "this run has measured none"


def test_memory_is_the_largest_peak_against_what_the_stage_was_told(finished, tmp_path):
    run = read_run(finished)
    points = (
        *(point for point in run.stages["sft"].metrics[:0]),
        *[_with(point, peak) for point, peak in zip(run.stages["sft"].metrics[:3], (5e6, 9e6, 7e6), strict=True)],
    )
    stages = {**run.stages, "sft": replace(run.stages["sft"], metrics=points)}
    changed = replace(run, stages=stages)
    memory = next(stage for stage in accuracy(changed, overview(changed)).stages if stage.name == "sft").tensor_bytes
    assert (memory.actual, memory.p50) == (9e6, 1e7)
    assert memory.ratio == pytest.approx(0.9)
    assert memory.place == "open", "a plan has an interval of the whole process, not of its tensors"


def test_process_memory_beside_the_plans_total():
    planned = {"accelerator": "cpu", "peak_bytes": 70, "peak_bytes_range": {"p10": 60, "p50": 70, "p90": 80}}
    on_processors = StageFiles(name="sft", meter=summarise([replace(ROW, resident_bytes=140), ROW]))
    memory = process_memory(planned, on_processors, done=True)
    assert (memory.p10, memory.p50, memory.p90, memory.actual, memory.place) == (60, 70, 80, 140, "above")
    on_gpus = StageFiles(name="sft", meter=summarise([with_gpus(GPU, resident_bytes=140)]))
    assert process_memory({**planned, "accelerator": "H100"}, on_gpus, done=True).actual == 40, "of the accelerator"
    assert process_memory({**planned, "accelerator": "H100"}, on_processors, done=True).actual is None


def _with(point, peak):
    return replace(point, values={**point.values, "peak_bytes": peak, "planned_peak_bytes": 1e7})


def test_a_running_stage_is_open(running):
    run = read_run(running)
    stages = {stage.name: stage for stage in accuracy(run, overview(run)).stages}
    assert stages["ppo"].seconds.actual is not None
    assert stages["ppo"].seconds.place == "open"
    assert stages["eval"].seconds.actual is None


def test_paces_that_plans_use_stand_beside_those_that_the_run_shows():
    used = Pace(accelerator="cpu", kind="sft", factor=1.2, steps=50, source="a run before")
    shown = [Pace(accelerator="cpu", kind=kind, factor=2.0, steps=9, source="this") for kind in ("sft", "ppo")]
    lines = {line.kind: line for line in pace_lines([used], shown)}
    assert (lines["sft"].used, lines["sft"].shown, lines["sft"].steps) == (1.2, 2.0, 9)
    assert lines["ppo"].used is None


def test_rows_and_charts_hold_only_what_was_measured(finished, unpriced):
    for root, quantities in ((finished, ["seconds", "usd"]), (unpriced, ["seconds"])):
        run = read_run(root)
        found = accuracy(run, overview(run))
        assert [item["key"] for item in accuracy_rows(found)["quantities"]] == quantities
        assert [panel["quantity"] for panel in accuracy_chart(found)["panels"]] == quantities
        assert all(row["place"] for panel in accuracy_chart(found)["panels"] for row in panel["rows"])
