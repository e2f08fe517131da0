"""`charter artifacts import`: a foreign run put into ledger, curves and a file of measurements."""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from charter.artifacts import durable
from charter.artifacts.fingerprint import sha256_file
from charter.artifacts.lease import LEASE, read_holder
from charter.catalog.huggingface import architecture_from_config
from charter.errors import DataError, UsageError
from charter.ledger.attempt import tags_text
from charter.ledger.imported import Change, ImportedAttempt, StoredImport, import_id_of
from charter.ledger.store import Ledger, has_ledger, ledger_place
from charter.run.graph import build_pipeline
from charter.run.imports.charges import (
    Belongs,
    Machines,
    csv_text,
    facts_of_stage,
    imported_attempts,
    measured_row,
    row_hash,
    row_hashes,
    without_row,
)
from charter.run.imports.logs import (
    TRAINER_FORMATS,
    Format,
    FoundRun,
    formats,
    is_trainer_state,
    read_engine_log,
    read_run_directory,
    read_run_on_server,
    read_trainer_run,
    run_directory,
)
from charter.run.paths import run_dir
from charter.spec.architecture import Architecture
from charter.spec.graph import inputs_of
from charter.spec.project import Project
from charter.tracking.base import IMPORTED_METRICS
from charter.validation.rows.measurement import Measurement

RECEIPTS = "imports"
SCHEMA = "charter.import_receipt/1"


@dataclass(frozen=True, kw_only=True)
class WrittenRow:
    """A row of a file of measurements."""

    file: str
    row_id: str
    sha256: str
    """Of its cells, so that one that was edited since is known for it."""


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """The files and rows of one import. It is written before they are, so it may name some that never came to be."""

    import_id: str
    stage: str
    curves: Mapping[str, str] = field(default_factory=dict)
    """Path below the run's directory -> SHA-256 of what was written there."""
    rows: tuple[WrittenRow, ...] = ()

    def __add__(self, later: "Receipt") -> "Receipt":
        """With what a later import of the same run wrote; where it wrote in the same place, only that."""
        replaced = {(row.file, row.row_id) for row in later.rows}
        earlier = tuple(row for row in self.rows if (row.file, row.row_id) not in replaced)
        return Receipt(
            import_id=later.import_id,
            stage=later.stage,
            curves={**self.curves, **later.curves},
            rows=(*earlier, *later.rows),
        )


def receipt_path(run_dir: Path, import_id: str) -> Path:
    """Return the path of an import's receipt."""
    return run_dir / RECEIPTS / f"{import_id}.json"


def add_receipt(run_dir: Path, receipt: Receipt) -> None:
    """Write down what an import is about to write, beside what it wrote before."""
    path = receipt_path(run_dir, receipt.import_id)
    earlier = _read(path) if path.exists() else None
    merged = receipt if earlier is None else earlier + receipt
    durable.make_dir(path.parent)
    durable.write_json(path, _json(merged))


def read_receipts(run_dir: Path) -> dict[str, Receipt]:
    """All receipts of a run by the id of the import; DataError for one that is damaged."""
    receipts = (_read(path) for path in sorted((run_dir / RECEIPTS).glob("*.json")))
    return {receipt.import_id: receipt for receipt in receipts}


def remove_receipt(run_dir: Path, import_id: str) -> None:
    """Remove a receipt, when nothing of its import is left."""
    path = receipt_path(run_dir, import_id)
    if path.exists():
        durable.remove_file(path)


def _json(receipt: Receipt) -> dict[str, Any]:
    rows = [{"file": row.file, "id": row.row_id, "sha256": row.sha256} for row in receipt.rows]
    return {
        "schema": SCHEMA,
        "import": receipt.import_id,
        "stage": receipt.stage,
        "curves": dict(receipt.curves),
        "rows": rows,
    }


def _read(path: Path) -> Receipt:
    content = durable.read_json(path)
    try:
        rows = [WrittenRow(file=row["file"], row_id=row["id"], sha256=row["sha256"]) for row in content["rows"]]
        return Receipt(
            import_id=content["import"], stage=content["stage"], curves=dict(content["curves"]), rows=tuple(rows)
        )
    except (KeyError, TypeError, ValueError):
        raise DataError(
            f"{path} is not what Charter wrote there; move it away, and taking that import back leaves its files"
        ) from None


MODEL_ROLES = ("init", "policy")


