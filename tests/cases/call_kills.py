"""SIGKILL between intending, billing and settling: the truth stays within the interval, and no answer is lost."""

import random
import signal
import subprocess
import sys

import forks
from call_checks import checked_totals, unsettled

from charter.ledger.calls import CallStore

WRITER = """
import random, sys
from pathlib import Path
from charter.ledger.calls import CallStore, NewCall, Settlement

where, seed = sys.argv[1], sys.argv[2]
draw = random.Random(seed)
log = open(sys.argv[3], "a", buffering=1)
number = 0
with CallStore.open(where if "://" in where else Path(where), run="r", stage="s", fingerprint="f") as store:
    while True:
        calls = [
            NewCall(call_id=f"{seed}-{number + i}", key=f"{seed}-{number + i}", model="m", endpoint="e", attempt=1,
                    at=1.0, most_micro_usd=draw.randint(50, 100))
            for i in range(draw.randint(1, 8))
        ]
        number += len(calls)
        store.intend(calls)
        print("intended", flush=True)
        for call in calls:  # the server bills, then answers
            log.write(f"{call.call_id} {draw.randint(0, 50)}\\n")
        billed = dict(line.split() for line in open(sys.argv[3]) if line.startswith(f"{seed}-"))
        print("billed", flush=True)
        store.settle([
            Settlement(call_id=call.call_id, outcome="answered", at=2.0, answer=f'"{call.call_id}"',
                       micro_usd=int(billed[call.call_id]))
            for call in calls
        ])
        print(" ".join(["settled", *(call.call_id for call in calls)]), flush=True)
"""
KILLS = 20
"""On each database; other kills of each run strike whole pipelines."""


def test_the_bill_lies_in_its_interval_after_any_kill(where, tmp_path):
    draw = random.Random(7)
    log = tmp_path / "bills"
    log.touch()
    acknowledged = set()
    for kill in range(KILLS):
        acknowledged.update(killed_writer(where, log, seed=kill, after_lines=draw.randint(1, 25)))
        billed = dict(line.split() for line in log.read_text().splitlines() if line.count(" ") == 1)
        with CallStore.open(where, run="r", stage="s", fingerprint="f") as store:
            totals = checked_totals(store)
            truth = sum(map(int, billed.values()))
            assert totals.settled_micro_usd <= truth <= totals.settled_micro_usd + totals.unknown_micro_usd
            kept = store.answers(sorted(acknowledged))
            assert kept == {key: f'"{key}"' for key in acknowledged}
            in_doubt = {found.call_id for found in unsettled(store)}
            assert not in_doubt & acknowledged
            assert totals.sums.answered + len(in_doubt) == totals.sums.requests


def killed_writer(where, log, *, seed, after_lines):
    """Run a writer until it has said so many lines, SIGKILL it; returns the calls whose settling it reported."""
    process = forks.Process(
        [sys.executable, "-c", WRITER, str(where), str(seed), str(log)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(after_lines)]
    process.send_signal(signal.SIGKILL)
    lines += process.stdout.readlines()
    process.stdout.close()
    assert process.wait() == -signal.SIGKILL
    whole = [line.split() for line in lines if line.endswith("\n")]
    return {call_id for line in whole if line[0] == "settled" for call_id in line[1:]}
