"""What is wrong or doubtful in a constitution, all of it, for people who write one; `load_constitution` is for runs."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal

from charter.feedback.constitution import WORDINGS
from charter.spec.suggest import nearest

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
class Finding:
    """One thing wrong (`error`: it cannot be used) or doubtful (`warning`)."""

    level: Level
    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.level}: {self.where}: {self.message}"


def lint(raw: Mapping[str, Any]) -> list[Finding]:
    """Everything found in the values of a constitution file, in the order of its principles."""
    items: Sequence[Any] = raw["principles"]
    found = [*_fields("file", raw, FILE_FIELDS)]
    if not items:
        found.append(Finding("error", "file", "has no principle"))
    names = [_name(index, item) for index, item in enumerate(items)]
    for name, item in zip(names, items, strict=True):
        if isinstance(item, dict):
            for check in _CHECKS:
                found += check(name, item)
        else:
            found.append(Finding("error", name, "is not a mapping of `id`, `critique`, `revision` and `compare`"))
    principles = {name: item for name, item in zip(names, items, strict=True) if isinstance(item, dict)}
    return [*found, *_ids(items), *_alike(principles), *_shares(principles), *_tags(raw.get("tags"), principles)]


def _name(index: int, item: Any) -> str:
    found = item.get("id") if isinstance(item, dict) else None
    return f"principle {index + 1}" + (f" ({found})" if isinstance(found, str) and found else "")


def _fields(where: str, found: Mapping[str, Any], known: Sequence[str]) -> Iterator[Finding]:
    for key in found:
        if key not in known:
            near = nearest(key, known)
            hint = f"; did you mean {near!r}?" if near else ""
            yield Finding("warning", where, f"the field {key!r} is not read{hint}")


def _known_fields(name: str, item: Mapping[str, Any]) -> Iterator[Finding]:
    return _fields(name, item, FIELDS)


def _id(name: str, item: Mapping[str, Any]) -> Iterator[Finding]:
    found = item.get("id")
    if not isinstance(found, str) or not found.strip():
        yield Finding("error", name, "lacks `id`, a short name of its own that records will carry")
    elif not _ID.fullmatch(found):
        yield Finding("warning", name, "the id has other characters than letters, digits, '.', '_' and '-'")


def _wording(name: str, item: Mapping[str, Any]) -> Iterator[Finding]:
    for field in WORDINGS:
        text = item.get(field)
        if not isinstance(text, str):
            yield Finding("error", name, f"lacks `{field}`, a text")
        elif not text.strip():
            yield Finding("error", name, f"`{field}` is empty")
        elif left := _PLACEHOLDER.search(text):
            yield Finding("error", name, f"`{field}` still holds the placeholder {left[0]!r}; nothing fills it in")
        elif len(text) > LONGEST_WORDING:
            message = f"`{field}` has {len(text):,} characters; over {LONGEST_WORDING:,} crowd out the answers"
            yield Finding("warning", name, message)
    if derived := item.get("derived"):
        words = ", ".join(map(str, derived)) if isinstance(derived, list) else str(derived)
        message = f"{words} was made from the other wording on import; read it, then drop `derived`"
        yield Finding("warning", name, message)


def _weight(name: str, item: Mapping[str, Any]) -> Iterator[Finding]:
    weight = item.get("weight", 1.0)
    if _number(weight) is None:
        yield Finding("error", name, f"the weight {str(weight)[:20]!r} is not a positive number; leave it out for 1.0")


def _tag_list(name: str, item: Mapping[str, Any]) -> Iterator[Finding]:
    tags = item.get("tags", [])
    if not isinstance(tags, list) or not all(isinstance(tag, str) and tag.strip() for tag in tags):
        yield Finding("error", name, "`tags` must be a list of words, like [honesty, harm]")


def _criterion(name: str, item: Mapping[str, Any]) -> Iterator[Finding]:
    text = item.get("compare")
    if isinstance(text, str) and text.strip() and not (_words(text) - _NO_CRITERION):
        message = "`compare` names no criterion, so that it asks for taste; say better in which respect"
        yield Finding("warning", name, message)


_CHECKS: Sequence[Callable[[str, Mapping[str, Any]], Iterator[Finding]]] = (
    _known_fields,
    _id,
    _wording,
    _weight,
    _tag_list,
    _criterion,
)


def _ids(items: Sequence[Any]) -> Iterator[Finding]:
    counts = Counter(item["id"] for item in items if isinstance(item, dict) and isinstance(item.get("id"), str))
    for name, count in counts.items():
        if count > 1:
            yield Finding("error", "file", f"the id {name!r} is used {count} times")


def _alike(principles: Mapping[str, Mapping[str, Any]]) -> Iterator[Finding]:
    """Principles that say the same, which doubles their weight in silence."""
    texts = {name: [str(item.get(field, "")).strip() for field in WORDINGS] for name, item in principles.items()}
    words = {name: _words(" ".join(text)) for name, text in texts.items()}
    for one, two in combinations(principles, 2):
        same = [field for field, a, b in zip(WORDINGS, texts[one], texts[two], strict=True) if a and a == b]
        common, either = len(words[one] & words[two]), len(words[one] | words[two])
        if len(same) == len(WORDINGS):
            yield Finding("error", two, f"says the same as {one}; keep one and give it the weight of both")
        elif "compare" in same:
            yield Finding("warning", two, f"`compare` is that of {one}, so that both label alike")
        elif either and common / either >= NEARLY_THE_SAME:
            yield Finding("warning", two, f"is nearly the same as {one}: {common} of {either} words in common")


def _shares(principles: Mapping[str, Mapping[str, Any]]) -> Iterator[Finding]:
    weights = {name: weight for name, item in principles.items() if (weight := _number(item.get("weight", 1.0)))}
    total = sum(weights.values())
    for name, weight in weights.items():
        share = weight / total
        if len(weights) > 2 and share > LARGEST_SHARE:
            yield Finding("warning", name, f"its weight makes it {share:.0%} of all draws")
        elif share < SMALLEST_SHARE:
            yield Finding("warning", name, f"its weight makes it {share:.3%} of all draws, so hardly ever drawn")


def _tags(declared: Any, principles: Mapping[str, Mapping[str, Any]]) -> Iterator[Finding]:
    """Tags that the file's own list `tags` lacks; without such a list, tags that look like slips of the pen."""
    used = Counter(
        tag
        for item in principles.values()
        for tag in (item["tags"] if isinstance(item.get("tags"), list) else ())
        if isinstance(tag, str)
    )
    known = [tag for tag in declared if isinstance(tag, str)] if isinstance(declared, list) else None
    for tag, count in used.items():
        others = [other for other in used if other != tag and used[other] > count] if known is None else known
        near = nearest(tag, others)
        if known is not None and tag not in known:
            hint = f"; did you mean {near!r}?" if near else ""
            yield Finding("warning", "file", f"the tag {tag!r} is not in the file's list `tags`{hint}")
        elif known is None and count == 1 and near is not None and abs(len(near) - len(tag)) <= 2:
            yield Finding("warning", "file", f"the tag {tag!r} is used once; did you mean {near!r}?")


def _number(weight: Any) -> float | None:
    """A weight that can be drawn by, else None."""
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < math.inf:
        return None
    return float(weight)


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", text.casefold()))
