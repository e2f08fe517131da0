"""What a stage reads, by role: models, prompts and pairs, from data files or from other stages' outputs."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from charter.artifacts.job import Job, JobInput
from charter.artifacts.stage_rows import Reader, stage_rows
from charter.errors import DataError
from charter.feedback.constitution import Constitution, load_constitution
from charter.spec.dataset import Conversation, Pair, Prompt, read_critiques, read_pairs, read_prompts

if TYPE_CHECKING:
    import torch

    from charter.models.language_model import LanguageModel
    from charter.models.preference import PreferenceModel

_Row = TypeVar("_Row", Prompt, Pair, Conversation)


def load_role(job: Job, role: str, device: "torch.device") -> "LanguageModel":
    """The language model of a role, on the device."""
    from charter.models.language_model import load_language_model

    loaded = load_language_model(job.only(role).location())
    loaded.model.to(device).eval()
    return loaded


def load_scorer(item: JobInput, device: "torch.device") -> "PreferenceModel":
    """A preference model, on the device."""
    from charter.models.preference import load_preference_model

    loaded = load_preference_model(item.location())
    loaded.scalar.to(device).eval()
    return loaded


def role_constitution(job: Job) -> Constitution:
    """The project's constitution; a stage that needs one and has none is refused."""
    if job.constitution is None:
        raise DataError(
            f"stage {job.stage} needs a constitution: add `constitution: constitution.yaml` to charter.yaml; "
            "`charter init` writes an example"
        )
    return load_constitution(Path(job.constitution))


def role_prompts(job: Job, role: str, *, limit: int | None) -> tuple[Prompt, ...]:
    """The prompts of a role in file order, at most `limit` of them; a shortage is said in the stage's log.

    It is no error: late in a pipeline that would cost more than it saves, and every result states its own count.
    """
    found = _rows(job, role, read_prompts)
    if limit is not None and len(found) < limit:
        print(f"{job.stage}: {limit} {role} were asked for, {len(found)} are there; all of them are used", flush=True)
    return with_unique_ids(found[:limit])


def role_pairs(job: Job, role: str) -> tuple[Pair, ...]:
    """The preference pairs of a role in file order."""
    return with_unique_ids(_rows(job, role, read_pairs))


def role_critiques(job: Job, role: str) -> tuple[Conversation, ...]:
    """The worked critiques of a role in file order, as conversations of six turns."""
    return with_unique_ids(_rows(job, role, read_critiques))


def with_unique_ids(rows: Sequence[_Row]) -> tuple[_Row, ...]:
    """Rows with ids made unique by a counter: every draw hangs on the id, so no two rows may share one."""
    seen: dict[str, int] = {}
    unique: list[_Row] = []
    for row in rows:
        seen[row.id] = seen.get(row.id, 0) + 1
        unique.append(row if seen[row.id] == 1 else replace(row, id=f"{row.id}#{seen[row.id]}"))
    return tuple(unique)


def _rows(job: Job, role: str, read: Reader[_Row]) -> list[_Row]:
    found, skipped = stage_rows(job, role, read)
    for line in skipped.lines():
        print(line, flush=True)
    if not found:
        raise DataError(f"stage {job.stage} needs `{role}`; name a data set or a stage that makes one")
    return found
