"""`charter artifacts export STAGE TARGET --format F`: the records of a finished stage as a data set."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from charter.artifacts.record import OUTPUTS, damaged_output
from charter.artifacts.whole_dir import publish_dir
from charter.data.dataset import selected_rows
from charter.data.rows import row_kind
from charter.errors import DataError, UsageError
from charter.report.card_parts import UNKNOWN_LICENCE
from charter.report.data_export.card import data_card
from charter.report.data_export.columns import LEFT_OUT, exported_row
from charter.report.data_export.shards import ROWS_PER_SHARD, DataFormat, write_files
from charter.report.export import CARD, record_of_finished
from charter.run.graph import build_pipeline
from charter.spec.project import Project

RECORDS = "records.jsonl"


@dataclass(frozen=True, kw_only=True)
class DataExported:
    """Files of an export."""

    fingerprint: str
    rows: int
    kinds: Counter[str]
    """Rows in each of TRL's formats."""


def export_data(
    project: Project,
    root: Path,
    name: str,
    target: Path,
    *,
    format: DataFormat,
    licence: str = UNKNOWN_LICENCE,
    per_shard: int = ROWS_PER_SHARD,
) -> DataExported:
    """Write the records of a finished stage, with their card, to a directory that does not exist yet."""
    stage = build_pipeline(project, root).stage(name)
    if stage.spec.kind not in LEFT_OUT:
        raise UsageError(
            f"stage {name} ({stage.spec.kind}) makes no records, so it has no --format {format}; stages that do: "
            f"{', '.join(LEFT_OUT)}. Without --format its model is exported"
        )
    record = record_of_finished(stage, root)
    if target.exists():
        raise UsageError(f"{target} exists already; give a directory that does not")
    if (wrong := damaged_output(stage.directory, record, thorough=True)) is not None:
        raise DataError(f"stage {name}: outputs damaged: {wrong}\n  `charter run` publishes them again")
    source = stage.directory / OUTPUTS / RECORDS
    columns, kinds = _counted(source, stage.spec.kind)

    def rows() -> Iterator[dict[str, Any]]:
        return (exported_row(row.value, stage.spec.kind) for row in selected_rows(source))

    def write(path: Path) -> None:
        write_files(rows, path, format, count=kinds.total(), per_shard=per_shard)
        card = data_card(record.to_json(), format=format, columns=columns, kinds=kinds, licence=licence)
        (path / CARD).write_text(card, encoding="utf-8")

    publish_dir(target.resolve(), write)
    return DataExported(fingerprint=record.fingerprint, rows=kinds.total(), kinds=kinds)


def _counted(source: Path, kind: str) -> tuple[Counter[str], Counter[str]]:
    columns: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    for row in selected_rows(source):
        columns.update(exported_row(row.value, kind).keys())
        kinds[row_kind(row)] += 1
    return columns, kinds
