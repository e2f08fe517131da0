"""Owner tags of a job, a pod or a bucket: one set, and its spelling for every place that takes them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from urllib.parse import quote, urlencode

from charter.spec.project import Project

AWS_KEY_CHARACTERS, AWS_VALUE_CHARACTERS = 128, 256
AWS_TAGS = 50
AZURE_KEY_CHARACTERS, AZURE_VALUE_CHARACTERS = 512, 256
S3_OBJECT_TAGS, S3_HEADER_BYTES = 10, 6_000
"""Of one object; and of what its tags take in a request, whose headers may be 8 kB together."""
LABEL_CHARACTERS = 63
KUBERNETES_PREFIX = "charter/"
OWN_KEYS = ("project", "owner", "run", "stage", "attempt")
"""What Charter itself says; a tag of the file with the same name does not replace it."""
_NONE: Mapping[str, str] = MappingProxyType({})


def tags_of(
    project: Project, *, run: str | None = None, stage: str | None = None, attempt: int | None = None
) -> dict[str, str]:
    """The tags of one thing that a project has made: its own words, `resources.labels`, and who and what it is for.

    `project`, `owner`, `run`, `stage` and `attempt` are Charter's; the rest is as the file has it.
    """
    own = {
        "project": project.name,
        "owner": project.owner,
        "run": run,
        "stage": stage,
        "attempt": None if attempt is None else str(attempt),
    }
    given = {key: value for key, value in own.items() if value}
    return {**project.resources.labels, **project.tags, **given}


def kubernetes_labels(tags: Mapping[str, str], *, prefix: str = KUBERNETES_PREFIX) -> dict[str, str]:
    """Tags as labels: at most 63 letters, digits, `-`, `_`, `.`, beginning and ending with a letter or digit.

    Source: Kubernetes documentation, Labels and Selectors, syntax and character set.

    >>> kubernetes_labels({"owner": "team α/alignment", "cost centre": "42"})
    {'charter/owner': 'team-alignment', 'charter/cost-centre': '42'}
    """
    labels = {}
    for key, value in tags.items():
        name = _label_part(key)
        if name:
            labels[prefix + name] = _label_part(value)
    return labels


def kubernetes_annotations(tags: Mapping[str, str]) -> dict[str, str]:
    """The words of tags that a label cannot hold, unchanged, under the label's own name with `-tag` behind it.

    >>> kubernetes_annotations({"owner": "team α/alignment", "cost centre": "42"})
    {'charter/owner-tag': 'team α/alignment'}
    """
    return {
        f"{KUBERNETES_PREFIX}{_label_part(key)[: LABEL_CHARACTERS - 4]}-tag": value
        for key, value in tags.items()
        if _label_part(key) and _label_part(value) != value
    }


def aws_tags(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Tags as AWS takes them: keys under `charter:`, letters, digits, spaces and `_.:/=+-@`; at most 50.

    Source: AWS, Tagging best practices, tag naming limits. A user's own key stays as it is, unless AWS keeps it to
    itself (`aws:`), so that cost allocation tags of the account go on working.

    >>> aws_tags({"run": "r1", "CostCentre": "a#b"})
    [{'Key': 'charter:run', 'Value': 'r1'}, {'Key': 'CostCentre', 'Value': 'a-b'}]
    """
    spelled = {}
    for key, value in tags.items():
        named = f"charter:{key}" if key in OWN_KEYS or key.lower().startswith("aws:") else key
        if named:
            spelled[_aws_text(named)[:AWS_KEY_CHARACTERS]] = _aws_text(value)[:AWS_VALUE_CHARACTERS]
    return [{"Key": key, "Value": value} for key, value in list(spelled.items())[:AWS_TAGS]]


@dataclass(frozen=True, kw_only=True)
class ObjectTags:
    """The tags of an object in a bucket."""

    tags: Mapping[str, str]
    changed: tuple[str, ...]
    """What of the given ones is not as it was given, in words."""


