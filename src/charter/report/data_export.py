"""`charter artifacts export STAGE TARGET --format F`: the records of a finished stage as a data set."""

import io
import json
import tarfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Literal

from charter.artifacts.record import OUTPUTS, damaged_output
from charter.artifacts.whole_dir import check_target, publish_dir
from charter.data.convert import parquet_schema, write_parquet, write_rows
from charter.data.dataset import selected_rows
from charter.data.rows import row_kind
from charter.errors import DataError, UsageError
from charter.report.export import CARD, UNKNOWN_LICENCE, inputs_table, licence_text, markdown_table, record_of_finished
from charter.run.graph import build_pipeline
from charter.spec.project import Project

# -------- Rows written as JSONL, Parquet, a directory as hubs lay it out, or WebDataset shards with an index for DALI.


DataFormat = Literal["jsonl", "parquet", "hf", "webdataset"]
Rows = Callable[[], Iterable[Mapping[str, Any]]]
ROWS_PER_SHARD = 50_000
BLOCK_BYTES = 512
INDEX_VERSION = "v1.2"
"""Of the index that DALI 2.4.0 reads; its own tool, wds2idx, writes it too."""


@dataclass(frozen=True, kw_only=True)
class Member:
    """One file in a shard, where its content lies."""

    extension: str
    offset: int
    size: int
    name: str


