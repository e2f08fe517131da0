"""What a node agent is told on its command line: the same words on every node of a job."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Task:
    """One job, as its agents know it."""

    stage_dir: Path
    module: str
    job: int
    """Number of the submission in the stage directory."""
    token: str
    """A name of this very submission."""
    attempt: int = 1
    nodes: int = 1
    processes: int = 1
    """Per node."""
    apart: bool = False
    """A task of an array: it makes its share of the records without the others."""
    launcher: Literal["direct", "torchrun"] = "direct"
    time_limit_seconds: float | None = None
    stop_before_seconds: float = 120.0
    meter_seconds: float = 0.0
    check_disk_bytes: int | None = None
    """The node is checked before the start, and must have so much room; None for no checks."""
    slow_ratio: float = 2.0
    expected: int = 0
    """Nodes that were asked for, spares included; 0 for those that take part."""
    with_parent: bool = False
    """End when whoever started the agent has ended."""


def command_of(task: Task, *, python: str) -> tuple[str, ...]:
    """The command of an agent; what is as by default is left out.

    >>> command_of(Task(stage_dir=Path("/d"), module="m", job=3, token="t", nodes=2), python="python3")[3:]
    ('--stage-dir', '/d', '--module', 'm', '--job', '3', '--token', 't', '--nodes', '2')
    """
    words = [python, "-m", "charter.launch.agent"]
    default = Task(stage_dir=Path(), module="", job=-1, token="")
    for name, value in vars(task).items():
        if value == vars(default)[name]:
            continue
        words.append(f"--{name.replace('_', '-')}")
        words += [] if value is True else [f"{value:g}" if isinstance(value, float) else str(value)]
    return tuple(words)


def parse(argv: Sequence[str]) -> Task:
    """The task that a command line says."""
    parser = argparse.ArgumentParser(description="Run a stage's processes of one node.", allow_abbrev=False)
    parser.add_argument("--stage-dir", type=Path, required=True)
    parser.add_argument("--module", required=True)
    parser.add_argument("--job", type=int, required=True)
    parser.add_argument("--token", required=True)
    parser.add_argument("--attempt", type=int, default=Task.attempt)
    parser.add_argument("--nodes", type=int, default=Task.nodes)
    parser.add_argument("--processes", type=int, default=Task.processes)
    parser.add_argument("--apart", action="store_true")
    parser.add_argument("--launcher", choices=("direct", "torchrun"), default=Task.launcher)
    parser.add_argument("--time-limit-seconds", type=float)
    parser.add_argument("--stop-before-seconds", type=float, default=Task.stop_before_seconds)
    parser.add_argument("--meter-seconds", type=float, default=Task.meter_seconds)
    parser.add_argument("--check-disk-bytes", type=int)
    parser.add_argument("--slow-ratio", type=float, default=Task.slow_ratio)
    parser.add_argument("--expected", type=int, default=Task.expected)
    parser.add_argument("--with-parent", action="store_true")
    return Task(**vars(parser.parse_args(argv)))
