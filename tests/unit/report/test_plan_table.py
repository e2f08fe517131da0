"""The plan in a terminal: what is in it at every width, what is marked, what stands below."""

import io
from dataclasses import replace
from datetime import date, datetime

import pytest
from planner_case import one
from rich.console import Console

from charter.plan.money import project_cost
from charter.plan.option import Rejected, TiedLayout
from charter.plan.stage_plan import money
from charter.report.compare_table import compare_table
from charter.report.plan_cells import REPEATED, beside_the_machines, seconds_range, usd_range
from charter.report.plan_notes import alternatives, longest_pole, memory_lines
from charter.report.plan_table import CHOSEN, explain_stage, plan_table
from charter.spec.project import Resources
from charter.spec.sections import Costs
from charter.spec.stage import SftStage

TODAY = date(2026, 11, 20)


def shown(item, width=140):
    console = Console(width=width, record=True, file=io.StringIO(), color_system=None)
    console.print(item)
    return console.export_text()


def dated(plan, as_of):
    """The plan with another date on every price."""

    def change(stage):
        price = replace(stage.option.price, as_of=as_of)
        return replace(stage, option=replace(stage.option, price=price))

    return replace(plan, stages=tuple(map(change, plan.stages)))


def test_nodes_with_less_memory_than_is_planned_are_named():
    stage = SftStage(init="base", data=("chat",), engine="accelerate")
    for gib, told in ((100, ["System memory of stage: "]), (4096, [])):
        item = one(stage, Resources(infra="on_prem", accelerators=("H100:8",), price=2.0, memory=gib * 2**30))
        assert [line[: len("System memory of stage: ")] for line in memory_lines(item)] == told
        assert ("has 100.0 GiB" in shown(plan_table(item, today=TODAY))) == bool(told)


def test_memory_that_nobody_gives_is_assumed():
    stage = SftStage(init="base", data=("chat",), engine="accelerate")
    needs = one(stage, Resources(infra="on_prem", accelerators=("RTX4090:2",), price=2.0))
    assert "nobody says how much RTX4090:2 on premises has: 238.4 GiB is assumed" in "".join(memory_lines(needs))


@pytest.mark.parametrize("width", [40, 64, 70, 80, 100, 120, 140])
def test_the_table_fits_and_shows_every_stage(plan, width):
    text = shown(plan_table(plan, today=TODAY), width)
    assert max(len(line) for line in text.splitlines()) <= width
    for stage in plan.stages:
        assert stage.name in text
        assert usd_range(stage.compute_usd) in text
        assert seconds_range(stage.option.seconds) in text
    assert usd_range(plan.usd if plan.cost is None else plan.cost.total) in text


def test_narrow_tables_drop_hours_and_keep_the_layout(plan):
    label = plan.stages[0].option.layout_label
    assert "GPU-h" in shown(plan_table(plan), 100)
    assert "GPU-h" not in shown(plan_table(plan), 80)
    assert label in shown(plan_table(plan), 80)
    assert "Hardware, layout" in shown(plan_table(plan), 100)
    assert "Hardware, layout" not in shown(plan_table(plan), 140)


def test_the_mark_stands_at_the_longest_stage(plan):
    pole = longest_pole(plan)
    marked = [line for line in shown(plan_table(plan)).splitlines() if CHOSEN in line]
    assert [line.split()[0] for line in marked] == [pole.name, "\N{MIDDLE DOT}"]
    assert "Bottleneck (\N{HEAVY CHECK MARK})" in marked[1], "the line below says what the mark means"
    assert pole.option.seconds.p50 == max(stage.option.seconds.p50 for stage in plan.stages)


