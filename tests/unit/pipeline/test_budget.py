"""What is spent against what may be: told once, held, stopped; by project, stage, owner and tag."""

import json
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

pytest.importorskip("sqlalchemy")

from still_clock import Clock

from charter.errors import BudgetError
from charter.ledger import ApiUsage, Ledger, Outcome
from charter.ledger.call import CallSums, RouteTotals
from charter.run.attempt import (
    MachineShares,
    RunningAttempt,
    begin_attempt,
    end_attempt,
    heartbeat,
    price_micro_usd_per_hour,
)
from charter.run.budget import BudgetWatch, StageStep, lines_now, read_plan, read_spending, stages_so_far
from charter.run.events import Events
from charter.run.graph import Pipeline
from charter.spec.project import Project, Resources, Serving
from charter.spec.sections import Budget


def project(limit=None, *, owner=None, own_tags=None, price=2.0, max_parallel_stages=1, **budget):
    made = None if limit is None else Budget(limit=limit, **budget)
    resources = Resources(price=price, max_parallel_stages=max_parallel_stages)
    return Project(
        name="p", models={}, pipeline={}, budget=made, resources=resources, owner=owner, tags=own_tags or {}
    )  # fmt: skip


@pytest.fixture
def ledger(tmp_path):
    with Ledger.open(tmp_path / "ledger.sqlite") as opened:
        yield opened


class Watching:
    """A budget watch of a project without stages, and what it has told."""

    def __init__(self, root, project, stages=None):
        self.told = []
        events = Events(root, [lambda event: self.told.append(event)])
        self.watch = BudgetWatch(Pipeline(project=project, root=root, stages=stages or {}, inputs=None), events)

    def look(self, ledger, **given):
        return self.watch.look(ledger, **{"running": (), "done": (), **given})

    @property
    def messages(self):
        return [event["message"] for event in self.told]


@pytest.fixture
def watching(tmp_path):
    return lambda project, **given: Watching(tmp_path, project, **given)


def spend(ledger, *, hours, price_usd, run="p", stage="s", **billed_to):
    price = None if price_usd is None else round(price_usd * 1e6)
    now = time.time()
    attempt = ledger.begin(
        run=run, stage=stage, kind="sft", fingerprint="f", at=now, monotonic=0.0, price_micro_usd_per_hour=price,
        **billed_to,
    )  # fmt: skip
    ledger.end(attempt, at=now, monotonic=hours * 3600, outcome="done")


def test_what_was_spent_is_the_sum_over_attempts(ledger):
    spend(ledger, hours=2, price_usd=3)
    spend(ledger, hours=1, price_usd=4)
    spend(ledger, hours=1, price_usd=100, run="another")
    assert ledger.total(run="p").usd == 10.0


def test_without_a_price_nothing_is_known_and_no_limit_is_passed(ledger, watching):
    spend(ledger, hours=2, price_usd=None)
    assert not ledger.total(run="p").is_priced
    watch = watching(project(limit=1, price=None))
    watch.watch.start(ledger, done=())
    assert watch.messages == ["the budget cannot be watched: resources.price is not set"]


@pytest.mark.parametrize(
    ("inputs", "told"),
    [
        ({}, []),
        (
            {"policy": (SimpleNamespace(source="model", name="base", stage_kind=None),)},
            ["the budget is watched for calls to servers; machines have no price: resources.price is not set"],
        ),
    ],
)
def test_calls_with_a_price_are_watched(ledger, watching, tmp_path, inputs, told):
    priced = Serving(endpoint="http://a/v1", usd_per_million_input_tokens=1.0, usd_per_million_output_tokens=1.0)
    judged = SimpleNamespace(source="model", name="judge", stage_kind=None)
    stage = SimpleNamespace(
        inputs={"judge": (judged,), **inputs},
        directory=tmp_path / "label",
        spec=SimpleNamespace(kind="label"),
        asked_fingerprint="f",
    )
    watch = watching(replace(project(limit=1, price=None), serving={"judge": priced}), stages={"label": stage})
    watch.watch.start(ledger, done=())
    assert watch.messages == told


def call_usage(*, settled, unknown):
    sums = CallSums(requests=1, settled_micro_usd=round(settled * 1e6), unknown_micro_usd=round(unknown * 1e6))
    route = RouteTotals(endpoint="http://a/v1", model="m", first_at=1.0, last_at=2.0, sums=sums)
    return ApiUsage(run="p", stage="s", fingerprint="f", store_id="1", route=route)


