"""View models: sums that add up, times that make sense, graphs whose edges go forward."""

import os
from dataclasses import replace

import pytest
from dashboard_case import ProjectCase, lively
from hypothesis import given
from hypothesis import strategies as st

from charter.artifacts.stage_state import Phase
from charter.dashboard import snapshot as snapshots
from charter.dashboard.pages.home import ROWS_PER_PAGE, TableQuery, home_view
from charter.dashboard.pages.run import CurvesBeside, RunBeside, burn_chart, cost_view
from charter.dashboard.reading import ProjectDirectory, ProjectReader, key_of
from charter.dashboard.snapshot import log_lines_with
from charter.dashboard.view import run_parts
from charter.dashboard.view.run_parts import MOST_CURVE_POINTS, curves_of, eta_of, event_lines, meter_view, phases_of
from charter.dashboard.view.run_view import (
    NARROW,
    WIDE,
    direct_edges,
    graph_svg,
    layered,
    money_of,
    run_share,
    run_view,
    timeline_of,
)
from charter.ledger.sums import Sums
from charter.metering.row import MeterRow


@pytest.fixture
def snapshot(case):
    return ProjectReader(ProjectDirectory(key=key_of(case.root), root=case.root, label="demo")).snapshot()


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


def test_a_timeline_leaves_out_what_nothing_ran_in(snapshot):
    recent = snapshot.ledger.recent
    first = recent[0]
    later = replace(first.attempt, started_at=first.attempt.started_at + first.attempt.seconds + 86_400)
    timeline = timeline_of(snapshot, [first, replace(first, attempt=later)])
    (row,) = timeline.rows
    assert timeline.pauses == 1
    assert row.spans[1].start == pytest.approx(row.spans[0].end)
    assert timeline.last >= row.spans[1].end
    assert timeline_of(snapshot, ()) is None
    planned = {stage.name: stage.planned for stage in timeline_of(snapshot, recent).rows}
    assert planned["sft"] is None, "a plan without a timeline puts nothing anywhere"
    edges = {"start_seconds": {"p50": 1.0}, "end_seconds": {"p50": 9.0}}
    dated = replace(snapshot, plan={"timeline": {"stages": [{"name": "sft", **edges}, {"name": "torn"}]}})
    assert timeline_of(dated, recent).rows[0].planned == (1.0, 9.0)


def test_the_clock_of_a_run_is_not_the_sum_of_its_attempts(snapshot):
    view = run_view(snapshot)
    spans = [
        (item.attempt.started_at, item.attempt.started_at + item.attempt.seconds) for item in snapshot.ledger.recent
    ]
    assert view.wall_seconds <= max(end for _, end in spans) - min(start for start, _ in spans)
    assert run_view(replace(snapshot, ledger=replace(snapshot.ledger, recent=()))).wall_seconds is None


def test_the_time_that_is_left_follows_the_edges(snapshot):
    eta = eta_of(snapshot)
    assert eta.ends_in["sft"] == 0.0
    assert 0 < eta.ends_in["pm"] < eta.ends_in["ppo"] < eta.ends_in["judged"] == eta.run_seconds


def test_without_a_plan_nobody_can_say(tmp_path):
    case = ProjectCase(tmp_path / "demo")
    found = ProjectReader(ProjectDirectory(key="x", root=case.root, label="x")).snapshot()
    assert eta_of(found).run_seconds is None
    assert found.phase == "pending"
    assert run_share(found) == 0.0
    money = money_of(found, eta_of(found))
    assert (money.spent_usd, money.forecast_usd) == (0.0, None), "what never ran has cost nothing"


def test_what_an_earlier_version_took_is_no_pace_of_this_one(tmp_path):
    case = ProjectCase(tmp_path / "demo")
    case.plan()
    now = case.stages["sft"]
    case.stages["sft"] = replace(now, asked_fingerprint="0" * 64)
    case.attempt("sft", seconds=9000.0)
    case.stages["sft"] = now
    case.attempt("sft", seconds=20.0, outcome="running", after=9500.0, steps=20)
    case.running("sft", 20, 40, pid=os.getpid())
    case.progress("sft", 20, 40, rate_per_second=None)
    found = ProjectReader(ProjectDirectory(key="x", root=case.root, label="x")).snapshot()
    assert eta_of(found).stage_seconds("sft") < 60, "half of 100 s by the plan, and the first half took 20 s"


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
    assert len(curve.points) <= MOST_CURVE_POINTS
    assert curve.mean_of == 200
    assert curve.points[-1][0] == 100_000
    assert curve.band[0] == (10.0 / 200, 10.0)
    assert all(low <= value <= high for (_, value), (low, high) in zip(curve.points, curve.band, strict=True))


