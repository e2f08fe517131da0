"""Memory of a stage with several roles, against sums done by hand."""

import pytest
from planner_case import peak_bytes

from charter.catalog import accelerators
from charter.physics.flops import kv_cache_bytes
from charter.physics.memory import job_memory
from charter.physics.shapes import count_parameters
from charter.plan.knowledge import Knowledge, shipped
from charter.plan.phase import Counters, Role, RolePhase, Workload
from charter.plan.stage_memory import answering_peak, decoded_together, training_job, training_peak
from charter.spec.layout import Layout, Recompute, ZeroStage

H100, H200 = accelerators.get("H100"), accelerators.get("H200")
KNOWN = shipped()
ZERO3 = Layout(data=8, zero=ZeroStage.PARAMETERS, micro_batch=4)


@pytest.fixture
def ppo(lab):
    def make(rollout_batch=512):
        shape = lab.LLAMA_8B
        roles = (
            Role(name="policy", architecture=shape, model="base", trained=True),
            Role(name="value", architecture=shape, model="base", trained=True, scalar_head=True),
            Role(name="reference", architecture=shape, model="base"),
            Role(name="reward", architecture=shape, model="base", scalar_head=True),
        )
        common = {"steps": 10, "longest_tokens": 1024}
        phases = (
            RolePhase(
                name="generate", work="generate", role="policy", batch=rollout_batch, prompt_tokens=512,
                new_tokens=512, **common,
            ),
            RolePhase(name="train policy", work="train", role="policy", batch=128, prompt_tokens=1024, **common),
            RolePhase(name="train value", work="train", role="value", batch=128, prompt_tokens=1024, **common),
        )  # fmt: skip
        return Workload(roles=roles, phases=phases, counters=Counters(), together=True)

    return make


def test_ppo_holds_four_models_sharded_over_eight(ppo, lab):
    peak = training_peak(ppo(), ZERO3, accelerator=H100, dtype="bf16", knowledge=KNOWN)
    count = count_parameters(lab.LLAMA_8B)
    lm, scalar = count.total, count.total - count.head + lab.LLAMA_8B.hidden_size
    parts = peak.by_part()
    assert parts["parameters"] == pytest.approx((4 * (lm + scalar) + 2 * (lm + scalar)) / 8, rel=1e-3)
    assert parts["gradients"] == pytest.approx(4 * (lm + scalar) / 8, rel=1e-3)
    assert parts["optimizer"] == pytest.approx(8 * (lm + scalar) / 8, rel=1e-3)


def test_parts_of_a_peak_sum_to_it_and_name_their_role(ppo):
    peak = training_peak(ppo(), ZERO3, accelerator=H100, dtype="bf16", knowledge=KNOWN)
    assert sum(term.value for term in peak.terms) == pytest.approx(peak.total_bytes)
    assert sum(peak.by_part().values()) == pytest.approx(peak.total_bytes)
    roles = {term.name.partition(":")[0] for term in peak.terms}
    assert {"policy", "value", "reference", "reward"} <= roles


@pytest.mark.parametrize(("micro_batch", "is_kept"), [(8, True), (16, False)])
def test_probabilities_of_a_policy_are_kept_up_to_a_size(ppo, lab, micro_batch, is_kept):
    work, shape = ppo(), lab.LLAMA_8B
    job = training_job(work, work.trained[0], H100, "bf16")
    layout = Layout(data=8, zero=ZeroStage.PARAMETERS, micro_batch=micro_batch)
    terms = job_memory(job, layout, Knowledge().training_memory).phases["loss"]
    head, logits = shape.hidden_size * shape.vocab_size, micro_batch * 1024 * shape.vocab_size
    tile = 2**28 // shape.vocab_size * shape.vocab_size
    assert (logits <= 2**30) is is_kept
    planned = next(term.value for term in terms if term.name == "logits and loss")
    assert planned == pytest.approx(4 * logits * is_kept + 6 * tile + 6 * head)


