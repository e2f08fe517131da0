"""The gate before a stage that says `needs_approval: true`: a person has looked at what it reads, and said so.

An approval is a file of its own in the run directory, named after the stage and its fingerprint. So it holds for what
was looked at, nothing else: a changed prompt, judge or principle gives another fingerprint, which needs another
approval. It can be given while a run works, by any process that can write there, and the run takes it up at once.
"""

import getpass
import heapq
import socket
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from charter.artifacts import durable
from charter.artifacts.draws import draw_seed, keyed_permutation
from charter.artifacts.job import JobInput
from charter.artifacts.sample_prompts import SamplePrompts, write_sample_prompts
from charter.data.dataset import each_prompt, selected_rows
from charter.data.rows import SkippedRows
from charter.engines.native.capabilities import CAPABILITIES
from charter.errors import DataError, InterruptedRunError, UsageError
from charter.run.graph import Pipeline, PlannedStage
from charter.run.paths import run_dir
from charter.spec.stage import STAGE_KINDS
from charter.spec.stage_base import DATA, MODEL, NATIVE

APPROVALS = "approvals"
SCHEMA = "charter.approval/1"
LONGEST_NOTE = 2000
"""Characters: a remark, not a report."""


@dataclass(frozen=True, kw_only=True)
class Approval:
    """Approval of a stage's start: by whom, when, and of which version of the stage."""

    stage: str
    fingerprint: str
    by: str
    at: float
    note: str = ""


def waits_for_approval(stage: PlannedStage, root: Path) -> bool:
    """Return True if a stage may not start yet because nobody has approved it under its present fingerprint."""
    return stage.spec.needs_approval and read_approval(stage, root) is None


def waiting_words(stage: PlannedStage) -> str:
    """Return why such a stage does not start, and the command that lets it."""
    return f"waits for approval: charter approve {stage.name}"


def read_approval(stage: PlannedStage, root: Path) -> Approval | None:
    """The approval of a stage under the fingerprint that is asked for, None when there is none."""
    path = _path(stage, root)
    if not path.exists():
        return None
    content: Any = durable.read_json(path)
    fields = dict(content) if isinstance(content, dict) else {}
    fields.pop("schema", None)
    try:
        approval = Approval(**fields)
    except TypeError:
        raise DataError(f"{path} is not an approval; move it away and approve the stage again") from None
    if (approval.stage, approval.fingerprint) != (stage.name, stage.asked_fingerprint):
        raise DataError(f"{path} approves something else than its name says; move it away and approve the stage again")
    return approval


def approve(stage: PlannedStage, root: Path, *, note: str = "", by: str | None = None) -> Approval:
    """Write an approval durably; a later one of the same fingerprint takes its place."""
    if len(note) > LONGEST_NOTE:
        raise UsageError(f"the note has {len(note):,} characters; at most {LONGEST_NOTE:,} are kept")
    approval = Approval(
        stage=stage.name, fingerprint=stage.asked_fingerprint, by=by or who_is_here(), at=time.time(), note=note
    )
    durable.make_dir(run_dir(root) / APPROVALS)
    durable.write_json(_path(stage, root), {"schema": SCHEMA, **asdict(approval)})
    return approval


