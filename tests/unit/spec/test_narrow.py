"""A schema of the fields that are given reads and refuses what a schema of all fields does."""

import copy
import json
import os
import random
from dataclasses import fields
from functools import cache

import pytest
from pydantic import TypeAdapter, ValidationError

from charter.engines.project import project_of
from charter.errors import SpecError
from charter.spec import bind
from charter.spec.project import Project
from charter.spec.stage import STAGE_KINDS
from charter.spec.yaml_source import Document, parse_document
from charter.templates.shipped import shipped_bytes

TEMPLATES = ("cai-smoke", "cai-8b", "rlaif-8b")
ODD = (None, True, -1, 2.5, 1e400, "x", "auto", "14d", "H100:8", [], ["x"], [3], {}, {"x": 1}, {"kind": "sft"})


@cache
def schema_of_all(cls):
    return TypeAdapter(cls)


def read_by_all(cls, value):
    return schema_of_all(cls).validate_json(json.dumps(value), strict=True)


def outcome(value):
    """The project, or what was said of every problem, in order."""
    try:
        return project_of(Document(value=copy.deepcopy(value)))
    except SpecError as error:
        return [(problem.path, problem.message, problem.hint) for problem in error.problems]


def changed(value, draw):
    """A copy with one value of it replaced, removed, or added."""
    new = copy.deepcopy(value)
    holder = new
    while True:
        inner = [item for item in holder.values() if isinstance(item, dict) and item]
        if not inner or draw.random() < 0.3:
            break
        holder = draw.choice(inner)
    key = draw.choice([*holder, "kind", "lora", "resources", "learning_rate", "name"])
    if draw.random() < 0.25:
        holder.pop(key, None)
    else:
        holder[key] = draw.choice(ODD)
    return new


@pytest.mark.parametrize("template", TEMPLATES)
def test_what_is_read_and_said_is_the_same(template, monkeypatch):
    value = parse_document(shipped_bytes(f"{template}/charter.yaml").decode(), origin="charter.yaml").value
    draw = random.Random(7)
    values = [value]
    for _ in range(30):
        one = changed(value, draw)
        values += [one, changed(one, draw)]
    found = [outcome(item) for item in values]
    monkeypatch.setattr(bind, "read_as", read_by_all)
    assert found == [outcome(item) for item in values]
    assert isinstance(found[0], Project)
    assert len({str(item) for item in found}) > 20, "hardly anything was refused"


def refusal(read, cls, value):
    with pytest.raises(ValidationError) as raised:
        read(cls, value)
    return [(item["type"], item["loc"]) for item in raised.value.errors()]


@pytest.mark.parametrize("value", [{}, {"nothing": 1}, [], "x", None, 3])
def test_what_is_missing_or_no_mapping_is_refused_alike(value):
    classes = [Project, *STAGE_KINDS.values()]
    asking = [cls for cls in classes if value != {} or any(bind._is_required(item) for item in fields(cls))]
    assert asking
    unlike = [cls for cls in asking if refusal(bind.read_as, cls, value) != refusal(read_by_all, cls, value)]
    assert unlike == []


def test_fields_that_are_not_given_are_not_in_the_schema():
    adapter = bind._adapter(STAGE_KINDS["sft"], frozenset({"seed"}))
    names = {item["name"] for item in adapter.core_schema["schema"]["fields"]}
    assert "resources" not in names
    assert names <= {item.name for item in fields(STAGE_KINDS["sft"])}
    project = fields(bind._narrowed(Project, frozenset({"seed"})))
    assert {item.name for item in project} == {"name", "models", "pipeline", "seed"}


def test_only_known_keys_make_another_schema():
    cls = bind.DataSpec
    bind._adapter.cache_clear()
    for key in ("one", "two", "three"):
        with pytest.raises(ValidationError):
            bind.read_as(cls, {"path": "a.jsonl", key: 1})
    assert bind._adapter.cache_info().currsize == 1


def test_plugins_are_looked_for_only_where_the_environment_says_so(monkeypatch):
    seen = []

    def look():
        bind._adapter.cache_clear()
        bind.read_as(bind.DataSpec, {"path": "a.jsonl"})
        return seen[-1], os.environ.get(bind.NO_PLUGINS)

    def scheme(cls):
        seen.append(os.environ.get(bind.NO_PLUGINS))
        return schema_of_all(cls)

    monkeypatch.setattr("pydantic.TypeAdapter", scheme)
    monkeypatch.delenv(bind.NO_PLUGINS, raising=False)
    assert look() == ("1", None)
    monkeypatch.setenv(bind.NO_PLUGINS, "logfire")
    assert look() == ("logfire", "logfire")
