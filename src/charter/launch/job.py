"""One attempt at one stage as a scheduler is asked for it: its command, its secrets, plain data for each one's text."""

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from charter.errors import UsageError
from charter.spec.project import Project
from charter.spec.stage import is_hosted
from charter.spec.stage_base import Stage

SUPERVISOR = "supervisor"
"""Kind of the job that is a run's own supervisor (`charter submit`)."""
SENT = "CHARTER_SENT"
"""Variable of such a job: the scheduler that it was sent to."""
RESTART = "CHARTER_RESTART"
"""Variable of every job: how often its scheduler has started it again."""
NODE_RANK, SHARD = "CHARTER_NODE_RANK", "CHARTER_SHARD"
"""Variables of a node's part of a job: its number among the nodes, or that of its shard."""
NODE_NAME = "CHARTER_NODE_NAME"
"""The scheduler's name of the node, where it has one of its own; what is left out of later jobs goes by it."""
ENGINE_JOB = "CHARTER_ENGINE_JOB"
"""The scheduler's own number of the job, where its environment says it; for people who read the files."""
ENGINE_NODES = "CHARTER_ENGINE_NODES"
"""Variable of a job that drives an engine on a Ray cluster: the nodes whose accelerators the engine takes by itself."""


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
    drives: bool = False
    """One process on any node, which is given no accelerators: its engine takes those of all nodes by itself."""
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


STAGE_MODULES: Mapping[str, str] = MappingProxyType(
    {
        "prepare": "charter.feedback.prepare",
        "pretrain": "charter.train.pretrain",
        "sft": "charter.train.sft",
        "judge": "charter.train.judge",
        "generate": "charter.feedback.generate",
        "critique": "charter.feedback.critique",
        "label": "charter.feedback.label",
        "preference_model": "charter.train.preference_model",
        "dpo": "charter.train.dpo",
        "ppo": "charter.train.ppo",
        "eval": "charter.evaluate.run",
    }
)

HOSTED_MODULE = "charter.hosted.run"
"""Runs a stage that another engine computes."""
MODELS_MODULE = "charter.models.preload"
"""Imports what loading a model imports."""
WITHOUT_MODELS = frozenset({"charter.feedback.prepare"})
"""Stages that load none."""
_WITH_MODELS = {HOSTED_MODULE, *STAGE_MODULES.values()} - WITHOUT_MODELS


def module_of(stage: Stage, modules: Mapping[str, str] = STAGE_MODULES) -> str:
    """The module that runs a stage; `modules` are those of the native engine, by kind.

    >>> from charter.spec.stage import SftStage
    >>> module_of(SftStage(init="b", data=("d",), engine="trl"))
    'charter.hosted.run'
    """
    return HOSTED_MODULE if is_hosted(stage) else modules[stage.kind]


def preloaded_modules(stage_modules: Iterable[str], *, with_models: bool = True) -> list[str]:
    """Return the modules that a stage server imports once for all stages; `with_models` where one loads weights.

    >>> preloaded_modules(["charter.train.sft", "charter.train.sft"])
    ['charter.models.preload', 'charter.train.sft']
    >>> preloaded_modules(["another_stage"])
    ['another_stage']
    """
    modules = set(stage_modules)
    models = {MODELS_MODULE} if with_models and modules & _WITH_MODELS else set()
    return sorted(modules | models)


def stage_command(module: str, stage_dir: Path) -> list[str]:
    """The command of a stage as a process of its own, the same on every engine.

    >>> stage_command("charter.train.sft", Path("D"))[1:]
    ['-m', 'charter.train.sft', '--stage-dir', 'D']
    """
    return [sys.executable, "-m", module, "--stage-dir", str(stage_dir)]


def secrets_of(project: Project) -> Iterator[tuple[str, str]]:
    """Yield the variables that stages read keys from, with their references."""
    for serving in project.serving.values():
        if serving.is_used and serving.api_key and serving.api_key.startswith("env:"):
            yield serving.api_key.removeprefix("env:"), serving.api_key


def secret_values(references: Mapping[str, str]) -> dict[str, str]:
    """Variable -> value for variable -> `env:NAME` or `file:PATH`; all that are missing are told at once."""
    values, missing = {}, []
    for variable, reference in sorted(references.items()):
        kind, _, where = reference.partition(":")
        if kind == "env" and os.environ.get(where):
            values[variable] = os.environ[where]
        elif kind == "file" and Path(where).expanduser().is_file():
            values[variable] = Path(where).expanduser().read_text(encoding="utf-8").strip()
        else:
            missing.append(f"{variable} ({reference})")
    if missing:
        raise UsageError(
            f"secrets that the job needs are not here: {', '.join(missing)}\n"
            "  export them where you submit, or give them by file:PATH"
        )
    return values


WIDTH = 110
NUMBER_BEGINS = "0123456789+-."
"""What a number begins with. PyYAML writes `49689e12` as it is, since in its YAML (1.1) that is a text; Kubernetes
reads it as a number, as YAML 1.2 has it."""


def yaml_text(value: Any) -> str:
    """A value as YAML, in the order of its keys.

    >>> print(yaml_text({"token": "49689e12", "replicas": 2, "name": "a"}), end="")
    token: '49689e12'
    replicas: 2
    name: a
    """
    return yaml.dump(value, Dumper=PlainDumper, sort_keys=False, width=WIDTH, allow_unicode=True)


class PlainDumper(yaml.SafeDumper):
    """Writes a value again each time, and quotes whatever could be a number."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write a value again each time."""
        return True


def _quoted(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "'" if text[:1] and text[0] in NUMBER_BEGINS and "\n" not in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


PlainDumper.add_representer(str, _quoted)
