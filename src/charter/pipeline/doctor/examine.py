"""All that the doctor looks at, for a machine alone or for a project on an engine."""

from pathlib import Path

from charter.pipeline.doctor.check import Check
from charter.pipeline.doctor.credentials import examine_credentials
from charter.pipeline.doctor.drivers import examine_drivers
from charter.pipeline.doctor.engine import examine_engine
from charter.pipeline.doctor.extras import examine_extras
from charter.pipeline.doctor.machine import examine_machine
from charter.pipeline.doctor.network import examine_network
from charter.spec.project import Project


def examine(directory: Path, project: Project | None = None, *, engine: str = "local") -> tuple[Check, ...]:
    """Every check; those of packages, engine, network and credentials by what the project asks for."""
    machine = (*examine_machine(directory), *examine_drivers())
    if project is None:
        return machine
    return (
        *machine,
        *examine_extras(project, directory, engine),
        *examine_engine(project, directory, engine),
        *examine_network(project, directory),
        *examine_credentials(project, directory),
    )
