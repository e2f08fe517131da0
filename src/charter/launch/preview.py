"""Preview of what would be sent to an engine for each stage: the submitted texts, but for names made at submission."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from charter.launch.engine import StageStart
from charter.launch.job import SENT, StageJob
from charter.launch.job import SUPERVISOR as SUPERVISOR
from charter.launch.machine import CPU, asked_accelerators, stage_processes
from charter.launch.servers import PoolSpec
from charter.launch.submission import SubmissionFacts, job_name, stage_job
from charter.spec.project import Project
from charter.spec.stage import MAKES_RECORDS

TOKEN = "00000000"
"""Stands for the name that every submission gets anew."""


def preview_job(
    project: Project,
    stage: str,
    stage_dir: Path,
    *,
    engine: str,
    module: str,
    processes: int | None = None,
    pools: tuple[PoolSpec, ...] = (),
) -> StageJob:
    """The first job of a stage; of accelerators the nodes are taken to have what the file asks for."""
    spec = project.pipeline[stage]
    kind, count = asked_accelerators(project, spec)
    world = processes or stage_processes(project, spec, gpus=0 if kind in ("", CPU) else count)
    shards = tuple(range(world)) if spec.kind in MAKES_RECORDS and world > 1 else ()
    request = StageStart(stage=stage, module=module, stage_dir=stage_dir, attempt=1, processes=world, pools=pools)
    return stage_job(project, request, SubmissionFacts(number=1, token=TOKEN, shards=shards), engine=engine)


def run_words(overrides: Sequence[str], *, anyway: bool) -> tuple[str, ...]:
    """Return what `charter run` must be told elsewhere to mean the same project as here.

    >>> run_words(["pipeline.ppo.episodes=640"], anyway=True)
    ('--anyway', '--set', 'pipeline.ppo.episodes=640')
    """
    replaced = [word for override in overrides for word in ("--set", override)]
    return (*(["--anyway"] if anyway else []), *replaced)


def supervisor_job(
    project: Project,
    path: Path,
    *,
    root: Path,
    engine: str,
    only: Sequence[str],
    words: Sequence[str] = (),
    token: str,
) -> StageJob:
    """The supervisor itself as a job: one core, which reads the project from `path` and submits its stages."""
    first = next(iter(project.pipeline))
    like = preview_job(project, first, root, engine=engine, module="-", processes=_least(project, first))
    words = [*(word for stage in only for word in ("--only", stage)), *words]
    directory = root / "run" / SUPERVISOR
    return replace(
        like,
        name=job_name(project.name, SUPERVISOR, token),
        stage=SUPERVISOR,
        kind=SUPERVISOR,
        command=(like.command[0], "-m", "charter.cli.main", "run", "-C", str(path), "--on", engine, "--yes", *words),
        directory=root,
        log=directory / f"log-{token}.txt",
        environment={**_without_threads(like.environment), SENT: engine},
        nodes=1,
        spare_nodes=0,
        processes_per_node=1,
        shards=1,
        accelerator="",
        accelerators_per_node=0,
        cpus_per_node=1,
        memory_bytes_per_node=None,
        time_limit_seconds=None,
        use_spot=False,
        labels={**like.labels, "stage": SUPERVISOR},
    )


def _least(project: Project, stage: str) -> int:
    return stage_processes(
        project, project.pipeline[stage], gpus=asked_accelerators(project, project.pipeline[stage])[1]
    )


def _without_threads(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if not name.endswith("_NUM_THREADS")}
