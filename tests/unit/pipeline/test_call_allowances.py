"""Parts of a budget for the calls of stages: never more than the limits leave, whoever runs."""

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("sqlalchemy")

from charter.artifacts.checkpoints import allow, allowance
from charter.run.served import CallAllowances
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


def bounds(stages):
    return [allowance(stage.directory) for stage in stages]


def test_one_stage_has_all_that_is_left(stages):
    mine = allowances()
    mine.open(stages[0], bounded=True)
    mine.say({"a": 2.0, "b": 2.0}, {("a", "f"): 500, ("a", "other"): 9}, running=[])
    assert bounds(stages) == [2_000_500, None]


def test_a_second_stage_waits_for_its_part_until_both_run(stages):
    mine = allowances()
    for number, stage in enumerate(stages):
        mine.open(stage, bounded=True)
        mine.say({"a": 2.0, "b": 2.0}, {}, running=["a"][:number])
    assert bounds(stages) == [2_000_000, 0]
    mine.say({"a": 2.0, "b": 0.5}, {("a", "f"): 100}, running=["a", "b"])
    assert bounds(stages) == [1_000_100, 250_000]
    mine.say({"a": 1.0, "b": -0.5}, {("b", "f"): 7}, running=["b"])
    assert bounds(stages) == [1_000_100, 7], "what has ended is left as it is; over its limit nothing is added"


def test_a_warning_limit_and_a_free_stage_have_no_bound(stages):
    mine = allowances()
    mine.open(stages[0], bounded=True)
    mine.say(None, {}, running=["a"])
    free = allowances(Serving(endpoint="http://x/v1", billed=False))
    free.open(stages[1], bounded=True)
    free.say({"a": 1.0, "b": 1.0}, {}, running=["b"])
    assert bounds(stages) == [None, None]


def test_the_bound_of_an_earlier_run_is_taken_away(stages):
    stages[0].directory.mkdir()
    allow(stages[0].directory, 5)
    allowances().open(stages[0], bounded=False)
    assert bounds(stages) == [None, None]
