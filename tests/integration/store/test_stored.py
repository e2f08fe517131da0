"""What a real run keeps is in its ledger: its directory and its copies, after kills and clean-ups, and never twice."""

import csv
import json
import os
import signal

import pytest

from charter.artifacts.store.maintenance import bytes_below
from charter.ledger import Ledger
from charter.ledger.focus_check import check_focus
from charter.ledger.stored import RUN_DIRECTORY, by_place


@pytest.fixture
def place(work, tmp_path):
    work.edit("name: count", f"name: count\nstorage: {{replicate_every: 1, artifacts: {tmp_path / 'second'}}}")
    return tmp_path / "second"


def told(work):
    report = work.charter("cost", "report", "--json")
    assert report.code == 0, report.err
    storage = json.loads(report.out)["storage"]
    return {item["place"]: item for item in storage["places"]}


def series(work, place):
    with Ledger.open(work.root / "run" / "ledger.sqlite", create=False) as ledger:
        ledger.check_sums()
        return by_place(ledger.stored())["count", place]


def test_a_run_has_metered_its_directory_and_its_copies(work, place):
    assert work.run().code == 0
    found = told(work)
    assert set(found) == {RUN_DIRECTORY, str(place)}
    assert [item.why for item in series(work, RUN_DIRECTORY)].count("stage_done") == 3
    copies = series(work, str(place))[-1]
    assert found[str(place)]["sent_bytes"] >= copies.bytes > 0
    assert copies.bytes <= bytes_below(place)
    assert found[RUN_DIRECTORY]["usd"] == found[str(place)]["usd"] == 0, "own disks are free, as in the plan"
    assert "Storage" in work.charter("cost", "report").out


def test_what_is_stored_between_two_looks_is_charged_and_exported(work, place, tmp_path):
    for until in ("a", "c"):  # so that copies are made at two moments at least, however quick the machine
        assert work.run("--only", until).code == 0
    charges = tmp_path / "charges.csv"
    assert work.charter("cost", "export", "--focus", str(charges)).code == 0
    rows = list(csv.DictReader(charges.open()))
    assert {row["ResourceId"] for row in rows if row["ServiceCategory"] == "Storage"} == {
        f"count: {RUN_DIRECTORY}", str(place),
    }  # fmt: skip
    assert check_focus(list(rows[0]), rows) == ()


def test_a_killed_run_that_goes_on_is_one_series_without_an_overlap(work, place):
    process = work.start(COUNTING_HOLD="b:3")
    work.wait_for(lambda: list((work.root / "run" / "stages").glob("b-*")))
    os.killpg(process.pid, signal.SIGKILL)
    work.wait(process)
    before = series(work, RUN_DIRECTORY)
    assert work.run().code == 0
    after = series(work, RUN_DIRECTORY)
    assert set(before) < set(after)
    assert [item.why for item in after].count("run_started") == 2
    assert len({item.place for item in after}) == 1


@pytest.mark.thorough
def test_a_backup_that_copies_nothing_writes_nothing_and_a_clean_up_is_sampled(work, place):
    assert work.run().code == 0
    work.charter("artifacts", "checkpoints", "backup")
    before = series(work, str(place))
    assert work.charter("artifacts", "checkpoints", "backup").out == "nothing new to copy\n"
    assert series(work, str(place)) == before
    work.edit("replicate_every: 1", "replicate_every: 1, keep_last: 1")
    assert work.charter("artifacts", "checkpoints", "prune", "--yes").code == 0
    after = series(work, str(place))
    assert after[-1].why == "cleaned"
    assert series(work, RUN_DIRECTORY)[-1].why == "cleaned"
