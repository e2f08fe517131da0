"""The search over layouts: columns give what the scalar estimates give, bounds hold, and nothing better is missed."""

from dataclasses import replace
from math import inf, isfinite

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planner_case import peak_bytes

from charter.catalog import accelerators, models
from charter.engines import capabilities, engine_names
from charter.physics.columns import Layouts, array
from charter.physics.step_time import rows_of
from charter.plan import layout_search, stage_time
from charter.plan.knowledge import engine_knowledge, shipped
from charter.plan.layout_search import (
    ALIKE,
    IN_SIGHT,
    NodeGroup,
    asked,
    chosen_row,
    evaluate,
    layout_verdicts,
    search_sites,
    splits,
    tied_layouts,
    tied_limit,
)
from charter.plan.layout_space import space
from charter.plan.offers import UNPRICED, NodeOffer, Price
from charter.plan.option import StageQuestion, near_tied, pareto
from charter.plan.phase import Counters, Role, RolePhase, Workload
from charter.plan.search import infeasible, search
from charter.plan.stage_memory import least_bytes, one_device, training_peak
from charter.plan.stage_time import TimedStage, least_update_seconds, update_seconds
from charter.plan.what_if import other_engines
from charter.spec.stage import PreferenceModelStage, SftStage
from charter.spec.stage_base import StageResources

KNOWN = shipped()
LLAMA = models.get("Llama-3.1-8B").architecture
MIXTRAL = models.get("Mixtral-8x7B-v0.1").architecture
QUICK = settings(max_examples=12, deadline=None)


def stage_work(architecture=LLAMA, *, batch: int = 64, ragged: bool = True) -> Workload:
    phase = RolePhase(
        name="train model",
        work="train",
        role="model",
        steps=100,
        batch=batch,
        prompt_tokens=700,
        longest_tokens=2048,
        ragged=ragged,
    )
    role = Role(name="model", architecture=architecture, model="base", trained=True)
    return Workload(roles=(role,), phases=(phase,), counters=Counters())


def asking(engine: str = "native", *, architecture=LLAMA, batch: int = 64, **fixed: object) -> StageQuestion:
    resources = StageResources(**fixed) if fixed else None  # type: ignore[arg-type]
    return StageQuestion(
        stage=SftStage(init="base", data=("chat",), engine=engine, resources=resources),  # type: ignore[arg-type]
        work=stage_work(architecture, batch=batch),
        dtype="bf16",
        checkpoint_bytes=1e11,
        use_spot=False,
        knowledge=KNOWN,
        engine=engine,
    )


def site(name: str = "H100", nodes: int = 1, per_node: int = 8) -> NodeGroup:
    place = NodeOffer(
        infra="any",
        region=None,
        accelerator=accelerators.get(name),
        per_node=per_node,
        instance="",
        price=UNPRICED,
        nodes=(nodes,),
    )
    return NodeGroup(place=place, num_nodes=nodes)


def scalar_seconds(question: StageQuestion, place: NodeOffer, layout) -> float:
    engine = engine_knowledge(question.engine, KNOWN)
    task = TimedStage(work=question.work, dtype="bf16", known=engine, knowledge=KNOWN)
    (terms,) = stage_time.training_terms(task, [layout], one_device(place.accelerator, 1, inf), {})
    return sum(term.value for term in terms)