@dataclass(frozen=True, kw_only=True)
class Imported:
    """Outcome of a run's import."""

    found: FoundRun
    attempts: tuple[ImportedAttempt, ...] = ()
    changes: tuple[Change, ...] = ()
    """What became of each attempt in the ledger; empty where nothing was written."""
    curves: Path | None = None

    @property
    def import_id(self) -> str | None:
        """Return the id that `--take-back` takes; None where it is in no ledger."""
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
    run: FoundRun,
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
    attempts = imported_attempts(run, machines, belongs, another=another)
    if dry_run:
        return Imported(found=run, attempts=attempts)
    where = run_dir(root.resolve())
    place = ledger_place(where, project.storage.ledger)
    if isinstance(place, Path):
        durable.make_dir(place.parent)
    with Ledger.open(place) as ledger:
        names = {item.job_id: item.run for of in ledger.imports(run=project.run_in_ledger) for item in of.attempts}
        # A project that was renamed goes on with what it imported under its earlier name.
        attempts = tuple(replace(item, run=names.get(item.job_id, item.run)) for item in attempts)
        changes = ledger.record_imported(attempts)
    done = Imported(found=run, attempts=attempts, changes=changes, curves=planned.directory / IMPORTED_METRICS)
    _write_curves(done, where, rows)
    return done


def written_row(path: Path, row: Measurement) -> WrittenRow:
    """A row of measurements as the receipt of an import names it."""
    return WrittenRow(file=str(path.resolve()), row_id=row.id, sha256=row_hash(row))


