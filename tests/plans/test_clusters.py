"""Machines smaller than the usual box: their fast link ends with them, and the network between them is what it is."""

import pytest

from charter.catalog import accelerators, models
from charter.plan.make import make_plan
from charter.plan.offers import at_machine
from charter.spec.project import DataSpec, ModelSpec, Project, Resources
from charter.spec.stage import SftStage
from charter.units import parse_bytes_per_second

MACHINES = ((8, 1), (4, 2), (2, 4), (1, 8))
"""Accelerators of a machine, machines."""
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


@pytest.mark.parametrize("machine", MACHINES[1:])
def test_time_falls_with_the_speed_of_the_wire(stages, machine):
    times = [minutes(stages[machine, speed]) for speed in SPEEDS]
    assert times == sorted(times, reverse=True)
    assert times[0] > 8 * times[-1]


@pytest.mark.parametrize("machine", MACHINES[1:])
def test_small_machines_are_slower_than_one_box_and_close_to_it_on_a_fast_wire(stages, machine):
    for speed in SPEEDS:
        assert minutes(stages[machine, speed]) > minutes(stages[(8, 1), speed])
    assert minutes(stages[machine, "400Gbit/s"]) < 1.6 * minutes(stages[(8, 1), "400Gbit/s"])


PARAMETERS, STEPS = 8_030_261_248, 50_000 // 64 + 1
ON_THE_WIRE = ("sharded weights", "gradient reduction")


def least_bytes(per_node, nodes):
    """Bytes that the cards of a machine take in per step, by hand, under the layouts that fit.

    Every byte of weights comes twice in 16 bits, and every gradient is summed once in 32. One ring through all ranks
    enters a machine once. Tensor parallelism in the machine splits it into rings through one rank of each. Copies that
    fill a machine exchange gradients alone, out and back; one accelerator has no room for a copy.
    """
    ring, rings, copies = (part * (n - 1) / n for part, n in ((8, per_node * nodes), (8, nodes), (2 * 4, nodes)))
    return min([ring] + [rings, copies] * (per_node > 1)) * PARAMETERS


def step_seconds(stage, *, without=()):
    return sum(term.value for term in stage.option.time_terms if not term.name.endswith(without)) / STEPS


@pytest.mark.parametrize("speed", SPEEDS)
@pytest.mark.parametrize("machine", MACHINES[1:])
def test_a_step_takes_its_devices_or_its_bytes(stages, machine, speed):
    """Devices of the layout itself: one that recomputes sends less, and what it recomputes is work of them."""
    stage = stages[machine, speed]
    devices = step_seconds(stage, without=ON_THE_WIRE)
    bound = max(devices, least_bytes(*machine) / parse_bytes_per_second(speed))
    assert bound <= step_seconds(stage) <= 1.2 * bound


@pytest.mark.parametrize("speed", SPEEDS)
def test_the_more_of_the_box_is_together_the_sooner(stages, speed):
    steps = [step_seconds(stages[machine, speed]) for machine in MACHINES]
    assert steps == sorted(steps)


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