@QUICK
@given(
    engine=st.sampled_from(sorted(engine_names())),
    architecture=st.sampled_from([LLAMA, MIXTRAL]),
    device=st.sampled_from(["H100", "A100-80GB", "MI300X"]),
    nodes=st.sampled_from([1, 4]),
    pick=st.randoms(use_true_random=False),
)
def test_columns_are_the_scalar_estimates(engine, architecture, device, nodes, pick):
    question, where = asking(engine, architecture=architecture), site(device, nodes)
    found = space(asked(question, where))
    rows = np.array(sorted(pick.sample(range(found.size), min(6, found.size))))
    layouts, known = rows_of(found.layouts, rows), engine_knowledge(engine, KNOWN)
    task = TimedStage(work=question.work, dtype="bf16", known=known, knowledge=KNOWN)
    devices = one_device(where.place.accelerator, rows.size, 1e12)
    values = [found.layout(int(row)) for row in rows]
    seconds = [scalar_seconds(question, where.place, one) for one in values]
    assert update_seconds(task, layouts, devices) == pytest.approx(seconds, rel=1e-9)
    arguments = {"accelerator": where.place.accelerator, "dtype": "bf16", "knowledge": KNOWN, "engine": engine}
    peaks = [training_peak(question.work, one, **arguments).total_bytes for one in values]
    # The single estimate takes the states of the stage and the phase that peak; the columns those of the whole step.
    assert peak_bytes(question.work, values, **arguments) == pytest.approx(peaks, rel=1e-9)


