"""Decisions of the search over places: which share an answer, and what one option must beat another in."""

from dataclasses import replace
from types import SimpleNamespace

import ppo_case as case
import pytest

from charter.catalog import models
from charter.physics.terms import Interval
from charter.plan.knowledge import shipped
from charter.plan.option import StageQuestion, pareto
from charter.plan.phase import Counters, Role, RolePhase, Workload
from charter.plan.search import search
from charter.spec.stage import SftStage


def test_two_providers_of_one_accelerator_share_an_answer_only_inside_a_node():
    role = Role(name="model", architecture=models.get("Llama-3.1-8B").architecture, model="base", trained=True)
    phase = RolePhase(
        name="train model", work="train", role="model", steps=100, batch=64, prompt_tokens=2048, longest_tokens=2048
    )
    question = StageQuestion(
        stage=SftStage(init="base", data=("chat",)),
        work=Workload(roles=(role,), phases=(phase,), counters=Counters()),
        dtype="bf16",
        checkpoint_bytes=1e11,
        use_spot=False,
        knowledge=shipped(),
    )
    fast = case.place("H100", nodes=(1, 2))
    crawling = replace(fast.accelerator, scaleout_bytes_per_second_per_node=1e9)
    slow = replace(fast, infra="slow", accelerator=crawling)
    found = search(question, (fast, slow))
    seconds = {
        (option.place.infra, option.num_nodes): option.overhead.useful_seconds for option in found.options
    }  # fmt: skip
    assert seconds["slow", 1] == seconds["aws", 1]
    assert seconds["slow", 2] > 1.05 * seconds["aws", 2]
    for place in (fast, slow):
        alone = search(question, (place,))
        mine = [option for option in found.options if option.place.infra == place.infra]
        assert [(option.layout, option.seconds) for option in mine] == [
            (option.layout, option.seconds) for option in alone.options
        ]


def entry(p50, p90, usd, peak):
    return SimpleNamespace(
        seconds=Interval(p10=p50, p50=p50, p90=p90),
        usd=None if usd is None else Interval(p10=usd, p50=usd, p90=usd),
        peak=SimpleNamespace(total_bytes=peak),
        capacity_bytes=10.0,
    )


BASE = (10.0, 15.0, 10.0, 5.0)
"""Seconds p50 and p90, usd, bytes of the peak."""


@pytest.mark.parametrize("figure", range(4))
def test_an_option_that_is_better_in_one_figure_only_decides(figure):
    better = [value - 1.0 * (number == figure) for number, value in enumerate(BASE)]
    plain, leads = entry(*BASE), entry(*better)
    assert pareto([plain, leads]) == (leads,)
    worse = [value + 1.0 * (number == (figure + 1) % 4) for number, value in enumerate(better)]
    mixed = entry(*worse)
    assert pareto([plain, mixed]) == (plain, mixed)


def test_without_a_price_an_option_counts_as_the_dearest():
    priced, unpriced = entry(*BASE), entry(10.0, 15.0, None, 5.0)
    assert pareto([unpriced, priced]) == (priced,)
