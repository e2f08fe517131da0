"""Plain values to frozen dataclasses, by pydantic, and back to the text of an explicit `charter.yaml`.

Errors are told in Charter's words, each with its place. Pydantic is asked for one model, data set or stage at a time,
and for a stage only after its `kind` is known, so that a wrong field is one error and not one per kind. Strict JSON
mode: `true` and `"3"` are no numbers. Reading the explicit text, presets expanded and defaults written out, gives the
same project again.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass, make_dataclass, replace
from difflib import get_close_matches
from enum import Enum
from functools import cache
from typing import Any, get_args, get_type_hints

import yaml

from charter.errors import Problem
from charter.spec.project import DataSpec, ModelSpec, Project
from charter.spec.stage import STAGE_KINDS
from charter.spec.stage_base import Stage
from charter.spec.suggest import HABITS, OF_RESOURCES, did_you_mean, key_of_stage, nearest
from charter.spec.yaml_source import Document, Path_, kind_of, scalar

NO_PLUGINS = "PYDANTIC_DISABLE_PLUGINS"


def read_as(cls: type, value: Any) -> Any:
    """A plain value as this dataclass; pydantic's `ValidationError` where it is none."""
    keys = frozenset(value) if isinstance(value, dict) else frozenset()
    own_fields = keys & {item.name for item in fields(cls)}
    instance = _adapter(cls, own_fields).validate_json(json.dumps(value), strict=True)
    return cls(**vars(instance))


@cache
def _adapter(cls: type, given: frozenset[str]) -> Any:
    from pydantic import TypeAdapter

    with _without_plugins():
        return TypeAdapter(_narrowed(cls, given))


def _narrowed(cls: Any, given: frozenset[str]) -> type:
    """The dataclass with only the fields that are given, and those that have to be."""
    required = [(item.name, item.type, copy(item)) for item in fields(cls) if item.name in given or _is_required(item)]
    namespace = {"__module__": cls.__module__, "__pydantic_config__": cls.__pydantic_config__}
    return make_dataclass(cls.__name__, required, namespace=namespace, kw_only=True, init=False, repr=False, eq=False)


def _is_required(item: Field[Any]) -> bool:
    return item.default is MISSING and item.default_factory is MISSING


@contextmanager
def _without_plugins() -> Iterator[None]:
    """Pydantic does not look through everything installed for plugins, unless the environment says which it may."""
    if NO_PLUGINS in os.environ:
        yield
        return
    os.environ[NO_PLUGINS] = "1"
    try:
        yield
    finally:
        os.environ.pop(NO_PLUGINS, None)


TABLES: Mapping[str, type] = {"models": ModelSpec, "data": DataSpec}
SHORTHAND: Mapping[str, str] = {"models": "model", "data": "path"}
"""Which field a bare text stands for: `data: {chats: chats.jsonl}`, `models: {base: openai/gpt2}`."""

_EXPECTED: Mapping[str, str] = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "a text",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "dict_type": "a mapping (`name: ...` lines)",
    "dataclass_type": "a mapping (`key: value` lines)",
}


@dataclass(frozen=True, kw_only=True)
class Bound:
    """The readable part of a document, and the problems of the rest."""

    project: Project | None
    """The whole project, when nothing was wrong with its types."""
    models: Mapping[str, ModelSpec]
    data: Mapping[str, DataSpec]
    stages: Mapping[str, Stage]
    problems: tuple[Problem, ...]


def widen_shorthands(document: Document) -> None:
    """Turn `data: {chats: chats.jsonl}` into `data: {chats: {path: chats.jsonl}}`; likewise for models."""
    for section, key in SHORTHAND.items():
        table = document.value.get(section)
        for name, value in table.items() if isinstance(table, dict) else ():
            if isinstance(value, str) and isinstance(table, dict):
                table[name] = {key: value}


def bind(document: Document) -> Bound:
    """Read a document into dataclasses; collects every problem instead of stopping at the first."""
    if _is_of_another_tool(document.value):
        problem = document.problem((), "this is no charter.yaml: it has neither 'models' nor 'pipeline'", hint=_WAYS_IN)
        return Bound(project=None, models={}, data={}, stages={}, problems=(problem,))
    problems: list[Problem] = []
    parts: dict[str, dict[str, Any]] = {}
    for section in ("models", "data", "pipeline"):
        parts[section] = _read_table(document, section, problems)
    rest = {key: value for key, value in document.value.items() if key not in parts and value is not None}
    header = _read(Project, {**rest, "models": {}, "pipeline": {}, "data": {}}, (), document, problems)
    complete = isinstance(header, Project) and not problems
    project = replace(header, **parts) if complete else None
    models, data, stages = parts["models"], parts["data"], parts["pipeline"]
    return Bound(project=project, models=models, data=data, stages=stages, problems=tuple(problems))


_WAYS_IN = "`charter init --template cai-tiny DIR` writes one; `charter plan sft 8B --tokens 100M` plans without a file"


