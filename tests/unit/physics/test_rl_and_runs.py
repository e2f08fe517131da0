"""Reinforcement-learning steps, API judges and totals of runs."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charter.errors import UsageError
from charter.physics.columns import array
from charter.physics.constants import describe
from charter.physics.runs import (
    DAPO,
    DPO,
    GRPO,
    PPO,
    RLOO,
    RlConstants,
    RlPhases,
    Run,
    RunConstants,
    algorithm_named,
    rl_stack_named,
    rl_step_terms,
    run_hours,
    run_terms,
    run_usd,
)
from charter.plan.api_judge import ApiPrice, api_judgement

SYNC = RlPhases(
    generate=array(40.0),
    score=array(10.0),
    update=array(30.0),
    refit_bytes=array(16e9),
    resamples=array(0.0),
    side_by_side=array(0.0),
    colocated=array(1.0),
    overhead=array(1.0),
)
ASYNC = replace(SYNC, side_by_side=array(1.0), colocated=array(0.0))
RUN = Run(
    step_seconds=array(10.0),
    steps=array(1000.0),
    accelerators=array(8.0),
    usd_per_accelerator_hour=array(2.0),
    ideal=array(0.0),
)
PRICE = ApiPrice(input_usd_per_million=1.0, output_usd_per_million=4.0, requests_per_minute=600.0)
positive = st.floats(0.1, 1000)


def test_phases_of_a_synchronous_step_follow_each_other():
    table = rl_step_terms(SYNC, RunConstants())
    assert float(table.total) > 80
    assert [column.name for column in table.columns] == ["generate", "score", "update", "weight sync", "other"]


@given(positive, positive, positive)
def test_a_side_by_side_step_takes_the_slower_side(generate, score, update):
    constants = RlConstants()
    phases = replace(ASYNC, generate=array(generate), score=array(score), update=array(update))
    table = rl_step_terms(phases, constants)
    together = float(table.part("generate") + table.part("score") + table.part("update"))
    plain = generate * float(constants.generation_factor)
    training = score * float(constants.scoring) + update * float(constants.update_factor)
    assert together == pytest.approx(max(plain, training))
    assert float(table.total) <= float(rl_step_terms(replace(phases, side_by_side=array(0.0)), constants).total)


def test_a_trainer_that_answers_itself_starts_no_cold_engine():
    own = rl_step_terms(replace(SYNC, engine=array(0.0)), RlConstants())
    apart = rl_step_terms(SYNC, RlConstants())
    assert float(apart.part("generate")) == pytest.approx(1.1 * float(own.part("generate")))
    assert float(apart.part("update")) == float(own.part("update"))


def test_dynamic_sampling_generates_more():
    more = rl_step_terms(replace(SYNC, resamples=array(1.0)), RlConstants())
    assert float(more.part("generate")) == pytest.approx(
        1.5 * float(rl_step_terms(SYNC, RlConstants()).part("generate"))
    )


def test_algorithms_say_which_models_they_need():
    assert PPO.critic
    assert not GRPO.critic
    assert not RLOO.critic
    assert not DAPO.reference
    assert not DPO.generates
    assert algorithm_named("nothing") is None
    assert rl_stack_named("OpenRLHF 0.5").label == "openrlhf"
    assert not rl_stack_named("DeepSpeed-Chat").resharding


@given(positive, st.floats(1, 1e5), st.floats(1, 5))
def test_cost_is_linear_in_hours(step, steps, factor):
    run = replace(RUN, step_seconds=array(step), steps=array(steps))
    hours = run_hours(run, RunConstants())
    assert float(run_usd(run, hours * factor)) == pytest.approx(factor * float(run_usd(run, hours)))
    longer = replace(run, steps=run.steps * factor)
    assert float(run_hours(longer, RunConstants())) >= float(hours)


def test_lost_time_is_what_goodput_leaves():
    constants = RunConstants()
    real, ideal = (run_terms(replace(RUN, ideal=array(flag)), constants) for flag in (0.0, 1.0))
    start = float(constants.start_seconds)
    assert (float(ideal.total) - start) / (float(real.total) - start) == pytest.approx(float(constants.goodput))


def test_constants_have_sources():
    for kind in (RlConstants, RunConstants):
        assert all(item.source and item.unit for item in describe(kind))


def test_the_tightest_limit_of_an_endpoint_decides():
    slow = api_judgement(PRICE, requests=6000, input_tokens=500, output_tokens=10)
    assert (slow.seconds, slow.bound_by) == (600.0, "requests per minute")
    tokens = replace(PRICE, tokens_per_minute=100_000.0)
    assert api_judgement(tokens, requests=6000, input_tokens=500, output_tokens=10).bound_by == "tokens per minute"
    few = replace(PRICE, requests_per_minute=None, concurrency=1.0)
    assert api_judgement(few, requests=10, input_tokens=500, output_tokens=60).seconds == pytest.approx(20)


@given(st.floats(1, 1e6), st.floats(1, 1e4), st.floats(0, 1e4), st.floats(0, 1))
def test_an_api_bill_grows_with_requests_and_shrinks_with_cached_prefixes(requests, read, written, cached):
    price = replace(PRICE, cached_input_usd_per_million=0.1)
    args = {"input_tokens": read, "output_tokens": written}
    one = api_judgement(price, requests=requests, **args)
    assert api_judgement(price, requests=2 * requests, **args).usd == pytest.approx(2 * one.usd)
    assert api_judgement(price, requests=2 * requests, **args).seconds >= one.seconds
    seen_before = replace(price, cached_share=cached)
    assert api_judgement(seen_before, requests=requests, **args).usd <= one.usd * (1 + 1e-12)
    assert api_judgement(replace(price, batch_discount=0.5), requests=requests, **args).usd == pytest.approx(
        one.usd / 2
    )


def test_a_negative_price_is_refused():
    with pytest.raises(UsageError):
        ApiPrice(input_usd_per_million=-1.0, output_usd_per_million=1.0)