@pytest.mark.parametrize(("zero", "engine"), [(0, "native"), (2, "native"), (0, "trl")])
def test_a_frozen_role_without_zero_keeps_its_embedding_wide(ppo, lab, zero, engine):
    peak = training_peak(
        ppo(), Layout(data=8, zero=ZeroStage(zero)), accelerator=H100, dtype="bf16", knowledge=KNOWN, engine=engine
    )
    count = count_parameters(lab.LLAMA_8B)
    wide = 2 * (count.embedding + count.norms) if (zero, engine) == (0, "native") else 0
    held = {term.name: term.value for term in peak.terms}
    assert held["reference: frozen weights"] == pytest.approx(2 * count.total + wide)
    scalar = count.total - count.head + lab.LLAMA_8B.hidden_size
    assert held["reward: frozen weights"] == pytest.approx(2 * scalar + wide)


def test_a_frozen_role_of_a_stage_in_fp32_is_in_fp32(ppo, lab):
    peak = training_peak(ppo(), ZERO3, accelerator=H100, dtype="fp32", knowledge=KNOWN)
    held = {term.name: term.value for term in peak.terms}
    assert held["reference: frozen weights"] == pytest.approx(4 * count_parameters(lab.LLAMA_8B).total / 8, rel=1e-3)


def test_small_rollouts_are_decoded_whole_and_large_ones_in_waves(ppo, lab):
    arguments = {"accelerator": H200, "dtype": "bf16", "knowledge": KNOWN}
    small, large = ppo(512), ppo(65_536)
    assert decoded_together(small, small.phases[0], ZERO3, **arguments) == 512 // 8
    held = decoded_together(large, large.phases[0], ZERO3, **arguments)
    cache = kv_cache_bytes(lab.LLAMA_8B, 1024)
    peak = training_peak(large, ZERO3, **arguments)
    assert held < 65_536 // 8
    assert peak.total_bytes <= KNOWN.usable_bytes(H200) < peak.total_bytes + cache


def test_answering_stage_needs_the_larger_of_its_models_not_their_sum(lab):
    roles = (
        Role(name="policy", architecture=lab.LLAMA_8B, model="a"),
        Role(name="judge", architecture=lab.LLAMA_70B, model="b"),
    )
    phases = tuple(
        RolePhase(name=role.name, work="score", role=role.name, steps=1, batch=8, prompt_tokens=512, longest_tokens=512)
        for role in roles
    )
    work = Workload(roles=roles, phases=phases, counters=Counters())
    peak = answering_peak(work, tensor=4, batches={}, accelerator=H100, knowledge=KNOWN)
    assert peak.moment == "judge"
    assert peak.by_part()["parameters"] == pytest.approx(2 * count_parameters(lab.LLAMA_70B).total / 4, rel=3e-3)


def test_endpoint_models_take_no_memory(lab):
    role = Role(name="judge", architecture=lab.LLAMA_70B, model="b")
    phase = RolePhase(name="judge", work="score", role="judge", steps=1, batch=8, prompt_tokens=512, longest_tokens=512)
    work = Workload(roles=(role,), phases=(phase,), counters=Counters(), remote=("judge",))
    assert answering_peak(work, tensor=1, batches={}, accelerator=H100, knowledge=KNOWN).total_bytes == 0


@pytest.mark.parametrize("pipeline", [1, 2])
def test_many_layouts_at_once_are_the_layouts_one_by_one(ppo, lab, pipeline):
    work = ppo(65_536)
    alone = Workload(roles=work.roles[:1], phases=work.phases[1:2], counters=Counters())
    layouts = [
        Layout(data=data, tensor=tensor, pipeline=pipeline, zero=zero, micro_batch=micro, recompute=recompute)
        for data, tensor, micro in ((8, 1, 1), (4, 2, 4), (16, 8, 2))
        for zero in ZeroStage
        for recompute in Recompute
    ]
    arguments = {"accelerator": H100, "dtype": "bf16", "knowledge": KNOWN}
    for tried in (work, alone) if pipeline == 1 else (alone,):
        single = [training_peak(tried, layout, **arguments).total_bytes for layout in layouts]
        assert peak_bytes(tried, layouts, **arguments) == pytest.approx(single, rel=1e-9)
