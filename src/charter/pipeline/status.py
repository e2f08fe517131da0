"""The state of every stage, in the shape that machines read (`charter status --json`)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from charter.artifacts.hosted_facts import read_hosted_facts
from charter.pipeline.approval import waiting_words, waits_for_approval
from charter.pipeline.graph import PlannedStage, build_pipeline
from charter.pipeline.paths import run_dir
from charter.pipeline.sent_status import sent_supervisor
from charter.pipeline.staleness import assess, read_progress
from charter.spec.project import Project
from charter.spec.stage import is_hosted

EXACT = "bit_exact"
"""Of the native engine, in one layout on one machine type."""


def status_of(project: Project, root: Path, *, thorough: bool = False) -> dict[str, Any]:
    """The run's name, and how far every stage is, why it is so, and how it goes beside its plan.

    `supervisor` is the one that `charter submit` has sent, None where none was. `outputs` maps paths relative to the
    stage's `outputs` directory to their SHA-256, and is empty until the stage is done.
    """
    pipeline = build_pipeline(project, root)
    attempts = _attempts(project, pipeline.root)
    stages = []
    for name, stage in pipeline.stages.items():
        verdict = assess(stage, pipeline.root, thorough=thorough)
        why = verdict.why
        if not verdict.done and waits_for_approval(stage, pipeline.root):
            why = f"{why}; {waiting_words(stage)}"
        if missing := pipeline.inputs.problems_of(stage.outside_inputs):
            why = "; ".join([why, *(f"{problem.path}: {problem.message}" for problem in missing)])
        stages.append(
            {
                "name": name,
                "kind": stage.spec.kind,
                "state": verdict.state,
                "step": verdict.step,
                "target_step": verdict.target_step,
                "attempts": attempts.get(stage.fingerprint + name, 0),
                "fingerprint": stage.fingerprint,
                "outputs": dict(verdict.outputs),
                "why": why,
                "directory": str(stage.directory),
                "engine": stage.spec.engine,
                "resume_guarantee": _guarantee(stage),
                "actual_over_planned": actual_over_planned(read_progress(stage.directory)),
            }
        )
    return {"run": project.name, "supervisor": sent_supervisor(pipeline.root), "stages": stages}


def actual_over_planned(progress: Mapping[str, Any]) -> dict[str, float]:
    """Measured over planned seconds of a step and peak bytes, as a stage last said them; without those it has not.

    >>> actual_over_planned({"metrics": {"loss": 2.0, "actual_over_planned_seconds": 1.25}})
    {'seconds': 1.25}
    """
    metrics = progress.get("metrics") or {}
    found = {name: metrics.get(f"actual_over_planned_{name}") for name in ("seconds", "bytes")}
    return {name: float(value) for name, value in found.items() if isinstance(value, int | float)}


def _guarantee(stage: PlannedStage) -> str | None:
    """What holds when the stage is killed and goes on; None where another engine computes it and has not started."""
    if not is_hosted(stage.spec):
        return EXACT
    facts = read_hosted_facts(stage.directory)
    return None if facts is None else facts.guarantee


def _attempts(project: Project, root: Path) -> dict[str, int]:
    """Attempts by fingerprint and stage; none when there is no ledger yet."""
    from charter.ledger.attempt_counts import attempt_counts
    from charter.ledger.place import has_ledger, ledger_place

    place = ledger_place(run_dir(root), project.storage.ledger)
    if not has_ledger(place):
        return {}
    counts = attempt_counts(place, run=project.name)
    return {fingerprint + stage: count for (stage, fingerprint), count in counts.items()}
