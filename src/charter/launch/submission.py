"""From a stage to the job that a scheduler is asked for, and what is remembered of a submission. `stage_job` is pure.

Preview of what would be sent to a scheduler for each stage: the submitted texts, but for names made at submission.
"""

import hashlib
import json
import secrets
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from charter.artifacts.job_files import JobFiles, Submission
from charter.errors import UsageError
from charter.launch.agent import AgentTask, command_of
from charter.launch.job import SENT, StageJob, safe_name, secrets_of
from charter.launch.job import SUPERVISOR as SUPERVISOR
from charter.launch.launcher import StageStart, drives_engine
from charter.launch.local import stage_environment
from charter.launch.machine import (
    CPU,
    asked_accelerators,
    asked_layout,
    asked_memory,
    stage_nodes,
    stage_processes,
    stage_threads,
)
from charter.launch.servers import PoolSpec, pools_text
from charter.launch.tags import tags_of
from charter.physics.node import CORES_PER_ACCELERATOR
from charter.spec.project import Project
from charter.spec.stage import MAKES_RECORDS, TRAINS, is_hosted
from charter.spec.stage_base import Stage

NAME_PART = 18
"""Letters of run and stage in a job's name: schedulers take 63 in all."""


@dataclass(frozen=True, kw_only=True)
class SubmissionFacts:
    """Facts of a submission beside the stage's start."""

    number: int
    token: str
    python: str = ""
    shards: tuple[int, ...] = ()
    """Tasks of an array; a stage that makes records is one job without."""
    exclude_nodes: tuple[str, ...] = ()


def stage_job(project: Project, request: StageStart, order: SubmissionFacts, *, scheduler: str) -> StageJob:
    """One attempt at a stage as a job; the same for the same arguments."""
    stage, launch = project.pipeline[request.stage], project.launch
    drives = drives_engine(stage, scheduler)
    nodes = stage_nodes(project, stage) if stage.kind in TRAINS or request.pools else 1
    kind, accelerators = _accelerators(project, stage, has_pools=bool(request.pools))
    ranks = _ranks(project, stage, request, accelerators)
    per_node = _per_node(request, ranks, nodes) if stage.kind in TRAINS else 1
    threads = stage_threads(project, stage, processes=ranks)
    files = JobFiles(request.stage_dir, order.number)
    spares = launch.node_checks.spares if stage.kind in TRAINS and nodes > 1 and not drives else 0
    checks = launch.node_checks.enabled and not order.shards and stage.kind in TRAINS
    task = AgentTask(
        stage_dir=request.stage_dir,
        module=request.module,
        job=order.number,
        token=order.token,
        attempt=request.attempt,
        nodes=1 if drives else nodes,
        engine_nodes=nodes if drives else 0,
        processes=1 if is_hosted(stage) else per_node,
        apart=bool(order.shards),
        launcher=launch.launcher if stage.kind in TRAINS and not is_hosted(stage) else "direct",
        time_limit_seconds=launch.time_limit,
        stop_before_seconds=launch.stop_before,
        meter_seconds=project.metering.every,
        check_disk_bytes=launch.node_checks.disk_bytes if checks else None,
        slow_ratio=launch.node_checks.slow_rank_ratio,
        expected=nodes + spares if spares else 0,
        pools=pools_text(request.pools) if request.pools else "",
        accelerators=accelerators if request.pools else 0,
        layout=layout_text(project, stage, ranks, accelerators) if stage.kind in TRAINS else "",
        with_parent=scheduler == "subprocess",
    )
    return StageJob(
        name=job_name(project.name, request.stage, order.token),
        run=project.name,
        stage=request.stage,
        kind=stage.kind,
        attempt=request.attempt,
        command=command_of(task, python=order.python or launch.python or sys.executable),
        directory=request.stage_dir,
        log=files.log,
        environment={**stage_environment(threads=threads), **request.environment, **launch.environment},
        secrets=dict(secrets_of(project)),
        nodes=nodes,
        spare_nodes=spares,
        processes_per_node=per_node,
        drives=drives,
        shards=max(1, len(order.shards)),
        accelerator=kind,
        accelerators_per_node=accelerators,
        cpus_per_node=_cores(project, stage, request, threads * per_node, accelerators, scheduler=scheduler),
        memory_bytes_per_node=asked_memory(project, stage),
        memory_limit_bytes_per_node=project.resources.memory,
        time_limit_seconds=launch.time_limit,
        stop_before_seconds=launch.stop_before,
        use_spot=_wants_spot(project, stage),
        exclude_nodes=order.exclude_nodes,
        labels=tags_of(project, run=project.name, stage=request.stage, attempt=request.attempt),
    )


def is_array(project: Project, request: StageStart) -> bool:
    """Return True if a stage is an array of tasks, each with its share of the batches.

    Every task would start servers of its own, so that a stage with servers is one job, whose process asks them all.
    """
    makes_records = project.pipeline[request.stage].kind in MAKES_RECORDS
    return makes_records and request.processes > 1 and not request.pools


def new_token() -> str:
    """Tells one submission from every other in the name of its job."""
    return secrets.token_hex(4)


def job_name(run: str, stage: str, token: str) -> str:
    """The name of a job, which every scheduler takes.

    >>> job_name("Harmless 8b", "sl_cai", "0a1b2c3d")
    'charter-harmless-8b-sl-cai-0a1b2c3d'
    """
    return safe_name(f"charter-{safe_name(run, longest=NAME_PART)}-{safe_name(stage, longest=NAME_PART)}-{token}")