def test_the_title_has_sizes_dates_and_ages(plan):
    text = shown(plan_table(replace(dated(plan, "2026-11-02"), models=(("policy", 8.03e9),)), today=TODAY))
    first = text.splitlines()[0]
    assert first == "Plan of lab · policy 8.03 B · catalog 2026-11 · prices 2026-11-02 (18 days old)"
    assert "(293 days old, stale)" in shown(plan_table(dated(plan, "2026-01-31"), today=TODAY))
    assert "days old" not in shown(plan_table(dated(plan, "2026"), today=TODAY))
    assert "prices 2026" in shown(plan_table(dated(plan, "2026"), today=TODAY))


def test_notes_stand_in_groups_and_the_next_step_ends_them(plan):
    """Dates and what was assumed had stood below the next step."""
    dated_plan = replace(plan, start=datetime(2026, 11, 20))
    text = shown(plan_table(dated_plan, assumed=("--nodes 1: one machine",)))
    parts = ("Limits and dates", "started on 2026-11-20", "What decides time and cost", "How far to trust it")
    places = [text.index(part) for part in (*parts, "Assumed, where", "one machine", "Next: ")]
    assert places == sorted(places)
    assert text.splitlines()[-1].startswith("Next: ")


def test_one_stage_has_no_mark_to_explain(plan):
    alone = replace(plan, stages=plan.stages[:1], cost=None)
    text = shown(plan_table(alone))
    assert CHOSEN not in text
    assert f"Most of the time of {alone.stages[0].name}: " in text


def test_a_plan_over_its_budget_says_by_how_much(plan):
    priced = replace(plan, budget_usd=plan.usd.p90 / 1e6 - 5, cost=None)
    assert "is over by $5.00" in shown(plan_table(priced))
    assert "exceeded" in shown(plan_table(priced))
    assert "leaves" in shown(plan_table(replace(priced, budget_usd=1e6)))


def test_nothing_is_said_of_a_budget_that_is_not_there(plan):
    text = shown(plan_table(replace(plan, budget_usd=None, deadline_seconds=None)))
    assert "Budget" not in text
    assert "Deadline" not in text


def option(base, *, usd, hours):
    risk = replace(base.overhead, wall_seconds=hours * 3600, billed_seconds=hours * 3600)
    price = replace(base.price, usd_per_hour=usd / hours / base.num_accelerators)
    return replace(base, overhead=risk, price=price, layout_label=f"{usd:g} usd, {hours:g} h")


def test_alternatives_are_the_cheapest_and_the_fastest_that_are_worth_naming(plan):
    stage = plan.stages[0]
    own = option(stage.option, usd=10, hours=10)
    cheaper, faster = option(own, usd=7, hours=20), option(own, usd=30, hours=2)
    nearly = option(own, usd=9.9, hours=9.9)
    found = alternatives(replace(stage, option=own, options=(own, nearly, cheaper, faster)))
    assert [(word, item.layout_label) for word, item in found] == [
        ("Cheaper", "7 usd, 20 h"),
        ("Faster", "30 usd, 2 h"),
    ]
    assert alternatives(replace(stage, option=own, options=(own, nearly))) == []
    assert alternatives(replace(stage, option=own, options=())) == []


def test_ties_and_reasons_of_the_longest_stage_are_named(plan):
    pole = longest_pole(plan)
    useful = pole.option.overhead.useful_seconds
    tied = TiedLayout(label="zero9 dp99", seconds=useful * 1.03, peak_bytes=1e9)
    changed = replace(
        pole,
        option=replace(pole.option, tied_layouts=(tied,)),
        rejected=(Rejected(option="1 x T4 on moon", reason="needs 96.2 GiB of 14.0 usable"),),
    )
    stages = tuple(changed if stage is pole else stage for stage in plan.stages)
    text = " ".join(shown(plan_table(replace(plan, stages=stages))).split())
    assert "zero9 dp99 (3 % longer)" in text
    assert f"Why not 1 x T4 on moon for {pole.name}? needs 96.2 GiB" in text


def test_stages_that_cost_nothing_and_unpriced_ones_differ(plan):
    first, *rest = plan.stages
    unpriced = replace(first, compute_usd=None, storage_usd=None)
    text = shown(plan_table(replace(plan, stages=(unpriced, *rest), cost=None)))
    assert text.count("unpriced") >= 3
    assert "cannot be checked: a stage has no price" in text


