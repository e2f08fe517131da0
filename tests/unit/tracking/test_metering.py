"""Samples: what is unknown stays unknown, sums weigh by time, lines that a kill tore are left out."""

import json
import os
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meter_samples import GPU, ROW, with_gpus

from charter.metering.row import append_row, meter_path, row_of
from charter.metering.sampler import LocalMeters
from charter.tracking import meter_rows, summarise
from charter.tracking.journal import machine_values


def test_rows_come_back_as_they_were_written(tmp_path):
    rows = [ROW, with_gpus(replace(GPU, xids=(79,)), time=110.0), replace(ROW, node="n/../2", time=105.0)]
    for row in rows:
        append_row(tmp_path, row)
    assert meter_rows(tmp_path) == (rows[0], rows[2], rows[1])
    assert meter_path(tmp_path, "n/../2").parent == tmp_path
    assert meter_rows(tmp_path, since=101.0) == (rows[2], rows[1])


def test_torn_and_foreign_lines_are_left_out(tmp_path):
    append_row(tmp_path, ROW)
    path = meter_path(tmp_path, "n1")
    line = json.loads(path.read_text())
    path.write_text(json.dumps({**line, "of a later version": 1}) + "\n[3]\nnull\n" + path.read_text()[:40])
    assert meter_rows(tmp_path) == (ROW,)
    assert row_of(b"{}") is None


def test_no_gpu_is_a_note_and_never_a_zero():
    found = summarise([ROW])
    assert found.gpu_note == "no GPU metering: the driver is not there"
    assert (found.gpu_activity, found.gpu_idle_seconds, found.gpu_seconds, found.gpu_memory_peak_bytes) == (None,) * 4
    assert (found.energy_joules, found.energy_sources) == (None, ())
    assert not any("gpu" in name for name in machine_values(ROW))


def test_nothing_metered_says_so():
    found = summarise([])
    assert (found.samples, found.gpu_note, found.cpu_share) == (0, "nothing was metered", None)


def test_means_weigh_by_time_and_prefer_sm_activity():
    rows = [
        with_gpus(GPU),
        with_gpus(replace(GPU, sm_activity=None, utilisation=0.3), time=110.0, interval_seconds=30.0),
    ]
    found = summarise(rows)
    assert found.gpu_activity == pytest.approx((0.6 * 10 + 0.3 * 30) / 40)
    assert (found.gpu_seconds, found.gpus, found.gpu_note) == (40.0, 1, None)
    assert found.cpu_share == pytest.approx(30 / (40 * 4))


def test_idle_is_no_process_or_known_low_activity_and_unknown_is_busy():
    rows = [
        with_gpus(replace(GPU, sm_activity=0.01)),
        with_gpus(replace(GPU, sm_activity=0.9), processes=0),
        with_gpus(replace(GPU, sm_activity=None, utilisation=None)),
        with_gpus(GPU),
    ]
    found = summarise(rows)
    assert (found.gpu_idle_seconds, found.no_process_seconds) == (20.0, 10.0)
    assert summarise(rows, idle_below=0.7).gpu_idle_seconds == 30.0
    assert summarise(rows, idle_below=0.6).gpu_idle_seconds == 20.0


def test_energy_names_every_source():
    rows = [with_gpus(GPU, cpu_energy_joules=100.0), with_gpus(replace(GPU, energy_source="nvml_power"))]
    found = summarise(rows)
    assert (found.energy_joules, found.energy_sources) == (10_100.0, ("nvml_counter", "nvml_power", "rapl"))


def test_new_errors_of_devices_are_counted_and_old_ones_not():
    rows = [
        with_gpus(replace(GPU, uncorrected_ecc_errors=count, xids=xids)) for count, xids in ((7, ()), (9, (48, 79)))
    ]
    found = summarise(rows)
    assert (found.uncorrected_ecc_errors, found.xids) == (2, (48, 79))


def test_memory_is_that_of_the_job_where_the_driver_knows_it():
    assert summarise([with_gpus(GPU)]).gpu_memory_peak_bytes == 40
    assert summarise([with_gpus(replace(GPU, job_memory_bytes=30))]).gpu_memory_peak_bytes == 30
    unknown = replace(GPU, memory_bytes=None, memory_used_bytes=None)
    assert summarise([with_gpus(unknown)]).gpu_memory_peak_bytes is None


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0.1, 100)), min_size=1, max_size=20))
def test_splitting_an_interval_changes_no_sum(parts):
    rows = [with_gpus(replace(GPU, sm_activity=share), interval_seconds=seconds) for share, seconds in parts]
    halves = [replace(row, interval_seconds=row.interval_seconds / 2) for row in rows for _ in range(2)]
    whole, split = summarise(rows), summarise(halves)
    assert split.gpu_activity == pytest.approx(whole.gpu_activity)
    assert split.gpu_idle_seconds == pytest.approx(whole.gpu_idle_seconds)
    assert 0 <= whole.gpu_idle_seconds <= whole.gpu_seconds * (1 + 1e-9)


def test_names_of_values_say_node_and_unit():
    values = machine_values(with_gpus(GPU))
    assert values["system/n1/gpu_0_sm_activity"] == 0.6
    assert values["system/n1/job_cpu_cores"] == 1.5
    assert values["system/n1/node_sent_bytes_per_second"] == 0.4
    assert "system/n1/gpu_0_temperature_celsius" not in values


def test_a_stage_between_two_samples_is_metered_from_its_start(tmp_path, monkeypatch):
    """Samples come by the clock of the run: of a stage that starts between two, the first covers what came since."""
    monkeypatch.setattr("charter.metering.sampler.stage_pids", lambda *_: (os.getpid(),))
    (tmp_path / "job.json").write_text('{"frozen": {"device": "cpu"}}')
    meters = LocalMeters(tmp_path, every_seconds=1000.0)
    meters.look([])
    meters.look([tmp_path])
    assert meter_rows(tmp_path) == ()
    until = time.process_time() + 0.1
    while time.process_time() < until:
        pass
    meters.look([])
    (row,) = meter_rows(tmp_path)
    assert row.processes >= 1
    assert row.cpu_seconds >= 0.08
