"""Storage in the cost report: metered beside planned, and what nobody has looked at since told apart."""

import io
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console

from charter.ledger.stored import MILLISECONDS_PER_MONTH, RUN_DIRECTORY, StoredSample
from charter.report.cost_storage import planned_usd, print_storage, storage_json, stored_places
from charter.units import GIB

BUCKET = "s3://bucket/path"
MONTH_SECONDS = MILLISECONDS_PER_MONTH / 1000
PLAN = {"stages": [{"breakdown": {"usd": {"storage": 0.25, "transfer": 0.0}}}] * 2}


def sample(**changes):
    values = dict(run="demo", place=BUCKET, at_milliseconds=0, bytes=GIB, price_micro_usd_per_gb_month=23_000)
    return StoredSample(**values | changes)


@pytest.fixture
def places():
    return stored_places(
        [
            sample(sent_bytes=GIB),
            sample(at_milliseconds=MILLISECONDS_PER_MONTH, bytes=2 * GIB, sent_bytes=3 * GIB),
            sample(at_milliseconds=2 * MILLISECONDS_PER_MONTH, bytes=4 * GIB),
            sample(place=RUN_DIRECTORY, price_micro_usd_per_gb_month=None),
            sample(place=RUN_DIRECTORY, price_micro_usd_per_gb_month=None, at_milliseconds=MILLISECONDS_PER_MONTH),
        ],
        now=3 * MONTH_SECONDS,
    )


def test_bytes_over_time_are_told_by_place_with_their_price(places):
    told = storage_json(places, PLAN)
    directory, bucket = told["places"]
    assert (bucket["place"], bucket["gib_months"], bucket["bytes_now"], bucket["sent_bytes"]) == (
        BUCKET, 3.0, 4 * GIB, 4 * GIB,
    )  # fmt: skip
    assert bucket["micro_usd"] == pytest.approx(3 * 23_000 * GIB / 1e9, abs=31)
    assert bucket["usd_per_month"] == pytest.approx(4 * GIB / 1e9 * 0.023)
    assert bucket["since_gib_months"] == 4.0, "nobody has looked for a month: in no sum"
    assert (directory["gib_months"], directory["usd"], directory["micro_usd"]) == (1.0, None, None)
    assert told["metered_micro_usd"] == bucket["micro_usd"]
    assert (told["metered_gib_months"], told["sent_bytes"]) == (4.0, 4 * GIB)


def test_the_plan_stands_beside_it(places):
    told = storage_json(places, PLAN)
    assert (told["planned_usd"], told["planned_transfer_usd"]) == (0.5, 0.0)
    assert planned_usd(None, "storage") is None
    assert planned_usd({"stages": [*PLAN["stages"], {"breakdown": {"usd": None}}]}, "storage") is None


def test_without_samples_nothing_is_told_and_nothing_printed():
    told = storage_json((), None)
    assert (told["metered_usd"], told["planned_usd"], told["places"]) == (None, None, [])
    assert printed(()) == ""


def test_a_terminal_shows_places_money_and_the_plan(places):
    text = printed(places)
    for words in (BUCKET, RUN_DIRECTORY, "4.0 GiB", "$0.074", "unpriced", "planned $0.50", "a month as it is"):
        assert words in text


def test_the_table_in_the_guide_is_what_the_command_prints():
    """From samples of four days of a run: its directory on an own disk, a quarter of it copied to S3."""
    until = round(datetime(2026, 11, 22, 18, 4, tzinfo=UTC).timestamp() * 1000)
    since, disk = until - 4 * 86_400_000, dict(place=RUN_DIRECTORY, price_micro_usd_per_gb_month=0)
    places = stored_places(
        [
            sample(**disk, at_milliseconds=since, bytes=20 * GIB),
            sample(**disk, at_milliseconds=until, bytes=40 * GIB),
            sample(place="s3://lab/demo", at_milliseconds=since, bytes=5 * GIB, sent_bytes=5 * GIB),
            sample(place="s3://lab/demo", at_milliseconds=until, bytes=10 * GIB, sent_bytes=6 * GIB),
        ],
        now=until / 1000,
    )
    guide = Path(__file__).parents[3] / "docs/guides/cost.md"
    text = "\n".join(line.rstrip() for line in printed(places).strip().splitlines())
    assert text in guide.read_text(encoding="utf-8"), text


def printed(places):
    out = io.StringIO()
    print_storage(places, PLAN, Console(file=out, width=120))
    return out.getvalue()
