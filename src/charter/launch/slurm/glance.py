"""How one job stands, asked once and not waited for: for commands that say how things are and end."""

from collections.abc import Mapping

from charter.launch.scheduler import JobState
from charter.launch.slurm.commands import SlurmCommands, SlurmRefusedError, unknown_job
from charter.launch.slurm.environment import command_environment
from charter.launch.slurm.queue import SQUEUE_FORMAT, rows_of

GLANCE_SECONDS = 2.0
"""A controller that is well answers in hundredths of a second."""


def glance(job_id: str, environ: Mapping[str, str], *, patience_seconds: float = GLANCE_SECONDS) -> JobState:
    """The job as the queue has it now; `unknown` where Slurm has forgotten it. Raises where Slurm cannot be asked."""
    commands = SlurmCommands(environment=command_environment(environ), patience_seconds=patience_seconds)
    try:
        said = commands.run("squeue", "-h", "-t", "all", "-j", job_id, "-O", SQUEUE_FORMAT)
    except SlurmRefusedError as error:
        if unknown_job(error):
            return JobState(phase="unknown")
        raise
    return next((row.state for row in rows_of(said)), JobState(phase="unknown"))
