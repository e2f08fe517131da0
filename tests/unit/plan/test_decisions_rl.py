"""A PPO step with several groups of trainers takes as long as the slowest, in scoring and in updating each."""

from types import SimpleNamespace

import ppo_case as case
import pytest

from charter.engines import rl_engines
from charter.physics.columns import array
from charter.physics.runs import RlConstants
from charter.plan.rl_groups import Placed, step_table
from charter.plan.rl_work import rl_work
from charter.spec.layout import Layout

IDEAL = RlConstants(
    generation_factor=array(1.0),
    update_factor=array(1.0),
    gather_factor=array(0.0),
    call_seconds=array(0.0),
    overhead_seconds=array(0.0),
    switch_seconds=array(0.0),
)


def group(score, update):
    return SimpleNamespace(score=score, update=update, move_seconds=0.0, names=("policy",), size=1, layout=Layout())


@pytest.mark.parametrize(
    ("groups", "score", "update"),
    [(((7.0, 2.0), (3.0, 5.0)), 7.0, 5.0), (((3.0, 5.0), (7.0, 2.0)), 7.0, 5.0), (((4.0, 6.0),), 4.0, 6.0)],
)
def test_groups_work_side_by_side_and_the_slowest_decides(groups, score, update):
    placed = Placed(
        arrangement="split",
        trainers=tuple(group(*times) for times in groups),
        generator=SimpleNamespace(seconds=11.0, replicas=1, tensor=1),
    )
    assert (placed.score, placed.update) == (score, update)
    accelerator = case.place("H100").accelerator
    table = step_table([placed], rl_work(case.workload()), rl_engines()["openrlhf"], accelerator, IDEAL)
    terms = {term.name: term.value for term in table.at(0)}
    assert (terms["generate"], terms["score"], terms["update"]) == pytest.approx((11.0, score, update))
