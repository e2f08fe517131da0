"""Placements of the roles of a PPO stage."""

from dataclasses import replace

import numpy as np
import ppo_case as case
import pytest
from hypothesis import given
from hypothesis import strategies as st

from charter.engines import rl_engines
from charter.physics.columns import array
from charter.physics.placement_memory import group_phases
from charter.physics.runs import RlConstants, RlPhases, rl_step_terms
from charter.plan.layout_search import NodeGroup, chosen_row, search_sites, training_options
from charter.plan.offers import HOST_BYTES_PER_ACCELERATOR, host_bytes_per_accelerator
from charter.plan.rl_groups import (
    GeneratorChoice,
    Groups,
    Placed,
    TrainerChoice,
    group_sizes,
    mode_of,
    placed,
    step_table,
)
from charter.plan.rl_search import Setting, across, host_shortage, rl_options
from charter.plan.rl_work import answer_lengths, rl_work
from charter.plan.what_if import other_engines
from charter.spec.layout import Layout
from charter.spec.stage_base import StageResources

IDEAL = RlConstants(
    generation_factor=array(1.0),
    update_factor=array(1.0),
    refit_bytes_per_second=array(np.inf),
    overhead_seconds=array(0.0),
    colocation_seconds=array(0.0),
)
"""Links without end and nothing beside the phases."""
SECONDS = st.floats(0.01, 1e4)
WORK = case.workload()
AHEAD = replace(WORK, ahead=True)
"""Rollouts are drawn one step ahead: only then may a generator work beside training."""


def options(engine, accelerator="H100", nodes=2, *, work=WORK, per_node=8):
    where = case.place(accelerator, per_node, nodes=(nodes,))
    return rl_options(case.question(work, engine), where, nodes)


def phases(generate, score, update, *, side_by_side=0.0):
    return RlPhases(
        generate=array(generate),
        score=array(score),
        update=array(update),
        refit_bytes=array(1e10),
        resamples=array(0.0),
        side_by_side=array(side_by_side),
        colocated=array(1 - side_by_side),
        overhead=array(1.0),
    )


@given(SECONDS, SECONDS, SECONDS)
def test_without_overhead_a_synchronous_step_is_the_sum(generate, score, update):
    total = float(rl_step_terms(phases(generate, score, update), IDEAL).total)
    assert total == pytest.approx(generate + score + update)


@given(SECONDS, SECONDS, SECONDS)
def test_without_overhead_an_asynchronous_step_is_the_slower_side(generate, score, update):
    total = float(rl_step_terms(phases(generate, score, update, side_by_side=1.0), IDEAL).total)
    assert total == pytest.approx(max(generate, score + update))


@given(SECONDS, SECONDS, SECONDS, st.integers(2, 256).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n - 1))))
def test_of_phases_that_scale_no_split_needs_fewer_accelerator_seconds(generate, score, update, sizes):
    """On `n` equal accelerators, g of which generate: (G/g + (S+U)/(n-g)) n, or the larger of both, >= G + S + U."""
    size, generating = sizes

    def item(arrangement, rollout, training):
        return Placed(
            arrangement=arrangement,
            trainers=(
                TrainerChoice(
                    layout=Layout(data=training),
                    names=("policy",),
                    update=update / training,
                    score=score / training,
                    peak_bytes=0.0,
                    host_bytes=0.0,
                ),
            ),
            generator=GeneratorChoice(
                replicas=rollout, tensor=1, together=1, seconds=generate / rollout, peak_bytes=0.0
            ),
        )

    parts = (generating, size - generating)
    found = [item("colocated", size, size), item("split", *parts), item("async", *parts)]
    shared, split, beside = step_table(found, rl_work(WORK), rl_engines()["openrlhf"], IDEAL).total
    assert shared * size == pytest.approx(generate + score + update)
    assert split >= shared * (1 - 1e-9)
    assert beside >= shared * (1 - 1e-9)
    assert beside <= split * (1 + 1e-9)
    assert beside == pytest.approx(max(generate / generating, (score + update) / (size - generating)))


def endless_links(accelerator):
    """The accelerator with links whose bytes cost nothing."""
    return replace(accelerator, scaleup_bytes_per_second=1e18, scaleout_bytes_per_second_per_node=1e18)