def object_tags(tags: Mapping[str, str]) -> ObjectTags:
    """Tags as S3 takes them on objects, spelled as `aws_tags` does: Charter's own first, ten in all.

    Source: Amazon S3 User Guide, Categorizing your objects using tags: 10 tags, keys of 128 and values of 256 UTF-16
    units, letters, digits, spaces and `+-=._:/@`.

    >>> object_tags({"goal": "a#b", "run": "r1"}).tags
    {'charter:run': 'r1', 'goal': 'a-b'}
    >>> object_tags({"goal": "a#b", "run": "r1"}).changed
    ("tag goal: its value 'a#b' becomes 'a-b'",)
    """
    spellings: dict[str, str] = {}
    changed = []
    for key in sorted(tags, key=lambda name: name not in OWN_KEYS):
        (spelled,) = aws_tags({key: tags[key]}) or ({"Key": "", "Value": ""},)
        name, value = _cut(spelled["Key"], AWS_KEY_CHARACTERS), _cut(spelled["Value"], AWS_VALUE_CHARACTERS)
        if refusal := _refusal(spellings, name, value):
            changed.append(f"tag {key[:60]} is left out: {refusal}")
            continue
        spellings[name] = value
        if key not in OWN_KEYS and name != key:
            changed.append(f"tag {key[:60]} becomes {name[:60]}{_cut_at(AWS_KEY_CHARACTERS, key)}")
        if value != tags[key]:
            how = f"{tags[key][:60]!r} becomes {value[:60]!r}{_cut_at(AWS_VALUE_CHARACTERS, tags[key])}"
            changed.append(f"tag {key[:60]}: its value {how}")
    return ObjectTags(tags=spellings, changed=tuple(changed))


def _refusal(spellings: Mapping[str, str], name: str, value: str) -> str:
    if not name:
        return "it has no name"
    if name in spellings:
        return f"another one is {name} already, in the letters that S3 takes"
    if len(spellings) == S3_OBJECT_TAGS:
        return f"an object has {S3_OBJECT_TAGS} tags at most, Charter's own among them"
    if len(urlencode({**spellings, name: value}, quote_via=quote)) > S3_HEADER_BYTES:
        return f"all together they are longer than the {S3_HEADER_BYTES} bytes that a request has room for"
    return ""


def _cut(text: str, units: int) -> str:
    return text.encode("utf-16-le")[: 2 * units].decode("utf-16-le", "ignore")


def _cut_at(units: int, text: str) -> str:
    return f", cut at {units} characters" if _cut(text, units) != text else ""


def google_labels(tags: Mapping[str, str]) -> dict[str, str]:
    """Tags as Google Cloud labels: lower case, digits, `_` and `-`, at most 63; a key begins with a letter.

    Source: Google Cloud, Resource Manager, requirements for labels.

    >>> google_labels({"owner": "Team A", "2nd": "x"})
    {'owner': 'team-a', 'x-2nd': 'x'}
    """
    labels = {}
    for key, value in tags.items():
        name = _google_text(key)
        name = name if name[:1].isalpha() else f"x-{name}"
        labels[name[:LABEL_CHARACTERS]] = _google_text(value)[:LABEL_CHARACTERS]
    return labels


def azure_tags(tags: Mapping[str, str]) -> dict[str, str]:
    r"""Tags as Azure takes them: keys without `<>%&\?/`, at most 512 characters; values at most 256.

    Source: Azure Resource Manager, tags, limitations.

    >>> azure_tags({"cost/centre": "a/b"})
    {'cost-centre': 'a/b'}
    """
    return {
        re.sub(r"[<>%&\\?/]", "-", key)[:AZURE_KEY_CHARACTERS]: value[:AZURE_VALUE_CHARACTERS]
        for key, value in tags.items()
    }


def _label_part(text: str) -> str:
    plain = re.sub(r"-*[^A-Za-z0-9_.-]+-*", "-", text)[:LABEL_CHARACTERS]
    return plain.strip("-_.")


def _google_text(text: str) -> str:
    return re.sub(r"[^a-z0-9_-]+", "-", text.lower())


def _aws_text(text: str) -> str:
    return re.sub(r"[^\w .:/=+\-@]", "-", text)
