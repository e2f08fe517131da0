"""The HTML page of a plan: one file, nothing loaded, hostile names stay text, every chart beside its numbers."""

import base64
import hashlib
import math
import re
from dataclasses import replace
from datetime import date

import pytest

from charter.plan.option import Option, Rejected
from charter.plan.plan import Plan
from charter.plan.risk import Assumption
from charter.plan.stage_plan import StagePlan, money
from charter.report.plan_cells import age_days, is_stale
from charter.report.plan_page.front import chart_data, drivers, front_points
from charter.report.plan_page.page import plan_html

ATTACK = '</script><script>alert("1")</script><img src=x onerror=alert(2)>'
NOW = 1_795_215_600.0
LOADING = {"src", "href", "srcset", "action", "data", "poster", "formaction", "background"}


def option(base: Option, *, usd: float, hours: float, label: str = "") -> Option:
    """An option like another with another price and time; the price is exact."""
    risk = replace(base.overhead, wall_seconds=hours * 3600, billed_seconds=hours * 3600, useful_seconds=hours * 3500)
    rate = usd / hours / max(1, base.num_accelerators)
    price = replace(base.price, usd_per_hour=rate)
    return replace(base, overhead=risk, price=price, layout_label=label or base.layout_label)


def choosing(stage: StagePlan, chosen: Option, *others: Option) -> StagePlan:
    """The stage with these options."""
    assert chosen.usd is not None
    return replace(stage, option=chosen, compute_usd=money(chosen.usd), options=(chosen, *others))


@pytest.fixture(scope="module")
def rich_plan(plan) -> Plan:
    """The plan with four options for its first stage."""
    first, *rest = plan.stages
    own = first.option
    made = choosing(
        first,
        option(own, usd=10.0, hours=10.0, label="chosen"),
        option(own, usd=40.0, hours=4.0, label="faster"),
        option(own, usd=50.0, hours=12.0, label="worse in both"),
        option(own, usd=10.1, hours=10.0, label="alike"),
    )
    return replace(plan, stages=(made, *rest))


@pytest.fixture(scope="module")
def page(rich_plan, parse):
    return parse(plan_html(rich_plan, now=NOW, start=NOW))


def test_nothing_is_loaded_and_only_its_own_scripts_may_run(page):
    assert [(tag, name) for tag, attrs in page.elements for name in attrs if name in LOADING] == []
    policy = next(a["content"] for tag, a in page.elements if tag == "meta" and "http-equiv" in a)
    scripts = [text for attrs, text in page.scripts if attrs.get("type") != "application/json"]
    hashes = {base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts}
    assert set(re.findall(r"'sha256-([^']+)'", policy)) == hashes
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy.split("script-src")[1]
    assert not any(name.startswith("on") for _, attrs in page.elements for name in attrs)


def test_the_style_of_the_page_loads_nothing(rich_plan):
    style = re.search(r"<style>(.*?)</style>", plan_html(rich_plan, now=NOW), re.DOTALL)
    assert style is not None
    assert "url(" not in style[1]
    assert "@import" not in style[1]


def test_hostile_names_stay_text(rich_plan, parse):
    first, *rest = rich_plan.stages
    hostile = replace(
        first,
        name=ATTACK,
        rejected=(Rejected(option=ATTACK, reason=ATTACK),),
        options=tuple(replace(item, layout_label=ATTACK, engine=ATTACK) for item in first.options),
    )
    later = tuple(replace(stage, inputs=()) for stage in rest)
    attacked = replace(
        rich_plan,
        name=ATTACK,
        stages=(hostile, *later),
        models=((ATTACK, 1e9),),
        assumptions=(Assumption(name=ATTACK, value=ATTACK, source=ATTACK, as_of=ATTACK),),
    )
    found = parse(plan_html(attacked, now=NOW, start=NOW))
    assert len(found.scripts) == 4
    assert not any(tag == "img" or "onerror" in attrs for tag, attrs in found.elements)
    assert found.data["stages"][0] == ATTACK
    assert found.text.count(ATTACK) >= 10


def test_every_chart_has_a_name_its_data_and_its_drawing(page):
    script = "".join(text for attrs, text in page.scripts if attrs.get("type") != "application/json")
    kinds = set()
    for tag, attrs in page.elements:
        if tag == "figure":
            kind = attrs["data-chart"]
            kinds.add(kind)
            assert f"    {kind}(" in script
            shown = page.data[kind]
            assert shown[int(attrs["data-index"])] if "data-index" in attrs else shown
    assert kinds == {"buckets", "gantt", "memory", "pareto", "tornado"}
    assert all(attrs.get("aria-label") for tag, attrs in page.elements if tag == "canvas")


def test_without_scripts_every_section_is_there_as_text(page, rich_plan):
    for title in ("Stages", "Where it goes", "Timeline", "Memory", "Why this hardware", "Assumptions"):
        assert title in page.text
    for stage in rich_plan.stages:
        assert stage.name in page.text
        assert stage.option.place.accelerator.name in page.text
    assert "Budget $1,000" in page.text
    assert "Deadline 7 d 0 h" in page.text


