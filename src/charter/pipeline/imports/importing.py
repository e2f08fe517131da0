"""`charter import`: a foreign run put into the ledger, beside its stage as curves, and into a file of measurements."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from charter.artifacts import durable
from charter.calibration.rows.measurement import Measurement
from charter.catalog.huggingface import architecture_from_config
from charter.ledger.attempt import tags_text
from charter.ledger.imported import Change, ImportedAttempt, import_id_of
from charter.ledger.store import Ledger, ledger_place
from charter.pipeline.graph import build_pipeline
from charter.pipeline.imports.charges import Belongs, Machines, imported_attempts
from charter.pipeline.imports.found import FoundRun
from charter.pipeline.imports.measured_rows import csv_text, facts_of_stage, measured_row, row_hash
from charter.pipeline.imports.receipts import Receipt, WrittenRow, add_receipt
from charter.pipeline.paths import run_dir
from charter.spec.architecture import Architecture
from charter.spec.graph import inputs_of
from charter.spec.project import Project
from charter.tracking.jsonl import IMPORTED_METRICS

MODEL_ROLES = ("init", "policy")


@dataclass(frozen=True, kw_only=True)
class Imported:
    """What came of a run."""

    found: FoundRun
    attempts: tuple[ImportedAttempt, ...] = ()
    changes: tuple[Change, ...] = ()
    """What became of each attempt in the ledger; empty where nothing was written."""
    row: Measurement | None = None
    curves: Path | None = None

    @property
    def import_id(self) -> str | None:
        """What `--take-back` calls it; None where it is in no ledger."""
        return import_id_of(self.attempts[0].job_id) if self.attempts else None

    @property
    def usd(self) -> float | None:
        """Of all attempts; None without a price."""
        from charter.ledger.account import cost_micro_usd

        costs = [
            cost_micro_usd(
                milliseconds=item.duration_milliseconds,
                count=item.count,
                price_micro_usd_per_hour=item.price_micro_usd_per_hour,
            )
            for item in self.attempts
            if item.price_micro_usd_per_hour is not None
        ]
        return sum(costs) / 1e6 if costs else None


def import_into(
    project: Project,
    root: Path,
    found: FoundRun,
    *,
    stage: str,
    machines: Machines,
    another: bool,
    now: float,
    rows: Sequence[WrittenRow] = (),
    dry_run: bool = False,
) -> Imported:
    """Write a run under a stage of a project: its attempts into the ledger, its curves beside the stage.

    `rows` are those of measurements that come with it, which the caller writes afterwards. A dry run writes nothing.
    """
    planned = build_pipeline(project, root, keep_hashes=not dry_run).stage(stage)
    belongs = Belongs(
        run=project.name,
        stage=stage,
        kind=planned.spec.kind,
        fingerprint=planned.asked_fingerprint,
        owner=project.owner,
        tags=tags_text(project.tags),
        imported_at=now,
    )
    attempts = imported_attempts(found, machines, belongs, another=another)
    if dry_run:
        return Imported(found=found, attempts=attempts)
    where = run_dir(root.resolve())
    place = ledger_place(where, project.storage.ledger)
    if isinstance(place, Path):
        durable.make_dir(place.parent)
    with Ledger.open(place) as ledger:
        changes = ledger.record_imported(attempts)
    done = Imported(found=found, attempts=attempts, changes=changes, curves=planned.directory / IMPORTED_METRICS)
    _write_curves(done, where, rows)
    return done


def written_row(path: Path, row: Measurement) -> WrittenRow:
    """A row of measurements as the receipt of an import names it."""
    return WrittenRow(file=str(path.resolve()), row_id=row.id, sha256=row_hash(row))


def row_of(
    found: FoundRun, machines: Machines, given: Mapping[str, str], *, project: Project | None, root: Path, stage: str
) -> Measurement:
    """The run as a row of measurements, by what the log, the stage, the machines and the options say."""
    facts: dict[str, str] = {}
    if project is not None and stage in project.pipeline:
        facts |= {**facts_of_stage(project.pipeline[stage]), **model_facts(project, root, stage)}
    if machines.accelerators is not None:
        name, count = machines.accelerator
        facts |= {"gpu": name, "gpus": str(count), "gpus_per_node": str(count // machines.nodes)}
    if machines.hours is not None and all(attempt.seconds is None for attempt in found.attempts):
        steps = sum(attempt.last_step - attempt.first_step for attempt in found.attempts)
        value = {"value": f"{machines.hours * 3600 / max(1, steps):.6g}"}
        return measured_row(found, {**facts, "notes": "--hours over all steps"}, {**value, **given})
    return measured_row(found, facts, given)


def write_rows(path: Path, rows: Sequence[Measurement]) -> None:
    """Add rows to a file of measurements, which is made where there is none; the same rows again change nothing."""
    before = path.read_text(encoding="utf-8-sig") if path.is_file() else ""
    durable.make_dir(path.resolve().parent)
    durable.write_file(path, csv_text(rows, before=before))


def model_facts(project: Project, root: Path, stage: str) -> dict[str, str]:
    """The model that a stage trains, through the stages before it: its name, or its shape where it has none."""
    name = stage
    while name in project.pipeline:
        roles = inputs_of(project, name)
        name = next((roles[role][0] for role in MODEL_ROLES if roles.get(role)), "")
    spec = project.models.get(name)
    if spec is None:
        return {}
    if spec.architecture is not None:
        return _shape(spec.architecture)
    directory = root / (spec.model or "")
    if spec.model and directory.exists():
        return _shape(architecture_from_config(directory))
    return {"model": spec.model or ""}


def _shape(found: Architecture) -> dict[str, str]:
    columns = {
        "hidden": found.hidden_size,
        "layers": found.num_layers,
        "heads": found.num_heads,
        "kv_heads": found.num_kv_heads,
        "ffn": found.intermediate_size,
        "vocab": found.vocab_size,
        "tied_embeddings": int(found.tied_embeddings),
    }
    return {name: str(value) for name, value in columns.items() if value is not None}


def _write_curves(done: Imported, where: Path, rows: Sequence[WrittenRow]) -> None:
    """The figures of every step where pages and comparisons find them, after the receipt that names them."""
    assert done.curves is not None
    text = _curve_lines(done.found)
    sha256 = hashlib.sha256(text.encode()).hexdigest()
    curves = {str(done.curves.relative_to(where)): sha256}
    (stage,) = {attempt.stage for attempt in done.attempts}
    add_receipt(where, Receipt(import_id=done.import_id or "", stage=stage, curves=curves, rows=tuple(rows)))
    durable.make_dir(done.curves.parent)
    durable.write_file(done.curves, text)


def _curve_lines(found: FoundRun) -> str:
    """The figures of every step, as they were logged last."""
    last = {step.step: step for attempt in found.attempts for step in attempt.steps}
    lines = []
    for number in sorted(last):
        step = last[number]
        time = {} if step.time is None else {"time": step.time}
        tokens = {} if step.tokens is None else {"tokens": step.tokens}
        lines.append(json.dumps({"step": number, **time, **tokens, **_plain(step.metrics)}) + "\n")
    return "".join(lines)


def _plain(metrics: Mapping[str, float]) -> dict[str, float]:
    """What a line of metrics can hold beside its own fields."""
    return {
        name: value
        for name, value in metrics.items()
        if name not in ("step", "time", "tokens") and math.isfinite(value)
    }
