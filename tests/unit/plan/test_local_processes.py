import pytest

from charter.plan.machine import Machine
from charter.plan.offers import may_run_here, places
from charter.spec.project import Project, Resources
from charter.spec.stage import SftStage
from charter.spec.stage_base import StageResources

MACHINE = Machine(name="m", cores=8, memory_bytes=32e9, flops_per_second=5e11, memory_bytes_per_second=1e11)
STAGE = SftStage(init="b", data=("d",))


def project(*accelerators):
    resources = Resources(accelerators=accelerators)
    return Project(name="p", models={}, pipeline={"s": STAGE}, resources=resources)


@pytest.mark.parametrize(("asked", "processes"), [("cpu", 1), ("cpu:4", 4)])
def test_processes_on_the_processors_are_planned_here_however_many(asked, processes):
    assert may_run_here(project(asked))
    ((place,), refused) = places(project(asked), STAGE, MACHINE)
    assert (place.infra, place.is_cpu, refused) == ("local", True, ())
    assert place.processes == processes
    assert place.accelerator == MACHINE.processor(threads=8 // processes), "each process has its share of the cores"


def test_a_stage_of_its_own_may_ask_for_them():
    own = SftStage(init="b", data=("d",), resources=StageResources(accelerators="cpu:2"))
    ((place,), _) = places(project("cpu"), own, MACHINE)
    assert place.is_cpu


def test_a_rented_accelerator_is_not_planned_here():
    assert not may_run_here(project("H100:8"))
    found, _ = places(project("H100:8"), STAGE, None)
    assert "local" not in {place.infra for place in found}
