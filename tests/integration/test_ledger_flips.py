"""One flipped bit anywhere in the files of the ledger: found, or without effect; never a wrong answer or amount."""

import os
import random
import shutil
import sys
from dataclasses import dataclass

import forks
import pytest

pytest.importorskip("sqlalchemy")

from call_checks import checked_totals

from charter.errors import DataError
from charter.ledger import Ledger
from charter.ledger.calls import CallStore

FLIPS = int(os.environ.get("CHARTER_CHAOS_FLIPS", "100"))
"""In each of the two files."""
BATCHES = 30
WRITER = """
import os, signal, sys
from pathlib import Path
from charter.ledger.calls import CallStore, NewCall, Settlement

with CallStore.open(Path(sys.argv[1]), run="r", stage="s", fingerprint="f") as store:
    for batch in range(int(sys.argv[3])):
        ids = [f"{batch}-{number}" for number in range(5)]
        store.intend([
            NewCall(call_id=name, key=name, model="m", endpoint="e", attempt=1, at=1.0, most_micro_usd=100)
            for name in ids
        ])
        store.settle([
            Settlement(call_id=name, outcome="answered", at=2.0, answer=f'"{name}"' * 30, prompt_tokens=7, micro_usd=40)
            for name in ids[:4]
        ])
    if sys.argv[2] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
"""


@dataclass(frozen=True)
class Truth:
    answers: dict
    totals: object


def written(directory, how):
    """Files of calls, closed in order, or left with their log by a kill."""
    directory.mkdir()
    path = directory / "calls.sqlite"
    forks.run([sys.executable, "-c", WRITER, str(path), how, str(BATCHES)], check=how == "close", timeout=60)
    return path


def read(path):
    """All that can be read, and how many answers were found damaged."""
    keys = [f"{batch}-{number}" for batch in range(BATCHES) for number in range(5)]
    with CallStore.open(path, run="r", stage="s", fingerprint="f") as store:
        return Truth(store.answers(keys), checked_totals(store)), store.damaged_answers


def flip(path, position):
    content = bytearray(path.read_bytes())
    content[position // 8] ^= 1 << position % 8
    path.write_bytes(bytes(content))


@pytest.mark.parametrize(("how", "name"), [("close", "calls.sqlite"), ("kill", "calls.sqlite-wal")])
def test_a_flipped_bit_is_found_or_changes_nothing(tmp_path, how, name):
    path = written(tmp_path / "whole", how)
    size = (path.parent / name).stat().st_size
    shutil.copytree(path.parent, tmp_path / "read")
    truth, _ = read(tmp_path / "read" / "calls.sqlite")
    assert len(truth.answers) == 4 * BATCHES
    draw = random.Random(5)
    noticed = 0
    for number in range(FLIPS):
        copy = tmp_path / f"copy {number}"
        shutil.copytree(path.parent, copy)
        flip(copy / name, draw.randrange(8 * size))
        try:
            seen, damaged = read(copy / "calls.sqlite")
        except DataError:
            noticed += 1
        else:
            lost = truth.answers.keys() - seen.answers.keys()
            assert seen.answers.items() <= truth.answers.items()
            if seen != truth and how == "kill":
                # The last transaction of a log: what a power cut leaves of one that had not been acknowledged.
                assert lost <= {f"{BATCHES - 1}-{index}" for index in range(4)}
                assert seen.totals.sums.most_micro_usd >= truth.totals.sums.settled_micro_usd
            else:
                assert seen.totals == truth.totals
                assert len(lost) == damaged
            noticed += damaged > 0
        shutil.rmtree(copy)
    assert noticed > FLIPS / 8, "much of a small file is room for tables that hold nothing yet"


def test_a_flipped_bit_in_the_ledger_of_attempts_is_found_or_changes_no_money(tmp_path):
    path = tmp_path / "ledger.sqlite"
    with Ledger.open(path) as ledger:
        for number in range(30):
            attempt = ledger.begin(
                run="r", stage="s", kind="sft", fingerprint="f", at=number * 10.0, price_micro_usd_per_hour=3_600_000
            )
            ledger.end(attempt, at=number * 10.0 + 5, outcome="done", step=3)
        truth = ledger.attempts()
    content = path.read_bytes()
    draw = random.Random(6)
    for number in range(FLIPS):
        copy = tmp_path / f"copy {number}.sqlite"
        copy.write_bytes(content)
        flip(copy, draw.randrange(8 * len(content)))
        try:
            with Ledger.open(copy) as ledger:
                seen = ledger.attempts()
        except DataError:
            continue
        assert seen == truth
