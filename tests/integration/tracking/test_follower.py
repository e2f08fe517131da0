"""The follower of real runs: it meters, serves Prometheus, and leaves with the run however that ends."""

import json
import os
import signal
import urllib.request
from pathlib import Path

import pytest

from charter.tracking import meter_rows, summarise

ADDRESS = "run/tracking/prometheus.json"
LOSS = 'charter_stage_metric{metric="loss",run="count",stage="a"}'


def metered(work, more=""):
    work.edit("metering: {every: 0}", f"metering: {{every: 0.2s{more}}}")
    return work


def followers(work):
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode().split("\0")
        except OSError:
            continue
        if str(work.root / "run") in words and any(word.startswith("charter.tracking.") for word in words):
            found.append(int(path.parent.name))
    return found


def samples_with_processes(directory):
    return [row for row in meter_rows(directory) if row.processes] if directory is not None else []


def test_every_stage_is_metered_and_says_that_it_has_no_gpu(work, undisturbed, held):
    metered(work)
    held.start("a", "b", "c")
    for name in ("a", "b", "c"):
        held.wait_for(lambda name=name: len(samples_with_processes(held.stage_dir(name))) >= 2)
        held.let_go(name)
    done = held.finish()
    assert (done.code, work.outputs()) == (0, undisturbed), done.err
    for name in ("a", "b", "c"):
        found = summarise(meter_rows(work.stage_dir(name)))
        assert found.samples >= 2
        assert found.gpu_note == "no GPU metering: the stage computes on processors"
        assert found.gpu_activity is None
        assert found.resident_peak_bytes > 1 << 20
    assert followers(work) == []


def test_metering_can_be_turned_off(work, undisturbed):
    assert "metering: {every: 0}" in (work.root / "charter.yaml").read_text()
    assert work.run().code == 0
    assert not list((work.root / "run").rglob("meter-*"))
    assert not (work.root / "run/tracking").exists()
    assert work.outputs() == undisturbed


def test_prometheus_is_served_on_loopback_while_the_run_lasts(work, held):
    metered(work, ", prometheus_port: 0")
    held.start("a")
    address = work.root / ADDRESS
    held.wait_for(address.exists)
    url = json.loads(address.read_text())["address"]
    assert url.startswith("http://127.0.0.1:")

    def scrape():
        with urllib.request.urlopen(url, timeout=60) as reply:
            return reply.read().decode()

    found = held.wait_for(lambda: LOSS in (text := scrape()) and text)
    assert 'charter_run_running{run="count"} 1.0' in found
    assert 'charter_stage_target_step{run="count",stage="a"} 6.0' in found
    assert "charter_gpu_activity_ratio{" not in found
    held.let_go("a")
    assert held.finish().code == 0
    assert not address.exists()


def test_a_port_that_is_taken_harms_nothing(work, undisturbed, held):
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        metered(work, f", prometheus_port: {taken.getsockname()[1]}")
        held.start("a")
        log = work.root / "run/tracking/follower.log"
        held.wait_for(lambda: log.exists() and "no Prometheus endpoint" in log.read_text())
        held.let_go("a")
        done = held.finish()
    assert (done.code, work.outputs()) == (0, undisturbed)


def test_it_leaves_when_the_supervisor_is_killed(work, undisturbed, held):
    metered(work)
    process = held.start("a")
    held.wait_for(lambda: followers(work) and list((work.root / "run").rglob("meter-*.jsonl")))
    os.kill(process.pid, signal.SIGKILL)
    held.wait_for(lambda: not followers(work))
    assert (work.run().code, work.outputs()) == (0, undisturbed)


@pytest.mark.parametrize("what", [signal.SIGKILL, signal.SIGSTOP])
def test_a_follower_that_dies_or_freezes_harms_nothing(work, undisturbed, held, what):
    metered(work, ", prometheus_port: 0")
    held.start("a")
    held.wait_for((work.root / ADDRESS).exists)
    (follower,) = followers(work)
    os.kill(follower, what)
    held.let_go("a")
    done = held.finish()
    assert (done.code, work.outputs()) == (0, undisturbed), done.err
    assert followers(work) == []
    assert not (work.root / ADDRESS).exists(), "nobody serves there any more"


def test_a_secret_that_is_nowhere_stops_the_run_before_it_starts(work):
    pytest.importorskip("mlflow")
    work.edit("name: count", "name: count\ntracking: [{mlflow: {token: env:NOBODY_SET_THIS}}]")
    done = work.run()
    assert (done.code, "NOBODY_SET_THIS" in done.err, done.events) == (2, True, [])


def test_commands_without_a_tracker_or_a_run_say_what_to_do(work):
    none = work.charter("status", "track", "sync")
    assert (none.code, "names no tracker" in none.err) == (2, True)
    work.edit("name: count", "name: count\ntracking: [tensorboard]")
    early = work.charter("status", "track", "sync")
    assert (early.code, "there is no run" in early.err) == (2, True)
    other = work.charter("status", "track", "sync", "--only", "mlflow")
    assert (other.code, "does not name 'mlflow'" in other.err) == (2, True)
    assert json.loads(work.charter("status", "track", "status", "--json").out) == {"trackers": []}
