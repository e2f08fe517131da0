"""What Slurm is about to do with the job that this process is part of."""

from collections.abc import Mapping

from charter.errors import CharterError
from charter.launch.slurm.commands import SlurmCommands
from charter.launch.slurm.environment import command_environment
from charter.launch.slurm.records import unix_seconds

ASK_SECONDS = 20.0
"""For the controller's answer: less than Slurm gives a job to end (`KillWait`, 30 s unless set)."""
_FIELDS = "RestartCnt:0|,PreemptTime:0|,StartTime:0|"


def is_put_back(environ: Mapping[str, str], commands: SlurmCommands | None = None) -> bool:
    """Whether Slurm ends this job in order to start it again: it is being preempted, or stands in the queue once more.

    A job that somebody cancels is not, nor one that is only signalled. Where Slurm does not answer, nobody says so.
    """
    commands = commands or SlurmCommands(environment=command_environment(environ), patience_seconds=ASK_SECONDS)
    try:
        said = commands.run("squeue", "-h", "-t", "all", "-j", environ.get("SLURM_JOB_ID", ""), "-O", _FIELDS)
    except CharterError:
        return False
    values = [value.strip() for value in said.partition("\n")[0].split("|")]
    if len(values) < 3:
        return False
    restarts, preempted_at, started_at = values[0], unix_seconds(values[1]), unix_seconds(values[2])
    if restarts.isdecimal() and int(restarts) > int(environ.get("SLURM_RESTART_COUNT") or 0):
        return True
    return preempted_at is not None and started_at is not None and preempted_at >= started_at