def write_files(rows: Rows, target: Path, format: DataFormat, *, count: int) -> None:
    """Write rows below a directory; `rows` may be asked for them twice. One shard is held in memory at a time."""
    if format == "jsonl":
        write_rows(rows, target / "train.jsonl", target / "train.jsonl")
    elif format == "webdataset":
        for number, some in enumerate(_shards(rows())):
            _write_tar(some, target / f"train-{number:06d}.tar", first=number * ROWS_PER_SHARD)
    else:
        directory = target / "data" if format == "hf" else target
        directory.mkdir(exist_ok=True)
        schema, shards = parquet_schema(rows()), -(-count // ROWS_PER_SHARD)
        for number, some in enumerate(_shards(rows())):
            write_parquet(some, directory / f"train-{number:05d}-of-{shards:05d}.parquet", schema)


def _shards(rows: Iterable[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    remaining = iter(rows)
    while some := list(islice(remaining, ROWS_PER_SHARD)):
        yield some


def _write_tar(rows: Iterable[Mapping[str, Any]], path: Path, *, first: int) -> None:
    """One shard and its index; members have no owner and no time, so that equal rows are equal bytes."""
    samples: list[list[Member]] = []
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for number, row in enumerate(rows, start=first):
            samples.append([_add(archive, f"{number:09d}", *item) for item in _contents(row)])
    path.with_suffix(".idx").write_text(index_text(samples), encoding="utf-8")


def _contents(row: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
    """Extension and content: `json` holds the row, but plain text is a member of its own."""
    fields, text = dict(row), None
    if isinstance(row.get("text"), str):
        text = fields.pop("text")
    yield "json", json.dumps(fields, ensure_ascii=False, allow_nan=False).encode()
    if text is not None:
        yield "txt", text.encode()


def _add(archive: tarfile.TarFile, key: str, extension: str, content: bytes) -> Member:
    info = tarfile.TarInfo(f"{key}.{extension}")
    info.size = len(content)
    header = archive.offset
    archive.addfile(info, io.BytesIO(content))
    return Member(extension=extension, offset=header + BLOCK_BYTES, size=len(content), name=info.name)


def index_text(samples: Iterable[Iterable[Member]]) -> str:
    """The index of a shard, one line a sample: extension, offset, size and name of each member."""
    lines = [
        " ".join(f"{item.extension} {item.offset} {item.size} {item.name}" for item in sample) for sample in samples
    ]
    return "\n".join([f"{INDEX_VERSION} {len(lines)}", *lines]) + "\n"


# -------- `charter artifacts export STAGE TARGET --format F`: the records of a finished stage as a data set.


READERS: Mapping[DataFormat, str] = {
    "jsonl": 'load_dataset("json", data_files="train.jsonl")',
    "parquet": 'load_dataset("parquet", data_files="train-*.parquet")',
    "hf": 'load_dataset("path/of/this/directory")',
    "webdataset": 'webdataset.WebDataset("train-{000000..NNNNNN}.tar").decode()',
}
PATTERNS: Mapping[DataFormat, str] = {
    "jsonl": "train.jsonl",
    "parquet": "train-*.parquet",
    "hf": "data/train-*.parquet",
    "webdataset": "train-*.tar",
}
SIZES = (1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000)


def data_card(
    record: Mapping[str, Any],
    *,
    format: DataFormat,
    columns: Counter[str],
    kinds: Counter[str],
    licence: str = UNKNOWN_LICENCE,
) -> str:
    """The text of README.md; `columns` counts the rows that have each, `kinds` the rows in each of TRL's formats."""
    rows = sum(kinds.values())
    identity = record["identity"]
    parts = [
        _front_matter(format, rows, licence),
        f"# {record['stage']} ({record['kind']})\n",
        f"{rows:,} rows ({', '.join(f'{count:,} {kind}' for kind, count in sorted(kinds.items()))}), made by Charter "
        f"{record['versions'].get('charter', '?')} in a stage of kind `{record['kind']}`. Fingerprint of the stage: "
        f"`{record['fingerprint']}`.\n",
        f"Read it with `{READERS[format]}`, or as `data: {{{record['stage']}: {{path: .../{PATTERNS[format]}}}}}` in a "
        "`charter.yaml`.\n",
        "## Columns\n",
        markdown_table(
            ("Column", "Rows", "Meaning"), [(f"`{n}`", f"{c:,}", MEANINGS.get(n, "")) for n, c in columns.items()]
        ),
        _left_out(record["kind"]),
        "## Made from\n",
        inputs_table(record),
        "## Settings\n",
        markdown_table(
            ("Setting", "Value"), sorted({**identity.get("spec", {}), "seed": identity.get("seed")}.items())
        ),
        "## Licence\n",
        licence_text(licence),
    ]
    return "\n".join(part for part in parts if part)


def _front_matter(format: DataFormat, rows: int, licence: str) -> str:
    lines = ["---", f"license: {json.dumps(licence)}", "tags: [charter]", f'size_categories: ["{_size(rows)}"]']
    lines += [
        "configs:",
        "- config_name: default",
        "  data_files:",
        "  - split: train",
        f"    path: {PATTERNS[format]}",
    ]
    return "\n".join([*lines, "---", ""])


def _size(rows: int) -> str:
    """The hub's name of a range of sizes.

    >>> _size(12), _size(1000), _size(2_000_000)
    ('n<1K', '1K<n<10K', '1M<n<10M')
    """
    if rows < SIZES[0]:
        return f"n<{_short(SIZES[0])}"
    for low, high in pairwise(SIZES):
        if rows < high:
            return f"{_short(low)}<n<{_short(high)}"
    return f"n>{_short(SIZES[-1])}"


def _short(number: int) -> str:
    return f"{number // 1_000_000}M" if number >= 1_000_000 else f"{number // 1000}K"


def _left_out(kind: str) -> str:
    names = ", ".join(f"`{name}`" for name in sorted(LEFT_OUT[kind]))
    return f"Left out of the stage's records: {names}.\n" if names else ""


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
) -> DataExported:
    """Write the records of a finished stage, with their card, to a directory that does not exist yet."""
    stage = build_pipeline(project, root).stage(name)
    if stage.spec.kind not in LEFT_OUT:
        raise UsageError(
            f"stage {name} ({stage.spec.kind}) makes no records, so it has no --format {format}; stages that do: "
            f"{', '.join(LEFT_OUT)}. Without --format its model is exported"
        )
    record = record_of_finished(stage, root)
    check_target(target)
    if (wrong := damaged_output(stage.directory, record, thorough=True)) is not None:
        raise DataError(f"stage {name}: outputs damaged: {wrong}\n  `charter run` publishes them again")
    source = stage.directory / OUTPUTS / RECORDS
    columns, kinds = _counted(source, stage.spec.kind)

    def rows() -> Iterator[dict[str, Any]]:
        return (exported_row(row.value, stage.spec.kind) for row in selected_rows(source))

    def write(path: Path) -> None:
        write_files(rows, path, format, count=kinds.total())
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


# -------- Columns of a stage's records that are exported, and their meaning. Pure.

LEFT_OUT: Mapping[str, frozenset[str]] = {
    "critique": frozenset({"policy", "critic", "template", "tokens", "seed", "examples"}),
    "label": frozenset({"judge", "template", "tokens", "seed", "both_orders", "judgements"}),
    "generate": frozenset({"policy", "tokens", "seed"}),
    "prepare": frozenset(),
}
"""By kind of stage: what says how a record was made, and is of no use without the stage that made it."""
MEANINGS: Mapping[str, str] = {
    "id": "Name of the row; equal ids in two exports are the same row",
    "messages": "Turns of `role` and `content`; the last is the answer to be learnt",
    "prompt": "Turns before the answers, or one text",
    "completion": "The answer to `prompt`",
    "chosen": "The better answer, as one turn of the assistant",
    "rejected": "The other answer, as one turn of the assistant",
    "text": "Plain text",
    "chosen_probability": "Soft label: how probable it is that `chosen` is better, 0.5 to 1; TRL does not read it",
    "margin": "By how much `chosen` is better, on the scale of scores; TRL's RewardTrainer reads it",
    "principle": "The principle of the constitution that decided",
    "principles": "All principles of which the label is the average",
    "judge_model": "What judged, as its server or directory names it",
    "critic_model": "What criticised and revised",
    "policy_model": "What wrote the answer",
    "format": "How the judge was asked",
    "source": "Where the pair comes from: the policy, or the data set of candidates",
    "round": "Round of critique and revision, from 1",
    "init_prompt": "The last turn of the prompt",
    "init_response": "The answer before this round",
    "critic_prompt": "How the critique was asked for",
    "critic_response": "The critique",
    "revision_prompt": "How the revision was asked for",
    "revision_response": "The revision; the last turn of `messages`",
    "prompt_id": "The row of the prompts that was answered",
    "answer": "Which of the answers to one prompt, from 1",
    "finished": "Whether the text ended before the limit of its length",
    "shown": "Ids of the prompts that a new one was written after",
}


def exported_row(record: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """A record without what is left out; no value changes."""
    return {name: value for name, value in record.items() if name not in LEFT_OUT[kind]}