def test_calls_count_with_the_most_that_unknown_ones_can_cost(ledger, watching):
    ledger.record_usage([call_usage(settled=2, unknown=0.5)])
    spend(ledger, hours=1, price_usd=3)
    with pytest.raises(BudgetError, match=r"p has cost \$5.00, and at most \$5.50 .*, over its limit of \$5.00"):
        watching(project(limit=5)).watch.start(ledger, done=())
    with pytest.raises(BudgetError, match=r"p may have cost more than its limit of \$5.20: \$5.00, and at most \$5.50"):
        watching(project(limit=5.2)).watch.start(ledger, done=())
    for limit in (None, 100):
        made = watching(project(limit=limit))
        made.look(ledger)
        assert (made.watch.spent.usd, made.watch.spent.most_usd) == (5.0, 5.5)


def test_a_share_is_not_told_again_when_calls_turn_out_cheaper_than_they_might_have_been(ledger, watching):
    watch = watching(project(limit=10))
    for settled, unknown in ((6, 2.5), (7, 0), (8.2, 0)):
        ledger.record_usage([call_usage(settled=settled, unknown=unknown)])
        watch.look(ledger)
    assert [(event["share"], event["spent_usd"]) for event in watch.told] == [(0.8, 8.5)]


def test_calls_without_a_price_leave_the_cost_unknown(ledger):
    ledger.record_usage([call_usage(settled=0, unknown=0)])
    assert not ledger.total(run="p").is_priced


def test_a_run_does_not_start_at_its_limit_unless_only_a_warning_is_asked_for(ledger, watching):
    spend(ledger, hours=2, price_usd=3)
    watching(project(limit=6.01)).watch.start(ledger, done=())
    with pytest.raises(BudgetError, match=r"raise budget.limit, or set budget.on_exceed: warn"):
        watching(project(limit=6)).watch.start(ledger, done=())
    warned = watching(project(limit=5, on_exceed="warn"))
    warned.watch.start(ledger, done=())
    assert [event["state"] for event in warned.told] == ["warn"]
    assert not warned.watch.holds("s")


def test_each_share_of_the_limit_is_told_once(ledger, watching):
    watch = watching(project(limit=10))
    for hours in (4.9, 0.1, 1, 2.5, 0.9, 0.5):
        spend(ledger, hours=hours, price_usd=1)
        assert watch.look(ledger) is None
        watch.look(ledger)
    assert [(event["share"], round(event["spent_usd"], 1)) for event in watch.told] == [
        (0.5, 5.0),
        (0.8, 8.5),
        (0.9, 9.4),
    ]
    spend(ledger, hours=0.1, price_usd=1)
    assert isinstance(watch.look(ledger), BudgetError)
    assert watch.told[-1]["share"] == 1.0


def test_limits_of_owners_and_tags_count_all_runs_and_bind_only_their_own(ledger, watching):
    spend(ledger, hours=8, price_usd=1, run="another", owner="ann", tags={"team": "a"})
    spend(ledger, hours=1, price_usd=1, owner="ann", tags={"team": "a", "phase": "1"})
    limits = {"owners": {"ann": 9, "ben": 1}, "tags": {"team=a": 10, "team=b": 1}}
    ours = watching(project(limit=100, owner="ann", own_tags={"team": "a"}, **limits))
    assert "owner ann has cost $9.00, over its limit of $9.00" in str(ours.look(ledger))
    assert [(event["scope"], event["name"], event["share"]) for event in ours.told] == [
        ("owner", "ann", 1.0),
        ("tag", "team=a", 0.9),
    ]
    spend(ledger, hours=5, price_usd=1, run="another", owner="ben", tags={"team": "b"})
    assert watching(project(limit=100, owner="carl", **limits)).look(ledger) is None


def test_a_monthly_limit_forgets_other_months(ledger, watching):
    long_ago = ledger.begin(
        run="p", stage="s", kind="sft", fingerprint="f", at=86_400.0, price_micro_usd_per_hour=10**6, owner="ann"
    )
    ledger.end(long_ago, at=86_400.0 + 9 * 3600, outcome="done")
    spend(ledger, hours=1, price_usd=1, owner="ann")
    owners = {"owners": {"ann": 9}}
    assert watching(project(limit=100, owner="ann", period="month", **owners)).look(ledger) is None
    assert isinstance(watching(project(limit=100, owner="ann", **owners)).look(ledger), BudgetError)


def test_a_stage_over_its_own_limit_stops_the_run_unless_it_is_done(ledger, watching):
    spend(ledger, hours=2, price_usd=1, stage="ppo")
    limited = project(limit=100, stages={"ppo": 2})
    assert "raise budget.stages.ppo" in str(watching(limited).look(ledger))
    assert watching(limited).look(ledger, done={"ppo"}) is None