def test_twice_the_accelerators_in_the_same_ratio_are_never_slower():
    accelerator = endless_links(case.place("H100").accelerator)
    engine, work = rl_engines()["verl"], rl_work(case.workload(samples=4096, minibatch=1024))
    sizes = [4, 8, 16, 32, 64, 128]
    groups = Groups(work, engine, accelerator, sizes=sizes, per_node=8, constants=RlConstants())
    for arrangement in ("offloaded", "async"):
        steps = []
        for size in (8, 16, 32, 64, 128):
            found = list(placed(work, engine, arrangement, groups, size=size, capacity=80e9))
            even = [
                item for item in found if item.together or item.generator.replicas * item.generator.tensor == size // 2
            ]
            steps.append(float(np.min(step_table(even, work, engine, groups.constants).total)))
        assert steps == sorted(steps, reverse=True), arrangement


@pytest.mark.parametrize(
    ("engine", "placements"),
    [
        ("native", {"colocated"}),
        ("verl", {"colocated"}),
        ("openrlhf", {"colocated", "split"}),
    ],
)
def test_an_engine_is_offered_only_what_it_can_execute_and_the_file_wants(engine, placements):
    found, _ = options(engine, nodes=4)
    assert {option.placement for option in found} == placements
    assert {option.engine for option in found} == {engine}


def test_any_engine_shows_the_placements_of_the_others():
    asked, where = case.question(WORK, "native"), case.place("H100", nodes=(4,))
    (chosen,), _ = rl_options(asked, where, 4)
    shown = other_engines(asked, replace(chosen, place=where))
    assert {item.engine for item in shown} == {"verl", "openrlhf"}  # the others train no value model
    assert {"split", "colocated"} <= {item.layout.split(":")[0] for item in shown}
    assert [item.seconds for item in shown] == sorted(item.seconds for item in shown)


@pytest.mark.parametrize("engine", rl_engines())
def test_the_terms_of_the_chosen_are_those_of_its_tables(engine):
    """What the search saw in arrays, and what is reported term by term, are the same bytes and seconds."""
    found, _ = options(engine)
    for option in found:
        assert {"generate", "score", "update", "weight sync", "other"} <= {term.name for term in option.time_terms}
        assert option.overhead.useful_seconds == pytest.approx(sum(term.value for term in option.time_terms))
        assert sum(group.num_accelerators for group in option.groups) == option.num_accelerators
        for group in option.groups:
            assert group.peak.total_bytes <= group.capacity_bytes
            assert 0 < group.busy_share <= 1


def test_columns_and_terms_of_a_group_agree():
    for arrangement, work in (("colocated", WORK), ("split", WORK), ("async", AHEAD)):
        setting = Setting(
            question=case.question(work, "openrlhf"),
            engine=rl_engines()["openrlhf"],
            work=rl_work(work),
            place=case.place("H100", nodes=(4,)),
        )
        item = next(
            placed(setting.work, setting.engine, arrangement, setting.groups, size=32, capacity=setting.capacity)
        )
        option = next(
            option for option in options("openrlhf", nodes=4, work=work)[0] if option.placement == arrangement
        )
        trainers = [group for group in option.groups if group.name != "generators"]
        best = [
            setting.groups.trainer(group.num_accelerators, group.roles, setting.capacity, mode_of(group.layout))
            for group in trainers
        ]
        assert item.trainers
        if arrangement != "colocated":
            for group, choice in zip(trainers, best, strict=True):
                assert group.peak.total_bytes == pytest.approx(choice.peak_bytes, rel=1e-9)
            assert option.idle_share > 0.05
        else:
            assert option.idle_share == 0


@pytest.mark.parametrize("offloaded", [False, True])
@pytest.mark.parametrize("names", [("policy", "value", "reference", "reward"), ("policy",), ("reference", "reward")])
def test_memory_in_columns_is_the_memory_in_terms(names, offloaded):
    """For every layout that is tried, not only for those that win."""
    setting = Setting(
        question=case.question(WORK, "nemo_rl"),
        engine=rl_engines()["nemo_rl"],
        work=rl_work(WORK),
        place=case.place("H100"),
    )
    columns = setting.groups.memory.peak(names, offloaded=offloaded)
    layouts = setting.groups.layouts
    for index in range(0, len(layouts), 23):
        job = replace(setting.groups.job, layout=layouts[index])
        phases = group_phases(job, names, generates=False, offloaded=offloaded)
        fullest = max(sum(term.value for _, term in parts) for parts in phases.values())
        assert columns[index] == pytest.approx(fullest, rel=1e-9)


