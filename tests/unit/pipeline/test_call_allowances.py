"""Parts of a budget for calls of stages: never more than the limits leave, whoever runs and however late they look."""

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("sqlalchemy")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from charter.artifacts.allowance import CallAllowance, allow, allowance, take
from charter.run.served import CallAllowances, Room
from charter.spec.project import Serving

SERVED = Serving(endpoint="http://x/v1", usd_per_million_input_tokens=1.0, usd_per_million_output_tokens=1.0)


@dataclass
class AskingStage:
    """As much of a planned stage as allowances look at."""

    name: str
    directory: Path
    asked_fingerprint: str = "f"
    inputs: dict = field(default_factory=lambda: {"judge": [SimpleNamespace(name="judge")]})


@pytest.fixture
def stages(tmp_path):
    return [AskingStage(name, tmp_path / name) for name in "ab"]


def allowances(serving=SERVED):
    return CallAllowances(SimpleNamespace(serving={"judge": serving}))


def said(mine, rooms, spent, running):
    rooms = None if rooms is None else [room if isinstance(room, Room) else whole(room) for room in rooms]
    left = mine.share(rooms, {(name, "f"): usd for name, usd in spent.items()}, running)
    mine.write()
    return left


def whole(left):
    return Room(limit="budget.limit", left_micro_usd=left)


def bounds(stages):
    return [allowance(stage.directory).micro_usd for stage in stages]


def acknowledge(stage, own):
    take(stage.directory, rank=0, processes=1, number=allowance(stage.directory).number, before=0, own=own)


def test_one_stage_has_all_that_is_left(stages):
    mine = allowances()
    mine.open(stages[0], bounded=True)
    assert said(mine, [2_000_000], {"a": 500}, []) == 2_000_000
    assert bounds(stages) == [2_000_500, None]


def test_a_second_stage_gets_what_the_first_has_let_go_of(stages):
    mine = allowances()
    for number, stage in enumerate(stages):
        mine.open(stage, bounded=True)
        said(mine, [2_000_000], {}, ["a"][:number])
    assert bounds(stages) == [2_000_000, 0]
    said(mine, [2_000_000], {}, ["a", "b"])
    assert bounds(stages) == [1_000_000, 0], "a may still spend all of it"
    acknowledge(stages[0], 1_400_000)
    said(mine, [2_000_000], {}, ["a", "b"])
    assert bounds(stages) == [1_000_000, 600_000], "it has spent more than its part since"
    said(mine, [600_000], {"a": 1_400_000}, ["b"])
    assert bounds(stages) == [1_000_000, 600_000], "what has ended is left as it is"


def test_a_limit_of_a_stage_binds_it_alone(stages):
    mine = allowances()
    for stage in stages:
        mine.open(stage, bounded=True)
    stage_room = Room(limit="budget.stages.b", left_micro_usd=300, stage="b")
    said(mine, [1_000, stage_room], {}, ["a", "b"])
    assert bounds(stages) == [500, 300]
    assert allowance(stages[1].directory).limit == "budget.stages.b"
    said(mine, [1_000, Room(limit="budget.stages.b", left_micro_usd=-5, stage="b")], {"b": 7}, ["b"])
    assert bounds(stages)[1] == 7, "over its limit nothing is added"


def test_what_other_runs_may_still_spend_is_not_given_out(stages):
    mine = allowances()
    mine.open(stages[0], bounded=True)
    shared = Room(limit="budget.owners.ann", left_micro_usd=1_000, elsewhere_micro_usd=800, runs=2)
    assert said(mine, [5_000, shared], {}, ["a"]) == 200
    assert allowance(stages[0].directory) == CallAllowance(micro_usd=200, number=1, limit="budget.owners.ann")


def test_without_the_claims_of_others_nothing_may_be_spent_yet(stages):
    stages[0].directory.mkdir()
    allow(stages[0].directory, CallAllowance(micro_usd=9_000, number=3))
    mine = allowances()
    mine.open(stages[0], bounded=True)
    mine.wait({("a", "f"): 20})
    mine.write()
    assert allowance(stages[0].directory) == CallAllowance(micro_usd=20, number=4)
    said(mine, [500], {"a": 20}, ["a"])
    mine.wait({("a", "f"): 30})
    mine.write()
    assert bounds(stages)[0] == 520, "a bound that was said stands"


def test_a_warning_limit_and_a_free_stage_have_no_bound(stages):
    mine = allowances()
    mine.open(stages[0], bounded=True)
    assert said(mine, None, {}, ["a"]) is None
    free = allowances(Serving(endpoint="http://x/v1", billed=False))
    free.open(stages[1], bounded=True)
    assert said(free, [1_000], {}, ["b"]) is None
    assert bounds(stages) == [None, None]


def test_the_bound_of_an_earlier_run_is_taken_away(stages):
    stages[0].directory.mkdir()
    allow(stages[0].directory, CallAllowance(micro_usd=5))
    allowances().open(stages[0], bounded=False)
    assert bounds(stages) == [None, None]


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(moves=st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["spend", "look", "both"])), max_size=40))
def test_stages_that_look_late_never_pass_a_limit_together(tmp_path_factory, moves):
    root, limit, asked = tmp_path_factory.mktemp("late"), 1_000, 130
    stages = {name: AskingStage(name, root / name) for name in "ab"}
    mine, seen, spent, recorded, running = allowances(), {}, {"a": 0, "b": 0}, {"a": 0, "b": 0}, []
    for name, move in moves:
        if name not in running:
            mine.open(stages[name], bounded=True)
            running.append(name)
        if move != "spend":
            recorded = dict(spent) if move == "both" else recorded
            said(mine, [limit - sum(recorded.values())], recorded, running)
            seen[name] = allowance(stages[name].directory)
            take(stages[name].directory, rank=0, processes=1, number=seen[name].number, before=0, own=spent[name])
        elif name in seen and spent[name] + asked <= seen[name].micro_usd:
            spent[name] += asked
        assert sum(spent.values()) <= limit
