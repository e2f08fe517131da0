"""Plan a project as it lies on disk: read the facts, probe the machine if it matters, call `make_plan`."""

from pathlib import Path

from charter.calibration.bundle import load
from charter.plan.inputs import read_inputs
from charter.plan.knowledge import Knowledge
from charter.plan.machine import Machine, probe_machine
from charter.plan.make import make_plan
from charter.plan.place import may_run_here
from charter.plan.plan import Plan
from charter.spec.project import Project

CALIBRATION_FILE = "calibration.json"


def plan_project(
    project: Project, directory: Path, *, machine: Machine | None = None, knowledge: Knowledge | None = None
) -> Plan:
    """The plan of `project`, whose files lie in `directory`; `machine` replaces the probe of this one.

    A `calibration.json` in the directory (`charter calibrate -C`) is used unless `knowledge` is given.
    """
    inputs = read_inputs(project, directory)
    if machine is None and may_run_here(project):
        machine = probe_machine()
    if knowledge is None and (directory / CALIBRATION_FILE).is_file():
        knowledge = Knowledge.of(load(directory / CALIBRATION_FILE))
    return make_plan(
        project, architectures=inputs.architectures, data_facts=inputs.facts, machine=machine, knowledge=knowledge
    )