def test_offloading_leaves_less_on_the_device_and_the_rest_in_host_memory():
    found = [option for option in options("verl")[0] if option.placement == "colocated"]
    resident, away = found
    assert resident.host_bytes == 0
    assert away.host_bytes > 0
    assert any(term.name == "offload" and term.value > 0 for term in away.time_terms)
    # One role at a time allows layouts that keep more activations, so compare what it makes possible instead.
    small = case.workload("Qwen/Qwen2.5-14B", critic=False)
    assert [option.host_bytes > 0 for option in options("verl", "H800", 1, work=small, per_node=4)[0]] == [True]


def test_host_memory_of_a_node_is_checked_and_named():
    work = case.workload("Qwen/Qwen2-7B")
    found, missed = options("verl", "H100-NVL-94GB", 1, work=work, per_node=2)
    assert found == ()
    assert "system memory" in missed.rejected[0].reason
    assert host_bytes_per_accelerator("A100-SXM-80GB", 2) is None, "no offer says it, and a judgement is taken"
    assert 2 * host_bytes_per_accelerator("A100-SXM-80GB", 8) > HOST_BYTES_PER_ACCELERATOR


@pytest.mark.parametrize(
    ("engine", "model", "accelerator", "per_node", "ahead"),
    [
        ("openrlhf", "Qwen/Qwen2.5-32B", "H200", 2, True),
        ("verl", "Qwen/Qwen2.5-32B", "H200", 8, True),
        ("prime_rl", "Llama-3.1-70B", "H100", 8, True),
        ("verl", "Llama-3.1-8B", "H800", 2, False),
    ],
)
def test_what_is_refused_needs_more_than_there_is(engine, model, accelerator, per_node, ahead):
    """The layout that trains in least had been told, though it was the generator that had no room beside it."""
    lengths = {"prompt": 2048, "new": 6144} if ahead else {"minibatch": 256, "prompt": 512, "new": 1024}
    work = case.workload(model, critic=False, **lengths)
    found, missed = options(engine, accelerator, 1, work=case.policy_alone(work) if ahead else work, per_node=per_node)
    assert found == ()
    ((peak, usable, device),) = missed.peaks
    assert usable < device.memory_bytes
    assert peak.total_bytes > usable
    needs = f"needs {peak.total_bytes / 2**30:.1f} GiB of {usable / 2**30:.1f} usable"
    assert missed.rejected[0].reason.startswith(needs)


def test_a_generator_apart_needs_two_accelerators():
    work = case.policy_alone(case.workload("Qwen/Qwen3-0.6B", critic=False))
    found, missed = options("verl", "H200", 1, work=work, per_node=1)
    assert found == ()
    assert "accelerators of its own" in missed.rejected[0].reason


def test_a_stated_risk_takes_what_is_likely_to_fit():
    work = case.workload("Llama-3.1-8B", critic=False, samples=1024, minibatch=256, prompt=512, new=1024)
    found, missed = options("verl", "H800", 1, work=work, per_node=2)
    assert found == ()
    assert "with a probability of 7" in missed.rejected[0].reason
    assert "(risk.out_of_memory: 0.1)" in missed.rejected[0].reason
    bold = case.question(work, "verl")
    bold = replace(bold, knowledge=replace(bold.knowledge, memory_risk=0.35))
    (option, *_), _ = rl_options(bold, case.place("H800", 2), 1)
    assert 0.8 * option.place.accelerator.memory_bytes < option.peak.total_bytes <= option.capacity_bytes


def test_stage_resources_hold_for_trainers():
    asked = case.question(case.without_value(WORK), "nemo_rl")
    fixed = StageResources(tensor=2, micro_batch=2, recompute="full")
    asked = replace(asked, stage=replace(asked.stage, resources=fixed))
    found, _ = rl_options(asked, case.place("H100", nodes=(2,)), 2)
    layouts = [group.layout for option in found for group in option.groups if group.name != "generators"]
    assert layouts
    assert all((one.tensor, one.recompute) == (2, "full") and one.micro_batch <= 2 for one in layouts)


def test_two_kinds_of_accelerators_pay_both_prices():
    asked = case.question(AHEAD, "openrlhf")
    places = (case.place("H100", nodes=(1, 2), usd=4.0), case.place("A100-80GB", nodes=(1, 2), usd=1.5))
    found = across(asked, places)
    assert found
    for option in found:
        (beside,) = option.beside
        assert beside.place.accelerator.name != option.place.accelerator.name
        own, other = option.num_nodes * 8, beside.num_nodes * 8
        prices = {"H100-SXM-80GB": 4.0, "A100-SXM-80GB": 1.5}
        expected = own * prices[option.place.accelerator.name] + other * prices[beside.place.accelerator.name]
        assert option.usd_per_hour == pytest.approx(expected)
        assert option.num_accelerators == own + other == sum(group.num_accelerators for group in option.groups)
        assert option.placement == "async"
        assert 0 < option.idle_share < 1
        assert option.num_nodes + beside.num_nodes <= 2  # as many as may be held at once
        idle = (
            option.machines_usd.p50
            - sum(group.num_accelerators * group.busy_share * prices[group.hardware] for group in option.groups)
            / option.usd_per_hour
            * option.machines_usd.p50
        )
        assert option.idle_usd == pytest.approx(idle)


