"""Projects as they are read with every engine known: their names and number formats checked, and their JSON schema."""

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from charter.engines import capabilities, engine_names, fp8_instead, fp8_refusal
from charter.engines.common.capabilities import INSTEAD_OF_REWARDS, refused_rewards
from charter.errors import Problem
from charter.spec import load
from charter.spec.architecture import (
    Architecture,
    Encoder,
    LatentAttention,
    MixtureOfExperts,
    SparseIndexer,
    StateSpace,
)
from charter.spec.bind import SHORTHAND
from charter.spec.checks import NAME
from charter.spec.launching import (
    KubernetesSettings,
    Launch,
    ManagedSettings,
    NodeChecks,
    RaySettings,
    SkyPilotSettings,
    SlurmSettings,
)
from charter.spec.layout import Adapter
from charter.spec.load import PRESETS, preset_contents
from charter.spec.project import (
    DataSpec,
    ModelSpec,
    Place,
    Project,
    Resources,
    Serving,
    Storage,
    TokenizerSpec,
)
from charter.spec.rewards import Environment, Mismatch, Reward, Rubric
from charter.spec.sections import (
    Alerts,
    Budget,
    Costs,
    EngineEnvironment,
    HumanLabels,
    IdlePolicy,
    Metering,
    MlflowSettings,
    Retention,
    RiskSettings,
    Samples,
    Staff,
    TensorboardSettings,
    TrackerEntry,
    WandbSettings,
)
from charter.spec.stage import STAGE_KINDS
from charter.spec.stage_base import AUTO, FP8, Guard, StageResources
from charter.spec.suggest import nearest
from charter.spec.yaml_source import Document


def load_project(path: Path, *, overrides: Sequence[str] = (), env: Mapping[str, str] | None = None) -> Project:
    """Return the project in a file or directory, as `spec.load.load_project` does; its engines are checked too."""
    root = path if path.is_dir() else path.parent
    if not set(load.chosen_engines(root).values()) <= set(engine_names()):
        raise load.no_chosen_engines(root / "run" / load.ENGINES_FILE)
    return load.load_project(path, overrides=overrides, env=env, check=engine_problems)


def project_of(
    document: Document,
    *,
    overrides: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> Project:
    """Return the project in a document, as `spec.load.project_of` does; its engines are checked too."""
    return load.project_of(document, overrides=overrides, env=env, check=engine_problems)


def engine_problems(project: Project) -> Iterator[Problem]:
    """Yield names that no engine has, and number formats and rewards that a stage's engine does not take."""
    for name in project.engines:
        if name not in engine_names():
            yield _unknown(name, f"engines.{name}")
    for name, stage in project.pipeline.items():
        path = f"pipeline.{name}"
        if stage.engine not in engine_names():
            yield _unknown(stage.engine, f"{path}.engine")
            continue
        for field, why in refused_rewards(stage, capabilities(stage.engine)):
            message = f"{stage.engine} cannot express it: {why}"
            yield Problem(message=message, path=f"{path}.{field}", hint=INSTEAD_OF_REWARDS.get(field, ""))
        if getattr(stage, "dtype", None) == FP8 and (reason := fp8_refusal(stage.engine, stage.kind)):
            yield Problem(message=reason, path=f"{path}.dtype", hint=fp8_instead())


def inexpressible(project: Project) -> Iterator[Problem]:
    """Yield fields of stages that their engines cannot express, by the engines' tables: planned, but not run so."""
    for name, stage in project.pipeline.items():
        for item in capabilities(stage.engine).fixed:
            if item.refuses(stage):
                message = f"{stage.engine} cannot express it: {item.why}"
                yield Problem(message=message, path=f"pipeline.{name}.{item.field}", hint=item.instead)


def _unknown(name: str, path: str) -> Problem:
    *others, last = map(repr, engine_names())
    guess = nearest(name, engine_names())
    hint = f"did you mean {guess!r}?" if guess else ""
    return Problem(message=f"expected {', '.join(others)} or {last}, found {name!r}", path=path, hint=hint)


# -------- JSON Schema of charter.yaml.


@cache
def field_docs(cls: type) -> dict[str, str]:
    """The docstring under each field of a dataclass and its bases; fields without one are left out.

    >>> from charter.spec.project import DataSpec
    >>> field_docs(DataSpec)["limit"]
    'At most so many rows, in file order, after `part`.'
    """
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__[:-1]):
        docs.update(_own_docs(base))
    return {item.name: docs[item.name] for item in fields(cls) if item.name in docs}


