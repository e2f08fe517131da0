"""The JSON Schema accepts what the loader accepts, and refuses the common mistakes."""

from dataclasses import fields

import jsonschema
import pytest

from charter.engines.project import BLOCKS, field_docs, project_json_schema
from charter.spec.stage import STAGE_KINDS
from charter.spec.yaml_source import parse_document

SCHEMA = project_json_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
BASE = """
name: small
models: {base: openai/gpt2, other: {model: x, precision: int4}}
data: {chats: chats.jsonl, prompts: {path: p.jsonl, limit: 4k}}
deadline: 14d
budget: {limit: $25_000}
pipeline:
  sft: {kind: sft, init: base, data: chats, epochs: 1}
  ppo: {kind: ppo, policy: sft, reward: pm, prompts: [prompts], episodes: 6_400}
"""


def errors(text):
    return sorted(error.message for error in VALIDATOR.iter_errors(parse_document(text, origin="x").value))


def test_the_schema_is_itself_valid():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_a_project_is_valid():
    assert errors(BASE) == []


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ("name: small", "nmae: small"),
        ("name: small", "name: 3"),
        ("name: small", "name: a/b"),
        ("kind: sft", "kind: sfft"),
        ("kind: sft, ", ""),
        ("init: base, ", ""),
        ("epochs: 1", "epoch: 1"),
        ("epochs: 1", "epochs: many"),
        ("precision: int4", "precision: int3"),
        ("chats: chats.jsonl", "chats: 3"),
        ("limit: $25_000", "limit: [1]"),
        ("pipeline:", "pipelines:"),
        ("sft: {", "s ft: {"),
    ],
)
def test_a_mistake_is_refused(good, bad):
    assert errors(BASE.replace(good, bad)) != []


def test_under_a_preset_a_stage_may_give_only_what_it_changes():
    text = "name: x\npreset: cai\nmodels: {base: openai/gpt2}\n"
    assert errors(text) == []
    assert errors(text + "pipeline: {ppo: {episodes: 64}, eval: null}\n") == []
    assert errors(text.replace("preset: cai", "preset: cia")) != []
    assert errors("name: x\nmodels: {base: openai/gpt2}\n") != []


@pytest.mark.parametrize("kind", STAGE_KINDS)
def test_stages_are_told_apart_by_kind(kind):
    definition = SCHEMA["$defs"][STAGE_KINDS[kind].__name__]
    assert definition["properties"]["kind"]["const"] == kind
    assert "kind" in definition["required"]
    assert definition["additionalProperties"] is False


def test_the_descriptions_are_those_of_the_source():
    for cls in (*BLOCKS, *STAGE_KINDS.values()):
        definition = SCHEMA if cls.__name__ == "Project" else SCHEMA["$defs"][cls.__name__]
        assert set(definition["properties"]) - {"preset"} == {item.name for item in fields(cls)}, cls.__name__
        assert definition["description"], cls.__name__
        shown = {name: definition["properties"][name]["description"] for name in field_docs(cls)}
        assert shown == field_docs(cls), cls.__name__


def test_descriptions_are_inherited():
    assert field_docs(STAGE_KINDS["sft"])["global_batch"] == "Sequences (or pairs) per optimizer step."