def plan(root, **usd_by_stage):
    stages = [
        {"name": name, "kind": "sft", "seconds": {q: 3600.0 for q in ("p10", "p50", "p90")},
         "usd": {"p10": usd * 0.8, "p50": usd, "p90": usd * 1.5}}
        for name, usd in usd_by_stage.items()
    ]  # fmt: skip
    (root / "run").mkdir(exist_ok=True)
    (root / "run" / "plan.json").write_text(json.dumps({"stages": stages}))


class Stage:
    """As much of a planned stage as a forecast looks at."""

    def __init__(self, root, name):
        self.name, self.directory, self.asked_fingerprint = name, root / name, "f"
        self.spec, self.inputs = type("Spec", (), {"kind": "sft"}), {}


def with_stages(root, project, *names):
    made = Watching(root, project)
    stages = {name: Stage(root, name) for name in names}
    made.watch = BudgetWatch(Pipeline(project=project, root=root, stages=stages, inputs=None), made.watch._events)
    return made


def test_a_forecast_above_the_limit_warns_holds_or_stops_as_asked(ledger, tmp_path):
    plan(tmp_path, sft=40.0, ppo=80.0)
    spend(ledger, hours=1, price_usd=30, stage="sft")
    step(ledger, "ppo", 20)
    for asked, expected in (("warn", "warn"), ("hold", "hold"), ("checkpoint_and_stop", "stop")):
        made = with_stages(tmp_path, project(limit=75, on_forecast=asked), "sft", "ppo")
        error = None
        try:
            made.watch.start(ledger, done={"sft"})
        except BudgetError as raised:
            error = raised
        assert [event["state"] for event in made.told] == [expected]
        assert made.watch.holds("ppo") == (asked == "hold")
        assert (error is not None) == (asked == "checkpoint_and_stop")
        # What was measured counts: sft cost 0.75 of its plan, of which 85 % of the logarithm is taken as ppo's too.
        assert made.told[0]["forecast_usd"] == pytest.approx(30 + 80 * 0.75**0.85)
    held = with_stages(tmp_path, project(limit=75, on_forecast="hold"), "sft", "ppo")
    held.watch.start(ledger, done={"sft"})
    stopped = held.watch.standstill(ledger, done={"sft"})
    why = "$81.59 to $106; ppo at 0.78 x its plan, as others went"
    assert f"is expected to cost $92.65 ({why}), over its limit of $75.00" in str(stopped)
    assert f"forecast $92.65 ({why}): " in held.messages[-1]


def step(ledger, stage, steps, first=100):
    """An attempt that runs and has made some steps, at no price."""
    number = ledger.begin(
        run="p", stage=stage, kind="ppo", fingerprint="g", at=1.0, first_step=first, price_micro_usd_per_hour=0
    )
    ledger.heartbeat(number, at=2.0, step=first + steps)


def test_forecast_stops_no_attempt_before_its_own_warm_up(ledger, tmp_path):
    plan(tmp_path, sft=40.0, ppo=80.0)
    spend(ledger, hours=1, price_usd=30, stage="sft")
    made = with_stages(tmp_path, project(limit=75, on_forecast="checkpoint_and_stop"), "sft", "ppo")
    made.watch.start(ledger, done={"sft"})
    step(ledger, "ppo", 19)
    assert made.look(ledger, running=["ppo"], done={"sft"}) is None
    assert "too few steps are made to act on it" in made.messages[-1]
    step(ledger, "ppo", 20)
    assert made.look(ledger, running=["ppo"], done={"sft"}) is not None


def test_what_runs_and_is_expected_to_use_up_the_rest_holds_new_starts(ledger, tmp_path):
    plan(tmp_path, sft=70.0, label=5.0)
    spend(ledger, hours=1, price_usd=50, stage="other")
    made = with_stages(tmp_path, project(limit=100), "sft", "label")
    made.watch.start(ledger, done=())
    assert not made.watch.holds("label")
    assert made.look(ledger, running=["sft"]) is None
    assert made.watch.holds("label")
    assert made.told[-1]["event"] == "budget_hold"
    assert made.watch.standstill(ledger, done={"sft"}) is None
    assert not made.watch.holds("label")
    label = Stage(tmp_path, "label")
    assert made.watch.before(label, ledger, running=(), done=())
    assert not made.watch.before(label, ledger, running=["sft"], done=()), "sft has started since the last look"
    warned = with_stages(tmp_path, project(limit=100, on_exceed="warn"), "sft", "label")
    warned.watch.start(ledger, done=())
    assert warned.look(ledger, running=["sft"]) is None
    assert (warned.told[-1]["state"], warned.watch.holds("label")) == ("warn", False)


