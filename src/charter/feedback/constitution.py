"""The constitution: principles with a critique, a revision and a comparison instruction each."""

import csv
import hashlib
import io
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import yaml

from charter.artifacts.draws import draw_seed
from charter.errors import DataError, SpecError, UsageError
from charter.inference.endpoint.parsing import StrictJsonError, strict_loads
from charter.spec.suggest import nearest
from charter.spec.yaml_source import kind_of, read_document

SCHEMA = "charter.constitution/v1"
WORDINGS = ("critique", "revision", "compare")
"""What a principle says to a model, one text each."""
_DRAW_RANGE = 2**63


@dataclass(frozen=True, kw_only=True)
class Principle:
    """One principle of a constitution."""

    id: str
    critique: str
    revision: str
    compare: str
    weight: float = 1.0
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Constitution:
    """A named list of principles."""

    name: str
    version: str
    principles: tuple[Principle, ...]

    def draw(self, seed: int, *parts: str | int) -> Principle:
        """The principle for one purpose: a weighted draw that depends on the seed and the parts alone."""
        return _drawn(self.principles, draw_seed(seed, "principle", *parts))

    def draw_many(self, count: int, seed: int, *parts: str | int) -> tuple[Principle, ...]:
        """Several principles for one purpose, none of them twice: each is drawn by weight among those still left.

        The first one is what `draw` gives, so that asking for more adds to what there was. It needs that many.
        """
        if not 1 <= count <= len(self.principles):
            raise DataError(
                f"{count} different principles were asked for, the constitution {self.name!r} has "
                f"{len(self.principles)}; ask for 1 to {len(self.principles)} per pair, or write more principles"
            )
        remaining, drawn = list(self.principles), [self.draw(seed, *parts)]
        remaining.remove(drawn[0])
        for turn in range(1, count):
            drawn.append(_drawn(remaining, draw_seed(seed, "another principle", turn, *parts)))
            remaining.remove(drawn[-1])
        return tuple(drawn)


def load_constitution(path: Path) -> Constitution:
    """Read and check a constitution; all that is wrong with it is said at once."""
    return constitution_of(read_constitution_file(path), origin=str(path), name=path.stem)


def constitution_of(raw: Mapping[str, Any], *, origin: str, name: str = "") -> Constitution:
    """The constitution that the values of a file make; `name` stands in for one that the file does not give."""
    problems: list[str] = []
    principles = tuple(
        principle for index, item in enumerate(raw["principles"]) if (principle := _principle(index, item, problems))
    )
    repeated = sorted({item.id for item in principles if sum(other.id == item.id for other in principles) > 1})
    problems += [f"principle id {name!r} is used twice" for name in repeated]
    if not principles:
        problems.append("no principle")
    if problems:
        raise DataError(f"{origin}: " + "; ".join(problems))
    return Constitution(name=str(raw.get("name", name)), version=str(raw.get("version", "")), principles=principles)