def test_the_spread_and_what_it_comes_from_are_named(plan):
    text = " ".join(shown(plan_table(plan)).split())
    spread = plan.cost.spread
    assert f"over {spread.draws:,} draws it is" in text
    for driver in spread.drivers:
        assert f"{driver.cause} {100 * driver.share:.0f} %" in text
    assert "Spread" not in shown(plan_table(replace(plan, cost=None)))


@pytest.mark.parametrize("quantile", ["p10", "p50", "p90"])
@pytest.mark.parametrize("costs", [Costs(), Costs(idle_share=0.2, rework=0.5, contingency=0.1), None])
def test_the_rows_of_the_table_add_up_to_its_total(plan, project, costs, quantile):
    cost = None if costs is None else project_cost(plan.stages, replace(project, costs=costs))
    changed = replace(plan, cost=cost)
    machines = sum(getattr(stage.compute_usd, quantile) for stage in plan.stages)
    beside = dict(beside_the_machines(changed))
    assert machines + sum(getattr(amount, quantile) for amount in beside.values()) == getattr(
        changed.project_usd, quantile
    )
    assert (REPEATED in beside) == (costs is not None and costs.rework > 0)


def test_an_endpoint_without_a_price_is_a_row_and_not_free(plan):
    changed = replace(plan, cost=replace(plan.cost, unpriced=("endpoint of judge",)))
    line = next(line for line in shown(plan_table(changed)).splitlines() if "endpoint of judge" in line)
    assert "unpriced" in line
    assert dict(beside_the_machines(changed))["endpoint of judge"] is None


def test_a_market_and_its_risk_are_told_of_the_longest_stage(plan):
    pole = longest_pole(plan)
    spent = replace(pole.risk.spent, interruptions=3.0, lost_seconds=5400.0)
    changed = replace(pole, risk=replace(pole.risk, spent=spent), market_reason="spot: $468 less for +4 h")
    stages = tuple(changed if stage is pole else stage for stage in plan.stages)
    text = " ".join(shown(plan_table(replace(plan, stages=stages))).split())
    assert f"Market for {pole.name}: spot: $468 less for +4 h." in text
    share = f"({100 * pole.risk.software_share:.0f} % by software)"
    assert f"3 interruptions expected {share}, 30 min 0 s lost at each" in text


def test_explaining_a_stage_shows_risk_options_and_lines_of_cost(plan):
    stage = longest_pole(plan)
    text = shown(explain_stage(stage, plan), 200)
    for part in ("Workload", "Memory per accelerator", "Time:", "Failures expected", "Not taken", "Assumptions"):
        assert part in text
    for line in plan.cost.lines:
        assert (line.formula in text) >= (line.stage == stage.name)
    assert "chosen, not beaten" in text
    assert "Not taken" not in shown(explain_stage(replace(stage, rejected=()), plan), 200)


def test_plans_stand_beside_each_other_with_ratios_to_the_first(plan):
    first, *rest = plan.stages
    dearer = replace(
        first, compute_usd=money(first.option.usd.scaled(3)), storage_usd=money(first.option.usd.scaled(0))
    )
    base = replace(first, compute_usd=money(first.option.usd), storage_usd=money(first.option.usd.scaled(0)))
    plans = [("as it is", replace(plan, stages=(base, *rest))), ("dear", replace(plan, stages=(dearer,)))]
    text = shown(compare_table(plans), 120)
    assert "(3.00 x)" in text
    assert "as it is" in text
    rows = {line.split()[0]: line for line in text.splitlines() if line.strip()}
    assert rows["pm"].rstrip().endswith("-")
    assert "1.00 x" not in text


def test_comparing_nothing_and_one_plan_is_possible(plan):
    assert "Stage" in shown(compare_table([]))
    assert "x)" not in shown(compare_table([("only", plan)]))
