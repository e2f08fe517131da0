"""The kept sums on a PostgreSQL server, two writers at once, and the step from an older schema."""

import os
import subprocess
import sys

import psycopg
import pytest
from sums_contract import *  # noqa: F403
from sums_contract import STAGE

from charter.ledger import Ledger
from charter.ledger.attempt_rows import check_of
from charter.ledger.old_tables import COLUMNS_OF_4
from charter.ledger.rebuilding import CHECKED_BEFORE_4

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


def test_a_server_with_the_schema_before_is_brought_up_to_date(where):
    with Ledger.open(where) as ledger:
        attempt = ledger.begin(**STAGE, at=0.0, price_micro_usd_per_hour=3_600_000)
        ledger.end(attempt, at=10.0, outcome="done", step=1)
        truth = ledger.accounted()
    back_to_3(where)
    with Ledger.open(where, create=False) as ledger:
        assert ledger.accounted() == truth
        assert ledger.total().micro_usd == 10_000
        ledger.check_sums()
        assert ledger.begin(**STAGE, at=20.0, shard=2) > 0


def back_to_3(where):
    """Take away what versions 4 and 5 added, and give rows the checks of version 3."""
    with psycopg.connect(where, row_factory=psycopg.rows.dict_row) as connection:
        for table in ("bill_findings", "bill_lines", "bills", "other_charges", "spend_sums", "stored_samples"):
            connection.execute(f"DROP TABLE {table}")
        for index in ("attempts_of_runs", "attempts_of_shards", "attempts_running"):
            connection.execute(f"DROP INDEX {index}")
        for table, column in COLUMNS_OF_4:
            connection.execute(f"ALTER TABLE {table} DROP COLUMN {column.split()[0]}")
        for row in connection.execute("SELECT * FROM attempts").fetchall():
            check = check_of(row, CHECKED_BEFORE_4)
            connection.execute("UPDATE attempts SET row_check = %s WHERE attempt_id = %s", (check, row["attempt_id"]))
        connection.execute("UPDATE charter_schema SET version = 3")
