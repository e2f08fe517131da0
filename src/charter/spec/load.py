"""`charter.yaml` to a frozen `Project`; every error of the file at once, each with its line.

The steps, each a module: read YAML with line numbers (`yaml_source`), expand a preset (`presets`), put overrides
over it (`overrides`), read it into dataclasses (`bind`), check values (`checks`, `stage_checks`) and edges (`graph`).
Nothing is looked up on disk but the file itself: paths in it stay as written, relative to its directory.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from charter.errors import Problem, SpecError
from charter.spec.bind import Bound, bind, widen_shorthands
from charter.spec.checks import check_data, check_model, check_project
from charter.spec.graph import check_graph
from charter.spec.overrides import apply_overrides
from charter.spec.presets import expand_preset, missing_needs
from charter.spec.project import Project
from charter.spec.stage import Stage
from charter.spec.stage_checks import check_stage
from charter.spec.stage_parts import Optimization
from charter.spec.yaml_source import Document, Path_, read_document

DEFAULT_FILE = "charter.yaml"
DEFAULT_EPOCHS = 1.0
"""Passes over the data of a training stage that gives neither epochs nor steps."""


def load_project(path: Path, *, overrides: Sequence[str] = (), env: Mapping[str, str] | None = None) -> Project:
    """The project in a file (or in `charter.yaml` of a directory), or a `SpecError` with all its problems.

    `overrides` are texts like `pipeline.ppo.episodes=640`; `env` is the environment, in which variables like
    `CHARTER_PIPELINE__PPO__EPISODES` do the same with less strength.
    """
    if path.is_dir() and (path / DEFAULT_FILE).is_file():
        path = path / DEFAULT_FILE
    return project_of(read_document(path), overrides=overrides, env=env)


def project_of(document: Document, *, overrides: Sequence[str] = (), env: Mapping[str, str] | None = None) -> Project:
    """The project in a document that has been read; the document is changed on the way."""
    widen_shorthands(document)
    choice = [override for override in overrides if override.startswith("preset=")]
    problems = apply_overrides(document, choice, {})
    preset, found = expand_preset(document)
    others = [override for override in overrides if override not in choice]
    problems += found + apply_overrides(document, others, env or {})
    widen_shorthands(document)
    needs = missing_needs(document, preset) if preset else {}
    bound = bind(document)
    problems += [*needs.values(), *bound.problems]
    problems += [_place(document, problem) for problem in _check(document, bound, told=needs)]
    if problems or bound.project is None:
        raise SpecError(sorted(problems, key=lambda problem: problem.line or 0))
    return replace(bound.project, pipeline=_with_epochs(bound.project.pipeline))


def _check(document: Document, bound: Bound, *, told: Iterable[str]) -> Iterator[Problem]:
    for name, model in bound.models.items():
        yield from check_model(name, model)
    for name, data in bound.data.items():
        yield from check_data(name, data)
    for name, stage in bound.stages.items():
        yield from check_stage(name, stage)
    if bound.project is not None:
        yield from check_project(bound.project)
    readable = {**bound.models, **bound.data, **bound.stages}
    tables = [document.value.get(section) for section in ("models", "data", "pipeline")]
    written = {name for table in tables if isinstance(table, dict) for name in table}
    graph = Project(name="", models=bound.models, data=bound.data, pipeline=_stages(bound))
    yield from check_graph(graph, unreadable=(written - set(readable)).union(told))


def _stages(bound: Bound) -> Any:
    return bound.stages


def _place(document: Document, problem: Problem) -> Problem:
    """A problem with the file and line of the path that it names."""
    placed = document.problem(_keys(problem.path), problem.message, hint=problem.hint)
    return replace(placed, path=problem.path)


def _keys(path: str) -> Path_:
    """The keys of a dotted path, as far as it can be read: a name that is itself an error may hold anything."""
    keys: list[str | int] = []
    for part in path.split(".") if path else ():
        found = re.fullmatch(r"([^\[\]]*)((?:\[[0-9]+\])*)", part)
        if found is None:
            break
        keys += [found[1], *(int(position) for position in re.findall(r"[0-9]+", found[2]))]
    return tuple(keys)


def _with_epochs(stages: Mapping[str, Stage]) -> Any:
    """The stages, with the default number of epochs written into those that give neither epochs nor steps."""
    found = {}
    for name, stage in stages.items():
        bare = isinstance(stage, Optimization) and stage.epochs is None and stage.steps is None
        found[name] = replace(stage, epochs=DEFAULT_EPOCHS) if bare else stage  # type: ignore[call-arg]
    return found
