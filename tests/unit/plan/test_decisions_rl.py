"""A PPO step with several groups of trainers takes as long as the slowest, in scoring and in updating each."""

from types import SimpleNamespace

import numpy as np
import pytest

from charter.physics.columns import array
from charter.physics.runs import RlConstants
from charter.plan.rl_groups import Placed, step_table

IDEAL = RlConstants(
    generation_factor=array(1.0),
    update_factor=array(1.0),
    refit_bytes_per_second=array(np.inf),
    overhead_seconds=array(0.0),
    colocation_seconds=array(0.0),
)


def group(score, update):
    return SimpleNamespace(score=score, update=update, move_seconds=0.0)


@pytest.mark.parametrize(
    ("groups", "score", "update"),
    [(((7.0, 2.0), (3.0, 5.0)), 7.0, 5.0), (((3.0, 5.0), (7.0, 2.0)), 7.0, 5.0), (((4.0, 6.0),), 4.0, 6.0)],
)
def test_groups_work_side_by_side_and_the_slowest_decides(groups, score, update):
    placed = Placed(
        arrangement="split",
        trainers=tuple(group(*times) for times in groups),
        generator=SimpleNamespace(seconds=11.0),
    )
    assert (placed.score, placed.update) == (score, update)
    work, engine = SimpleNamespace(weight_bytes=0.0), SimpleNamespace(stack=SimpleNamespace(overhead=0.0))
    terms = {term.name: term.value for term in step_table([placed], work, engine, IDEAL).at(0)}
    assert (terms["generate"], terms["score"], terms["update"]) == pytest.approx((11.0, score, update))