def test_a_limit_of_another_owner_or_tag_expects_nothing_of_this_run(ledger, tmp_path):
    plan(tmp_path, sft=70.0)
    limits = {"owners": {"ann": 50, "ben": 50}, "tags": {"team=a": 50, "team=b": 50}}
    ours = project(limit=100, owner="ann", own_tags={"team": "a"}, **limits)
    pipeline = Pipeline(project=ours, root=tmp_path, stages={"sft": Stage(tmp_path, "sft")}, inputs=None)
    ledger.begin(
        run="p",
        stage="sft",
        kind="sft",
        fingerprint="f",
        at=time.time(),
        count=8,
        price_micro_usd_per_hour=2_500_000,
        job_id="1",
    )
    spending = read_spending(ledger, ours, now=time.time())
    lines = lines_now(pipeline, read_plan(tmp_path), spending, running=["sft"], done=())
    found = {line.name: (line.forecast_p50_usd, line.usd_per_hour) for line in lines}
    assert found == {name: (70.0, 20.0) for name in ("p", "ann", "team=a")} | {"ben": (0, 0), "team=b": (0, 0)}
    assert lines[0].seconds_left == 100 / 20 * 3600


def test_what_was_lost_does_not_slow_the_pace(ledger):
    for outcome, hours, first, last in (("killed", 3, 0, 30), ("done", 2, 10, 40)):
        attempt = ledger.begin(
            run="p", stage="sft", kind="sft", fingerprint="f", at=0.0, first_step=first,
            price_micro_usd_per_hour=10**6,
        )  # fmt: skip
        ledger.end(attempt, at=hours * 3600.0, outcome=outcome, step=last)
    spending = read_spending(ledger, project(), now=0.0)
    (found,) = stages_so_far(None, [StageStep(name="sft", kind="sft", fingerprint="f", step=40)], spending)
    assert (found.kept_seconds, found.kept_usd) == (3 * 3600.0, 3.0)


class Alone:
    """An attempt as the ledger's writers see it: no job, no progress, no calls."""

    def __init__(self, ledger, root, name, shares, made, *, device="cpu"):
        stage = Stage(root, name)
        self.attempt = RunningAttempt(
            stage=stage, handle=SimpleNamespace(job=None, pid=1), number=1,
            ledger_id=begin_attempt(ledger, made, stage, first_step=0, frozen={"device": device}, shares=shares),
            first_step=0, calls=SimpleNamespace(look=lambda **_: (), close=lambda: None),
            idle=SimpleNamespace(metered=lambda _: {}), shares=shares, machine_price=price_micro_usd_per_hour(made),
        )  # fmt: skip


def test_two_slots_of_a_machine_cost_its_wall_clock(ledger, tmp_path, monkeypatch):
    clock, shares, made = Clock(1000.0), MachineShares(), project(price=36.0, max_parallel_stages=2)
    monkeypatch.setattr("charter.run.attempt.time", SimpleNamespace(time=clock, monotonic=clock))
    first = Alone(ledger, tmp_path, "a", shares, made).attempt
    clock.now += 20.5
    heartbeat(ledger, first)
    second = Alone(ledger, tmp_path, "b", shares, made).attempt
    clock.now += 31.007
    heartbeat(ledger, first)
    assert read_spending(ledger, made, now=clock.now).usd_per_hour == 36.0
    end_attempt(ledger, first, Outcome.DONE)
    clock.now += 12.1
    end_attempt(ledger, second, Outcome.DONE)
    a, b = (item.cost_micro_usd for item in ledger.accounted())
    assert a == pytest.approx((20.5 + 31.007 / 2) * 10_000, abs=1)
    assert a + b == pytest.approx((20.5 + 31.007 + 12.1) * 10_000, abs=1), "wall clock x price, to the micro-USD"
    assert price_micro_usd_per_hour(project(price=None)) is None


def test_stages_on_accelerators_of_their_own_share_no_price(ledger, tmp_path, monkeypatch):
    clock, shares, made = Clock(1000.0), MachineShares(), project(price=36.0, max_parallel_stages=2)
    monkeypatch.setattr("charter.run.attempt.time", SimpleNamespace(time=clock, monotonic=clock))
    attempts = [Alone(ledger, tmp_path, name, shares, made, device="cuda").attempt for name in "ab"]
    clock.now += 10.0
    heartbeat(ledger, attempts[0])
    assert read_spending(ledger, made, now=clock.now).usd_per_hour == 2 * 36.0
    for attempt in attempts:
        end_attempt(ledger, attempt, Outcome.DONE)
    assert [item.cost_micro_usd for item in ledger.accounted()] == [100_000, 100_000]
