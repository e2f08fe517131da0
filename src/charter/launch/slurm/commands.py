"""Slurm's commands: run, counted, and their complaints understood."""

import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from charter.errors import InfeasibleError, MissingExtraError, StageError, UsageError

CALL_SECONDS = 120.0
"""One call; Slurm's own `MessageTimeout` is 10 s, and some commands try several times."""
_UNREACHABLE = (
    "unable to contact slurm controller",
    "unable to connect to slurm",
    "socket timed out",
    "connection refused",
    "communication connection failure",
    "zero bytes were transmitted",
    "controller is in standby",
    "unexpected message received",
    "problem talking to the database",
    "slurm_persist_conn_open",
    "transport endpoint is not connected",
    "temporarily unable",
    "resource temporarily unavailable",
)
_UNKNOWN = ("invalid job id", "job not found")
_NO_SUCH_NODES = ("node configuration is not available", "more processors requested", "exceeds partition")


class SlurmUnreachableError(StageError):
    """The controller or its database does not answer; jobs go on without it."""


class SlurmRefusedError(StageError):
    """Slurm answered that it would not do what was asked."""


@dataclass(kw_only=True)
class SlurmCommands:
    """The commands of one cluster, which `SLURM_CONF` or the default configuration names."""

    environment: Mapping[str, str]
    patience_seconds: float = CALL_SECONDS
    calls: Counter[str] = field(default_factory=Counter)
    """How often each command was run."""

    def run(self, *command: str, text: str | None = None, environment: Mapping[str, str] | None = None) -> str:
        """Return the output of a command, or raise an error with its complaint."""
        self.calls[command[0]] += 1
        try:
            done = subprocess.run(
                command,
                input=text if text is not None else "",
                env={**(self.environment if environment is None else environment)},
                capture_output=True,
                text=True,
                errors="replace",
                timeout=self.patience_seconds,
                check=False,
            )
        except FileNotFoundError:
            raise MissingExtraError(
                f"{command[0]} is not on the path here\n  run Charter where Slurm's commands are: a login node of the "
                "cluster, or any machine with its client package and slurm.conf (SLURM_CONF names another one)"
            ) from None
        except subprocess.TimeoutExpired:
            raise SlurmUnreachableError(f"{command[0]} had said nothing after {self.patience_seconds:.0f} s") from None
        if done.returncode != 0:
            raise complaint(command, done.stderr or done.stdout)
        return done.stdout


def complaint(command: Sequence[str], said: str) -> StageError:
    """Return the error of a failed command: Slurm does not answer, or it refuses."""
    text = " / ".join(line.strip() for line in said.strip().splitlines()) or "it said nothing"
    if any(words in text.lower() for words in _UNREACHABLE):
        return SlurmUnreachableError(f"Slurm does not answer {command[0]}: {text}\n  jobs that run are not affected")
    return SlurmRefusedError(f"{command[0]}: {text}")


def unknown_job(error: SlurmRefusedError) -> bool:
    """Return True if what was refused is a job that Slurm no longer knows."""
    return any(words in str(error).lower() for words in _UNKNOWN)


def refused_submission(stage: str, error: SlurmRefusedError) -> UsageError | InfeasibleError:
    """A refusal by sbatch, with what can be done."""
    said = str(error)
    if any(words in said.lower() for words in _NO_SUCH_NODES):
        return InfeasibleError(
            f"no node of the cluster is what the stage {stage} asks for: {said}\n"
            "  sinfo -o '%P %G %c %m %l' shows what there is; change the stage's resources, "
            "launch.slurm.partition or launch.slurm.gpu_types"
        )
    return UsageError(
        f"Slurm does not take the job of the stage {stage}: {said}\n"
        "  charter submit --on slurm --print shows what it was given; launch.slurm in charter.yaml says it"
    )