def _is_of_another_tool(value: Mapping[str, Any]) -> bool:
    """Return True if a file has none of the two tables that every project has, and keys that are near none."""
    keys = known_keys(Project)
    has_tables = any(get_close_matches(str(key), _TABLES_OF_ALL, cutoff=0.8) for key in value)
    return not has_tables and any(not get_close_matches(str(key), keys) for key in value)


def _read_table(document: Document, section: str, problems: list[Problem]) -> dict[str, Any]:
    table = document.value.get(section)
    if table is None:
        if section != "data":
            problems.append(document.problem((), f"the key {section!r} is missing", hint=_SECTION_HINTS[section]))
        return {}
    if not isinstance(table, dict):
        message = f"expected a mapping (`name: ...` lines), found {kind_of(table)}"
        problems.append(document.problem((section,), message, hint=_SECTION_HINTS[section]))
        return {}
    if not table and section != "data":
        problems.append(document.problem((section,), "is empty", hint=_SECTION_HINTS[section]))
    values: dict[str, Any] = {}
    for name, value in table.items():
        cls = TABLES.get(section) or _stage_class(document, name, value, problems)
        before = len(problems)
        item = None if cls is None else _read(cls, value, (section, name), document, problems)
        if item is None and cls is not None and section == "pipeline":
            item = _rest_of(cls, value, document, problems[before:])
        if item is not None:
            values[name] = item
    return values


def _rest_of(cls: type, value: Mapping[str, Any], document: Document, reported: Sequence[Problem]) -> Any:
    """The stage without the keys that were wrong, so that the rest of it is checked in the same go.

    None where a wrong key names something else or is required: what would be missing is no second error.
    """
    wrong = {part for problem in reported for part in problem.path.split(".")[2:3]}
    if wrong & set(getattr(cls, "REFERENCES", ())):
        return None
    rest = {key: item for key, item in value.items() if key not in wrong}
    return _read(cls, rest, (), document, [])


_TABLES_OF_ALL = ("models", "pipeline")
_SECTION_HINTS = {
    "models": "for example  models: {base: meta-llama/Llama-3.1-8B}",
    "data": "for example  data: {chats: chats.jsonl}",
    "pipeline": "for example  pipeline: {sft: {kind: sft, init: base, data: chats}}, or  preset: cai",
}


def _stage_class(document: Document, name: str, value: Any, problems: list[Problem]) -> type[Stage] | None:
    path: Path_ = ("pipeline", name)
    kinds = ", ".join(STAGE_KINDS)
    if not isinstance(value, dict):
        message = f"expected a mapping with a `kind`, found {kind_of(value)}"
        problems.append(document.problem(path, message, hint=f"kinds: {kinds}"))
        return None
    if "kind" not in value:
        guess = nearest("kind", value)
        hint = f"did you write {guess!r} for 'kind'?" if guess else f"kinds: {kinds}"
        problems.append(document.problem(path, "the key 'kind' is missing", hint=hint))
        return None
    kind = value["kind"]
    if not isinstance(kind, str) or kind not in STAGE_KINDS:
        hint = did_you_mean(str(kind), STAGE_KINDS)
        problems.append(document.problem((*path, "kind"), f"no stage kind is called {kind!r}", hint=hint))
        return None
    return STAGE_KINDS[kind]


def _read(cls: type, value: Any, path: Path_, document: Document, problems: list[Problem]) -> Any:
    from pydantic import ValidationError

    try:
        return read_as(cls, value)
    except ValidationError as error:
        reported: dict[Path_, Problem] = {}
        missing: dict[Path_, list[str]] = {}
        for item in error.errors(include_url=False):
            location = (*path, *item["loc"])
            if item["type"].startswith("missing"):
                missing.setdefault(location[:-1], []).append(repr(location[-1]))
                continue
            place, problem = _tell(cls, value, path, item, document)
            reported[place] = _join(reported[place], problem) if place in reported else problem
        problems.extend(problem for place, problem in reported.items() if not _is_told_inside(place, reported))
        for place, keys in missing.items():
            words = f"the key {keys[0]} is" if len(keys) == 1 else f"the keys {', '.join(keys)} are"
            problems.append(document.problem(place, f"{words} missing"))
        return None


def _tell(cls: type, value: Any, path: Path_, item: Mapping[str, Any], document: Document) -> tuple[Path_, Problem]:
    kind, location = item["type"], item["loc"]
    if kind == "unexpected_keyword_argument":
        outer, key = _walk(value, location[:-1])[0], location[-1]
        place = (*path, *outer, key)
        hint = (not outer and _place_in_stage(cls, key)) or did_you_mean(key, known_keys(_class_at(cls, outer)))
        return place, document.problem(place, f"unknown key {key!r}", hint=hint)
    inner, reading = _walk(value, location)
    place = (*path, *inner)
    if kind == "value_error":
        return place, document.problem(place, str(item["ctx"]["error"]))
    if kind == "literal_error":
        allowed = item["ctx"]["expected"]
        words = [word.strip("'") for word in allowed.replace(" or ", ", ").split(", ")]
        guess = nearest(reading, words) if isinstance(reading, str) else None
        hint = f"did you mean {guess!r}?" if guess else ""
        return place, document.problem(place, f"expected {allowed}, found {kind_of(reading)}", hint=hint)
    expected = _EXPECTED.get(kind, item["msg"])
    return place, document.problem(place, f"expected {expected}, found {kind_of(reading)}")


