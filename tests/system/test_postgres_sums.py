"""The kept sums on a PostgreSQL server, two writers at once, and the step from an older schema."""

import os
import subprocess
import sys

import pytest
from sums_contract import *  # noqa: F403

from charter.ledger import Ledger

WRITER = """
import sys
from charter.ledger import Ledger
with Ledger.open(sys.argv[1]) as ledger:
    for number in range(20):
        attempt = ledger.begin(run="team", stage=sys.argv[2], kind="sft", fingerprint="f", at=number * 10.0,
                               price_micro_usd_per_hour=3_600_000)
        ledger.end(attempt, at=number * 10.0 + 5, outcome="done", step=1)
"""


@pytest.fixture
def where(postgres):
    return postgres.new_database()


def test_two_processes_that_add_at_once_both_count(where):
    Ledger.open(where).close()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, where, stage], env=environment) for stage in ("a", "b")]
    assert [writer.wait() for writer in writers] == [0, 0]
    with Ledger.open(where) as ledger:
        assert ledger.total(run="team").micro_usd == 40 * 5000
        ledger.check_sums()