def test_two_kinds_only_of_one_provider_and_on_demand():
    near, far = case.place("H100", nodes=(1, 2)), case.place("A100-80GB", nodes=(1, 2), infra="gcp")
    assert across(case.question(AHEAD, "openrlhf"), (near, far)) == ()
    both = (near, replace(far, infra="aws"))
    assert across(case.question(AHEAD, "openrlhf", use_spot=True), both) == ()
    assert across(case.question(WORK, "native"), both) == ()
    assert across(case.question(AHEAD, "openrlhf"), both)


def test_a_search_gives_the_same_answer_twice():
    first, second = (options("openrlhf")[0] for _ in range(2))
    assert [option.layout_label for option in first] == [option.layout_label for option in second]


@given(st.sampled_from([1, 2, 4, 8, 16]), st.integers(1, 32))
def test_group_sizes_are_whole_nodes_that_leave_room_for_another_group(per_node, nodes):
    size = per_node * nodes
    for part in group_sizes(size, per_node):
        assert 0 < part < size
        assert nodes == 1 or part % per_node == 0


def test_a_mean_answer_length_shortens_the_rollout_but_not_the_memory():
    generate = WORK.phases[0]
    assert answer_lengths(generate).mean == 512
    told = answer_lengths(replace(generate, mean_new_tokens=200.0))
    assert (told.mean, told.limit) == (200.0, 512)
    phases = (replace(generate, mean_new_tokens=200.0), *WORK.phases[1:])
    short, long = (options("verl", work=work)[0][0] for work in (replace(WORK, phases=phases), WORK))
    assert short.overhead.useful_seconds < long.overhead.useful_seconds
    assert short.peak.total_bytes <= short.capacity_bytes


def test_engines_that_pack_read_prompts_as_long_as_they_are():
    generate = replace(WORK.phases[0], unpadded_tokens=100.0)
    short = rl_work(replace(WORK, phases=(generate, *WORK.phases[1:])))
    assert (short.prompt, short.mean_len, short.longest) == (100.0, 612.0, 1024)


def test_what_waits_in_host_memory_counts_once_per_rank():
    setting = Setting(
        question=case.question(WORK, "verl"), engine=rl_engines()["verl"], work=rl_work(WORK), place=case.place("H100")
    )
    group = TrainerChoice(
        layout=Layout(data=8), names=("policy",), update=1.0, score=1.0, peak_bytes=1.0, host_bytes=1e12
    )
    maker = GeneratorChoice(replicas=8, tensor=1, together=1, seconds=1.0, peak_bytes=0.0)
    item = Placed(arrangement="offloaded", trainers=(group,), generator=maker)
    assert host_shortage(setting, item) is not None
    assert host_shortage(setting, replace(item, trainers=(replace(group, host_bytes=1e10),))) is None


@pytest.mark.parametrize("engine", ["native", "fsdp"])
def test_the_seconds_that_a_layout_of_ppo_was_chosen_by_are_the_sum_of_its_terms(engine):
    """The search and the terms count with one memory model: an engine's own, which decides what is decoded at once."""
    sizes = {"samples": 1024, "minibatch": 1024, "prompt": 256, "new": 256}
    asked = case.question(case.workload("opt-30b", "Qwen/Qwen3-0.6B", **sizes), engine)
    site = NodeGroup(place=case.place("A100-80GB"), num_nodes=1)
    found = next(search_sites(asked, [site]))
    ((option,), _) = training_options(asked, site.place, 1)
    chosen = found.seconds[chosen_row(found)]
    assert option.overhead.useful_seconds == pytest.approx(chosen, rel=1e-6)
    assert option.peak.total_bytes == pytest.approx(found.peak[chosen_row(found)], rel=1e-6)


def test_a_rollout_drawn_ahead_needs_a_place_beside():
    beside, _ = options("openrlhf", work=AHEAD)
    assert {item.placement for item in beside} == {"async"}
    none, missed = options("nemo_rl", work=case.without_value(AHEAD))
    assert none == ()
    assert "nemo_rl learns from rollouts of the present policy alone; remove asynchrony" in missed.rejected[0].reason
