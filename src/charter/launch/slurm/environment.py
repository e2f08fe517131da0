"""Which variables of whoever submits go with a job, and which Slurm's commands are given. Pure."""

import re
from collections.abc import Mapping

from charter.errors import UsageError
from charter.launch.job import StageJob
from charter.launch.slurm.render import secret_sources

_CONFIGURATION = frozenset({"SLURM_CONF", "SLURM_CONF_SERVER"})
_OF_A_JOB = re.compile(r"^(SLURM|SLURMD|SBATCH|SRUN|SQUEUE|SACCT|SCANCEL|SCONTROL|PMI|PMIX|OMPI)_")
"""Variables of the job that this process may itself be part of, and those that change what the commands do or print."""
_OF_A_PROCESS = re.compile(
    r"^((LOCAL_)?RANK|(LOCAL_)?WORLD_SIZE|MASTER_(ADDR|PORT)|TORCHELASTIC_.*|CUDA_VISIBLE_DEVICES"
    r"|CHARTER_(SENT|GROUP|NODE_RANK|NODE_NAME|NODE_ADDRESS|SHARD|RESTART|ENGINE_JOB|ATTEMPT|TERM|APART|SUPERVISOR_PID))$"
)
_SECRET = re.compile(r"key|token|secret|passw|credential", re.IGNORECASE)


def command_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What Slurm's commands are given: texts in English, times in Unix seconds, lists of tasks in full."""
    kept = {name: value for name, value in environ.items() if name in _CONFIGURATION or not _OF_A_JOB.match(name)}
    return {**kept, "LC_ALL": "C", "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}


def submission_environment(job: StageJob, environ: Mapping[str, str]) -> dict[str, str]:
    """What `sbatch` is given and carries to the nodes: the submitter's variables, as Slurm's users expect.

    Not those of a job or a process that the submitter is itself part of, and none whose name sounds like a secret,
    unless the job asks for it by its name.

    >>> from pathlib import Path
    >>> job = StageJob(name="j", run="r", stage="s", kind="sft", attempt=1, command=("true",), directory=Path("/d"),
    ...     log=Path("/d/log"), secrets={"KEY": "env:JUDGE_KEY"})
    >>> own = {"PATH": "/bin", "JUDGE_KEY": "x", "HF_TOKEN": "y", "SLURM_JOB_ID": "7", "RANK": "0"}
    >>> sorted(submission_environment(job, own))
    ['JUDGE_KEY', 'PATH']
    """
    wanted = secret_sources(job.secrets)
    if missing := sorted(wanted - set(environ)):
        raise UsageError(
            f"the stage {job.stage} needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not "
            "set here\n  export it before you submit, or name a file on the nodes instead: file:PATH"
        )
    return {name: value for name, value in environ.items() if name in wanted or _goes_with_a_job(name)}


def _goes_with_a_job(name: str) -> bool:
    if name in _CONFIGURATION:
        return True
    return not (_OF_A_JOB.match(name) or _OF_A_PROCESS.match(name) or _SECRET.search(name))
