"""Decisions of the layout search: what an engine may be asked, what fits in the host, what counts as equally fast."""

from dataclasses import replace
from math import exp, sqrt

import numpy as np
import pytest

from charter.catalog import accelerators, models
from charter.engines import capabilities
from charter.plan import layout_search
from charter.plan.knowledge import engine_knowledge, shipped, time_group
from charter.plan.layout_search import NodeGroup, asked, evaluate, host_room, search_sites, tied_layouts, tied_limit
from charter.plan.layout_space import space
from charter.plan.offers import UNPRICED, NodeOffer, host_bytes_per_accelerator, node_memory_bytes
from charter.plan.option import StageQuestion
from charter.plan.phase import Counters, Role, RolePhase, Workload
from charter.plan.stage_memory import one_device
from charter.plan.stage_time import TimedStage
from charter.spec.layout import ZeroStage
from charter.spec.stage import SftStage

LLAMA = models.get("Llama-3.1-8B").architecture
GEMMA_LIKE = replace(LLAMA, num_layers=30)
"""Layers that not every number of stages divides."""
KNOWN = shipped()


def question(engine, architecture=LLAMA):
    phase = RolePhase(
        name="train model", work="train", role="model", steps=100, batch=64, prompt_tokens=2048, longest_tokens=2048
    )
    role = Role(name="model", architecture=architecture, model="base", trained=True)
    return StageQuestion(
        stage=SftStage(init="base", data=("chat",), engine=engine),
        work=Workload(roles=(role,), phases=(phase,), counters=Counters()),
        dtype="bf16",
        checkpoint_bytes=1e11,
        use_spot=False,
        knowledge=KNOWN,
        engine=engine,
    )


def place(nodes=2, *, memory_bytes=None):
    return NodeOffer(
        infra="any",
        region=None,
        accelerator=accelerators.get("H100"),
        per_node=8,
        instance="",
        price=UNPRICED,
        nodes=(nodes,),
        memory_bytes=memory_bytes,
    )


def layouts(engine, architecture=LLAMA, nodes=2, **changes):
    """All layouts of an engine, with changes to what the engine can do."""
    made = asked(question(engine, architecture), NodeGroup(place=place(nodes), num_nodes=nodes))
    found = space(replace(made, engine=replace(made.engine, **changes)))
    return [found.layout(row) for row in range(found.size)]


def test_chunks_of_a_stage_divide_its_layers_and_micro_batches_come_in_whole_rounds():
    found = layouts("megatron", GEMMA_LIKE)
    interleaved = [one for one in found if one.interleave > 1]
    assert {one.interleave for one in interleaved if one.pipeline == 2} == {3, 5, 15}
    assert all(GEMMA_LIKE.num_layers % (one.pipeline * one.interleave) == 0 for one in interleaved)
    assert all(one.pipeline > 1 and one.accumulation % one.pipeline == 0 for one in interleaved)
    assert {one.pipeline for one in found} > {one.pipeline for one in interleaved}


def test_beside_a_pipeline_only_the_optimizer_is_sharded():
    found = layouts("megatron", zero=tuple(ZeroStage))
    assert {one.zero for one in found if one.pipeline == 1} == set(ZeroStage)
    assert {one.zero for one in found if one.pipeline > 1} == {ZeroStage.NONE, ZeroStage.OPTIMIZER}


@pytest.mark.parametrize("engine", ["native", "fsdp", "verl"])
def test_hybrid_sharding_and_offload_exclude_each_other(engine):
    assert capabilities(engine).hybrid
    found = layouts(engine)
    assert any(one.replicas > 1 for one in found)
    assert any(one.offload_optimizer for one in found)
    assert not any(one.replicas > 1 and (one.offload_optimizer or one.offload_parameters) for one in found)


def test_system_memory_of_a_node_is_shared_by_its_accelerators():
    work = question("native").work
    small, large = (host_room(work, place(memory_bytes=size)) for size in (1e12, 2e12))
    assert large - small == pytest.approx(1e12 / 8)
    assert 0 < large < 2e12 / 8
    offered = host_bytes_per_accelerator("H100-SXM-80GB", 8)
    assert node_memory_bytes(place()) == 8 * offered
    # Nodes of eight H100 have 1 to 2.1 TB (AWS p5.48xlarge: 2 TiB).
    assert 0.9e12 < node_memory_bytes(place()) < 2.3e12


def test_as_fast_means_within_the_width_of_a_ratio_of_correlated_errors():
    asking = question("native")
    quantity, group = time_group(asking.stage, moe=False)
    half_width = KNOWN.half_width(quantity, group)
    limit = tied_limit(asking, engine_knowledge("native", KNOWN))
    assert limit == pytest.approx(exp(half_width * sqrt(2 * (1 - 0.42))), rel=0.01)


def test_the_search_stops_only_where_nothing_can_be_as_fast_any_more(monkeypatch):
    """With the sharpest bound there is, the time itself, everything near-tied is still computed, and little else."""
    asking = question("megatron")
    where, known = place(1), engine_knowledge("megatron", KNOWN)
    (found,) = search_sites(asking, [NodeGroup(place=where, num_nodes=1)])
    task, limit = TimedStage(work=asking.work, dtype="bf16", known=known, knowledge=KNOWN), tied_limit(asking, known)
    fields = (task, found.space.layouts, one_device(where.accelerator, found.space.size, found.capacity), [found.space])
    monkeypatch.setattr(layout_search, "CHUNK", found.space.size)
    whole = evaluate(*fields, limit=limit)
    exact = np.where(np.isfinite(whole.seconds), whole.seconds, 1e9)[whole.too_large == 0]
    monkeypatch.setattr(layout_search, "least_update_seconds", lambda *_: exact)
    monkeypatch.setattr(layout_search, "CHUNK", 64)
    cut = evaluate(*fields, limit=limit)
    near = whole.seconds <= limit * whole.seconds.min()
    assert 64 < near.sum() < np.isfinite(whole.seconds).sum()
    assert cut.seconds[near] == pytest.approx(whole.seconds[near])
    assert np.isfinite(cut.seconds).sum() < near.sum() + 64


def test_what_cannot_be_told_from_the_fastest_is_named_up_to_eight_families():
    asking = question("megatron")
    known = engine_knowledge("megatron", KNOWN)
    (found,) = search_sites(asking, [NodeGroup(place=place(1), num_nodes=1)])
    limit = tied_limit(asking, known) * found.seconds.min()
    best = {}
    for row in np.argsort(found.seconds, kind="stable"):
        if found.seconds[row] <= limit:
            best.setdefault(int(found.space.family[row]), float(found.seconds[row]))
    # Only every twentieth family, so that all of those that are near are few enough to be named.
    few = [family for number, family in enumerate(best) if number % 20 == 0]
    seconds = np.where(np.isin(found.space.family, few), found.seconds, 1e9)
    seconds[np.argmin(found.seconds)] = found.seconds.min()
    tied = tied_layouts(asking, replace(found, seconds=seconds), known)
    assert 1 < len(few) < 8 < len(best)
    assert [one.seconds for one in tied] == [best[family] for family in few]
    every = tied_layouts(asking, found, known)
    assert [one.seconds for one in every] == list(best.values())[:8]