@QUICK
@given(
    engine=st.sampled_from(["native", "megatron", "deepspeed"]),
    architecture=st.sampled_from([LLAMA, MIXTRAL]),
    device=st.sampled_from(["H100", "A100-80GB", "TPU-v5p"]),
    batch=st.sampled_from([8, 48, 256]),
)
def test_bounds_are_never_above_the_value(engine, architecture, device, batch):
    question, where = asking(engine, architecture=architecture, batch=batch), site(device, 1)
    found, known = space(asked(question, where)), engine_knowledge(engine, KNOWN)
    task = TimedStage(work=question.work, dtype="bf16", known=known, knowledge=KNOWN)
    devices = one_device(where.place.accelerator, found.size, 1e15)
    assert np.all(least_update_seconds(task, found.layouts, devices) <= update_seconds(task, found.layouts, devices))
    layouts = [found.layout(row) for row in range(0, found.size, max(1, found.size // 50))]
    rows = np.arange(0, found.size, max(1, found.size // 50))
    peaks = peak_bytes(
        question.work, layouts, accelerator=where.place.accelerator, dtype="bf16", knowledge=KNOWN, engine=engine
    )
    bound = least_bytes(question.work, found.layouts, devices, dtype="bf16", known=known)
    assert np.all(bound[rows] <= peaks * (1 + 1e-12))
    assert np.median(bound) > 0


@settings(max_examples=5, deadline=None)
@given(
    engine=st.sampled_from(["native", "deepspeed", "trl"]),
    batch=st.sampled_from([6, 16]),
    device=st.sampled_from(["H100", "A100-40GB", "L4"]),
)
def test_the_search_finds_what_brute_force_finds(engine, batch, device):
    question, where = asking(engine, batch=batch), site(device, 1, per_node=4)
    found = next(search_sites(question, [where]))
    layouts = [found.space.layout(row) for row in range(found.space.size)]
    arguments = {"accelerator": where.place.accelerator, "dtype": "bf16", "knowledge": KNOWN, "engine": engine}
    fits = [
        layout for layout in layouts if training_peak(question.work, layout, **arguments).total_bytes <= found.capacity
    ]
    assert int(np.isfinite(found.seconds).sum()) == len(fits)
    assert found.evaluated + found.pruned == len(layouts)
    if fits:
        brute = {layout: scalar_seconds(question, where.place, layout) for layout in fits}
        assert found.seconds.min() == pytest.approx(min(brute.values()), rel=1e-9)
        alike = [layout for layout, seconds in brute.items() if seconds <= ALIKE * min(brute.values()) * (1 + 1e-9)]
        chosen = found.space.layout(chosen_row(found))
        assert splits(chosen) == min(splits(layout) for layout in alike)


@settings(max_examples=5, deadline=None)
@given(
    batch=st.sampled_from([48, 512]),
    usable=st.sampled_from([7e10, 1e15]),
    device=st.sampled_from(["H100", "A100-80GB"]),
    limit=st.sampled_from([1.0, 1.05]),
)
def test_pruning_by_the_bound_of_the_time_changes_nothing_near_the_fastest(batch, usable, device, limit):
    question, where = asking(batch=batch), site(device, 1)
    found, known = space(asked(question, where)), engine_knowledge("native", KNOWN)
    task = TimedStage(work=question.work, dtype="bf16", known=known, knowledge=KNOWN)
    devices = one_device(where.place.accelerator, found.size, usable)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout_search, "CHUNK", found.size)
        whole = evaluate(task, found.layouts, devices, [found], limit=limit)
        patch.setattr(layout_search, "CHUNK", 60)
        cut = evaluate(task, found.layouts, devices, [found], limit=limit)
    assert not whole.too_slow.any()
    near = whole.seconds <= limit * whole.seconds.min()
    assert np.array_equal(cut.seconds[near], whole.seconds[near])
    assert np.all((cut.seconds == whole.seconds) | (cut.too_slow > 0))
    if batch == 512 and usable > 1e12:  # large micro-batches pad to the longest: products alone exceed the best
        assert 0 < cut.too_slow.sum() < found.size


@QUICK
@given(device=st.sampled_from(["H100", "A100-80GB"]), usd=st.floats(0.5, 20))
def test_no_option_costs_less_than_its_products(device, usd):
    """The bound of the money: accelerators x price x the bound of the time."""
    where = site(device, 2)
    price = Price(market="on_demand", usd_per_hour=usd, source="test", as_of="")
    option = search(asking(), (replace(where.place, price=price),)).options[0]
    task = TimedStage(work=stage_work(), dtype="bf16", known=engine_knowledge("native", KNOWN), knowledge=KNOWN)
    at = Layouts.of([option.layout])
    least = float(least_update_seconds(task, at, one_device(where.place.accelerator, 1, 1e15))[0])
    assert option.usd is not None
    assert option.usd.p50 >= 16 * usd * least / 3600


def test_the_near_tied_set_starts_with_the_fastest_and_ends_at_the_limit():
    question = asking()
    found = next(search_sites(question, [site("H100", 2)]))
    tied = tied_layouts(question, found, engine_knowledge("native", KNOWN))
    assert tied[0].seconds == found.seconds.min()
    assert [one.seconds for one in tied] == sorted(one.seconds for one in tied)
    assert len({one.label for one in tied}) == len(tied)
    assert tied[-1].seconds <= tied_limit(question, engine_knowledge("native", KNOWN)) * tied[0].seconds


def test_a_layout_far_slower_is_not_called_as_good(monkeypatch):
    """However wide the estimate: of layouts further apart nobody knows how their errors go together."""
    question = asking()
    engine = engine_knowledge("native", KNOWN)
    monkeypatch.setattr(layout_search, "tied_limit", lambda *_: 100.0)
    searched = next(search_sites(question, [site("H100", 2)]))
    slower = searched.seconds[np.isfinite(searched.seconds)] > IN_SIGHT * searched.seconds.min()
    assert slower.any()
    tied = tied_layouts(question, searched, engine)
    assert tied[-1].seconds <= IN_SIGHT * tied[0].seconds


@pytest.mark.parametrize("engine", sorted(engine_names()))
def test_every_layout_is_one_that_the_engine_executes(engine):
    able = capabilities(engine)
    found = space(asked(asking(engine, architecture=MIXTRAL), site("H100", 4)))
    assert found.size
    for family in found.families:
        layout = family.layout
        assert layout.num_accelerators == 32
        assert family.zero in able.zero
        assert family.tensor == 1 or able.tensor
        assert family.pipeline == 1 or able.pipeline
        assert family.interleave == 1 or able.interleave
        assert family.context == 1 or able.context
        assert family.expert == 1 or able.expert
        assert family.replicas == 1 or (able.hybrid and family.zero == 3)
        assert family.offload == "none" or family.zero in (*able.offload_optimizer, *able.offload_parameters)
    at = found.layouts
    assert np.all(at.micro_batch * at.accumulation * at.data >= 64)
    assert np.all((at.accumulation - 1) * at.micro_batch * at.data < 64)


def test_no_layout_is_listed_twice():
    found = space(asked(asking("megatron", architecture=MIXTRAL), site("H100", 4)))
    assert len({found.layout(row) for row in range(found.size)}) == found.size


@given(axis=st.sampled_from([("tensor", 2), ("pipeline", 4), ("context", 2), ("interleave", 2), ("micro_batch", 2)]))
@settings(max_examples=6, deadline=None)
def test_a_fixed_axis_keeps_exactly_the_layouts_that_have_it(axis):
    name, value = axis
    free = space(asked(asking("megatron"), site("H100")))
    fixed = space(asked(asking("megatron", **{name: value}), site("H100")))
    wanted = {free.layout(row) for row in range(free.size) if getattr(free.layout(row), name) == value}
    assert {fixed.layout(row) for row in range(fixed.size)} == wanted
    assert wanted


def test_what_the_engine_cannot_do_is_said():
    found = search(asking("native", pipeline=4), (site("H100", 2).place,))
    assert not found.options
    assert "the native engine runs pipeline: 1 only" in found.rejected[0].reason
    assert search(asking("megatron", pipeline=4), (site("H100", 2).place,)).options
    places = (site("H100", 2).place,)
    error = infeasible("sft", asking("native", pipeline=4), places, found)
    assert "another engine could train it there, by its plan: megatron (" in str(error)
    wrong = replace(asking("megatron"), stage=PreferenceModelStage(init="base", data=("pairs",), engine="megatron"))
    assert "trains stages of kind pretrain, sft; this is preference_model" in search(wrong, places).rejected[0].reason


def test_native_sequence_parallelism_waits_to_be_asked():
    free, split = (
        space(asked(asking(**more), site("H100"))) for more in ({}, {"sequence_parallel": True, "tensor": 2})
    )
    assert not np.any(free.layouts.sequence_parallel)
    assert split.size
    assert np.all(split.layouts.sequence_parallel)


def test_native_context_parallelism_waits_to_be_asked():
    free, split = (space(asked(asking(**more), site("H100"))) for more in ({}, {"context": 4}))
    assert np.all(free.layouts.context == 1)
    assert split.size
    assert np.all(split.layouts.context == 4)
    assert np.all(split.layouts.tensor == 1)
    assert space(asked(asking(context=2, tensor=2), site("H100"))).size == 0


def test_no_plan_splits_matrices_of_a_stage_with_dropout():
    question = asking("native")
    dropping = replace(question, stage=replace(question.stage, dropout=0.1))
    degrees = [space(asked(each, site("H100"))).layouts.tensor.max() for each in (question, dropping)]
    assert degrees == [8, 1]


def test_offload_needs_the_system_memory_that_a_node_has():
    large = models.get("Llama-3.1-70B").architecture
    question = asking(architecture=large, offload="all", zero=3)
    roomy, small = site("H100", 2), site("L40S", 1, per_node=1)
    option = search(question, (roomy.place,)).options[0]
    assert option.layout.offload_parameters
    # fp32 weights and two moments, 12 bytes of each parameter, over 16 accelerators
    assert option.host_bytes == pytest.approx(12 * 70.55e9 / 16, rel=0.01)
    moments = search(asking(architecture=large, offload="optimizer", zero=3), (roomy.place,)).options[0]
    assert moments.host_bytes == pytest.approx(8 * 70.55e9 / 16, rel=0.01)
    assert not moments.layout.offload_parameters
    found = next(search_sites(question, [small]))
    assert not np.isfinite(found.peak).any()
    assert "system memory" in search(question, (small.place,)).rejected[0].reason


def test_inputs_of_layers_go_to_the_host_where_nothing_else_fits():
    """Each at its smallest micro-batch alone; the host has their bytes, and its link the time of both ways."""
    question, where = asking(offload="none", tensor=1, zero=3), site("H100")
    found = next(search_sites(question, [where]))
    at = found.space.layouts
    away = at.offload_activations > 0
    assert set(at.micro_batch[away]) == {at.micro_batch.min()}
    assert set(at.recompute[away]) == {float(at.recompute.max())}
    assert not found.space.layout(chosen_row(found)).offload_activations
    (there,), (here,) = np.flatnonzero(away), np.flatnonzero((at.recompute == 2) & ~away & (at.micro_batch == 1))
    assert found.peak[there] < found.peak[here]
    assert found.seconds[there] > found.seconds[here]
    # Room for no layout but the leanest: one H100 less what all others need.
    tight = (found.peak[there] + np.min(found.peak[~away])) / 2
    share = float(tight / where.place.accelerator.memory_bytes)
    small = replace(where.place.accelerator, memory_bytes=tight * where.place.accelerator.memory_bytes / found.capacity)
    assert share < 1
    (option,) = search(question, (replace(where.place, accelerator=small),)).options
    assert option.layout.offload_activations
    assert "offload-activations" in option.layout_label
    # Of 2,048 tokens in 16 bits, for each of 32 layers, by the factor that is fitted to activations.
    assert option.host_bytes == pytest.approx(2048 * 32 * 4096 * 2, rel=0.05)


def test_hybrid_sharding_holds_what_one_node_holds_and_reduces_between_nodes():
    question = asking(zero=3, tensor=1, micro_batch=1, recompute="full", offload="none")
    found = next(search_sites(question, [site("H100", 4)]))
    whole, hybrid = (next(r for r in range(found.space.size) if found.space.layout(r).replicas == n) for n in (1, 4))
    alone = next(search_sites(question, [site("H100", 1)]))
    assert found.peak[hybrid] == pytest.approx(alone.peak[0], rel=0.02)
    assert found.peak[hybrid] > found.peak[whole]
    slow = replace(site("H100", 4).place.accelerator, scaleout_bytes_per_second_per_node=1e9)
    crawling = next(search_sites(question, [NodeGroup(place=replace(site().place, accelerator=slow), num_nodes=4)]))
    assert crawling.seconds[hybrid] > found.seconds[hybrid]
    assert crawling.seconds[whole] / crawling.seconds[hybrid] > found.seconds[whole] / found.seconds[hybrid]


@pytest.mark.parametrize("engine", ["megatron", "deepspeed"])
def test_where_nothing_fits_the_layout_that_needs_least_is_told_though_only_bounds_were_computed(engine):
    question = asking(engine, architecture=models.get("Llama-3.1-70B").architecture, offload="none")
    where = site("H100", 1)
    found = search(question, (where.place,))
    peak, capacity, _ = found.closest
    layouts = next(search_sites(question, [where])).space
    every = peak_bytes(
        question.work,
        [layouts.layout(row) for row in range(layouts.size)],
        accelerator=where.place.accelerator,
        dtype=question.dtype,
        knowledge=question.knowledge,
        engine=engine,
    )
    assert capacity < peak.total_bytes
    assert 1.0 - 1e-9 < peak.total_bytes / every.min() < 1.05


def test_every_family_that_lost_has_one_reason():
    question, where = asking(), site("H100", 1)
    option = search(question, (where.place,)).options[0]
    verdicts = layout_verdicts(question, option)
    names = [verdict.option for verdict in verdicts]
    assert len(set(names)) == len(names)
    assert not any(name.endswith(f" {option.layout_label}") for name in names)
    assert any("longer than the chosen one" in verdict.reason for verdict in verdicts)
    overflow = next(verdict.reason for verdict in verdicts if verdict.reason.startswith("needs "))
    assert "GiB of" in overflow
    assert "largest: model:" in overflow
    odd = asking(architecture=replace(LLAMA, num_heads=12, num_kv_heads=4))
    told = [verdict.reason for verdict in layout_verdicts(odd, search(odd, (where.place,)).options[0])]
    assert "8 accelerators do not divide 12 heads and 4 key/value heads" in told
    shared = asking(architecture=replace(LLAMA, num_kv_heads=4))
    told = [verdict.reason for verdict in layout_verdicts(shared, search(shared, (where.place,)).options[0])]
    assert "8 accelerators do not divide 32 heads and 4 key/value heads" in told


@pytest.mark.parametrize(("batch", "per_node", "would_do"), [(64, 7, "63 or 70"), (2, 7, "7")])
@pytest.mark.parametrize("engine", ["native", "deepspeed"])
def test_rows_that_are_not_shared_evenly_are_the_cause(engine, batch, per_node, would_do):
    question = asking(engine, batch=batch)
    question = replace(question, stage=replace(question.stage, global_batch=batch))
    place = site("H100", per_node=per_node).place
    told = str(infeasible("sft", question, (place,), search(question, (place,))))
    assert f"{batch} rows cannot be shared evenly by {per_node} processes; global_batch: {would_do};" in told


def test_memory_of_hosts_is_that_of_each_place():
    """Two providers of one machine: what is offloaded fits the nodes of one alone."""
    question = asking(architecture=models.get("Llama-3.1-70B").architecture, offload="optimizer")
    small, large = (replace(site("H100").place, infra=infra, memory_bytes=size) for infra, size in HOSTS)
    for places in ((small, large), (large, small)):
        assert {option.place.infra for option in search(question, places).options} == {"aws"}


HOSTS = (("on_prem", 256e9), ("aws", 2e12))


@pytest.mark.parametrize("engine", ["native", "fsdp", "megatron", "nemo_rl"])
@pytest.mark.parametrize(("kv_heads", "widest"), [(1, 1), (2, 2), (4, 4), (8, 8)])
def test_no_rank_trains_part_of_a_key_value_head(engine, kv_heads, widest):
    """Megatron-Core, NeMo RL's DTensor backend and the native engine each refuse it when they start."""
    question = asking(engine, architecture=replace(LLAMA, num_kv_heads=kv_heads))
    assert max(family.tensor for family in space(asked(question, site())).families) == widest


def test_other_engines_are_shown_beside_the_chosen_one():
    question = asking()
    option = search(question, (site("H100", 2).place,)).options[0]
    found = other_engines(question, option)
    assert "native" not in {one.engine for one in found}
    assert {"megatron", "deepspeed"} <= {one.engine for one in found}
    assert [one.seconds for one in found] == sorted(one.seconds for one in found)
    megatron = next(one for one in found if one.engine == "megatron")
    assert megatron.ratio == pytest.approx(megatron.seconds / option.overhead.useful_seconds)
    alone = search(asking("megatron"), (site("H100", 2).place,)).options[0]
    assert megatron.layout == alone.layout_label


def test_the_same_question_has_the_same_answer():
    places = (site("H100", 1).place, site("A100-80GB", 2).place)
    first, again = search(asking(), places), search(asking(), places)
    assert first.options == again.options
    assert first.evaluated == again.evaluated > 100
    assert all(isfinite(option.overhead.wall_seconds) for option in first.options)
    assert array([option.peak.total_bytes for option in first.options]).max() <= max(
        option.capacity_bytes for option in first.options
    )


def test_options_of_a_search_are_cut_to_those_that_nothing_beats():
    places = tuple(site(name, nodes).place for name, nodes in (("H100", 1), ("H100", 2), ("A100-80GB", 1), ("L40S", 1)))
    options = search(asking(), places).options
    kept = pareto(options)
    fastest = min(options, key=lambda option: option.seconds.p50)
    assert fastest in kept
    assert 0 < len(kept) < len(options)
    assert all(option not in near_tied(options, option) for option in options)
    assert all(fastest in near_tied(options, other) for other in near_tied(options, fastest))
