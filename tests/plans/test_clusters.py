"""Machines smaller than the usual box: their fast link ends with them, and the network between them is what it is."""

import pytest

from charter.catalog import accelerators, models
from charter.plan.make import make_plan
from charter.plan.offers import at_machine
from charter.spec.project import DataSpec, ModelSpec, Project, Resources
from charter.spec.stage import SftStage
from charter.units import parse_bytes_per_second

MACHINES = ((1, 8), (2, 4), (4, 2), (8, 1))
SPEEDS = ("10Gbit/s", "25Gbit/s", "100Gbit/s", "400Gbit/s")


def plan_of(per_node, nodes, network, **resources):
    project = Project(
        name="p",
        models={"base": ModelSpec(model="meta-llama/Llama-3.1-8B")},
        data={"chats": DataSpec(path="c.jsonl", rows=50_000, mean_tokens=2000)},
        pipeline={"sft": SftStage(init="base", data=("chats",), epochs=1, global_batch=64, seq_len=2048)},
        resources=Resources(
            infra="on_prem",
            accelerators=(f"H100:{per_node}",),
            num_nodes=nodes,
            price=2.0,
            network=None if network is None else parse_bytes_per_second(network),
            **resources,
        ),
    )
    architectures = {"base": models.get("meta-llama/Llama-3.1-8B").architecture}
    (stage,) = make_plan(project, architectures=architectures, data_facts={}).stages
    return stage


@pytest.fixture(scope="module")
def stages():
    return {(machine, speed): plan_of(*machine, speed) for machine in MACHINES for speed in SPEEDS}


def minutes(stage):
    return stage.option.seconds.p50 / 60


@pytest.mark.parametrize("machine", MACHINES[:-1])
def test_time_falls_with_the_speed_of_the_wire(stages, machine):
    times = [minutes(stages[machine, speed]) for speed in SPEEDS]
    assert times == sorted(times, reverse=True)
    assert times[0] > 8 * times[-1]


@pytest.mark.parametrize("machine", MACHINES[:-1])
def test_small_machines_are_slower_than_one_box_and_close_to_it_on_a_fast_wire(stages, machine):
    for speed in SPEEDS:
        assert minutes(stages[machine, speed]) > minutes(stages[(8, 1), speed])
    assert minutes(stages[machine, "400Gbit/s"]) < 1.6 * minutes(stages[(8, 1), "400Gbit/s"])


def test_a_slow_wire_takes_at_least_the_time_of_its_bytes(stages):
    stage = stages[(1, 8), "10Gbit/s"]
    sent = stage.node.to_json()["network_bytes_per_step"]["data parallel"]
    steps = 50_000 // 64 + 1
    assert minutes(stage) >= sent * steps / parse_bytes_per_second("10Gbit/s") / 60


def test_tensor_parallelism_ends_with_the_machine(stages):
    assert all(stage.option.layout.tensor <= machine[0] for (machine, _), stage in stages.items())


def test_a_box_is_not_changed_by_its_network(stages):
    assert len({minutes(stages[(8, 1), speed]) for speed in SPEEDS}) == 1


def test_a_link_that_joins_racks_stays():
    rack = accelerators.get("GB200")
    assert rack.scaleup_domain > rack.devices_per_node
    assert at_machine(rack, rack.devices_per_node, None).scaleup_domain == rack.scaleup_domain


def test_without_a_word_a_small_machine_has_a_small_network():
    assert minutes(plan_of(1, 8, None)) > 1.2 * minutes(plan_of(8, 1, None))