def read_constitution_file(path: Path) -> Mapping[str, Any]:
    """The values of a constitution file, with a list `principles` of whatever it holds; for `load` and for lint.

    Read as strictly as `charter.yaml`: a key given twice, a tag, an alias that unfolds without end are refused.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such constitution; `charter init` writes an example")
    try:
        raw = read_document(path).value
    except SpecError as error:
        raise DataError(f"{path}: not valid YAML: {error}") from None
    if raw.get("schema") != SCHEMA or not isinstance(raw.get("principles"), list):
        raise DataError(f"{path}: expected `schema: {SCHEMA}` and a list `principles`")
    return raw


def _drawn(principles: Sequence[Principle], number: int) -> Principle:
    """The principle at a 63-bit number, taken as a point on the line of all weights."""
    point = number / _DRAW_RANGE * sum(item.weight for item in principles)
    for principle in principles:
        point -= principle.weight
        if point < 0:
            return principle
    return principles[-1]


def _principle(index: int, item: Any, problems: list[str]) -> Principle | None:
    entry = item if isinstance(item, dict) else {}
    missing = [name for name in ("id", *WORDINGS) if not isinstance(entry.get(name), str)]
    if missing:
        problems.append(f"principle {index + 1} lacks {', '.join(missing)}")
        return None
    weight, tags = entry.get("weight", 1.0), entry.get("tags", [])
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < math.inf:
        problems.append(f"principle {entry['id']!r}: weight is {kind_of(weight)}, not a positive number")
        return None
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        problems.append(f"principle {entry['id']!r}: tags must be a list of words, like [honesty, harm]")
        return None
    return Principle(
        id=entry["id"],
        critique=entry["critique"],
        revision=entry["revision"],
        compare=entry["compare"],
        weight=float(weight),
        tags=tuple(tags),
    )


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
class ImportedConstitution:
    """Principles that were read of one or several files."""

    principles: tuple[Mapping[str, Any], ...]
    """As they are written to the YAML."""
    sources: tuple[Mapping[str, str], ...]
    notes: tuple[str, ...]
    """What was left out, in words."""


def import_constitution(paths: Sequence[Path]) -> ImportedConstitution:
    """The principles of all files, in order; ids are made unique."""
    principles: list[Mapping[str, Any]] = []
    sources: list[Mapping[str, str]] = []
    notes: list[str] = []
    for path in paths:
        content = _content(path)
        entries = list(_entries(path, content, notes))
        if not entries:
            raise DataError(f"{path} holds no principle in a layout that is known; see docs/guides/constitution.md")
        principles += [_imported_principle(path, where, entry) for where, entry in entries]
        sources.append({"file": path.name, "sha256": hashlib.sha256(content).hexdigest()})
    return ImportedConstitution(tuple(_with_unique_ids(principles)), tuple(sources), tuple(notes))


def constitution_text(imported: ImportedConstitution, *, name: str) -> str:
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
    return yaml.dump(_quoted(document), Dumper=_ConstitutionDumper, sort_keys=False, allow_unicode=True, width=110)


class _Quoted(str):
    """A text that is written in double quotes."""


class _ConstitutionDumper(yaml.SafeDumper):
    """Writes texts so that YAML 1.1 and 1.2 read them alike."""


_ConstitutionDumper.add_representer(
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
    """Yield the place of every principle in its file, and its fields under any of their names."""
    if path.suffix.lower() == ".csv":
        yield from _csv_entries(path, content)
        return
    try:
        value = strict_loads(content.removeprefix(b"\xef\xbb\xbf"))
    except StrictJsonError as error:
        raise DataError(f"{path} {error}; nothing was imported") from None
    if isinstance(value, dict) and isinstance(value.get("constitutions"), list):
        others = [key for key in value if key != "constitutions"]
        notes += [f"{path.name}: `{key}` was left out: examples of chats belong in a data set" for key in others]
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
        entry: dict[str, Any] = {str(key).strip().lower(): value for key, value in row.items() if key and value}
        if "tags" in entry:
            entry["tags"] = [tag.strip() for tag in re.split(r"[;,|]", entry["tags"]) if tag.strip()]
        if "weight" in entry:
            entry["weight"] = _csv_number(path, number, entry["weight"])
        yield f"line {number}", entry


def _csv_number(path: Path, line: int, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise DataError(f"{path}:{line}: the weight {text!r} is not a number; nothing was imported") from None


def _imported_principle(path: Path, where: str, entry: Mapping[str, Any]) -> Mapping[str, Any]:
    texts = {field: text for field in WORDINGS if (text := _text(entry, field))}
    if not texts:
        accepted = ", ".join(name for field in WORDINGS for name in NAMES[field])
        raise DataError(f"{path}: {where} has none of the texts {accepted}; it has {', '.join(entry) or 'nothing'}")
    derived = [field for field in WORDINGS if field not in texts]
    basis = next(field for field in ("critique", "compare", "revision") if field in texts)
    framed = {field: _FRAMES[basis, field].format(texts[basis]) for field in derived}
    number = re.sub(r"\D+", "-", where).strip("-")
    return {
        "id": _slug(_text(entry, "id") or f"{path.stem}-{number}"),
        **({"tags": entry["tags"]} if isinstance(entry.get("tags"), list) and entry["tags"] else {}),
        **({"weight": entry["weight"]} if "weight" in entry else {}),
        **{field: texts.get(field) or framed[field] for field in WORDINGS},
        **({"derived": derived} if derived else {}),
        "source": f"{path.name} {where}",
    }


def _text(entry: Mapping[str, Any], field: str) -> str:
    """A field under whichever name it has, without the frame of a turn; a list of one text counts as the text."""
    for name in NAMES[field]:
        value = entry.get(name)
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        if isinstance(value, str) and value.strip():
            return _TURN.sub("", value).strip()
    return ""


def _slug(text: str) -> str:
    return _NOT_IN_IDS.sub("-", text).strip("-.") or "principle"


def _with_unique_ids(principles: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    used_ids: set[str] = set()
    for item in principles:
        id, number = item["id"], 2
        while id in used_ids:
            id, number = f"{item['id']}-{number}", number + 1
        used_ids.add(id)
        yield {**item, "id": id}


FIELDS = ("id", *WORDINGS, "weight", "tags", "source", "derived")
FILE_FIELDS = ("schema", "name", "version", "language", "license", "tags", "imported", "principles")
LONGEST_WORDING = 1200
"""Characters, some 300 tokens: a question is cut to `max_prompt_tokens`, 512 unless given; the answers need room."""
NEARLY_THE_SAME = 0.8
"""Share of words that two principles have in common (Jaccard) from which they are told as nearly the same."""
LARGEST_SHARE = 0.5
"""A principle drawn more often than all others together makes the others decoration."""
SMALLEST_SHARE = 0.001
"""Drawn once in a thousand times: in a run of usual size, hardly ever."""
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_PLACEHOLDER = re.compile(
    r"\{\{?[A-Za-z_ ]*\}?\}|\$\{?[A-Za-z_]+\}?|<[A-Za-z_ ]+>|\[(?:insert|your|fill)\b[^\]]*\]"
    r"|\b(?:TODO|TBD|FIXME|XXX)\b|\blorem ipsum\b",
    re.IGNORECASE,
)
_NO_CRITERION = frozenset(
    re.findall(
        r"\w+",
        "a ai an and answer answers are as assistant assistants b best better between by can choose compare do does "
        "give given good i in is it model models more most of one option or overall pick please prefer preferable "
        "preferred reply replies response responses select should than that the these this to two which with would "
        "you your",
    )
)
"""Words that a comparison has without saying what is to be compared."""
Level = Literal["error", "warning"]


@dataclass(frozen=True)
class ConstitutionFinding:
    """One thing wrong (`error`: it cannot be used) or doubtful (`warning`)."""

    level: Level
    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.level}: {self.where}: {self.message}"


def lint(raw: Mapping[str, Any]) -> list[ConstitutionFinding]:
    """Everything found in the values of a constitution file, in the order of its principles."""
    items: Sequence[Any] = raw["principles"]
    findings = [*_fields("file", raw, FILE_FIELDS)]
    if not items:
        findings.append(ConstitutionFinding("error", "file", "has no principle"))
    names = [_name(index, item) for index, item in enumerate(items)]
    for name, item in zip(names, items, strict=True):
        if isinstance(item, dict):
            for check in _CHECKS:
                findings += check(name, item)
        else:
            findings.append(
                ConstitutionFinding("error", name, "is not a mapping of `id`, `critique`, `revision` and `compare`")
            )
    principles = {name: item for name, item in zip(names, items, strict=True) if isinstance(item, dict)}
    return [*findings, *_ids(items), *_alike(principles), *_shares(principles), *_tags(raw.get("tags"), principles)]


def _name(index: int, item: Any) -> str:
    id = item.get("id") if isinstance(item, dict) else None
    return f"principle {index + 1}" + (f" ({id})" if isinstance(id, str) and id else "")


def _fields(where: str, entry: Mapping[str, Any], names: Sequence[str]) -> Iterator[ConstitutionFinding]:
    for key in entry:
        if key not in names:
            near = nearest(key, names)
            hint = f"; did you mean {near!r}?" if near else ""
            yield ConstitutionFinding("warning", where, f"the field {key!r} is not read{hint}")


def _known_fields(name: str, item: Mapping[str, Any]) -> Iterator[ConstitutionFinding]:
    return _fields(name, item, FIELDS)


def _id(name: str, item: Mapping[str, Any]) -> Iterator[ConstitutionFinding]:
    id = item.get("id")
    if not isinstance(id, str) or not id.strip():
        yield ConstitutionFinding("error", name, "lacks `id`, a short name of its own that records will carry")
    elif not _ID.fullmatch(id):
        yield ConstitutionFinding("warning", name, "the id has other characters than letters, digits, '.', '_' and '-'")


def _wording(name: str, item: Mapping[str, Any]) -> Iterator[ConstitutionFinding]:
    for field in WORDINGS:
        text = item.get(field)
        if not isinstance(text, str):
            yield ConstitutionFinding("error", name, f"lacks `{field}`, a text")
        elif not text.strip():
            yield ConstitutionFinding("error", name, f"`{field}` is empty")
        elif placeholder := _PLACEHOLDER.search(text):
            yield ConstitutionFinding(
                "error", name, f"`{field}` still holds the placeholder {placeholder[0]!r}; nothing fills it in"
            )
        elif len(text) > LONGEST_WORDING:
            message = f"`{field}` has {len(text):,} characters; over {LONGEST_WORDING:,} crowd out the answers"
            yield ConstitutionFinding("warning", name, message)
    if derived := item.get("derived"):
        words = ", ".join(map(str, derived)) if isinstance(derived, list) else str(derived)
        message = f"{words} was made from the other wording on import; read it, then drop `derived`"
        yield ConstitutionFinding("warning", name, message)


def _weight(name: str, item: Mapping[str, Any]) -> Iterator[ConstitutionFinding]:
    weight = item.get("weight", 1.0)
    if _number(weight) is None:
        yield ConstitutionFinding(
            "error", name, f"the weight {str(weight)[:20]!r} is not a positive number; leave it out for 1.0"
        )


def _tag_list(name: str, item: Mapping[str, Any]) -> Iterator[ConstitutionFinding]:
    tags = item.get("tags", [])
    if not isinstance(tags, list) or not all(isinstance(tag, str) and tag.strip() for tag in tags):
        yield ConstitutionFinding("error", name, "`tags` must be a list of words, like [honesty, harm]")


def _criterion(name: str, item: Mapping[str, Any]) -> Iterator[ConstitutionFinding]:
    text = item.get("compare")
    if isinstance(text, str) and text.strip() and not (_words(text) - _NO_CRITERION):
        message = "`compare` names no criterion, so that it asks for taste; say better in which respect"
        yield ConstitutionFinding("warning", name, message)


_CHECKS: Sequence[Callable[[str, Mapping[str, Any]], Iterator[ConstitutionFinding]]] = (
    _known_fields,
    _id,
    _wording,
    _weight,
    _tag_list,
    _criterion,
)


def _ids(items: Sequence[Any]) -> Iterator[ConstitutionFinding]:
    counts = Counter(item["id"] for item in items if isinstance(item, dict) and isinstance(item.get("id"), str))
    for name, count in counts.items():
        if count > 1:
            yield ConstitutionFinding("error", "file", f"the id {name!r} is used {count} times")


def _alike(principles: Mapping[str, Mapping[str, Any]]) -> Iterator[ConstitutionFinding]:
    """Principles that say the same, which doubles their weight in silence."""
    texts = {name: [str(item.get(field, "")).strip() for field in WORDINGS] for name, item in principles.items()}
    words = {name: _words(" ".join(text)) for name, text in texts.items()}
    for one, two in combinations(principles, 2):
        same = [field for field, a, b in zip(WORDINGS, texts[one], texts[two], strict=True) if a and a == b]
        common, either = len(words[one] & words[two]), len(words[one] | words[two])
        if len(same) == len(WORDINGS):
            yield ConstitutionFinding("error", two, f"says the same as {one}; keep one and give it the weight of both")
        elif "compare" in same:
            yield ConstitutionFinding("warning", two, f"`compare` is that of {one}, so that both label alike")
        elif either and common / either >= NEARLY_THE_SAME:
            yield ConstitutionFinding(
                "warning", two, f"is nearly the same as {one}: {common} of {either} words in common"
            )


def _shares(principles: Mapping[str, Mapping[str, Any]]) -> Iterator[ConstitutionFinding]:
    weights = {name: weight for name, item in principles.items() if (weight := _number(item.get("weight", 1.0)))}
    total = sum(weights.values())
    for name, weight in weights.items():
        share = weight / total
        if len(weights) > 2 and share > LARGEST_SHARE:
            yield ConstitutionFinding("warning", name, f"its weight makes it {share:.0%} of all draws")
        elif share < SMALLEST_SHARE:
            yield ConstitutionFinding(
                "warning", name, f"its weight makes it {share:.3%} of all draws, so hardly ever drawn"
            )


def _tags(declared: Any, principles: Mapping[str, Mapping[str, Any]]) -> Iterator[ConstitutionFinding]:
    """Tags that the file's own list `tags` lacks; without such a list, tags that look like slips of the pen."""
    used = Counter(
        tag
        for item in principles.values()
        for tag in (item["tags"] if isinstance(item.get("tags"), list) else ())
        if isinstance(tag, str)
    )
    allowed = [tag for tag in declared if isinstance(tag, str)] if isinstance(declared, list) else None
    for tag, count in used.items():
        others = [other for other in used if other != tag and used[other] > count] if allowed is None else allowed
        near = nearest(tag, others)
        if allowed is not None and tag not in allowed:
            hint = f"; did you mean {near!r}?" if near else ""
            yield ConstitutionFinding("warning", "file", f"the tag {tag!r} is not in the file's list `tags`{hint}")
        elif allowed is None and count == 1 and near is not None and abs(len(near) - len(tag)) <= 2:
            yield ConstitutionFinding("warning", "file", f"the tag {tag!r} is used once; did you mean {near!r}?")


def _number(weight: Any) -> float | None:
    """A weight that can be drawn by, else None."""
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < math.inf:
        return None
    return float(weight)


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", text.casefold()))
