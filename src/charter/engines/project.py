"""Projects as they are read with every engine known: names and number formats of their stages are checked."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from charter.engines import capabilities, engine_names, fp8_instead, fp8_refusal
from charter.engines.common.capabilities import INSTEAD_OF_REWARDS, refused_rewards
from charter.errors import Problem
from charter.spec import load
from charter.spec.project import Project
from charter.spec.stage import STAGE_KINDS
from charter.spec.stage_base import AUTO, FP8
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


def _unknown(name: str, path: str) -> Problem:
    *others, last = map(repr, engine_names())
    guess = nearest(name, engine_names())
    hint = f"did you mean {guess!r}?" if guess else ""
    return Problem(message=f"expected {', '.join(others)} or {last}, found {name!r}", path=path, hint=hint)


def project_json_schema() -> dict[str, Any]:
    """Return the JSON Schema of `charter.yaml` with the names of the engines in it."""
    from charter.spec import schema

    document = schema.project_json_schema()
    for cls in STAGE_KINDS.values():
        document["$defs"][cls.__name__]["properties"]["engine"]["enum"] = [AUTO, *engine_names()]
    document["properties"]["engines"]["propertyNames"] = {"enum": list(engine_names())}
    return document