def settings_of(job: StageJob) -> str:
    """A hash of all that a scheduler is asked for."""
    plain = {**asdict(job), "directory": str(job.directory), "log": str(job.log)}
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]


def submission_of(
    job: StageJob, order: SubmissionFacts, request: StageStart, *, scheduler: str, at: float
) -> Submission:
    """Return the record of a job, to be written before its scheduler is asked."""
    return Submission(
        scheduler=scheduler,
        name=job.name,
        token=order.token,
        number=order.number,
        settings=settings_of(job),
        attempt=request.attempt,
        nodes=1 if job.drives else job.nodes,
        spares=job.spare_nodes,
        processes=request.processes,
        accelerator=job.accelerator,
        count=job.nodes * max(1, job.accelerators_per_node),
        market="spot" if job.use_spot else "owned",
        shards=order.shards,
        exclude_nodes=order.exclude_nodes,
        submitted_at=at,
    )


def _ranks(project: Project, stage: Stage, request: StageStart, accelerators: int) -> int:
    """Processes that train together; of another engine's, Charter starts one beside them on each node."""
    if not is_hosted(stage):
        return request.processes
    return int(asked_layout(project, stage, gpus=accelerators)["world_size"])


def _per_node(request: StageStart, ranks: int, nodes: int) -> int:
    if ranks % nodes:
        raise UsageError(
            f"stage {request.stage} has {ranks} processes, which {nodes} nodes cannot share evenly; "
            "give a num_nodes that divides them, or --reshard"
        )
    return ranks // nodes


def layout_text(project: Project, stage: Stage, ranks: int, accelerators: int) -> str:
    """Return the layout of a stage as words of a command.

    The agents compare it with what the stage froze, so that a job cannot run another layout than it was submitted with.
    """
    layout = {**asked_layout(project, stage, gpus=accelerators), "world_size": ranks}
    return ",".join(f"{name}={value}" for name, value in sorted(layout.items()))


def _accelerators(project: Project, stage: Stage, *, has_pools: bool) -> tuple[str, int]:
    """Type and number per node.

    A stage that neither trains nor has pools has one process, which uses one; it gets as many as its own resources say,
    which a plan fills in, since complete machines are paid for.
    """
    kind, count = asked_accelerators(project, stage)
    if kind in ("", CPU):
        return "", 0
    own = stage.resources is not None and stage.resources.accelerators is not None
    return kind, count if stage.kind in TRAINS or has_pools or own else 1


def _cores(project: Project, stage: Stage, request: StageStart, own: int, accelerators: int, *, scheduler: str) -> int:
    """Cores of a node: those of the stage's processes, and of servers where these compute on processors.

    Beside accelerators what the file says, else enough to feed each of them: how many cores this machine has, from
    which jobs are sent, says nothing of a node with accelerators.
    """
    if not accelerators:
        return own + sum(pool.threads * pool.replicas for pool in request.pools)
    stated = (stage.resources.cpus if stage.resources else None) or project.resources.cpus
    return own if stated or scheduler == "subprocess" else max(own, CORES_PER_ACCELERATOR * accelerators)


def _wants_spot(project: Project, stage: Stage) -> bool:
    own = stage.resources.use_spot if stage.resources else None
    return (project.resources.use_spot if own is None else own) is True


TOKEN = "00000000"
"""Stands for the name that every submission gets anew."""


def preview_job(
    project: Project,
    stage: str,
    stage_dir: Path,
    *,
    scheduler: str,
    module: str,
    processes: int | None = None,
    pools: tuple[PoolSpec, ...] = (),
) -> StageJob:
    """The first job of a stage; of accelerators the nodes are taken to have what the file asks for."""
    spec = project.pipeline[stage]
    kind, count = asked_accelerators(project, spec)
    world = processes or stage_processes(project, spec, gpus=0 if kind in ("", CPU) else count)
    request = StageStart(stage=stage, module=module, stage_dir=stage_dir, attempt=1, processes=world, pools=pools)
    shards = tuple(range(world)) if is_array(project, request) else ()
    return stage_job(project, request, SubmissionFacts(number=1, token=TOKEN, shards=shards), scheduler=scheduler)


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
    scheduler: str,
    only: Sequence[str],
    words: Sequence[str] = (),
    token: str,
) -> StageJob:
    """The supervisor itself as a job: one core, which reads the project from `path` and submits its stages."""
    first = next(iter(project.pipeline))
    like = preview_job(project, first, root, scheduler=scheduler, module="-", processes=_least(project, first))
    words = [*(word for stage in only for word in ("--only", stage)), *words]
    directory = root / "run" / SUPERVISOR
    return replace(
        like,
        name=job_name(project.name, SUPERVISOR, token),
        stage=SUPERVISOR,
        kind=SUPERVISOR,
        command=(like.command[0], "-m", "charter.cli.main", "run", "-C", str(path), "--on", scheduler, "--yes", *words),
        directory=root,
        log=directory / f"log-{token}.txt",
        environment={
            **{name: value for name, value in like.environment.items() if not name.endswith("_NUM_THREADS")},
            SENT: scheduler,
        },
        nodes=1,
        spare_nodes=0,
        processes_per_node=1,
        drives=False,
        shards=1,
        accelerator="",
        accelerators_per_node=0,
        cpus_per_node=1,
        memory_bytes_per_node=None,
        memory_limit_bytes_per_node=None,
        time_limit_seconds=None,
        use_spot=False,
        labels={**like.labels, "stage": SUPERVISOR},
    )


def _least(project: Project, stage: str) -> int:
    return stage_processes(
        project, project.pipeline[stage], gpus=asked_accelerators(project, project.pipeline[stage])[1]
    )