def who_is_here() -> str:
    """`user@machine`, as far as the machine knows."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


class Gate:
    """Approval gate of a run: asked before a stage starts, and when only stages that wait are left."""

    def __init__(self, root: Path, tell: Callable[[PlannedStage, str], None]) -> None:
        self._root, self._tell = root, tell
        self._open: set[str] = set()
        self._told: set[str] = set()

    def holds(self, stage: PlannedStage) -> bool:
        """Return True if a stage that is ready must wait; said once."""
        if stage.name in self._open or not stage.spec.needs_approval:
            return False
        if not waits_for_approval(stage, self._root):
            self._open.add(stage.name)
            return False
        if stage.name not in self._told:
            self._told.add(stage.name)
            self._tell(stage, waiting_words(stage))
        return True

    def standstill(self, waiting: Sequence[PlannedStage], done: Collection[str]) -> InterruptedRunError | None:
        """Return why the run ends, where every stage whose inputs are done waits for approval; else None."""
        ready = [stage for stage in waiting if set(stage.stage_inputs) <= set(done)]
        blocked = [stage for stage in ready if self.holds(stage)]
        if not blocked or len(blocked) < len(ready):
            return None
        later = [stage.name for stage in waiting if stage not in blocked]
        lines = [f"{len(blocked)} of {len(waiting)} stages that are left wait for approval:"]
        lines += [f"  charter approve {stage.name}   shows samples of what it reads, and asks" for stage in blocked]
        if later:
            lines.append(f"  {', '.join(later)} come after; the same `charter run` goes on from here")
        return InterruptedRunError("\n".join(lines))


def _path(stage: PlannedStage, root: Path) -> Path:
    return run_dir(root) / APPROVALS / f"{stage.name}-{stage.asked_fingerprint[:16]}.json"


_SHOWN = (
    ("prompt", "prompt"),
    ("init_prompt", "prompt"),
    ("messages", "conversation"),
    ("text", "text"),
    ("init_response", "answer"),
    ("critic_prompt", "critique asked"),
    ("critic_response", "critique"),
    ("revision_response", "revision"),
    ("completion", "answer"),
    ("chosen", "chosen"),
    ("rejected", "rejected"),
    ("chosen_probability", "probability of chosen"),
    ("principle", "principle"),
    ("principles", "principles"),
    ("round", "round"),
)
"""Fields of records that are shown, in this order, and what they are called."""
_REPEATED_BY = {"messages": "revision_response", "principle": "principles"}
"""Field -> another one that says the same and more."""


@dataclass(frozen=True)
class ApprovalSample:
    """One record: its id and the fields that are shown, as text."""

    id: str
    fields: Mapping[str, str]


@dataclass(frozen=True)
class Sampled:
    """The samples of one input of a stage."""

    name: str
    role: str
    rows: int
    samples: tuple[ApprovalSample, ...]


def samples_of(stage: PlannedStage, count: int, *, seed: int) -> list[Sampled]:
    """Samples of all records and data that a stage reads; models have none.

    Which rows are drawn depends on the seed and the stage's fingerprint alone, so that two people see the same.
    """
    return [
        _sampled(item, count, draw_seed(seed, "approval", stage.asked_fingerprint, role, item.name))
        for role, item in _readable(stage)
    ]


def _readable(stage: PlannedStage) -> Iterator[tuple[str, JobInput]]:
    for role, items in stage.inputs.items():
        if stage.spec.REFERENCES.get(role) != DATA:
            continue
        for item in items:
            if item.stage_kind is None or STAGE_KINDS[item.stage_kind].MAKES != MODEL:
                yield role, item


def _sampled(item: JobInput, count: int, seed: int) -> Sampled:
    rows = 0

    def drawn() -> Iterator[tuple[int, int, ApprovalSample]]:
        nonlocal rows
        for row in selected_rows(item.location(), item.data, SkippedRows()):
            rows += 1
            yield draw_seed(seed, row.number), row.number, ApprovalSample(row.id, shown_fields(row.value))

    chosen = heapq.nsmallest(count, drawn(), key=lambda found: found[:2])
    samples = tuple(sample for _, _, sample in sorted(chosen, key=lambda found: found[1]))
    return Sampled(item.name, item.role, rows, samples)


LOOKED_AT = 2000
"""Rows of a data set among which the prompts of a run are drawn: a longer one is not read to its end for them."""


def lay_sample_prompts(pipeline: Pipeline, stages: Iterable[PlannedStage]) -> None:
    """Put the same prompts beside every stage that is to be trained here; what cannot be read leaves them out."""
    name = pipeline.project.sample_data
    wanted = None if name is None else _drawn_prompts(pipeline, name)
    for stage in stages:
        if stage.spec.kind in CAPABILITIES.answers and stage.spec.engine == NATIVE:
            durable.make_dir(stage.directory)
            write_sample_prompts(stage.directory, wanted)


def _drawn_prompts(pipeline: Pipeline, name: str) -> SamplePrompts:
    project, item = pipeline.project, pipeline.inputs.data(name, "samples")
    rows = list(islice(each_prompt(item.location(), item.data, SkippedRows()), LOOKED_AT))
    order = keyed_permutation(len(rows), seed=draw_seed(project.seed, "samples")) if rows else []
    prompts = [rows[index] for index in order[: project.samples.count]]
    return SamplePrompts(
        prompts=tuple(
            (prompt.id, tuple({"role": turn.role, "content": turn.content} for turn in prompt.turns))
            for prompt in prompts
        ),
        seed=project.seed,
        max_new_tokens=project.samples.max_new_tokens,
        share=project.samples.share,
    )


def shown_fields(row: Mapping[str, Any]) -> dict[str, str]:
    """The fields of a record that a person judges it by.

    >>> shown_fields({"id": "1", "prompt": "hi", "chosen": [{"role": "assistant", "content": "hello"}], "round": 2})
    {'prompt': 'hi', 'chosen': 'hello', 'round': '2'}
    """
    shown: dict[str, str] = {}
    for field, title in _SHOWN:
        if field in row and row[field] not in (None, "", []) and _REPEATED_BY.get(field) not in row:
            shown.setdefault(title, _text(row[field]))
    return shown


def _text(value: Any) -> str:
    match value:
        case float():
            return f"{value:.3f}"
        case [{"content": str(only)}]:
            return only
        case [*items]:
            return "\n".join(_turn(item) for item in items)
    return str(value)


def _turn(item: Any) -> str:
    if isinstance(item, dict) and isinstance(item.get("content"), str):
        return f"{item.get('role', '')}: {item['content']}"
    return str(item)


def visible(text: str, limit: int) -> str:
    """Text of a model as it may be shown on a terminal: no control characters, nothing that turns the direction, and
    not more than `limit` characters of it.

    >>> visible("a\\x1b[31mred\\u202e!", 100)
    'a\\\\x1b[31mred\\\\u202e!'
    >>> visible("abcdef", 4)
    'abcd ... (2 more characters)'
    """
    left = len(text) - limit
    safe = "".join(character if _is_plain(character) else _escaped(character) for character in text[:limit])
    return safe + (f" ... ({left} more characters)" if left > 0 else "")


def _is_plain(character: str) -> bool:
    return character.isprintable() or character in "\n\u3000\u00a0"


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()
