"""State of a stage of the pipeline, and why it must run or need not, in words."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from charter.artifacts.fingerprint import describe, differences
from charter.artifacts.job import JOB_FILE
from charter.artifacts.stage_state import (
    Proof,
    StageState,
    budget_holds,
    read_json_or_empty,
    read_stage,
    stage_state,
)
from charter.run.approval import waiting_words, waits_for_approval
from charter.run.events import last_events
from charter.run.graph import Pipeline, PlannedStage
from charter.run.paths import earlier_stage_dirs, run_dir
from charter.tracking.progress import EVENTS_FILE


def assess(
    stage: PlannedStage,
    root: Path,
    *,
    proof: Proof = "hashes",
    is_ready: bool = False,
    budget: str = "",
    last_sign: float | None = None,
    read: Callable[[Path], Mapping[str, Any]] = read_json_or_empty,
    now: float | None = None,
) -> StageState:
    """Return the state of a stage of the pipeline: done only with a record of this fingerprint and sound outputs.

    `is_ready`: all that it reads is there, so that only an approval can keep it waiting. `budget` says why a budget
    holds it; `last_sign` is the newest heartbeat that the ledger has of a running attempt at it.
    """
    evidence = read_stage(stage.directory, fingerprint=stage.fingerprint, proof=proof, read=read, now=now)
    waits = is_ready and not evidence.has_job and waits_for_approval(stage, root)
    evidence = replace(
        evidence,
        proof=stage.kept.why if stage.kept else evidence.proof,
        difference="" if evidence.has_job else _difference(stage, root, read),
        approval=waiting_words(stage) if waits else "",
        budget=budget,
        last_sign=last_sign,
    )
    return stage_state(evidence, now=time.time() if now is None else now)


def states_of(
    pipeline: Pipeline,
    *,
    proof: Proof = "hashes",
    signs: Mapping[str, float] | None = None,
    holds: Mapping[str, str] | None = None,
    read: Callable[[Path], Mapping[str, Any]] = read_json_or_empty,
    now: float | None = None,
) -> dict[str, StageState]:
    """Return the state of every stage, in execution order: what status, pages and reports show.

    `signs` has the newest heartbeat of running attempts by stage, from the ledger; `holds` what budgets hold, by stage,
    read from the run's events where it is not given.
    """
    if holds is None:
        holds = budget_holds(last_events(run_dir(pipeline.root) / EVENTS_FILE))
    states: dict[str, StageState] = {}
    for name, stage in pipeline.stages.items():
        states[name] = assess(
            stage,
            pipeline.root,
            proof=proof,
            is_ready=all(states[source].done for source in stage.stage_inputs),
            budget=holds.get(name, holds.get("", "")),
            last_sign=(signs or {}).get(name),
            read=read,
            now=now,
        )
    return states


def input_names(stage: PlannedStage, old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, str]:
    """For every role, the names of those inputs whose fingerprints differ between two identities."""
    names: dict[str, str] = {}
    for role, items in stage.inputs.items():
        before = old.get("inputs", {}).get(role) or []
        after = new.get("inputs", {}).get(role) or []
        changed = [item.name for item, fp in zip(items, after, strict=False) if fp not in before]
        names[role] = ", ".join(changed or [item.name for item in items])
    return names


def describe_all(stage: PlannedStage, old: Mapping[str, Any]) -> list[str]:
    """All differences between an old identity and the one that is asked for, in words, each once."""
    names = input_names(stage, old, stage.identity)
    return list(dict.fromkeys(describe(*item, names) for item in differences(old, stage.identity)))


def _difference(stage: PlannedStage, root: Path, read: Callable[[Path], Mapping[str, Any]]) -> str:
    """Return what has changed since the newest earlier run of the stage, in words; empty where there was none."""
    for directory in earlier_stage_dirs(root, stage.name):
        old = read(directory / JOB_FILE).get("identity")
        if isinstance(old, dict) and (words := describe_all(stage, old)):
            return "; ".join(words)
    return ""
