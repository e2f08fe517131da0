"""Constitutions that others publish as JSON or CSV, as Charter's YAML; every principle says where it came from.

Layouts, told by what the file holds:

- a list of objects, or `{"constitutions": [...]}`, with `critic` and `revision` (the handbook of Hugging Face), or
  with `name`, `critique_request` and `revision_request` (LangChain);
- an object of objects by key, with `prompt` and `edit_request` or `critique_request` and `revision_request`, the texts
  framed as turns ("CritiqueRequest: ... Critique:"), as beside Bai et al. 2022;
- a list of texts: comparison instructions, which may end in "Options:" as there;
- CSV with a heading line that names some of `id`, `critique`, `revision`, `compare`, `weight`, `tags`.

What a layout lacks is made from what it has, by the plain frames below, and marked `derived`, so that lint asks for it
to be read: a comparison that nobody wrote should not label a million pairs unseen.
"""

import csv
import hashlib
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from charter.errors import DataError, UsageError
from charter.feedback.constitution import SCHEMA, WORDINGS, constitution_of
from charter.inference.endpoint.strict_json import StrictJsonError, strict_loads

NAMES: Mapping[str, tuple[str, ...]] = {
    "id": ("id", "name", "key"),
    "critique": ("critique", "critic", "critique_request", "hardcoded critique_request", "prompt"),
    "revision": ("revision", "revision_request", "hardcoded revision_request", "edit_request"),
    "compare": ("compare", "comparison", "instruction", "choice", "question"),
    "weight": ("weight",),
    "tags": ("tags",),
}
"""What each field is called elsewhere."""
_FRAMES = {
    ("critique", "compare"): "Which answer gives less reason for this criticism? {0}",
    ("critique", "revision"): "Rewrite the last answer so that this criticism no longer applies to it. {0}",
    ("compare", "critique"): "Say in which ways the last answer falls short of what is asked for here. {0}",
    ("compare", "revision"): "Rewrite the last answer so that it does better at what is asked for here. {0}",
    ("revision", "critique"): "Say what in the last answer makes this instruction necessary. {0}",
    ("revision", "compare"): "Which answer needs this instruction less? {0}",
}
"""(what there is, what is missing) -> how the one becomes the other."""
_TURN = re.compile(r"^\s*(?:Critique|Revision)\s?Request\s*:\s*|\s*(?:Critique|Revision|Options)\s*:\s*$")
_NOT_IN_IDS = re.compile(r"[^A-Za-z0-9._-]+")
LARGEST_FILE = 16 * 1024 * 1024
"""Bytes; the longest published constitution has 60 thousand."""


@dataclass(frozen=True)
class Imported:
    """What was read of one or several files."""

    principles: tuple[Mapping[str, Any], ...]
    """As they are written to the YAML."""
    sources: tuple[Mapping[str, str], ...]
    notes: tuple[str, ...]
    """What was left out, in words."""


def import_constitution(paths: Sequence[Path]) -> Imported:
    """The principles of all files, in order; ids are made unique."""
    principles: list[Mapping[str, Any]] = []
    sources: list[Mapping[str, str]] = []
    notes: list[str] = []
    for path in paths:
        content = _content(path)
        found = list(_entries(path, content, notes))
        if not found:
            raise DataError(f"{path} holds no principle in a layout that is known; see docs/guides/constitution.md")
        principles += [_principle(path, where, entry) for where, entry in found]
        sources.append({"file": path.name, "sha256": hashlib.sha256(content).hexdigest()})
    return Imported(tuple(_with_unique_ids(principles)), tuple(sources), tuple(notes))


def constitution_text(imported: Imported, *, name: str) -> str:
    """The YAML of a constitution; every text is quoted, so that it reads as text everywhere.

    What would be refused when it is read is refused here, before anything is written.
    """
    document = {
        "schema": SCHEMA,
        "name": name,
        "version": "1",
        "imported": [dict(item) for item in imported.sources],
        "principles": [dict(item) for item in imported.principles],
    }
    constitution_of(document, origin=", ".join(item["file"] for item in imported.sources))
    return yaml.dump(_quoted(document), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)


class _Quoted(str):
    """A text that is written in double quotes."""


class _Dumper(yaml.SafeDumper):
    """Writes texts so that YAML 1.1 and 1.2 read them alike."""


