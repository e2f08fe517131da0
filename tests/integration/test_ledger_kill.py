"""SIGKILL while writing: everything that was acknowledged is in the ledger, and the ledger opens."""

import random
import signal
import subprocess
import sys

import forks
import pytest

pytest.importorskip("sqlalchemy")

from charter.ledger import Ledger, stage_totals

WRITER = """
import sys
from pathlib import Path
from charter.ledger import Ledger

ledger = Ledger.open(Path(sys.argv[1]))
done = sum(attempt.outcome == "done" for attempt in ledger.attempts())
for index in range(done, 10_000):
    attempt = ledger.begin(run="r", stage="s", kind="sft", fingerprint="f", at=index * 10.0,
                           price_micro_usd_per_hour=1_000_000)
    print(f"begun {attempt}", flush=True)
    ledger.heartbeat(attempt, at=index * 10.0 + 4, step=index, tokens=index)
    print(f"beat {attempt}", flush=True)
    ledger.end(attempt, at=index * 10.0 + 5, outcome="done", step=index)
    print(f"ended {attempt}", flush=True)
"""


def kill_while_writing(path, *, after_lines: int) -> list[str]:
    """Start a writer, SIGKILL it once it has acknowledged so many lines, and return all it acknowledged."""
    process = forks.Process([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(after_lines)]
    process.send_signal(signal.SIGKILL)
    lines += process.stdout.readlines()
    process.stdout.close()
    assert process.wait() == -signal.SIGKILL
    return [line.strip() for line in lines if line.endswith("\n")]


def test_nothing_acknowledged_is_lost_by_a_kill(tmp_path):
    path = tmp_path / "ledger.sqlite"
    draw = random.Random(7)
    acknowledged: list[str] = []
    for _ in range(4):
        acknowledged += kill_while_writing(path, after_lines=draw.randint(1, 60))
        with Ledger.open(path) as ledger:
            found = {attempt.attempt_id: attempt for attempt in ledger.attempts()}
            for line in acknowledged:
                what, number = line.split()
                attempt = found[int(number)]
                assert what != "beat" or attempt.duration_milliseconds >= 4000
                assert what != "ended" or attempt.outcome == "done"
            for attempt in ledger.close_abandoned(now=1e9):
                assert attempt.duration_milliseconds in (0, 4000)
            parts = stage_totals(ledger.accounted()).values()
            assert sum(part.micro_usd for part in parts) == ledger.totals().micro_usd
            assert all(attempt.outcome != "running" for attempt in ledger.attempts())