def test_curves_know_time_and_tokens_of_their_points(monkeypatch):
    lines = {10 * n: {"loss": 1.0 / n, "time": 1000.0 + 2 * n, "tokens": 100.0} for n in range(1, 5)}
    (curve,) = curves_of(lines)
    assert (curve.seconds, curve.tokens) == ((0.0, 2.0, 4.0, 6.0), (100.0, 200.0, 300.0, 400.0))
    with monkeypatch.context() as patch:
        patch.setattr(run_parts, "MOST_CURVE_POINTS", 2)
        (short,) = curves_of(lines)
    assert [point[0] for point in short.points] == [20, 40]
    assert (short.seconds, short.tokens) == ((2.0, 6.0), (200.0, 400.0))
    (bare,) = curves_of({1: {"loss": 1.0}, 2: {"loss": 2.0, "time": 5.0}})
    assert (bare.seconds, bare.tokens) == ((), ()), "a line without a time says nothing of the others"
    (back,) = curves_of({1: {"loss": 1.0, "time": 9.0}, 2: {"loss": 2.0, "time": 5.0}})
    assert back.seconds == ()


def test_a_metric_of_other_runs_lies_beside_its_curve():
    lines = {step: {"loss": 1.0 / step, "time": 10.0 * step} for step in (1, 2, 3)}
    (mine,) = curves_of(lines)
    (its,) = curves_of({step: {"loss": 2.0 / step} for step in (1, 2)})
    beside = CurvesBeside(runs=(RunBeside(key="b", label="other", curves=(its,)),), asked=True)
    assert beside.of("kl") == ()
    drawn = mine.to_json(beside.of("loss"))
    assert drawn["seconds"] == [0.0, 10.0, 20.0]
    assert drawn["others"] == [{"label": "other", "points": [[1, 2.0], [2, 1.0]], "seconds": [], "tokens": []}]


def test_a_log_is_searched_from_its_end(tmp_path, monkeypatch):
    path = tmp_path / "log.txt"
    path.write_text("".join(f"step {n}: Loss {'NaN' if n % 3 == 0 else n}\n" for n in range(1, 10)))
    hits = log_lines_with(path, "nan")
    assert hits.lines == ("3: step 3: Loss NaN", "6: step 6: Loss NaN", "9: step 9: Loss NaN")
    assert hits.whole
    monkeypatch.setattr(snapshots, "MOST_LINES", 2)
    last = log_lines_with(path, "loss")
    assert (last.lines, last.whole) == (("8: step 8: Loss 8", "9: step 9: Loss NaN"), False)
    monkeypatch.setattr(snapshots, "SEARCHED_BYTES", 40)
    cut_off = log_lines_with(path, "step 1")
    assert (cut_off.lines, cut_off.whole) == ((), False)
    assert log_lines_with(tmp_path / "none", "x").lines == ()


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


def test_what_has_no_price_has_not_spent_nothing(snapshot):
    """The sum over projects without a price had been $0."""
    totals = replace(snapshot.ledger.whole.totals, priced_attempts=0, micro_usd=0)
    whole = replace(snapshot.ledger.whole, totals=totals)
    unpriced = replace(snapshot, ledger=replace(snapshot.ledger, whole=whole))
    assert (home_view([unpriced]).spent_usd, home_view([unpriced]).groups[0].spent_usd) == (None, None)
    assert home_view([snapshot, unpriced]).spent_usd == pytest.approx(1.4)


def projects(snapshot, count):
    """Many projects: every third is done, each with a name and an owner of its own."""
    done = tuple(replace(stage, phase=Phase("done")) for stage in snapshot.stages)
    return [
        replace(
            snapshot,
            key=f"p{number}",
            name=f"project {number:03}",
            owner=f"team {('red', 'blue', 'green', 'grey')[number % 4]}",
            stages=snapshot.stages if number % 3 else done,
        )
        for number in range(count)
    ]


def table(snapshot, count=120, **asked):
    return home_view(projects(snapshot, count), TableQuery.of(lambda name: asked.get(name, "")))


def test_the_table_is_read_a_page_at_a_time(snapshot):
    first, last = table(snapshot), table(snapshot, page="99")
    assert (len(first.rows), first.matching, first.pages, first.all) == (ROWS_PER_PAGE, 120, 3, 120)
    assert (last.query.page, len(last.rows)) == (3, 20)
    names = {row.name for page in "123" for row in table(snapshot, page=page).rows}
    assert len(names) == 120
    assert len(home_view(projects(snapshot, 120)).rows) == 120, "an export has all of them"


def test_the_table_is_searched_filtered_and_sorted(snapshot):
    found = table(snapshot, q="BLUE project", state="done", sort="name", falling="1")
    names = [row.name for row in found.rows]
    assert names == sorted(
        (f"project {number:03}" for number in range(120) if number % 4 == 1 and number % 3 == 0), reverse=True
    )
    assert dict(found.states) == {"running": 80, "done": 40}
    assert table(snapshot, q="nothing like it").rows == ()


