"""JSON Schema of `charter.yaml`, for editors and for `charter check schema`.

Pydantic makes it from the dataclasses; here it learns what it cannot know: texts instead of mappings, stages told
apart by `kind`, presets, patterns of names, and the descriptions that stand under the fields in the source.
"""

import ast
import inspect
import textwrap
from dataclasses import fields
from functools import cache
from itertools import pairwise
from typing import Any

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
from charter.spec.stage_base import Guard, StageResources


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
    """The JSON Schema of `charter.yaml`."""
    from pydantic import TypeAdapter

    schema: dict[str, Any] = TypeAdapter(Project).json_schema(ref_template="#/$defs/{model}")
    definitions = schema["$defs"]
    for cls in (*BLOCKS, *STAGE_KINDS.values()):
        _describe(schema if cls is Project else definitions[cls.__name__], cls)
    for cls in STAGE_KINDS.values():
        definitions[cls.__name__]["required"] = ["kind", *definitions[cls.__name__].get("required", [])]
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
