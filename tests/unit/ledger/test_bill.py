"""Bills against the ledger: read in every form, matched, and every difference explained. Pure but for reading files."""

from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from charter.errors import DataError, UsageError
from charter.ledger.account import account
from charter.ledger.attempt import Attempt, expand_nodes
from charter.ledger.bill import BillLine, compare_bill, read_bill, sums_by_kind

START = datetime(2026, 7, 1, tzinfo=UTC).timestamp()


def attempt(number=1, **changes):
    values = dict(
        attempt_id=number, run="demo", stage="ppo", kind="ppo", number=number, fingerprint="f", accelerator="H100",
        count=8, infra="slurm", market="on_demand", started_at=START, duration_milliseconds=3_600_000, clock="engine",
        last_heartbeat=START, first_step=0, last_step=1, outcome="done", price_micro_usd_per_hour=2_500_000,
        job_id="17", nodes="node[1-2]",
    )  # fmt: skip
    return Attempt(**(values | changes))


def line(number=2, **changes):
    values = dict(line=number, started_at=START, ended_at=START + 3600, seconds=Decimal(8 * 3600), unit_price_usd=None,
                  usd=Decimal(20), resource="17")  # fmt: skip
    return BillLine(**(values | changes))


def kinds(lines, *attempts):
    return [item.kind for item in compare_bill(lines, account(attempts))]


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({}, "equal"),
        ({"seconds": Decimal("3600")}, "equal"),  # billed per job, not per accelerator
        ({"seconds": Decimal("7200")}, "equal"),  # billed per machine: two of them
        ({"seconds": Decimal("28800.4"), "usd": Decimal("20.004")}, "equal"),
        ({"usd": Decimal("24")}, "price"),
        ({"usd": Decimal("20.01")}, "price"),  # more than a cent's rounding of one line
        ({"seconds": Decimal(8 * 3600 + 1), "usd": Decimal("24")}, "amount"),
        ({"seconds": Decimal(8 * 7200), "usd": Decimal(40)}, "granule"),
        ({"seconds": Decimal(8 * 3700), "usd": Decimal("20.56")}, "time"),
        ({"seconds": Decimal(8 * 3700), "usd": Decimal("25")}, "amount"),
        ({"seconds": None, "started_at": None, "ended_at": None, "usd": Decimal("21")}, "amount"),
    ],
)
def test_one_line_for_one_attempt(changes, kind):
    duration = 3_600_000 if kind != "granule" else 3_601_000
    assert kinds([line(**changes)], attempt(duration_milliseconds=duration)) == [kind]


def test_lines_that_are_each_rounded_to_the_cent():
    third = Decimal("20") / 3
    lines = [line(number, usd=third.quantize(Decimal("0.01")), seconds=Decimal(9600)) for number in (2, 3, 4)]
    (finding,) = compare_bill(lines, account([attempt()]))
    assert (finding.kind, finding.lines) == ("rounding", (2, 3, 4))
    assert finding.billed_usd == Decimal("20.01")


def test_what_only_one_side_has():
    findings = compare_bill([line(resource="99")], account([attempt(), attempt(2, duration_milliseconds=0)]))
    assert [item.kind for item in findings] == ["missing", "equal", "extra"]
    assert sums_by_kind(findings)["missing"] == (1, Decimal(-20))
    assert sums_by_kind(findings)["extra"] == (1, Decimal(20))
    assert kinds([line()], attempt(price_micro_usd_per_hour=None)) == ["unpriced"]


def test_a_line_finds_its_attempt_by_tag_job_machine_and_time():
    first, second = attempt(1), attempt(2, started_at=START + 10_000, job_id="17")
    later = dict(started_at=START + 10_050, ended_at=START + 13_600)
    cases = (
        (dict(tags={"x_AttemptId": "2"}, resource=""), 2),
        (dict(tags={"run": "demo", "stage": "ppo", "attempt": "2"}, resource=""), 2),
        (dict(tags={"job_id": "17"}, resource="i-1", **later), 2),
        (dict(resource="17", **later), 2),
        (dict(resource="17"), 1),
        (dict(resource="node2", **later), 2),
        (dict(resource="node3", **later), None),
        (dict(resource="node2", started_at=START + 50_000, ended_at=START + 51_000), None),
        (dict(resource="17", started_at=START + 50_000, ended_at=START + 51_000), None),
        (dict(resource="node2", started_at=START - 200, ended_at=START - 60), 1),  # while the machine started
        (dict(resource="17", started_at=None, ended_at=None), None),
    )
    for changes, expected in cases:
        found = compare_bill([line(**changes)], account([first, second]))
        named = [item.attempt_id for item in found if item.lines]
        assert named == [expected], changes