def test_the_allocation_adds_up_to_the_cost_of_the_plan(plan):
    data = chart_data(plan, start=None)["buckets"]
    assert data["unit"] == "usd"
    total = plan.usd if plan.cost is None else plan.cost.total
    assert sum(sum(row["values"]) for row in data["rows"]) == pytest.approx(total.p50 / 1e6, abs=1e-6)
    assert all(len(row["values"]) == len(data["parts"]) for row in data["rows"])


def test_bars_of_the_timeline_end_where_the_plan_says(plan):
    data = chart_data(plan, start=NOW)["gantt"]
    assert max(row["p50"][1] for row in data["rows"]) == plan.seconds.p50
    assert max(row["p90"][1] for row in data["rows"]) == plan.seconds.p90
    assert data["start"] == NOW
    assert data["deadline"] == plan.deadline_seconds


def test_memory_bars_are_the_peaks(plan):
    rows = {row["stage"]: row for row in chart_data(plan, start=None)["memory"]["rows"]}
    for stage in plan.stages:
        assert sum(rows[stage.name]["terms"].values()) == pytest.approx(stage.option.peak.total_bytes)
        assert rows[stage.name]["capacity"] == stage.option.capacity_bytes


def test_options_are_marked_as_chosen_tied_and_on_the_front(rich_plan):
    found = {point["layout"]: point for point in front_points(rich_plan.stages[0])["points"]}
    assert [name for name, point in found.items() if point["chosen"]] == ["chosen"]
    assert found["alike"]["tied"]
    assert not found["faster"]["tied"]
    assert {name for name, point in found.items() if point["front"]} == {"chosen", "faster"}
    assert found["faster"]["usd"] == pytest.approx(40.0)


def test_a_crowd_of_options_is_thinned_and_the_rest_counted(rich_plan):
    stage = rich_plan.stages[0]
    crowd = tuple(option(stage.option, usd=100.0 + n, hours=100.0 + n, label=f"w{n}") for n in range(200))
    found = front_points(replace(stage, options=(*stage.options, *crowd)))
    assert len(found["points"]) == 60
    assert found["left_out"] == 204 - 60
    assert "w0" in {point["layout"] for point in found["points"]}


def test_one_cause_moves_the_total_by_its_own_percentiles(plan):
    stage = plan.stages[0]
    own = replace(option(stage.option, usd=100.0, hours=10.0), time_sigmas=(0.2,))
    contract = replace(own, price=replace(own.price, market="contract"))
    free = money(own.usd.scaled(0))
    one = replace(choosing(stage, contract), inputs=(), storage_usd=free, transfer_usd=free)
    alone = replace(plan, stages=(one,), cost=None)
    found = {item.name: item for item in drivers(alone)}
    assert set(found) == {"speed of training and generation", "failures, checkpoints and restarts"}
    speed = found["speed of training and generation"]
    assert speed.low == pytest.approx(100 * math.exp(-1.2815515655 * 0.2))
    assert speed.high == pytest.approx(100 * math.exp(1.2815515655 * 0.2))


def test_causes_stand_in_order_around_the_median(plan):
    found = drivers(plan)
    assert [item.width for item in found] == sorted((item.width for item in found), reverse=True)
    assert all(item.low < plan.usd.p50 / 1e6 < item.high for item in found)


def test_without_a_price_the_page_speaks_of_time(plan, parse):
    stages = tuple(replace(stage, compute_usd=None, storage_usd=None) for stage in plan.stages)
    unpriced = replace(plan, stages=stages, cost=None)
    found = parse(plan_html(unpriced, now=NOW))
    assert found.data["buckets"]["unit"] == found.data["tornado"]["unit"] == "seconds"
    assert "unpriced" in found.text
    assert "cannot be checked" in found.text
    assert "Price per hour" not in found.text


def test_only_old_prices_are_stale(plan, parse):
    today = date(2026, 11, 20)
    assert is_stale("price, usd per hour: H100 on aws", "2026-01-15", today)
    assert not is_stale("price, usd per hour: H100 on aws", "2026-11-02", today)
    assert not is_stale("failures per node and day", "2022", today)
    assert age_days("2026-11-02", today) == 18
    old = Assumption(name="price of a disk", value=0.1, source="list", as_of="2025-03-01")
    text = parse(plan_html(replace(plan, assumptions=(old,)), now=NOW)).text
    assert "stale" in text
    assert "stale" not in parse(plan_html(replace(plan, assumptions=(replace(old, as_of="2026-11"),)), now=NOW)).text


def test_sliders_start_from_the_figures_of_the_plan(page, rich_plan):
    rows = page.data["levers"]["rows"]
    total = rich_plan.usd if rich_plan.cost is None else rich_plan.cost.total
    parts = sum(row["machines"][0] + row["storage"][0] for row in rows) + page.data["levers"]["around"][0]
    assert parts == pytest.approx(total.p50 / 1e6, abs=1e-6)
    assert page.data["levers"]["total"] == [rich_plan.seconds.p50, rich_plan.seconds.p90]
    assert all(0 <= row["fixed"] <= row["wall"] for row in rows)
    assert [attrs["data-lever"] for tag, attrs in page.elements if "data-lever" in attrs] == ["speed", "price"]
