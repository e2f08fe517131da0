"""SIGKILL of a client while a server process answers and logs: no answer lost or paid for twice without a trace."""

import json
import signal
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import forks
import pytest
from call_checks import checked_totals, unsettled
from fault_server import set_gate
from waiting import eventually

from charter.ledger.calls import CallStore

HERE = Path(__file__).parent
SERVER = HERE.parents[1] / "cases" / "fault_server.py"
COUNT = 200
AT_ONCE = 16
"""In flight; as many again may have been answered and wait for the disk."""
KILLS = (20, 60, 130)
"""Requests on the server's log at which the client is killed, again and again."""
FURTHER = 40
"""How much further a client comes that is killed late: it can never have ended, and is mostly killed in full flow."""


@contextmanager
def server_process(log, *options):
    command = [sys.executable, str(SERVER), "--log", str(log), *options]
    process = forks.Process(command, stdout=subprocess.PIPE, text=True)
    try:
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


def client(url, calls):
    command = [sys.executable, str(HERE / "client_process.py"), url, str(calls), str(COUNT)]
    return forks.Process(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def answers_of(process):
    out, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    return json.loads(out)


def lines_of(log):
    return [json.loads(line) for line in log.read_text().splitlines()]


def count_of(log):
    return log.read_bytes().count(b"\n") if log.exists() else 0


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    place = tmp_path_factory.mktemp("undisturbed")
    with server_process(place / "log.jsonl") as url:
        return answers_of(client(url, place / "calls.sqlite"))


@pytest.mark.parametrize("faults", ["0", "0.2"])
def test_after_three_kills_the_answers_are_the_same_and_the_bill_is_within_its_interval(tmp_path, undisturbed, faults):
    log, path = tmp_path / "log.jsonl", tmp_path / "calls.sqlite"
    gate = tmp_path / "gate"
    with server_process(log, "--faults", faults, "--seed", "7", "--seconds", "0.02", "--gate", str(gate)) as url:
        for kill_at in KILLS:
            set_gate(gate, kill_at + FURTHER)
            process = client(url, path)
            eventually(lambda: process.poll() is not None or count_of(log) >= kill_at)  # noqa: B023
            process.kill()
            _, errors = process.communicate()
            assert process.returncode == -signal.SIGKILL, errors
        gate.unlink()
        assert answers_of(client(url, path)) == undisturbed
    lines = lines_of(log)
    with CallStore.open(path, run="r", stage="s", fingerprint="f") as calls:
        sums = checked_totals(calls).sums
        in_doubt = Counter(call.key for call in unsettled(calls))
    billed = sum(2 * line["prompt_tokens"] + 8 * line["completion_tokens"] for line in lines)
    assert sums.settled_micro_usd <= billed <= sums.most_micro_usd
    assert sums.requests >= len(lines), "every request that the server saw has an intent"
    assert len({line["id"] for line in lines}) == len(lines)
    good = Counter(line["question"] for line in lines if line["fault"] == "ok")
    assert len(good) == COUNT
    asked_again = sum(count - 1 for count in good.values())
    assert asked_again <= sum(in_doubt.values()), "only what was unknown after a kill is asked again"
    assert 0 < sum(in_doubt.values()) <= 2 * AT_ONCE * len(KILLS)
