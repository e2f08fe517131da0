"""Write the generated part of docs/reference/charter-yaml.md: every key of charter.yaml with type, default, meaning."""

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

from charter.engines.project import BLOCKS, field_docs, project_json_schema
from charter.spec.load import PRESETS, preset_contents
from charter.spec.quantity import is_execution
from charter.spec.stage import STAGE_KINDS
from charter.spec.stage_base import Optimization, Sampling, Stage
from generated import write_part

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "charter-yaml.md"
SHARED: Mapping[type, str] = {
    Stage: "Keys of every stage",
    Optimization: "Keys of every stage that trains by epochs or steps",
    Sampling: "Keys of every stage that samples text",
}
WHERE: Mapping[str, str] = {
    "Project": "The top of the file",
    "ModelSpec": "An entry of `models`",
    "TokenizerSpec": "`models.NAME.tokenizer`",
    "Architecture": "`models.NAME.architecture`",
    "MixtureOfExperts": "`models.NAME.architecture.mixture`",
    "LatentAttention": "`models.NAME.architecture.latent_attention`",
    "SparseIndexer": "`models.NAME.architecture.sparse_indexer`",
    "StateSpace": "`models.NAME.architecture.state_space`",
    "Encoder": "`models.NAME.architecture.encoder`",
    "DataSpec": "An entry of `data`",
    "Resources": "`resources`",
    "Place": "An entry of `resources.any_of`",
    "Budget": "`budget`",
    "Storage": "`storage`",
    "Serving": "An entry of `serving`",
    "ServerPool": "`serving.NAME.pool`, and entries of `pipeline.NAME.resources.pools`",
    "Costs": "`costs`",
    "HumanLabels": "`costs.human_labels`",
    "Staff": "`costs.staff`",
    "Retention": "`costs.retention`",
    "RiskSettings": "`risk`",
    "StageResources": "`pipeline.NAME.resources`",
    "Adapter": "`pipeline.NAME.adapter`",
    "Guard": "`pipeline.NAME.guard`",
    "Reward": "An entry of `pipeline.NAME.rewards`",
    "Environment": "`environment` of a stage of kind ppo or eval",
    "Rubric": "`rubric` of an entry of `pipeline.NAME.rewards`",
    "Mismatch": "`pipeline.NAME.mismatch`",
    "Launch": "`launch`",
    "SlurmSettings": "`launch.slurm`",
    "RaySettings": "`launch.ray`",
    "KubernetesSettings": "`launch.kubernetes`",
    "SkyPilotSettings": "`launch.skypilot`",
    "ManagedSettings": "`launch.managed`",
    "NodeChecks": "`launch.node_checks`",
    "Metering": "`metering`",
    "Samples": "`samples`",
    "IdlePolicy": "`idle`",
    "TrackerEntry": "An entry of `tracking`",
    "MlflowSettings": "An entry of `tracking`: `mlflow`",
    "WandbSettings": "An entry of `tracking`: `wandb`",
    "TensorboardSettings": "An entry of `tracking`: `tensorboard`",
    "Alerts": "`alerts`",
    "EngineEnvironment": "An entry of `engines`",
}


def reference() -> str:
    """The sections of the page: blocks of the file, keys that stages share, stage kinds, presets."""
    schema = project_json_schema()
    definitions = {**schema["$defs"], "Project": schema}
    sections = [section(WHERE[cls.__name__], cls, definitions[cls.__name__], names(cls)) for cls in BLOCKS]
    for cls, title in SHARED.items():
        owner = next(kind for kind in STAGE_KINDS.values() if issubclass(kind, cls))
        sections.append(section(title, cls, definitions[owner.__name__], names(cls)))
    for kind, stage in STAGE_KINDS.items():
        bases = [cls for cls in SHARED if issubclass(stage, cls)]
        inherited = {name for cls in bases for name in names(cls)}
        shared = ", ".join(f"[{SHARED[cls].lower()}](#{anchor(SHARED[cls])})" for cls in bases if cls is not Stage)
        own = [name for name in names(stage) if name not in inherited or name == "kind"]
        note = f"\nAnd the {shared}.\n" if shared else ""
        title = f"`kind: {kind}`" + ("" if stage.RUNS else " (plans, does not run yet)")
        sections.append(section(title, stage, definitions[stage.__name__], own) + note)
    return "\n".join(["", *sections, presets()])


def names(cls: type) -> list[str]:
    """The field names of a dataclass, in their order."""
    return [item.name for item in fields(cls)]


def section(title: str, cls: type, definition: Mapping[str, Any], shown: list[str]) -> str:
    """One heading, what the block is, and a table of its keys."""
    rows = ["| key | type | default | meaning |", "| --- | --- | --- | --- |"]
    docs = field_docs(cls)
    for item in fields(cls):
        if item.name in shown:
            kind = words(definition["properties"][item.name]).replace("|", "\\|")
            mark = " *(execution)*" if is_execution(item) else ""
            rows.append(f"| `{item.name}` | {kind} | {default(item)} | {docs.get(item.name, '')}{mark} |")
    about = " ".join((cls.__doc__ or "").split())
    return f"## {title}\n\n{about}\n\n" + "\n".join(rows) + "\n"


def anchor(title: str) -> str:
    """The link target of a heading."""
    return title.lower().replace(" ", "-")


def default(item: "Field[Any]") -> str:
    """The default of a field as it would be written, or that it must be given."""
    value = item.default if item.default_factory is MISSING else item.default_factory()
    if value is MISSING:
        return "**required**"
    if value is None or value in ((), {}) or not isinstance(value, int | float | str | tuple):
        return ""
    if isinstance(value, tuple):
        return f"`[{', '.join(value)}]`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def words(schema: Mapping[str, Any]) -> str:
    """A JSON Schema type in a few words."""
    if "examples" in schema:
        return f"number, like `{schema['examples'][0]}`"
    if "anyOf" in schema:
        options = [words(option) for option in schema["anyOf"] if option.get("type") != "null"]
        return "name or list of names" if options == ["text", "list of text"] else " or ".join(options)
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    if "$ref" in schema:
        where = WHERE[schema["$ref"].rpartition("/")[2]]
        return f"block: {where[0].lower() + where[1:]}"
    return plain(schema)


def plain(schema: Mapping[str, Any]) -> str:
    """A schema that names a JSON type."""
    kinds = {"string": "text", "integer": "whole number", "number": "number", "boolean": "true or false"}
    if schema.get("type") == "array":
        return f"list of {words(schema['items'])}" if "items" in schema else "list"
    return kinds.get(str(schema.get("type")), "mapping")


def presets() -> str:
    """Return the table of presets: the stages that each expands to, and its needs."""
    rows = ["| preset | stages | needs |", "| --- | --- | --- |"]
    for name in PRESETS:
        contents = preset_contents(name)
        needs = [need for group in contents["needs"].values() for need in group]
        listed = ", ".join(f"`{need}`" for need in needs)
        rows.append(f"| `{name}` | {contents['summary']} | {listed} |")
    return "## Presets\n\n" + "\n".join(rows) + "\n"


if __name__ == "__main__":
    write_part(PAGE, reference())
