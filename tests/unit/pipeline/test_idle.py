"""The clock of an attempt that may be idle, and what is told of it."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from charter.run.events import Events
from charter.run.watches import IdleClock, IdleWatch, evidence
from charter.spec.sections import IdlePolicy
from charter.tracking import GpuSample, MeterRow, summarise

POLICY = IdlePolicy(window=100.0)


def row(time, *, activity=None, processes=1):
    gpu = None if activity is None else (GpuSample(index=0, uuid="u", name="H100", sm_activity=activity,
                                                   energy_joules=50.0, energy_source="nvml_counter"),)  # fmt: skip
    return MeterRow(
        time=time, node="n", interval_seconds=10.0, processes=processes, cpu_seconds=0.0, resident_bytes=0,
        read_bytes=0, written_bytes=0, node_cpus=2, node_cpu_share=1.0, node_memory_bytes=1, node_memory_used_bytes=0,
        node_received_bytes=0, node_sent_bytes=0, gpus=gpu, gpu_note=None if gpu else "no GPU metering",
    )  # fmt: skip


def clock(rows):
    return IdleClock(
        policy=POLICY, stage_dir=Path("stage"), started_at=0.0,
        rows=lambda _, since: [item for item in rows if item.time >= since],
    )  # fmt: skip


def steps(step):
    return {"step": step, "counters": {"tokens": step}}


def test_an_attempt_that_works_is_never_idle_and_one_that_stops_is_after_the_window():
    rows = [row(float(t), activity=0.9 if t <= 200 else 0.0) for t in range(10, 500, 10)]
    it = clock(rows)
    for now in range(10, 210, 10):
        assert not it.look(steps(now), now=float(now)).idle
    assert not it.look(steps(200), now=290.0).idle
    found = it.look(steps(200), now=305.0)
    assert found.idle
    assert "accelerators work" in found.reason
    assert it.idle_seconds(400.0) == 200.0
    assert not it.look(steps(201), now=420.0).idle
    assert it.idle_seconds(450.0) == 220.0
    assert it.metered(480.0) == {
        "idle_milliseconds": 220_000, "energy_joules": 48 * 50, "energy_source": "nvml_counter"
    }  # fmt: skip


def test_without_samples_or_without_gpu_metering_nothing_is_idle_and_nothing_is_claimed():
    assert not clock([]).look({}, now=1e6).idle
    assert clock([]).metered(1e6) == {}
    it = clock([row(float(t)) for t in range(10, 300, 10)])
    assert not it.look({}, now=290.0).idle
    assert it.metered(290.0) == {"idle_milliseconds": 0}


def test_no_process_at_all_is_idle_without_any_gpu():
    it = clock([row(float(t), processes=0) for t in range(10, 300, 10)])
    assert it.look({}, now=290.0).reason.endswith("no process of it lives")


def test_samples_that_cover_no_time_do_not_say_that_no_process_lives():
    seen = summarise([replace(row(10.0), interval_seconds=0.0)])
    assert not evidence(seen, seconds_without_progress=1e6).no_process
    some = summarise([row(10.0, processes=0), row(20.0)])
    assert not evidence(some, seconds_without_progress=1e6).no_process


class Attempt(SimpleNamespace):
    """As much of a running attempt as is looked at."""

    def progress(self):
        return vars(self).get("said", {})


def watched(policy, tmp_path, *, waits=False):
    told = []
    rows = [row(float(t), processes=0) for t in range(10, 300, 10)]
    idle = replace(clock(rows), started_at=0.0)
    attempt = Attempt(idle=idle, ledger_id=1, stage=SimpleNamespace(name="ppo"), handle=SimpleNamespace(waits=waits))
    watch = IdleWatch(policy, Events(tmp_path, [told.append]))
    return lambda: watch.look([attempt], usd_per_hour=20.0), told


@pytest.mark.parametrize("action", ["warn", "release"])
def test_an_idle_stage_is_told_once_and_released_where_that_is_asked(tmp_path, action, monkeypatch):
    monkeypatch.setattr("charter.run.watches.time", SimpleNamespace(time=lambda: 290.0))
    look, told = watched(IdlePolicy(window=100.0, action=action), tmp_path)
    errors = [look(), look()]
    assert [event["event"] for event in told] == ["stage_idle"]
    assert "it costs $20.00 per hour" in told[0]["message"]
    assert (errors[0] is not None) == (action == "release")
    assert errors[1] is None


def test_a_stage_that_worked_again_is_told_anew_when_it_is_idle_again(tmp_path, monkeypatch):
    now = [290.0]
    monkeypatch.setattr("charter.run.watches.time", SimpleNamespace(time=lambda: now[0]))
    told, rows = [], [row(float(t), processes=0) for t in range(10, 600, 10)]
    attempt = Attempt(
        idle=clock(rows), ledger_id=1, stage=SimpleNamespace(name="ppo"), handle=SimpleNamespace(waits=False)
    )
    watch = IdleWatch(IdlePolicy(window=100.0), Events(tmp_path, [told.append]))
    watch.look([attempt], usd_per_hour=None)
    now[0], attempt.said = 300.0, steps(1)
    watch.look([attempt], usd_per_hour=None)
    now[0] = 450.0
    watch.look([attempt], usd_per_hour=None)
    assert [event["idle_seconds"] for event in told] == [290.0, 300.0 + 150.0]


def test_a_job_that_waits_in_a_queue_is_not_idle(tmp_path, monkeypatch):
    monkeypatch.setattr("charter.run.watches.time", SimpleNamespace(time=lambda: 290.0))
    look, told = watched(IdlePolicy(window=100.0), tmp_path, waits=True)
    assert (look(), told) == (None, [])