def row_of(
    run: FoundRun, machines: Machines, given: Mapping[str, str], *, project: Project | None, root: Path, stage: str
) -> Measurement:
    """The run as a row of measurements, by what the log, the stage, the machines and the options say."""
    facts: dict[str, str] = {}
    if project is not None and stage in project.pipeline:
        facts |= {**facts_of_stage(project.pipeline[stage]), **model_facts(project, root, stage)}
    if machines.accelerators is not None:
        name, count = machines.accelerator
        facts |= {"gpu": name, "gpus": str(count), "gpus_per_node": str(count // machines.nodes)}
    if machines.hours is not None and all(attempt.seconds is None for attempt in run.attempts):
        steps = sum(attempt.last_step - attempt.first_step for attempt in run.attempts)
        value = {"value": f"{machines.hours * 3600 / max(1, steps):.6g}"}
        return measured_row(run, {**facts, "notes": "--hours over all steps"}, {**value, **given})
    return measured_row(run, facts, given)


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


def _shape(architecture: Architecture) -> dict[str, str]:
    columns = {
        "hidden": architecture.hidden_size,
        "layers": architecture.num_layers,
        "heads": architecture.num_heads,
        "kv_heads": architecture.num_kv_heads,
        "ffn": architecture.intermediate_size,
        "vocab": architecture.vocab_size,
        "tied_embeddings": int(architecture.tied_embeddings),
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


def _curve_lines(run: FoundRun) -> str:
    """The figures of every step, as they were logged last."""
    last = {step.step: step for attempt in run.attempts for step in attempt.steps}
    lines = []
    for number in sorted(last):
        step = last[number]
        time = {} if step.time is None else {"time": step.time}
        tokens = {} if step.tokens is None else {"tokens": step.tokens}
        lines.append(json.dumps({"step": number, **time, **tokens, **_plain(step.metrics)}) + "\n")
    return "".join(lines)


def _plain(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics that a line can hold beside its own fields."""
    return {
        name: value
        for name, value in metrics.items()
        if name not in ("step", "time", "tokens") and math.isfinite(value)
    }


LEAST_OF_AN_ID = 4


@dataclass(frozen=True, kw_only=True)
class PastImport:
    """A foreign run that a project has; `stored` is None where taking it back has stopped half-way."""

    import_id: str
    stage: str
    stored: StoredImport | None = None
    receipt: Receipt | None = None
    """None where another machine imported it, or an older Charter."""


@dataclass(frozen=True, kw_only=True)
class TakenBack:
    """Removals of taking an import back beside its attempts, and what of it stays."""

    past: PastImport
    curves: tuple[Path, ...] = ()
    rows: tuple[WrittenRow, ...] = ()
    stays: tuple[str, ...] = ()
    """One sentence for each thing that somebody else has changed, or that nobody wrote down."""


def past_imports(project: Project, root: Path) -> tuple[PastImport, ...]:
    """All imports of a project, in the order of the ledger; writes nothing."""
    where = run_dir(root.resolve())
    place = ledger_place(where, project.storage.ledger)
    stored: Mapping[str, StoredImport] = {}
    if has_ledger(place):
        with Ledger.open(place, create=False) as ledger:
            stored = {item.import_id: item for item in ledger.imports(run=project.run_in_ledger)}
    receipts = read_receipts(where)
    imports = [
        PastImport(import_id=name, stage=item.stage, stored=item, receipt=receipts.get(name))
        for name, item in stored.items()
    ]
    left = [item for name, item in receipts.items() if name not in stored]
    return (*imports, *(PastImport(import_id=item.import_id, stage=item.stage, receipt=item) for item in left))


def chosen(imports: Sequence[PastImport], wanted: str) -> PastImport:
    """The import that an id, or its first characters, names; UsageError for none or several."""
    matches = [item for item in imports if item.import_id == wanted]
    if not matches and len(wanted) >= LEAST_OF_AN_ID:
        matches = [item for item in imports if item.import_id.startswith(wanted)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise UsageError(f"{wanted} begins the ids of {', '.join(item.import_id for item in matches)}; give more of it")
    names = ", ".join(item.import_id for item in imports) or "nothing: no run was imported"
    raise UsageError(
        f"asked for the import {wanted!r}; this project has {names}\n"
        f"  give an id of `charter artifacts import --list`, or its first {LEAST_OF_AN_ID} characters or more"
    )


def what_goes(past: PastImport, imports: Sequence[PastImport], root: Path) -> TakenBack:
    """Return the removals of taking an import back; nothing is removed yet."""
    if past.receipt is None:
        unknown = "nothing here says which curves and measurements it wrote; those stay"
        return TakenBack(past=past, stays=(unknown,))
    others = [item.receipt for item in imports if item.receipt is not None and item.import_id != past.import_id]
    curves, curves_stay = _curves(past.receipt, others, run_dir(root.resolve()))
    rows, rows_stay = _rows(past.receipt, others)
    return TakenBack(past=past, curves=tuple(curves), rows=tuple(rows), stays=(*curves_stay, *rows_stay))


def _curves(receipt: Receipt, others: Sequence[Receipt], where: Path) -> tuple[list[Path], list[str]]:
    """Those that are as they were written and nobody else's; sentences about the others."""
    goes, stays = [], []
    for name, sha256 in receipt.curves.items():
        path = where / name
        if not path.is_file():
            continue
        if sha256_file(path) != sha256 or any(other.curves.get(name) == sha256 for other in others):
            stays.append(f"{path} stays: another import wrote it, or it was changed")
        else:
            goes.append(path)
    return goes, stays


def _rows(receipt: Receipt, others: Sequence[Receipt]) -> tuple[list[WrittenRow], list[str]]:
    """The same of rows of measurements."""
    goes, stays = [], []
    for row in receipt.rows:
        there = row_hashes(_text(row.file)).get(row.row_id)
        if there is None:
            continue
        if there != row.sha256 or any(row in other.rows for other in others):
            stays.append(f"row {row.row_id} of {row.file} stays: another import wrote it, or it was changed")
        else:
            goes.append(row)
    return goes, stays


def take_back(project: Project, root: Path, going: TakenBack) -> int:
    """Remove an import: first from the ledger, each name of the project in one transaction, then its files.

    Return how many attempts that were. The receipt goes last, so that an end in between is finished by asking again.
    """
    where, past = run_dir(root.resolve()), going.past
    removed = 0
    if past.stored is not None:
        with Ledger.open(ledger_place(where, project.storage.ledger), create=False) as ledger:
            for name in sorted({item.run for item in past.stored.attempts}):
                removed += ledger.take_back_import(past.import_id, run=name)
    for path in going.curves:
        durable.remove_file(path)
    for row in going.rows:
        durable.write_file(Path(row.file), without_row(_text(row.file), row.row_id))
    remove_receipt(where, past.import_id)
    if read_holder(where / LEASE) is None:
        for directory in _emptied(going, where):
            directory.rmdir()
    return removed


def _emptied(going: TakenBack, where: Path) -> Iterator[Path]:
    """Directories that were made for what is gone; one with anything else in it stays."""
    for directory in (*(path.parent for path in going.curves), where / "stages", where / RECEIPTS):
        if directory.is_dir() and not any(directory.iterdir()):
            yield directory


def _text(file: str) -> str:
    path = Path(file)
    return path.read_text(encoding="utf-8-sig") if path.is_file() else ""


def read_run(run: str, *, format: Format | None = None, tracking_uri: str | None = None) -> FoundRun:
    """The run that a path means, or with a tracking URI the MLflow run of that id."""
    if format is not None and format not in formats():
        raise UsageError(f"no reader is called {format!r}; --format is one of {', '.join(formats())}")
    if tracking_uri is not None:
        if format not in (None, "mlflow"):
            raise UsageError(f"--tracking-uri is of MLflow, but --format says {format}; leave one of them out")
        return read_run_on_server(run, tracking_uri)
    path = Path(run)
    if not path.exists():
        hint = "give --tracking-uri for the id of an MLflow run" if format in (None, "mlflow") else "correct the path"
        raise UsageError(f"there is no file or directory {run}; {hint}")
    if format in TRAINER_FORMATS or (format is None and is_trainer_state(path)):
        return read_trainer_run(path)
    if format in (None, "mlflow") and (directory := run_directory(path)) is not None:
        return read_run_directory(directory)
    if format == "mlflow":
        raise UsageError(f"{path} holds no MLflow run (a meta.yaml beside metrics/); give --tracking-uri and a run id")
    return read_engine_log(path, format)
