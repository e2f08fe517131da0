"""Which foreign runs a project has, and one of them removed with all that it wrote: `charter import --take-back`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from charter.artifacts import durable
from charter.artifacts.file_facts import sha256_file
from charter.artifacts.lease import LEASE, read_holder
from charter.errors import UsageError
from charter.ledger.imported import StoredImport
from charter.ledger.store import Ledger, has_ledger, ledger_place
from charter.pipeline.imports.measured_rows import row_hashes, without_row
from charter.pipeline.imports.receipts import RECEIPTS, Receipt, WrittenRow, read_receipts, remove_receipt
from charter.pipeline.paths import run_dir
from charter.spec.project import Project

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
    """What taking an import back removes beside its attempts, and what of it stays."""

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
            stored = {item.import_id: item for item in ledger.imports(run=project.name)}
    receipts = read_receipts(where)
    made = [
        PastImport(import_id=name, stage=item.stage, stored=item, receipt=receipts.get(name))
        for name, item in stored.items()
    ]
    left = [item for name, item in receipts.items() if name not in stored]
    return (*made, *(PastImport(import_id=item.import_id, stage=item.stage, receipt=item) for item in left))


def chosen(imports: Sequence[PastImport], asked: str) -> PastImport:
    """The import that an id, or its first characters, names; UsageError for none or several."""
    found = [item for item in imports if item.import_id == asked]
    if not found and len(asked) >= LEAST_OF_AN_ID:
        found = [item for item in imports if item.import_id.startswith(asked)]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"{asked} begins the ids of {', '.join(item.import_id for item in found)}; give more of it")
    known = ", ".join(item.import_id for item in imports) or "nothing: no run was imported"
    raise UsageError(
        f"asked for the import {asked!r}; this project has {known}\n"
        f"  give an id of `charter import --list`, or its first {LEAST_OF_AN_ID} characters or more"
    )


def what_goes(past: PastImport, imports: Sequence[PastImport], root: Path) -> TakenBack:
    """What taking an import back would remove; nothing is removed yet."""
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
    """Remove an import: first from the ledger, in one transaction, then its files. How many attempts that were.

    The receipt goes last, so that an end in between is finished by asking again.
    """
    where, past = run_dir(root.resolve()), going.past
    removed = 0
    if past.stored is not None:
        with Ledger.open(ledger_place(where, project.storage.ledger), create=False) as ledger:
            removed = ledger.take_back_import(past.import_id, run=project.name)
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
