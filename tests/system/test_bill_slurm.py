"""The ledger against Slurm's own records and a provider's bill made from them: equal to the second and the cent."""

import subprocess
from datetime import UTC, datetime
from decimal import ROUND_HALF_UP, Decimal

import pytest
from slurm_cluster import missing_programs, slurm_cluster

from charter.launch.slurm.scheduler import SlurmScheduler
from charter.ledger import Ledger
from charter.ledger.bill import compare_bill, read_bill
from charter.spec.launching import SlurmSettings

PRICE_MICRO_USD = 2_490_000
"""Of one accelerator and hour."""
CENT = Decimal("0.01")
FIRST_LONG = '$([ -z "$SLURM_RESTART_COUNT" ] && echo 300 || echo 2)'
"""Seconds of a job that is still there when it is preempted, and soon done when it runs again."""


STARTS = 1 + 4 + 2 + 1
"""Of these jobs."""


@pytest.fixture(scope="module")
def cluster():
    missing = missing_programs(accounting=True)
    assert not missing, f"{missing}: tools/system_packages.sh installs what this test needs; it runs as root"
    with slurm_cluster(accounting=True) as started:
        yield started


def submit(cluster, seconds, *options):
    script = f"#!/bin/sh\nsleep {seconds}\n"
    command = ["sbatch", "--parsable", "-o", "/dev/null", *options]
    done = subprocess.run(command, input=script, env=cluster.environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def jobs(cluster):
    """One that ends, an array, one that is preempted and runs again, one that is cancelled."""
    plain = submit(cluster, 3, "--gres=gpu:2", "-N1")
    array = submit(cluster, 2, "--gres=gpu:1", "-N1", "--array=0-3")
    preempted = submit(cluster, FIRST_LONG, "--gres=gpu:4", "-N1", "-w", "n4", "--requeue")
    cancelled = submit(cluster, 600, "--gres=gpu:1", "-N2")
    for job in (plain, preempted, cancelled):
        cluster.wait_for_state(job, "RUNNING", "COMPLETED")
    cluster.preempt("n4")
    cluster.wait_until(lambda: cluster.job_field(preempted, "Restarts") == "1", "the preemption")
    cluster.run("scontrol", "update", f"jobid={preempted}", "StartTime=now+2", check=False)
    cluster.run("scancel", cancelled)
    for job in (plain, preempted):
        cluster.wait_for_state(job, "COMPLETED")
    cluster.wait_for_state(cancelled, "CANCELLED")
    sent = (plain, array, preempted, cancelled)
    # slurmdbd hears of an end a moment after the controller: the tests read what it has kept.
    cluster.wait_until(lambda: len(by_sacct(cluster, sent)) >= STARTS, "the records of all starts")
    return sent


def by_sacct(cluster, jobs):
    """Every start, read from `sacct -D` by this test itself: id, start, end, seconds, accelerators."""
    fields = "JobID,Start,End,ElapsedRaw,AllocTRES,NodeList,State"
    text = cluster.run("sacct", "-D", "-X", "-P", "-n", "-j", ",".join(jobs), "-o", fields)
    rows = []
    for line in text.splitlines():
        job, start, end, seconds, tres, _, state = line.split("|")
        gpus = next((int(part.partition("=")[2]) for part in tres.split(",") if part.startswith("gres/gpu=")), 0)
        if gpus and "Unknown" not in (start, end):
            rows.append((job, start, end, int(seconds), gpus, state))
    return rows


@pytest.fixture(scope="module")
def ledger(cluster, jobs, tmp_path_factory):
    """A ledger that measured badly, settled by the engine's records as `charter run --on slurm` does it."""
    scheduler = SlurmScheduler(SlurmSettings(), environ=cluster.environment)
    with Ledger.open(tmp_path_factory.mktemp("ledger") / "ledger.sqlite") as opened:
        for job in jobs:
            for start in scheduler.attempts(job):
                attempt = opened.begin(
                    run="demo", stage=f"job{job}", kind="sft", fingerprint="f", at=start.started_at + 0.7,
                    accelerator="H100-SXM-80GB", infra="slurm", price_micro_usd_per_hour=PRICE_MICRO_USD,
                    count=start.accelerators or 1, shard=start.shard,
                )  # fmt: skip
                opened.end(attempt, at=start.started_at + 99.9, outcome="done", step=1)
                opened.settle(
                    attempt,
                    started_at=start.started_at,
                    duration_milliseconds=round((start.seconds or 0.0) * 1000),
                    job_id=start.job_id,
                    nodes=",".join(start.nodes),
                )
        yield opened


def test_the_ledger_is_sacct_to_the_second_and_the_cent(cluster, jobs, ledger):
    rows = by_sacct(cluster, jobs)
    assert len(rows) == STARTS
    assert {state.partition(" ")[0] for *_, state in rows} >= {"COMPLETED", "PREEMPTED", "CANCELLED"}
    assert ledger.total().totals.billed_unit_milliseconds == 1000 * sum(row[3] * row[4] for row in rows)
    usd = sum(Decimal(PRICE_MICRO_USD) * row[3] * row[4] / 3600 for row in rows) / 1_000_000
    assert abs(Decimal(ledger.total().micro_usd) / 1_000_000 - usd) < Decimal("0.000001") * len(rows)
    ledger.check_sums()


def bill_text(rows, *, price=Decimal(PRICE_MICRO_USD) / 1_000_000, granule=1):
    """A provider's bill of these starts: accelerator-seconds at a price, each line rounded to the cent."""
    lines = ["job_id,start,end,seconds,cost_usd"]
    for job, start, end, seconds, gpus, _ in rows:
        billed = -(-seconds // granule) * granule * gpus
        cost = (price * billed / 3600).quantize(CENT, ROUND_HALF_UP)
        lines.append(f"{job},{utc(start)},{utc(end)},{billed},{cost}")
    return "\n".join(lines) + "\n"


def utc(text):
    """Slurm writes local time."""
    return datetime.fromisoformat(text).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def compared(tmp_path, text, ledger):
    (tmp_path / "bill.csv").write_text(text)
    return compare_bill(read_bill(tmp_path / "bill.csv").lines, ledger.accounted())


def test_a_bill_of_the_same_starts_is_equal_to_the_second_and_the_cent(cluster, jobs, ledger, tmp_path):
    rows = by_sacct(cluster, jobs)
    findings = compared(tmp_path, bill_text(rows), ledger)
    assert [item.kind for item in findings] == ["equal"] * len(rows), [str(item) for item in findings]
    assert sum(item.billed_seconds for item in findings) == sum(item.ledger_seconds for item in findings)


def test_every_difference_of_a_bill_is_explained(cluster, jobs, ledger, tmp_path):
    rows = by_sacct(cluster, jobs)
    dearer = compared(tmp_path, bill_text(rows, price=Decimal("3600")), ledger)
    assert {item.kind for item in dearer} == {"price"}
    hourly = compared(tmp_path, bill_text(rows, granule=3600), ledger)
    assert {item.kind for item in hourly} == {"granule"}
    assert all("multiples of 3600 s" in item.why for item in hourly)
    fewer = compared(tmp_path, bill_text(rows[1:]), ledger)
    assert sorted(item.kind for item in fewer) == ["equal"] * (len(rows) - 1) + ["missing"]
    more = compared(tmp_path, bill_text([*rows, ("999999", *rows[0][1:])]), ledger)
    assert [item.kind for item in more] == ["equal"] * len(rows) + ["extra"]