def _own_docs(cls: type) -> dict[str, str]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    body: list[Any] = getattr(tree, "body", [])
    docs = {}
    for statement, following in pairwise(body):
        described = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
        named = isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
        if named and described and isinstance(following.value.value, str):
            docs[statement.target.id] = " ".join(following.value.value.split())
    return docs


SCHEMA_DIALECT = "https://json-schema.org/draft/2020-12/schema"
BLOCKS: tuple[type, ...] = (
    Project,
    ModelSpec,
    TokenizerSpec,
    Architecture,
    MixtureOfExperts,
    LatentAttention,
    SparseIndexer,
    StateSpace,
    Encoder,
    DataSpec,
    Resources,
    Place,
    Budget,
    Storage,
    Serving,
    Costs,
    HumanLabels,
    Staff,
    Retention,
    RiskSettings,
    StageResources,
    Adapter,
    Guard,
    Reward,
    Environment,
    Rubric,
    Mismatch,
    Launch,
    SlurmSettings,
    RaySettings,
    KubernetesSettings,
    SkyPilotSettings,
    ManagedSettings,
    NodeChecks,
    Metering,
    Samples,
    IdlePolicy,
    TrackerEntry,
    MlflowSettings,
    WandbSettings,
    TensorboardSettings,
    Alerts,
    EngineEnvironment,
)
"""Every dataclass of the file apart from the stages."""


def project_json_schema() -> dict[str, Any]:
    """Return the JSON Schema of `charter.yaml` with the names of the engines in it."""
    from pydantic import TypeAdapter

    schema: dict[str, Any] = TypeAdapter(Project).json_schema(ref_template="#/$defs/{model}")
    definitions = schema["$defs"]
    for cls in (*BLOCKS, *STAGE_KINDS.values()):
        _describe(schema if cls is Project else definitions[cls.__name__], cls)
    for cls in STAGE_KINDS.values():
        definitions[cls.__name__]["required"] = ["kind", *definitions[cls.__name__].get("required", [])]
        definitions[cls.__name__]["properties"]["engine"]["enum"] = [AUTO, *engine_names()]
    schema["properties"]["engines"]["propertyNames"] = {"enum": list(engine_names())}
    for section, key in SHORTHAND.items():
        _allow_text(schema["properties"][section], key)
    return {"$schema": SCHEMA_DIALECT, "title": "charter.yaml", **_with_pipeline(schema)}


def _describe(schema: dict[str, Any], cls: type) -> None:
    schema["description"] = (cls.__doc__ or "").split("\n\n")[0].strip()
    for name, text in field_docs(cls).items():
        schema["properties"][name]["description"] = text


def _allow_text(section: dict[str, Any], key: str) -> None:
    entry = section["additionalProperties"]
    text = {"type": "string", "description": f"Short for {{{key}: ...}}"}
    section["additionalProperties"] = {"anyOf": [text, entry]}
    section["propertyNames"] = {"pattern": f"^{NAME.pattern}$"}


def _with_pipeline(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with stages told apart by kind; under a preset a stage may give only what it changes."""
    references = [{"$ref": f"#/$defs/{cls.__name__}"} for cls in STAGE_KINDS.values()]
    mapping = {kind: f"#/$defs/{cls.__name__}" for kind, cls in STAGE_KINDS.items()}
    stage = {"oneOf": references, "discriminator": {"propertyName": "kind", "mapping": mapping}}
    properties = schema["properties"]
    properties["name"]["pattern"] = f"^{NAME.pattern}$"
    properties["pipeline"] = {"type": "object", "propertyNames": {"pattern": f"^{NAME.pattern}$"}}
    properties["pipeline"]["description"] = field_docs(Project)["pipeline"]
    properties["preset"] = {
        "enum": list(PRESETS),
        "description": "A pipeline by name; entries of `pipeline` go over it field by field. "
        + " ".join(f"{name}: {preset_contents(name)['summary']}." for name in PRESETS),
    }
    schema["required"] = [name for name in schema["required"] if name != "pipeline"]
    document = {"properties": {"pipeline": {"additionalProperties": stage, "minProperties": 1}}}
    partial = {"additionalProperties": {"type": ["object", "null"]}}
    schema["if"] = {"required": ["preset"]}
    schema["then"] = {"properties": {"pipeline": partial}}
    schema["else"] = {"required": ["pipeline"], **document}
    return schema
