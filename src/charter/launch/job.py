"""One attempt at one stage as a scheduler is asked for it: pure data, which each one renders into its own text."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

SUPERVISOR = "supervisor"
"""Kind of the job that is a run's own supervisor (`charter submit`)."""
SENT = "CHARTER_SENT"
"""Variable of such a job: the scheduler that it was sent to."""
RESTART = "CHARTER_RESTART"
"""Variable of every job: how often its scheduler has started it again."""


@dataclass(frozen=True, kw_only=True)
class StageJob:
    """Job of a stage, as a scheduler is asked to run it.

    The command is the same on every node: the node agent (`charter.launch.agent`), which starts the stage's processes
    of that node. It finds its place in `CHARTER_NODE_RANK` (0 to nodes - 1), or for a shard in `CHARTER_SHARD` (0 to
    shards - 1): the text that is rendered sets these from the scheduler's own variables, and `CHARTER_RESTART` to the
    number of times that the scheduler itself has started the job again.
    """

    name: str
    """`charter-RUN-STAGE-TOKEN`: letters, digits and hyphens, at most 63; unique to this submission, so that a job
    whose number was lost with the submitter is found again by its name."""
    run: str
    stage: str
    kind: str
    attempt: int
    command: tuple[str, ...]
    directory: Path
    """The stage directory: absolute, seen by every node."""
    log: Path
    """Where the scheduler writes what the agent prints; `%` never stands in it."""
    environment: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    """Variables whose values the scheduler takes from its own store of secrets, or from the environment of whoever
    submits: name to reference. Values never stand in a rendered text."""
    nodes: int = 1
    spare_nodes: int = 0
    """Nodes asked for beside these; agents on them wait until one of the others fails its checks."""
    processes_per_node: int = 1
    shards: int = 1
    """More than 1: independent tasks of one process each, any number at a time."""
    accelerator: str = ""
    """Catalog name (`H100-80GB`); empty for none."""
    accelerators_per_node: int = 0
    cpus_per_node: int = 1
    memory_bytes_per_node: int | None = None
    """System memory that is asked for; None: the scheduler's own default."""
    memory_limit_bytes_per_node: int | None = None
    """Where the file says what a node has: beyond it a scheduler that tells the two apart may end the job. What a plan
    counts is asked for and no limit."""
    time_limit_seconds: float | None = None
    stop_before_seconds: float = 120.0
    """SIGTERM comes so long before the time limit."""
    use_spot: bool = False
    exclude_nodes: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    """Tags of the project, its owner, run, stage and attempt: on jobs, pods and buckets."""


def safe_name(text: str, *, longest: int = 63) -> str:
    """A text as a name that every scheduler takes: lower-case letters, digits, single hyphens, a letter first.

    >>> safe_name("PPO; rm -rf $HOME")
    'ppo-rm-rf-home'
    >>> safe_name("8b_run")
    'x-8b-run'
    """
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "x"
    name = name if name[0].isalpha() else f"x-{name}"
    return name[:longest].rstrip("-")