def test_the_table_stands_in_groups(snapshot):
    view = table(snapshot, group="owner", sort="name")
    assert [(group.name, group.all) for group in view.groups] == [("team blue", 30), ("team green", 30)]
    assert sum(len(group.rows) for group in view.groups) == ROWS_PER_PAGE
    names = [row.name for row in view.groups[0].rows]
    assert names == sorted(names), "within a group the order stays"
    assert view.groups[0].spent_usd == pytest.approx(30 * 1.4)
    assert view.groupings == ("name", "owner", "state", "goal", "team")
    assert table(snapshot, group="password").query.group == ""
    assert [group.name for group in table(snapshot).groups] == [""]


def test_the_table_has_the_runs_of_one_tag(snapshot):
    red, plain = ({"team": "red"}, {"teamed": "red", "keep": ""})
    runs = [replace(item, tags=red if number % 2 else plain) for number, item in enumerate(projects(snapshot, 6))]
    of = {tag: home_view(runs, TableQuery(tag=tag)).matching for tag in ("team: red", "keep", "team")}
    assert of == {"team: red": 3, "keep": 3, "team": 0}
    last = home_view(runs, TableQuery(group="team")).groups[-1]
    assert (last.name, last.all) == ("", 3), "what has no such tag comes last"


def test_what_makes_no_sense_in_an_address_is_as_if_it_were_not(snapshot):
    odd = table(snapshot, page="-1", sort="password", state="haunted", falling="yes", q=" " * 500)
    assert odd.query == TableQuery()


def test_an_address_says_what_is_seen_and_no_more(snapshot):
    query = table(snapshot, 10, q="team", sort="spent", falling="1", page="2").query
    assert query.params(page=query.page) == {"q": "team", "sort": "spent", "falling": "1"}, "one page: this is it"
    assert query.sorted_by("spent") == {"q": "team", "sort": "spent"}
    assert query.sorted_by("last") == {"q": "team", "sort": "last", "falling": "1"}
    assert TableQuery().params() == {}


def test_a_spent_budget_is_told(tmp_path):
    case = lively(tmp_path / "demo", pid=os.getpid())
    case.event("run_stopped", run="demo", label="budget", message="demo has cost $11, its limit is $10")
    view = run_view(ProjectReader(ProjectDirectory(key="x", root=case.root, label="x")).snapshot())
    assert view.stopped == "demo has cost $11, its limit is $10"
    case.event("run_started", run="demo", todo=[])
    assert run_view(ProjectReader(ProjectDirectory(key="x", root=case.root, label="x")).snapshot()).stopped == ""


def test_judgements_and_revisions_are_drawn():
    steps = {step: {"orders_agree": 0.1 * step, "unchanged_revision_share": 0.2 * step} for step in (1, 2, 3)}
    assert [curve.metric for curve in curves_of(steps)] == ["orders_agree", "unchanged_revision_share"]


def sampled(count, node="a"):
    told = {"processes": 1, "cpu_seconds": 5.0, "resident_bytes": 2**30, "read_bytes": 0, "written_bytes": 0}
    told |= {"node_cpus": 2, "node_cpu_share": 0.5, "node_memory_bytes": 2**33, "node_memory_used_bytes": 2**31}
    told |= {"node_received_bytes": 0, "node_sent_bytes": 0}
    return [
        MeterRow(time=10.0 * number, node=node, interval_seconds=10.0 if number else 0.0, **told)
        for number in range(count)
    ]


def test_one_sample_of_a_machine_says_nothing_of_it():
    assert meter_view([]) is None
    assert meter_view([*sampled(1), *sampled(1, "b")]) is None
    assert meter_view(sampled(2)) is not None


def test_samples_after_the_processes_ended_say_nothing():
    ended = [replace(row, processes=0, cpu_seconds=0.0, resident_bytes=0) for row in sampled(3)]
    assert meter_view(ended) is None
    assert meter_view([*sampled(1), *ended[1:]]) is None
    over = replace(ended[2], time=30.0)
    view = meter_view([*sampled(3), over])
    assert view.summary.cpu_share == pytest.approx(15 / (20 * 2))
    points = {chart["title"]: chart["lines"][0]["points"] for chart in view.charts}
    assert points["Memory of its processes"] == [[0.0, 2**30], [10.0, 2**30], [20.0, 2**30]]


def test_what_reads_a_failed_stage_has_no_end(case):
    case.failed("ppo", "the reward is not a number")
    view = run_view(ProjectReader(ProjectDirectory(key="x", root=case.root, label="x")).snapshot())
    assert {row.name: (row.behind, row.ends_in is None) for row in view.rows} == {
        "sft": ("", False),
        "pm": ("", False),
        "ppo": ("", True),
        "judged": ("ppo", True),
    }
