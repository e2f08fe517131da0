"""What an import wrote beside the ledger: one small file per import in the run's directory."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from charter.artifacts import durable
from charter.errors import DataError

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
        kept = tuple(row for row in self.rows if (row.file, row.row_id) not in replaced)
        return Receipt(
            import_id=later.import_id,
            stage=later.stage,
            curves={**self.curves, **later.curves},
            rows=(*kept, *later.rows),
        )


def receipt_path(run_dir: Path, import_id: str) -> Path:
    """Where the receipt of an import lies."""
    return run_dir / RECEIPTS / f"{import_id}.json"


def add_receipt(run_dir: Path, receipt: Receipt) -> None:
    """Write down what an import is about to write, beside what it wrote before."""
    path = receipt_path(run_dir, receipt.import_id)
    known = _read(path) if path.exists() else None
    merged = receipt if known is None else known + receipt
    durable.make_dir(path.parent)
    durable.write_json(path, _json(merged))


def read_receipts(run_dir: Path) -> dict[str, Receipt]:
    """All receipts of a run by the id of the import; DataError for one that is damaged."""
    found = (_read(path) for path in sorted((run_dir / RECEIPTS).glob("*.json")))
    return {receipt.import_id: receipt for receipt in found}


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
