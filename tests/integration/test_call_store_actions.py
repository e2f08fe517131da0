"""A crash before and after each commit of a stage that pays for calls, or a full disk: open calls are asked again."""

import json
import os
import sys
from pathlib import Path

import forks
import pytest

pytest.importorskip("sqlalchemy")

from call_checks import checked_totals

from charter.ledger.calls import CallStore

PROGRAM = """
import sys
from pathlib import Path
from charter.ledger.calls import CallStore, NewCall, Settlement

with CallStore.open(Path(sys.argv[1]), run="r", stage="s", fingerprint="f") as store:
    for number in range(4):
        key = f"key {number}"
        if store.answers([key]):
            continue
        name = f"{key}, {len(Path(sys.argv[2]).read_text().splitlines())}"
        store.intend([NewCall(call_id=name, key=key, model="m", endpoint="e", attempt=1, at=1.0, most_micro_usd=100)])
        with open(sys.argv[2], "a") as log:
            print(name, file=log)
        store.settle([Settlement(call_id=name, outcome="answered", at=2.0, answer=f'"{key}"', micro_usd=40)])
"""
ACTIONS = 8


def work(path, log, **environment):
    done = forks.run(
        [sys.executable, "-c", PROGRAM, str(path), str(log)],
        env={**os.environ, **environment},
        capture_output=True,
        timeout=60,
    )
    return done.returncode


THOROUGH = pytest.mark.thorough


@pytest.mark.parametrize(
    "how", ["before", pytest.param("after", marks=THOROUGH), pytest.param("enospc", marks=THOROUGH)]
)
def test_every_crash_leaves_the_bill_in_its_interval_and_the_next_run_asks_only_what_is_open(tmp_path, how):
    for number in range(1, ACTIONS + 1):
        path, log = tmp_path / f"{number}.sqlite", tmp_path / f"{number}.log"
        log.touch()
        assert work(path, log, CHARTER_FAULT_AT=f"{number}:{how}") != 0
        with CallStore.open(path, run="r", stage="s", fingerprint="f") as store:
            totals = checked_totals(store)
            paid = 40 * len(log.read_text().splitlines())
            assert totals.settled_micro_usd <= paid <= totals.settled_micro_usd + totals.unknown_micro_usd
        assert work(path, log) == 0
        billed = [line.partition(",")[0] for line in log.read_text().splitlines()]
        again = 1 if (how != "after" and number % 2 == 0) else 0
        assert len(billed) == 4 + again
        with CallStore.open(path, run="r", stage="s", fingerprint="f") as store:
            assert {key: json.loads(answer) for key, answer in store.answers(billed).items()} == {
                key: key for key in billed
            }


def test_there_are_as_many_actions_as_are_crashed(tmp_path):
    (tmp_path / "log").touch()
    assert work(tmp_path / "calls.sqlite", tmp_path / "log", CHARTER_FAULT_LOG=str(tmp_path / "actions")) == 0
    assert len(Path(tmp_path / "actions").read_text().splitlines()) == ACTIONS
