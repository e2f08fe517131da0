"""What the nodes of an engine are: asked once per kind of node, by a tiny job, and kept beside the run.

python -m charter.launch.node_facts OUT
"""

import hashlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from charter.artifacts import durable
from charter.errors import DataError, StageError
from charter.launch.job import StageJob
from charter.launch.machine import NodeFacts, facts_here
from charter.launch.scheduler import Scheduler

FACTS = "node_facts"
LOOK_SECONDS = 0.25
FRESH_SECONDS = 3600.0
"""Nodes may get other libraries: what is older is asked again."""
AFTER_END_SECONDS = 10.0
"""A shared disk may show a file so long after the job that wrote it has ended."""


def main() -> None:
    """Write this node's facts."""
    durable.write_json(Path(sys.argv[1]), asdict(facts_here()))


def facts_path(run_dir: Path, job: StageJob, *, engine: str) -> Path:
    """Where the facts of the kind of node that a job asks for are kept."""
    kind = [engine, job.accelerator, job.command[0], sorted(job.environment.items())]
    digest = hashlib.sha256(json.dumps(kind).encode()).hexdigest()[:12]
    return run_dir / FACTS / f"{engine}-{digest}.json"


def facts_of(
    scheduler: Scheduler,
    job: StageJob,
    run_dir: Path,
    *,
    hurry: Callable[[], bool] = lambda: False,
    sleep: Callable[[float], None] = time.sleep,
) -> NodeFacts:
    """The facts of a kind of node: those that are kept, else by a job of one node that looks."""
    path = facts_path(run_dir, job, engine=scheduler.name)
    durable.make_dir(path.parent)
    if path.exists() and time.time() - path.stat().st_mtime > FRESH_SECONDS:
        path.unlink()
    try:
        return NodeFacts(**durable.read_json(path))
    except (DataError, TypeError):
        return _ask(scheduler, job, path, hurry=hurry, sleep=sleep)


def _ask(
    scheduler: Scheduler, job: StageJob, path: Path, *, hurry: Callable[[], bool], sleep: Callable[[float], None]
) -> NodeFacts:
    job_id = scheduler.submit(job)
    ended_for = 0.0
    while not path.exists():
        if hurry():
            scheduler.cancel(job_id)
            raise StageError(f"asked to stop while job {job_id} looked what the nodes of {scheduler.name} are")
        state = scheduler.poll([job_id])[job_id]
        if state.phase == "ended":
            if state.exit_code or ended_for > AFTER_END_SECONDS:
                raise StageError(
                    f"job {job_id}, which looks what the nodes of {scheduler.name} are, ended without an answer: "
                    f"{state.reason or state.cause or 'no reason given'}\n  its log: {_log(job)}\n"
                    "  can the nodes see the project's directory under the same path, and run launch.python?"
                )
            ended_for += LOOK_SECONDS
        sleep(LOOK_SECONDS)
    return NodeFacts(**durable.read_json(path))


def _log(job: StageJob) -> str:
    try:
        return job.log.read_text(encoding="utf-8", errors="replace")[-500:].strip() or "(empty)"
    except OSError:
        return f"there is no {job.log}"


if __name__ == "__main__":
    main()
