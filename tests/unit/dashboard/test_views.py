"""View models: sums that add up, times that make sense, graphs whose edges go forward."""

import os
from dataclasses import replace

import pytest
from dashboard_case import ProjectCase, lively
from hypothesis import given
from hypothesis import strategies as st

from charter.artifacts.stage_state import Phase
from charter.dashboard.discovery import Found, key_of
from charter.dashboard.reading import ProjectReader
from charter.dashboard.view.cost_view import burn_chart, cost_view
from charter.dashboard.view.curves import MOST_POINTS, curves_of, phases_of
from charter.dashboard.view.eta import eta_of
from charter.dashboard.view.events_view import event_lines
from charter.dashboard.view.graph_svg import NARROW, WIDE, direct_edges, graph_svg, layered
from charter.dashboard.view.home_view import home_view
from charter.dashboard.view.run_view import money_of, run_share, run_view
from charter.ledger.sums import Sums


@pytest.fixture
def snapshot(case):
    return ProjectReader(Found(key=key_of(case.root), root=case.root, label="demo")).snapshot()


@st.composite
def graphs(draw):
    names = [f"n{number}" for number in range(draw(st.integers(1, 9)))]
    return {
        name: draw(st.lists(st.sampled_from(names[:at]), unique=True)) if at else [] for at, name in enumerate(names)
    }


def above(inputs):
    found = {}
    for name, sources in inputs.items():
        found[name] = set(sources).union(*(found[source] for source in sources))
    return found


@given(graphs())
def test_a_drawn_edge_goes_forward_and_none_is_lost(inputs):
    layout = layered(inputs)
    assert set(layout.nodes) == set(inputs)
    for source, target, points in layout.edges:
        assert [x for x, _ in points] == list(range(int(layout.nodes[source][0]), int(layout.nodes[target][0]) + 1))
    direct = {name: [a for a, b in direct_edges(inputs) if b == name] for name in inputs}
    assert above(direct) == above(inputs), "what reads what, through others, is the same"


@given(graphs())
def test_boxes_do_not_touch_each_other_and_lie_inside(inputs):
    for size in (WIDE, NARROW):
        graph = graph_svg(inputs, size)
        for one in graph.boxes:
            assert 0 <= one.x <= graph.width - size.width
            assert 0 <= one.y <= graph.height - size.height
            for other in graph.boxes:
                apart = abs(one.x - other.x) >= size.width or abs(one.y - other.y) >= size.height
                assert one is other or apart


def test_a_chain_is_a_straight_line():
    layout = layered({"a": [], "b": ["a"], "c": ["b"]})
    assert {row for _, row in layout.nodes.values()} == {0.0}


def test_the_run_page_of_a_run_in_the_middle(snapshot):
    view = run_view(snapshot)
    assert (view.state, view.done, view.interruptions) == ("running", 1, 1)
    assert view.lost_seconds == 50.0
    assert view.money.per_hour_usd == 36.0
    assert view.checkpoint_stage == "pm"
    assert view.share == pytest.approx((1 + 0.5) / 4)


def test_the_time_that_is_left_follows_the_edges(snapshot):
    eta = eta_of(snapshot)
    assert eta.ends_in["sft"] == 0.0
    assert 0 < eta.ends_in["pm"] < eta.ends_in["ppo"] < eta.ends_in["judged"] == eta.run_seconds


def test_without_a_plan_nobody_can_say(tmp_path):
    case = ProjectCase(tmp_path / "demo")
    found = ProjectReader(Found(key="x", root=case.root, label="x")).snapshot()
    assert eta_of(found).run_seconds is None
    assert found.phase == "pending"
    assert run_share(found) == 0.0
    assert money_of(found, eta_of(found)).spent_usd is None


def test_one_slot_runs_stages_one_after_the_other(snapshot):
    def whole(slots):
        stages = [replace(stage, phase=Phase("pending"), step=0, inputs=()) for stage in snapshot.stages]
        return eta_of(replace(snapshot, stages=tuple(stages), max_parallel_stages=slots)).run_seconds

    assert whole(1) == pytest.approx(2 * whole(2)) == pytest.approx(4 * whole(4))


def test_the_parts_of_the_cost_add_up(snapshot):
    view = cost_view(snapshot)
    assert view.unit == "usd"
    assert view.whole.whole == pytest.approx(view.money.spent_usd) == pytest.approx(1.4)
    assert sum(split.whole for split in view.stages) == pytest.approx(1.4)
    assert sum(split.lost for split in view.stages) == pytest.approx(view.whole.lost) == pytest.approx(0.5)
    assert view.forecast_p10 <= view.forecast_p50 <= view.forecast_p90
    assert view.forecast_p50 >= view.money.spent_usd
    assert [title for _, title in view.used_columns] == ["Lost"]