_Dumper.add_representer(
    _Quoted, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", str(text), style='"')
)


def _quoted(value: Any) -> Any:
    match value:
        case str():
            return _Quoted(value)
        case list():
            return [_quoted(item) for item in value]
        case dict():
            return {key: _quoted(item) for key, item in value.items()}
    return value


def _content(path: Path) -> bytes:
    if not path.is_file():
        raise UsageError(f"there is no file {path}; give a JSON or CSV file that holds principles")
    size = path.stat().st_size
    if size > LARGEST_FILE:
        raise DataError(f"{path} has {size:,} bytes; a constitution has at most {LARGEST_FILE:,}")
    return path.read_bytes()


def _entries(path: Path, content: bytes, notes: list[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Where every principle stands in its file, and its fields under any of their names."""
    if path.suffix.lower() == ".csv":
        yield from _csv_entries(path, content)
        return
    try:
        value = strict_loads(content.removeprefix(b"\xef\xbb\xbf"))
    except StrictJsonError as error:
        raise DataError(f"{path} {error}; nothing was imported") from None
    if isinstance(value, dict) and isinstance(value.get("constitutions"), list):
        left = [key for key in value if key != "constitutions"]
        notes += [f"{path.name}: `{key}` was left out: examples of chats belong in a data set" for key in left]
        yield from _listed("constitutions", value["constitutions"])
    elif isinstance(value, dict):
        yield from ((key, {"key": key, **item}) for key, item in value.items() if isinstance(item, dict))
    elif isinstance(value, list):
        yield from _listed("", value)


def _listed(where: str, items: list[Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for index, item in enumerate(items):
        if isinstance(item, str):
            yield f"{where}[{index}]", {"compare": item}
        elif isinstance(item, dict):
            yield f"{where}[{index}]", item


def _csv_entries(path: Path, content: bytes) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        rows = list(csv.DictReader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True))
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not CSV in UTF-8: {error}; nothing was imported") from None
    for number, row in enumerate(rows, 2):
        found: dict[str, Any] = {str(key).strip().lower(): value for key, value in row.items() if key and value}
        if "tags" in found:
            found["tags"] = [tag.strip() for tag in re.split(r"[;,|]", found["tags"]) if tag.strip()]
        if "weight" in found:
            found["weight"] = _csv_number(path, number, found["weight"])
        yield f"line {number}", found


def _csv_number(path: Path, line: int, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise DataError(f"{path}:{line}: the weight {text!r} is not a number; nothing was imported") from None


def _principle(path: Path, where: str, entry: Mapping[str, Any]) -> Mapping[str, Any]:
    texts = {field: text for field in WORDINGS if (text := _text(entry, field))}
    if not texts:
        known = ", ".join(name for field in WORDINGS for name in NAMES[field])
        raise DataError(f"{path}: {where} has none of the texts {known}; it has {', '.join(entry) or 'nothing'}")
    derived = [field for field in WORDINGS if field not in texts]
    basis = next(field for field in ("critique", "compare", "revision") if field in texts)
    made = {field: _FRAMES[basis, field].format(texts[basis]) for field in derived}
    number = re.sub(r"\D+", "-", where).strip("-")
    return {
        "id": _slug(_text(entry, "id") or f"{path.stem}-{number}"),
        **({"tags": entry["tags"]} if isinstance(entry.get("tags"), list) and entry["tags"] else {}),
        **({"weight": entry["weight"]} if "weight" in entry else {}),
        **{field: texts.get(field) or made[field] for field in WORDINGS},
        **({"derived": derived} if derived else {}),
        "source": f"{path.name} {where}",
    }


def _text(entry: Mapping[str, Any], field: str) -> str:
    """A field under whichever name it has, without the frame of a turn; a list of one text counts as the text."""
    for name in NAMES[field]:
        found = entry.get(name)
        if isinstance(found, list) and len(found) == 1:
            found = found[0]
        if isinstance(found, str) and found.strip():
            return _TURN.sub("", found).strip()
    return ""


def _slug(text: str) -> str:
    return _NOT_IN_IDS.sub("-", text).strip("-.") or "principle"


def _with_unique_ids(principles: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    taken: set[str] = set()
    for item in principles:
        found, number = item["id"], 2
        while found in taken:
            found, number = f"{item['id']}-{number}", number + 1
        taken.add(found)
        yield {**item, "id": found}