def test_without_a_time_a_job_is_enough_and_a_machine_is_not():
    for resource, expected in (("17", 1), ("node2", None)):
        found = compare_bill([line(resource=resource, started_at=None, ended_at=None)], account([attempt()]))
        assert [item.attempt_id for item in found if item.lines] == [expected]
    (far,) = compare_bill([line(started_at=START + 50_000, ended_at=START + 51_000)], account([attempt()]))
    assert far.attempt_id == 1, "a job's only attempt is meant, at whatever time"


def test_no_line_and_no_attempt_is_forgotten_and_differences_add_up():
    @settings(max_examples=60, deadline=None)
    @given(
        st.lists(st.tuples(st.integers(0, 10**7), st.sampled_from(["1", "2", "3"])), max_size=5),
        st.lists(st.tuples(st.integers(0, 10**6), st.sampled_from(["1", "2", "x"]), st.integers(0, 10**5)), max_size=6),
    )
    def check(ours, theirs):
        attempts = [attempt(i + 1, duration_milliseconds=ms, job_id=job) for i, (ms, job) in enumerate(ours)]
        lines = [
            line(i + 2, usd=Decimal(cents) / 100, resource=job, seconds=Decimal(seconds))
            for i, (cents, job, seconds) in enumerate(theirs)
        ]
        findings = compare_bill(lines, account(attempts))
        assert sorted(number for item in findings for number in item.lines) == [it.line for it in lines]
        assert [item.attempt_id for item in findings if item.attempt_id] == [it.attempt_id for it in attempts]
        billed = sum((it.usd for it in lines), Decimal(0))
        mine = sum((Decimal(it.cost_micro_usd).scaleb(-6) for it in account(attempts)), Decimal(0))
        assert sum((item.difference_usd for item in findings), Decimal(0)) == billed - mine

    check()


TAGS = '"{""run"": ""demo"", ""stage"": ""ppo"", ""attempt"": ""1""}"'
FOCUS = f"""BilledCost,ChargePeriodStart,ChargePeriodEnd,BillingCurrency,PricingQuantity,PricingUnit,ResourceId,Tags
20.00,2026-07-01T00:00:00Z,2026-07-01T01:00:00Z,USD,8,Accelerator-Hours,i-1,{TAGS}
"""
CUR_COLUMNS = (
    "lineItem/UsageStartDate,lineItem/UsageEndDate,lineItem/UnblendedCost,lineItem/UsageAmount,pricing/unit,"
    "lineItem/ResourceId,resourceTags/user:job_id"
)
CUR = f"""{CUR_COLUMNS}
2026-07-01T00:00:00Z,2026-07-01T01:00:00Z,20.0000000000,1.0000000000,Hrs,i-0abc,17
"""
SIMPLE = """job,start,end,hours,cost
17,2026-07-01 00:00:00,2026-07-01 01:00:00,8,$20.00
"""


@pytest.mark.parametrize(("text", "name"), [(FOCUS, "FOCUS"), (CUR, "AWS CUR"), (SIMPLE, "CSV")])
def test_every_form_is_read_and_equal(tmp_path, text, name):
    (tmp_path / "bill.csv").write_text(text)
    bill = read_bill(tmp_path / "bill.csv")
    assert (bill.format, bill.usd, len(bill.lines)) == (name, Decimal(20), 1)
    assert bill.lines[0].started_at == START
    assert kinds(bill.lines, attempt()) == ["equal"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "its columns are a, b"),
        ("job,cost\n", "has a header and no line"),
        ("job,cost\n17,twenty\n", "bill.csv:2: cost 'twenty' is no number"),
        ("job,cost\n17,NaN\n", "no finite number"),
        ("job,cost,start\n17,1,yesterday\n", "'yesterday' is no moment"),
        ("job,cost,currency\n17,1,EUR\n", "is in EUR; the ledger is in USD"),
        ("job,cost\n17,1,2\n", "more cells than the header"),
        (FOCUS.replace('"{""run', '"{run'), "Tags is no JSON object"),
    ],
)
def test_what_cannot_be_read_is_said(tmp_path, text, message):
    (tmp_path / "bill.csv").write_text(text)
    with pytest.raises(DataError) as raised:
        read_bill(tmp_path / "bill.csv")
    assert message in str(raised.value)