def test_storage_is_on_the_page_beside_the_stages_and_hides_no_time(snapshot):
    stored = Sums(other_micro_usd=500_000)
    whole, by_stage = snapshot.ledger.whole, {**snapshot.ledger.by_stage, "": stored}
    view = cost_view(replace(snapshot, ledger=replace(snapshot.ledger, by_stage=by_stage, whole=whole + stored)))
    assert [(split.name, split.other) for split in view.stages if split.other] == [("(no stage)", 0.5)]
    assert sum(split.whole for split in view.stages) == pytest.approx(view.whole.whole) == pytest.approx(1.9)
    totals = replace(whole.totals, priced_attempts=0, micro_usd=0)
    unpriced = replace(snapshot.ledger, by_stage=by_stage, whole=Sums(totals=totals) + stored)
    assert cost_view(replace(snapshot, ledger=unpriced)).unit == "seconds"


def test_the_burn_down_ends_at_the_forecast(snapshot):
    view = cost_view(snapshot)
    chart = burn_chart(snapshot, view)
    values = [value for _, value in chart["points"]]
    assert values == sorted(values)
    assert values[-1] == pytest.approx(1.4)
    assert chart["limit"] == 10.0
    assert chart["end"]["p50"] == view.forecast_p50
    assert chart["end"]["at"] > chart["now"]


def test_an_unpriced_run_shows_times(snapshot):
    totals = replace(snapshot.ledger.whole.totals, priced_attempts=0, micro_usd=0)
    ledger = replace(snapshot.ledger, whole=replace(snapshot.ledger.whole, totals=totals))
    view = cost_view(replace(snapshot, ledger=ledger))
    assert view.unit == "seconds"
    assert view.whole.whole == 140.0


def test_long_curves_become_short_and_keep_their_range():
    steps = {step: {"loss": 10.0 / step, "accuracy": 0.5} for step in range(1, 100_001)}
    (curve,) = curves_of(steps)
    assert curve.metric == "loss"
    assert len(curve.points) <= MOST_POINTS
    assert curve.mean_of == 200
    assert curve.points[-1][0] == 100_000
    assert curve.band[0] == (10.0 / 200, 10.0)
    assert all(low <= value <= high for (_, value), (low, high) in zip(curve.points, curve.band, strict=True))


def test_phases_are_shares_of_a_step():
    phases = phases_of({1: {"seconds_update": 3.0, "seconds_save": 1.0, "seconds_wait": 0.0}})
    assert {phase.name: phase.share for phase in phases} == {"update": 0.75, "save": 0.25}
    assert phases_of({}) == ()
    sevens = {7 * line: {"seconds_update": 1.4, "seconds_wait": 0.7} for line in range(1, 101)}
    found = {phase.name: phase.seconds for phase in phases_of({3: {"loss": 1.0}, **sevens})}
    assert found == pytest.approx({"update": 0.2, "wait": 0.1}), "a line of seven steps is seven steps"


def test_events_are_newest_first_and_unknown_ones_are_shown():
    lines = event_lines(
        [
            {"time": 1.0, "event": "run_started", "todo": ["a"]},
            {"time": 2.0, "event": "stage_pending", "stage": "a"},
            {"time": 3.0, "event": "something_new", "stage": "a", "message": "hello"},
            {"time": 4.0, "event": "stage_done", "stage": "a", "seconds": "broken"},
        ]
    )
    assert [line.text for line in lines] == ["done in 0.0 s", "hello", "run started, 1 stage to do"]


def test_the_first_page_puts_what_runs_first(tmp_path, snapshot):
    idle = replace(snapshot, key="b", stages=tuple(replace(stage, phase=Phase("done")) for stage in snapshot.stages))
    view = home_view([idle, snapshot])
    assert [row.state for row in view.rows] == ["running", "done"]
    assert (view.running, view.spent_usd) == (1, pytest.approx(2.8))


def test_a_spent_budget_is_told(tmp_path):
    case = lively(tmp_path / "demo", pid=os.getpid())
    case.event("run_stopped", run="demo", label="budget", message="demo has cost $11, its limit is $10")
    view = run_view(ProjectReader(Found(key="x", root=case.root, label="x")).snapshot())
    assert view.stopped == "demo has cost $11, its limit is $10"
    case.event("run_started", run="demo", todo=[])
    assert run_view(ProjectReader(Found(key="x", root=case.root, label="x")).snapshot()).stopped == ""
