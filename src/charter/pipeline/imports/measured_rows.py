"""A foreign run as a row of the file that `charter calibrate` reads: what was run, and the seconds of a step. Pure."""

import csv
import hashlib
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields

from charter.calibration.quantities import quantity_of
from charter.calibration.rows.measurement import Measurement, parse
from charter.calibration.validate import safe_cases
from charter.errors import Problem, SpecError
from charter.pipeline.imports.found import Format, FoundRun, seconds_per_step
from charter.spec.stage import Stage

PREFIX = "IMP"
COLUMNS = tuple(field.name for field in fields(Measurement) if field.name != "problems")
FRAMEWORKS: Mapping[Format, str] = {
    "transformers": "HF Trainer",
    "trl": "TRL",
    "verl": "verl",
    "openrlhf": "OpenRLHF",
    "nemo_rl": "NeMo RL",
    "megatron": "Megatron-LM",
}
KINDS = {"pretrain": "pretrain", "sft": "sft", "preference_model": "rm", "ppo": "ppo"}
"""Kind of a stage -> kind of a row; others have no rows."""
NEEDED = ("kind", "framework", "gpu", "gpus")
NEEDED_OF_BATCHES = ("seq", "gbs")
"""Of every kind but reinforcement learning, whose rows count answers."""
HINTS = {
    "kind": "--as STAGE, or --fact kind=sft",
    "framework": "--fact framework='HF Trainer'",
    "gpu": "--accelerators H100:8",
    "gpus": "--accelerators H100:8 and --nodes",
    "seq": "--as STAGE, or --fact seq=4096",
    "gbs": "--as STAGE, or --fact gbs=64",
}
MODEL_HINT = "--as STAGE, or --fact model=Llama-3.1-8B (or --fact params_b=, hidden=, layers=, ...)"


def measured_row(found: FoundRun, facts: Mapping[str, str], given: Mapping[str, str]) -> Measurement:
    """The row of a run; `given` beats what the log knows, which beats `facts` of stage and machines.

    Raises with every fact that is missing, and with what the reader of such files would refuse.
    """
    problems = [*_unknown(given)]
    cells = {"framework": FRAMEWORKS.get(found.format, ""), **facts, **found.facts, **given}
    cells |= {"id": given.get("id", f"{PREFIX}-{found.identity[:10]}"), "metric": "step_time_s", "unit": "s"}
    cells.setdefault("source", found.source)
    measured = seconds_per_step(found)
    if measured is not None:
        cells["value"] = given.get("value", f"{measured[0]:.6g}")
        cells.setdefault("notes", measured[1])
    elif "value" not in given:
        hint = "give --hours (see --help), or --fact value=SECONDS of one step"
        problems.append(Problem(message=f"{found.source} does not say how long a step took", hint=hint))
    problems += [
        Problem(message=f"a row of measurements needs the column {name!r}, which nobody has told", hint=HINTS[name])
        for name in (*NEEDED, *(() if cells.get("kind") == "ppo" else NEEDED_OF_BATCHES))
        if not cells.get(name)
    ]
    if not cells.get("model") and not cells.get("params_b") and not (cells.get("hidden") and cells.get("layers")):
        problems.append(Problem(message="nobody has told which model was trained", hint=MODEL_HINT))
    if problems:
        raise SpecError(problems)
    (row,) = parse([cells], "--fact")
    return _predictable(row)


def facts_of_stage(stage: Stage) -> dict[str, str]:
    """What the specification of a stage says of a run of it."""
    adapter = getattr(stage, "adapter", None)
    found = {
        "kind": KINDS.get(stage.kind, ""),
        "seq": getattr(stage, "seq_len", ""),
        "gbs": getattr(stage, "global_batch", ""),
        "dtype": getattr(stage, "dtype", ""),
        "samples_per_step": getattr(stage, "rollout_batch", ""),
        "osl": getattr(stage, "max_new_tokens", ""),
        "adapter": "full" if adapter is None else "qlora" if adapter.base_bits == 4 else "lora",
        "lora_rank": "" if adapter is None else adapter.rank,
    }
    return {name: str(value) for name, value in found.items() if value not in ("", None)}


def csv_text(rows: Sequence[Measurement], *, before: str = "") -> str:
    """A file of rows; those of `before` stay, and a row with the same id takes the place of the one there."""
    table = csv.DictReader(before.splitlines())
    known = {row["id"]: row for row in table}
    new = {row.id: _cells(row) for row in rows}
    merged = {**known, **new}
    names = dict.fromkeys((*(table.fieldnames or ()), *_used(new.values())))
    return _table(names, merged.values())


def without_row(before: str, row_id: str) -> str:
    """A file of rows without one of them; its columns stay."""
    table = csv.DictReader(before.splitlines())
    kept = [row for row in table if row["id"] != row_id]
    return _table(table.fieldnames or (), kept)


def row_hash(row: Measurement) -> str:
    """What tells a row from one that was edited since."""
    return _hash_of(_cells(row))


def row_hashes(text: str) -> dict[str, str]:
    """The same of every row of a file, by its id; blank cells do not count."""
    rows = [row for row in csv.DictReader(text.splitlines()) if row.get("id")]
    return {row["id"]: _hash_of({name: cell for name, cell in row.items() if name and cell}) for row in rows}


def _hash_of(cells: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(dict(cells), sort_keys=True).encode()).hexdigest()


def _table(names: Iterable[str], rows: Iterable[Mapping[str, str]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(names), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _used(rows: Iterable[Mapping[str, str]]) -> list[str]:
    filled = {name for row in rows for name in row}
    return [name for name in COLUMNS if name in filled]


def _cells(row: Measurement) -> dict[str, str]:
    """The cells that are not blank."""
    values = {name: getattr(row, name) for name in COLUMNS}
    return {name: _text(value) for name, value in values.items() if value not in (None, "") and value != _blank(name)}


def _blank(name: str) -> object:
    return 1.0 if name == "weight" else None


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _unknown(given: Mapping[str, str]) -> Iterator[Problem]:
    for name in given:
        if name not in COLUMNS:
            hint = "the columns are those of docs/reference/measurements.md"
            yield Problem(message=f"--fact {name}: no such column", hint=hint)


def _predictable(row: Measurement) -> Measurement:
    """The row, when the planner can predict it; else `charter calibrate` would pass it over."""
    reasons = list(row.problems)
    if not reasons:
        quantity = quantity_of(row)
        if quantity is None:
            reasons = [f"nothing is predicted of kind {row.kind}, metric {row.metric}"]
        else:
            reasons = [reason for _, reason in safe_cases(quantity, [row])[1]]
    if reasons:
        raise SpecError([Problem(message=f"the planner cannot use this row: {reason}") for reason in reasons])
    return row