def _is_told_inside(place: Path_, reported: Mapping[Path_, Problem]) -> bool:
    """Return True for the refusal of a union that a problem further inside explains."""
    return any(len(other) > len(place) and other[: len(place)] == place for other in reported)


def _join(first: Problem, second: Problem) -> Problem:
    """Two refusals of one value (each member of a union refuses it) as one."""
    head, value = first.message.rpartition(", found ")[::2]
    other = second.message.rpartition(", found ")[0].removeprefix("expected ")
    if not head or not other:
        return first
    return replace(first, message=f"{head} or {other}, found {value}")


def _walk(value: Any, location: tuple[str | int, ...]) -> tuple[Path_, Any]:
    """Return the part of an error's location that is in the value; pydantic adds names of union members."""
    path: Path_ = ()
    for part in location:
        inside = value if isinstance(value, dict) else dict(enumerate(value)) if isinstance(value, list) else {}
        if part not in inside:
            continue
        path, value = (*path, part), inside[part]
    return path, value


def _place_in_stage(cls: type, key: str) -> str:
    """A hint where a key at the top of the file, in its own or another tool's spelling, is one of stages."""
    own = HABITS.get(key, key)
    if cls is not Project or not (own in OF_RESOURCES or any(own in known_keys(kind) for kind in STAGE_KINDS.values())):
        return ""
    return f"it is a key of a stage: pipeline.STAGE.{key_of_stage(own)}"


def known_keys(cls: type | None) -> list[str]:
    """The keys that a mapping of this dataclass may have."""
    names = [item.name for item in fields(cls)] if cls is not None and is_dataclass(cls) else []
    return [*names, "preset"] if cls is Project else names


def _class_at(cls: type, location: tuple[str | int, ...]) -> type | None:
    """The dataclass that a location inside `cls` is read as."""
    current: Any = cls
    for part in location:
        if isinstance(part, str) and is_dataclass(current):
            current = _dataclass_in(get_type_hints(current).get(part))
    return current if isinstance(current, type) else None


def _dataclass_in(hint: Any) -> Any:
    if isinstance(hint, type) and is_dataclass(hint):
        return hint
    return next((dataclass for dataclass in map(_dataclass_in, get_args(hint)) if dataclass), None)


_HEADER = "# The whole project, with presets expanded and defaults written out (charter check --expand).\n"


def project_yaml(project: Project) -> str:
    """The explicit YAML text of a project; what is not given (None, an empty list) is left out."""
    blocks = [
        yaml.dump(
            {key: value},
            Dumper=_ProjectDumper,
            sort_keys=False,
            default_flow_style=False,
            width=110,
            allow_unicode=True,
        )
        for key, value in plain(project).items()
    ]
    return _HEADER + "\n".join(blocks)


def plain(value: Any) -> Any:
    """A dataclass as mappings, lists and scalars, in the order of its fields, without what is not given."""
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value):
        return {name: plain(getattr(value, name)) for name in _ordered_names(value) if _is_given(value, name)}
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return value


def _is_given(value: Any, name: str) -> bool:
    """Return True if a field is set; an empty table or list that is also the default is not."""
    setting = getattr(value, name)
    if setting is None or setting in ((), {}):
        item = next(item for item in fields(value) if item.name == name)
        default = item.default_factory() if item.default_factory is not MISSING else item.default
        return bool(setting != default)
    return True


def _ordered_names(value: Any) -> list[str]:
    """Field names; of a stage first its kind, then what it reads, then the rest, execution last."""
    names = [item.name for item in fields(value)]
    if not isinstance(value, Stage):
        return names
    first = [name for name in ("kind", *value.REFERENCES) if name in names]
    common = [item.name for item in fields(Stage) if item.name != "kind"]
    return [*first, *(name for name in names if name not in first and name not in common), *common]


class _ProjectDumper(yaml.SafeDumper):
    """Quotes what our reader would take for something else than text, and lists names in one line."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write equal values out, each in its place."""
        return True


def _text(dumper: _ProjectDumper, text: str) -> yaml.Node:
    style = '"' if scalar(text) != text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


def _list(dumper: _ProjectDumper, items: list[Any]) -> yaml.Node:
    flow = all(isinstance(item, str | int | float) for item in items)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=flow)


_ProjectDumper.add_representer(str, _text)
_ProjectDumper.add_representer(list, _list)
