from dataclasses import replace

import pytest

from charter.catalog.price_book import Market, offers
from charter.errors import InfeasibleError
from charter.plan.offers import places
from charter.plan.phase import Role, RolePhase
from charter.plan.processors import cpu_phase_terms
from charter.plan.risk import overhead
from charter.spec.project import Place, Resources
from charter.spec.stage import SftStage
from charter.spec.stage_base import StageResources

SFT = SftStage(init="base", data=("chat",))
DAY = 86400.0


@pytest.fixture
def where(lab):
    def find(resources, stage=SFT, machine=None):
        made = lab.project(resources, pipeline={"stage": stage})
        return places(made, stage, machine or lab.MACHINE)

    return find


def test_place_takes_the_cheapest_region_of_a_provider(where):
    (place,), _ = where(Resources(infra="aws", accelerators=("H100:8",)))
    cheapest = min(
        offer.usd_per_accelerator_hour(Market.ON_DEMAND)
        for offer in offers("H100", cloud="aws", market=Market.ON_DEMAND)
        if offer.count == 8
    )
    assert place.price.usd_per_hour == pytest.approx(cheapest)
    assert place.price.as_of
    assert place.price.source


def test_region_of_a_place_is_kept(where):
    (place,), _ = where(Resources(any_of=(Place(infra="aws", region="eu-north-1", accelerators=("A100:8",)),)))
    assert place.region == "eu-north-1"


def test_without_infra_every_provider_that_offers_it_is_a_place(where):
    found, refused = where(Resources(accelerators=("H100:8",)))
    assert {"aws", "lambda", "nebius"} <= {place.infra for place in found}
    assert all("no such offer" in item.reason for item in refused)


def test_a_stage_on_rented_processors_is_refused_plainly(where):
    with pytest.raises(InfeasibleError, match="cpu on aws: models on rented processors are not planned yet"):
        where(Resources(infra="aws", accelerators=("cpu",)))


def test_stage_accelerator_wins_over_the_project(where):
    stage = replace(SFT, resources=StageResources(accelerators="H200:8"))
    (place,), _ = where(Resources(infra="aws", accelerators=("H100:8",)), stage)
    assert place.accelerator.name == "H200-SXM-141GB"


def test_owned_nodes_have_the_cost_of_ownership(where):
    (place,), _ = where(Resources(infra="on_prem", accelerators=("H100:8",)))
    assert place.price.market == "owned"
    assert place.price.usd_per_hour == pytest.approx(2.12, abs=0.005)


def test_node_counts_double_up_to_the_limit(where):
    (place,), _ = where(Resources(infra="aws", accelerators=("H100:8",), max_nodes=6))
    assert place.nodes == (1, 2, 4, 6)
    (place,), _ = where(Resources(infra="aws", accelerators=("H100:8",), num_nodes=3))
    assert place.nodes == (3,)


def test_local_gpu_is_refused_where_there_is_none(where):
    both = Resources(any_of=(Place(infra="local", accelerators=("H100:1",)), Place(infra="local")))
    found, refused = where(both)
    assert [place.is_cpu for place in found] == [True]
    assert "nvidia-smi" in refused[0].reason


def test_local_gpu_of_the_machine_is_used(where, lab):
    machine = replace(lab.MACHINE, gpu_name="NVIDIA H100 80GB HBM3", gpu_count=2)
    (place,), _ = where(Resources(infra="local"), machine=machine)
    assert (place.accelerator.name, place.per_node) == ("H100-SXM-80GB", 1)


def test_rented_work_costs_more_than_its_useful_time_and_spot_more_still(where):
    (place,), _ = where(Resources(infra="aws", accelerators=("H100:8",)))
    fixed = {"place": place, "num_nodes": 4, "checkpoint_bytes": 1e11}
    steady, spot = overhead(DAY, spot=False, **fixed), overhead(DAY, spot=True, **fixed)
    assert DAY < steady.billed_seconds == steady.wall_seconds < 1.05 * DAY
    assert steady.billed_seconds < spot.billed_seconds < spot.wall_seconds
    assert spot.interval_seconds < steady.interval_seconds


def test_more_nodes_fail_more_often(where):
    (place,), _ = where(Resources(infra="aws", accelerators=("H100:8",)))
    means = [
        overhead(DAY, place=place, num_nodes=nodes, spot=False, checkpoint_bytes=1e11).mean_between_failures_seconds
        for nodes in (1, 8, 64)
    ]
    assert means == sorted(means, reverse=True)


# CPU seconds on one core of an AMD EPYC (99 GFLOP/s, 38 GB/s), torch 2.13, Llama-style models with 2,048 tokens of
# vocabulary: width, layers, sequences, tokens, milliseconds of a training step in fp32.
MEASURED = [
    (64, 1, 8, 128, 22.9),
    (192, 2, 8, 128, 109.3),
    (192, 2, 32, 128, 488.4),
    (192, 6, 8, 128, 281.0),
    (192, 6, 32, 128, 1114.8),
    (512, 4, 8, 128, 957.5),
]


@pytest.mark.parametrize(("width", "layers", "batch", "tokens", "milliseconds"), MEASURED)
def test_step_on_a_core_is_within_a_factor_of_1_6_of_the_measurement(lab, width, layers, batch, tokens, milliseconds):
    machine = replace(lab.MACHINE, cores=1, flops_per_second=99e9, memory_bytes_per_second=38e9)
    shape = replace(
        lab.TINY,
        hidden_size=width,
        num_layers=layers,
        num_heads=max(1, width // 32),
        intermediate_size=width * 8 // 3 // 16 * 16,
    )
    role = Role(name="model", architecture=shape, model="base", trained=True)
    phase = RolePhase(
        name="train",
        work="train",
        role="model",
        steps=1,
        batch=batch,
        prompt_tokens=tokens,
        longest_tokens=tokens,
    )
    terms = cpu_phase_terms(role, phase, processor=machine.processor(), dtype="fp32")
    found = 1000 * sum(term.value for term in terms)
    assert milliseconds / 1.6 < found < milliseconds * 1.6


def test_pretraining_of_the_prototype_takes_about_75_seconds(lab):
    # demo prototype: width 192, 2 layers, bf16 autocast, 1,538 steps of 8 x 128 tokens in 75 s on 2 threads.
    machine = replace(lab.MACHINE, flops_per_second=190e9, memory_bytes_per_second=38e9, bf16_speedup=3.0)
    role = Role(name="model", architecture=lab.TINY, model="base", trained=True)
    phase = RolePhase(
        name="train", work="train", role="model", steps=1538, batch=8, prompt_tokens=128, longest_tokens=128
    )
    terms = cpu_phase_terms(role, phase, processor=machine.processor(), dtype="bf16")
    assert sum(term.value for term in terms) == pytest.approx(75, rel=0.5)


def test_a_core_reads_a_prompt_once_for_all_its_answers(lab):
    """Without tokens of answers, which are drawn one by one."""
    role = Role(name="policy", architecture=lab.TINY, model="base")
    phase = RolePhase(
        name="generate", work="generate", role="policy", steps=1, batch=8, prompt_tokens=128, longest_tokens=128
    )

    def operations(share):
        shared = replace(phase, read_share=share)
        terms = cpu_phase_terms(role, shared, processor=lab.MACHINE.processor(), dtype="fp32")
        return next(term.value for term in terms if "arithmetic" in term.name)

    assert operations(1.0) / operations(1 / 8) == pytest.approx(8)