def test_a_bill_that_is_not_there_or_no_text(tmp_path):
    with pytest.raises(UsageError, match="there is no file"):
        read_bill(tmp_path / "bill.csv")
    (tmp_path / "bill.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="not UTF-8"):
        read_bill(tmp_path / "bill.csv")


@settings(deadline=None)
@given(st.text())
def test_no_text_breaks_the_names_of_nodes(text):
    expand_nodes(text)
    assert expand_nodes("n[1-99999999999999]") == ("n[1-99999999999999]",)
    assert expand_nodes("gpu[01-03]") == ("gpu01", "gpu02", "gpu03")


def test_a_bill_with_an_endless_cell_is_refused(tmp_path):
    path = tmp_path / "bill.csv"
    path.write_text("cost_usd,resource\n1,i-1\n2," + "x" * 200_000 + "\n")
    with pytest.raises(DataError, match="no CSV that can be read"):
        read_bill(path)


def test_tags_and_cells_are_read_where_the_header_has_them(tmp_path):
    path = tmp_path / "bill.csv"
    path.write_text(
        "resource,x_JobId,tag_team,run,cost_usd,start,note\n"
        '"i-1",17,ann,demo,2.5,2026-07-01T00:00:00Z,"two\nlines"\n\ni-2,,,,-1,,\ni-3,,,,1\n'
    )
    first, second, third = read_bill(path).lines
    assert first.tags == {"x_JobId": "17", "team": "ann", "run": "demo"}
    assert (first.line, second.line, third.line) == (3, 5, 6)
    assert (second.usd, second.tags, third.started_at) == (Decimal(-1), {}, None)


@pytest.mark.parametrize(
    ("amount", "said"),
    [
        ('"20,00"', "a comma that groups no thousands"),
        ('"1.020,00"', "a comma that groups no thousands"),
        ("1e30", "more than any bill has"),
        ("-1e99999", "more than any bill has"),
        ("1e4002072", "more than any bill has"),
        ("-1e4002072", "more than any bill has"),
        ("(20.00)", "is no number"),
    ],
)
def test_an_amount_that_may_be_another_is_refused(tmp_path, amount, said):
    path = tmp_path / "bill.csv"
    path.write_text(f"job,cost\n17,{amount}\n")
    with pytest.raises(DataError, match=said):
        read_bill(path)


def test_commas_between_thousands_are_read(tmp_path):
    path = tmp_path / "bill.csv"
    path.write_text('job,cost\n17,"$1,234,567.50"\n18,"-1,020"\n')
    assert [it.usd for it in read_bill(path).lines] == [Decimal("1234567.5"), Decimal(-1020)]


def test_a_line_that_ends_before_it_starts_is_refused(tmp_path):
    path = tmp_path / "bill.csv"
    path.write_text("job,cost,start,end\n17,1,2026-07-01T02:00:00Z,2026-07-01T01:00:00Z\n")
    with pytest.raises(DataError, match="2: ends before it starts; look at its start and end"):
        read_bill(path)


@pytest.mark.parametrize("seconds", [None, Decimal(3600), Decimal(-8 * 3600)])
def test_a_refund_takes_back_money_and_no_time(seconds):
    lines = [line(), line(3, usd=Decimal(-15), seconds=seconds)]
    (finding,) = compare_bill(lines, account([attempt()]))
    assert (finding.kind, finding.billed_usd, finding.billed_seconds) == ("amount", Decimal(5), Decimal(8 * 3600))
    assert finding.why == "credits and refunds of 15 USD; without them: equal to the second and the cent"
