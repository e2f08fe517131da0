"""A finished stage as a directory for others: the model, a card that says what it is, and what it cost."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from charter.artifacts.durable import json_text, read_json
from charter.artifacts.export import check_outputs, copy_model
from charter.artifacts.record import OUTPUTS, Record, read_record
from charter.artifacts.whole_dir import publish_dir
from charter.errors import UsageError
from charter.ledger.account import Accounted
from charter.ledger.call import CallSums
from charter.ledger.focus import usage_sums
from charter.ledger.store import Ledger, has_ledger, ledger_place
from charter.report.card_parts import UNKNOWN_LICENCE
from charter.report.model_card import model_card
from charter.run.graph import Pipeline, PlannedStage, build_pipeline
from charter.run.paths import run_dir
from charter.run.staleness import assess
from charter.spec.project import Project

CARD, COST = "README.md", "cost.json"
SCHEMA = "charter.export_cost/1"


def export_stage(project: Project, root: Path, name: str, target: Path, *, licence: str = UNKNOWN_LICENCE) -> Record:
    """Write a finished stage's model, its card and its cost to a directory that does not exist yet."""
    pipeline = build_pipeline(project, root)
    stage = pipeline.stage(name)
    record = record_of_finished(stage, root)
    if target.exists():
        raise UsageError(f"{target} exists already; give a directory that does not")
    check_outputs(stage.directory, record)

    def write(path: Path) -> None:
        score = copy_model(stage.directory, record, path)
        card = model_card(
            record.to_json(), figures=figures_about(pipeline, record.fingerprint), score=score, licence=licence
        )
        (path / CARD).write_text(card, encoding="utf-8")
        attempts, calls = _spent(root, stage, project.storage.ledger)
        (path / COST).write_text(json_text(cost_of(stage, attempts, calls)), encoding="utf-8")

    publish_dir(target.resolve(), write)
    return record


def figures_about(pipeline: Pipeline, fingerprint: str) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    """The figures of every finished evaluation that read a stage of this fingerprint."""
    figures = {}
    for name, stage in pipeline.stages.items():
        record = read_record(stage.directory) if stage.spec.kind == "eval" else None
        if record is None:
            continue
        read = {item["fingerprint"] for items in record.inputs.values() for item in items}
        path = stage.directory / OUTPUTS / "results.json"
        if fingerprint in read and path.exists():
            figures[name] = read_json(path).get("figures", [])
    return figures


def cost_of(stage: PlannedStage, accounted: Sequence[Accounted], calls: CallSums) -> Mapping[str, Any]:
    """Return the cost of a stage's attempts together; no dollars where none of them has a price."""
    costs = [item.cost_micro_usd for item in accounted if item.cost_micro_usd is not None]
    return {
        "schema": SCHEMA,
        "stage": stage.name,
        "fingerprint": stage.fingerprint,
        "attempts": len(accounted),
        "seconds": sum(item.attempt.duration_milliseconds for item in accounted) / 1000,
        "lost_seconds": sum(item.lost_milliseconds for item in accounted) / 1000,
        "usd": sum(costs) / 1e6 if costs else None,
        "calls": calls.requests,
        "calls_usd": calls.settled_micro_usd / 1e6,
        "calls_usd_most": calls.most_micro_usd / 1e6,
    }


def record_of_finished(stage: PlannedStage, root: Path) -> Record:
    """The record of a stage; a UsageError says why there is none."""
    verdict = assess(stage, root)
    record = read_record(stage.directory)
    if not verdict.done or record is None:
        raise UsageError(f"stage {stage.name} is {verdict.state} ({verdict.why}); `charter run` finishes it")
    return record


def _spent(root: Path, stage: PlannedStage, server: str | None) -> tuple[Sequence[Accounted], CallSums]:
    """Attempts and calls of a stage under its fingerprint."""
    place = ledger_place(run_dir(root), server)
    if not has_ledger(place):
        return (), CallSums()
    with Ledger.open(place, create=False) as ledger:
        accounted = [item for item in ledger.accounted() if item.attempt.fingerprint == stage.fingerprint]
        return accounted, usage_sums(item for item in ledger.usage() if item.fingerprint == stage.fingerprint)
