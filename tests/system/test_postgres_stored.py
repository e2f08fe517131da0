"""Samples of stored bytes on a PostgreSQL server, and two writers of one place at once."""

import os
import subprocess
import sys

import pytest
from stored_contract import *  # noqa: F403

from charter.ledger import Ledger
from charter.ledger.stored import micro_usd_of

WRITER = """
import sys
from charter.ledger import Ledger
from charter.ledger.stored import StoredSample
with Ledger.open(sys.argv[1]) as ledger:
    for number in range(int(sys.argv[2]), 60, 2):
        ledger.record_stored([StoredSample(run="team", place="s3://b", at_milliseconds=number * 10**7,
                                           bytes=number * 10**12, price_micro_usd_per_gb_month=23_000)])
"""


@pytest.fixture
def where(postgres):
    return postgres.new_database()


def test_two_processes_that_sample_one_place_at_once_both_count(where):
    Ledger.open(where).close()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, where, first], env=environment) for first in "01"]
    assert [writer.wait() for writer in writers] == [0, 0]
    with Ledger.open(where) as ledger:
        samples = ledger.stored(run="team")
        assert len(samples) == 60
        assert ledger.total(run="team").micro_usd == micro_usd_of(samples) > 0
        ledger.check_sums()
