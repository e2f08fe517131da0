"""`charter.yaml` to a frozen `Project`; every error of the file at once, each with its line.

The steps: read YAML with line numbers (`yaml_source`), expand a preset, put overrides over it, read it into dataclasses
(`bind`), check values (`checks`, `stage_checks`) and edges (`graph`). Nothing is looked up on disk but the file itself:
paths in it stay as written, relative to its directory.

`preset: cai` stands for a whole pipeline, written out in `templates/presets/cai.yaml`. What the user writes under
`pipeline` goes over the preset field by field; `stage: null` leaves a stage out. A preset never brings models or data:
what it needs and does not find is one clear error.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any

from charter.errors import Problem, SpecError, UsageError, loads_json
from charter.redaction import holds_secret, without_variable
from charter.spec import PROJECT_FILE
from charter.spec.bind import Bound, bind, known_keys, widen_shorthands
from charter.spec.checks import check_data, check_model, check_project
from charter.spec.graph import check_graph
from charter.spec.project import Project
from charter.spec.sections import Budget
from charter.spec.stage import TRAINS
from charter.spec.stage_base import AUTO, NATIVE, Optimization, Stage
from charter.spec.stage_checks import check_stage
from charter.spec.suggest import did_you_mean, nearest
from charter.spec.yaml_source import Document, Mark, Path_, dotted, kind_of, parse_document, parse_value, read_document

PRESETS = ("cai", "rlaif", "rlaif-direct", "sft-dpo")


@cache
def preset_text(name: str) -> str:
    """The YAML file of a preset, comments included."""
    return resources.files("charter.templates").joinpath("presets", f"{name}.yaml").read_text("utf-8")


def preset_contents(name: str) -> dict[str, Any]:
    """`summary`, `deviations`, `needs` and `pipeline` of a preset, read anew each time (the caller may change it)."""
    return parse_document(preset_text(name), origin=f"preset {name}").value


def deviation_lines(path: Path, overrides: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the deviations of a project's file from the paper of its preset, a heading first; none without a preset.

    The file is one that has been loaded without an error.
    """
    chosen = [item.removeprefix("preset=") for item in overrides if item.startswith("preset=")]
    path = path / PROJECT_FILE if path.is_dir() else path
    name = chosen[-1] if chosen else read_document(path).value.get("preset")
    if name not in PRESETS:
        return ()
    contents = preset_contents(name)
    heading = f"preset {name}, {contents['summary'].rpartition('(')[2].rstrip(')')}; it differs from the paper:"
    return (heading, *(f"  - {text}" for text in contents["deviations"]))


def expand_preset(document: Document) -> tuple[str | None, list[Problem]]:
    """Replace `preset: NAME` by the pipeline that it stands for; returns the name of the preset."""
    if "preset" not in document.value:
        return None, []
    name = document.value.pop("preset")
    if name is None:
        return None, []
    if name not in PRESETS:
        problem = document.problem(("preset",), f"no preset is called {name!r}", hint=did_you_mean(str(name), PRESETS))
        document.value.setdefault("pipeline", {})
        return None, [problem]
    own = document.value.get("pipeline")
    if own is not None and not isinstance(own, dict):
        return name, []
    document.value["pipeline"] = _merge(preset_contents(name)["pipeline"], own or {})
    for stage in document.value["pipeline"]:
        document.marks.setdefault(("pipeline", stage), document.mark(("preset",)))
    return name, []


def _merge(preset: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The preset's stages with the user's fields over them, then the user's further stages."""
    merged: dict[str, Any] = {}
    for name in (*preset, *(name for name in own if name not in preset)):
        own_settings = own.get(name, {})
        if own_settings is None and name in preset:
            continue
        base = preset.get(name, {})
        same_kind = isinstance(own_settings, dict) and own_settings.get("kind", base.get("kind")) == base.get("kind")
        merged[name] = {**base, **own_settings} if same_kind else own_settings
    return merged


def missing_needs(document: Document, name: str) -> dict[str, Problem]:
    """Models and data that the expanded stages name and the file does not define, each with what to add."""
    problems: dict[str, Problem] = {}
    used = _used_texts(document.value.get("pipeline"))
    for section, needs in preset_contents(name)["needs"].items():
        table = document.value.get(section)
        defined = table if isinstance(table, dict) else {}
        for need, description in needs.items():
            if need in used and need not in defined:
                example = "meta-llama/Llama-3.1-8B" if section == "models" else f"{need}.jsonl"
                problems[need] = document.problem(
                    ("preset",),
                    f"preset {name!r} needs an entry {need!r} under `{section}`: {description}",
                    hint=f"add  {section}: {{{need}: {example}}}",
                )
    return problems


def _used_texts(value: Any) -> set[str]:
    """Every text inside a value."""
    if isinstance(value, str):
        return {value}
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return {text for item in items for text in _used_texts(item)}


ENV_PREFIX = "CHARTER_"
NAMED_SECTIONS = ("models", "data", "pipeline")


def apply_overrides(document: Document, overrides: Sequence[str], env: Mapping[str, str]) -> list[Problem]:
    """Put the environment's and then the command line's values into the document."""
    problems = []
    for name, text in sorted(env.items()):
        parts = _env_path(name)
        if parts is not None:
            keys = _match_case(document.value, parts)
            problems += _put(document, keys, text, origin=f"environment {name}={text}")
    for override in overrides:
        path, equals, text = override.partition("=")
        origin = f"--set {without_variable(override)}"
        if not equals or not path.strip():
            message = "write it like --set pipeline.ppo.learning_rate=1e-6"
            problems.append(Problem(message=message, file=origin))
        else:
            problems += _put(document, path.strip().split("."), text, origin=origin)
    return problems


def _env_path(name: str) -> list[str] | None:
    """The parts of a variable's name if it is an override: it has `__`, or is a key of the top level."""
    if not name.startswith(ENV_PREFIX):
        return None
    rest = name[len(ENV_PREFIX) :]
    top_level = rest.lower() in known_keys(Project)
    return rest.split("__") if "__" in rest or top_level else None


def _match_case(value: Any, parts: Sequence[str]) -> list[str]:
    """The parts in the spelling of the file's keys; variables are often written in capitals."""
    renamed: list[str] = []
    for part in parts:
        stages = value if isinstance(value, dict) else {}
        spelled = next((key for key in stages if key == part), None)
        if renamed[-1:] == [VARIABLES] and renamed[0] in ("launch", "engines"):
            spelled = part  # the name of a variable, in which capitals count
        spelled = spelled or next((key for key in stages if key.lower() == part.lower()), part.lower())
        renamed.append(spelled)
        value = stages.get(spelled)
    return renamed


def _put(document: Document, keys: Sequence[str], text: str, *, origin: str) -> list[Problem]:
    try:
        value = parse_value(text)
    except ValueError as error:
        return [Problem(message=str(error), file=origin)]
    holder: Any = document.value
    path: Path_ = ()
    for depth, key in enumerate(keys):
        last = depth == len(keys) - 1
        step = _step(holder, key)
        if step is None or (not last and _names_nothing(path, holder, step)):
            return [_unknown(path, key, holder, origin)]
        path = (*path, step)
        if last:
            holder[step] = value
        elif isinstance(step, str) and holder.get(step) is None:
            holder[step] = {}
            document.marks[path] = Mark(origin=origin)
        holder = holder[step]
    _forget(document, path)
    document.marks[path] = Mark(origin=origin)
    return []


def _step(holder: Any, key: str) -> str | int | None:
    """Return the step by which `key` enters a mapping or a list; None when it does not."""
    if isinstance(holder, dict):
        return key
    if isinstance(holder, list) and key.isdecimal() and int(key) < len(holder):
        return int(key)
    return None


def _names_nothing(path: Path_, holder: Any, step: str | int) -> bool:
    """Return True if a path goes through a model, data set, stage or top-level key that is not there."""
    if not path:
        return step not in known_keys(Project)
    return path[0] in NAMED_SECTIONS and len(path) == 1 and step not in holder


def _unknown(path: Path_, key: str, holder: Any, origin: str) -> Problem:
    expected_keys = list(holder) if isinstance(holder, dict) else []
    if not path:
        expected_keys = known_keys(Project)
    where = dotted(path) or "the file"
    if isinstance(holder, list):
        message, hint = f"{where} is a list of {len(holder)}; {key!r} is not a position in it", "count from 0"
    elif isinstance(holder, dict):
        message, hint = f"{where} has no {key!r}", did_you_mean(key, expected_keys)
        guess = nearest(key, expected_keys)
        hint = f"did you mean {dotted((*path, guess))!r}?" if guess else hint
    else:
        message, hint = f"{where} is {kind_of(holder)}, so it has no {key!r}", ""
    return Problem(message=message, file=origin, hint=hint)


def _forget(document: Document, path: Path_) -> None:
    """Drop the marks of what an override replaced."""
    for path_below in [path_below for path_below in document.marks if path_below[: len(path)] == path]:
        del document.marks[path_below]


DEFAULT_EPOCHS = 1.0
"""Passes over the data of a training stage that gives neither epochs nor steps."""


Check = Callable[[Project], Iterable[Problem]]
"""Problems of a project that this package cannot know, such as names of engines, in the parts that could be read."""


def load_project(
    path: Path,
    *,
    overrides: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    check: Check = lambda project: (),
) -> Project:
    """The project in a file (or in `charter.yaml` of a directory), or a `SpecError` with all its problems.

    `overrides` are texts like `pipeline.ppo.episodes=640`; `env` is the environment, in which variables like
    `CHARTER_PIPELINE__PPO__EPISODES` do the same with less strength. `check` yields further problems.
    """
    if path.is_dir() and (path / PROJECT_FILE).is_file():
        path = path / PROJECT_FILE
    project = project_of(
        read_document(path), overrides=overrides, env=env, engines=chosen_engines(path.parent), check=check
    )
    return _with_raised_budget(project, path.parent)


BUDGET_FILE = "budget.json"
"""In the run directory: the limit that was raised during the run, over which limit of the file, and by whom."""


def _with_raised_budget(project: Project, root: Path) -> Project:
    """Return the project under the limit that an operator has raised; another limit in the file has the last word.

    Raises UsageError where the file holds something else.
    """
    path = root / "run" / BUDGET_FILE
    if project.budget is None or not path.is_file():
        return project
    try:
        content = loads_json(path.read_text(encoding="utf-8"))
        limits = {PROJECT_LIMIT: (float(content["limit_usd"]), float(content["over_usd"]))}
        for name, raised in dict(content.get("limits") or {}).items():
            limits[str(name)] = float(raised["limit_usd"]), float(raised["over_usd"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise UsageError(f"{path} does not hold a raised budget; move it away to spend by charter.yaml alone") from None
    budget = project.budget
    for name, (limit, over) in limits.items():
        if limits_of(budget).get(name) == over:
            budget = _with_limit(budget, name, limit)
    return replace(project, budget=budget)


PROJECT_LIMIT = "budget.limit"


def limits_of(budget: Budget) -> dict[str, float]:
    """Return every limit in usd, by its key in charter.yaml: `budget.limit`, `budget.owners.ann`."""
    parts = {"stages": budget.stages, "owners": budget.owners, "tags": budget.tags}
    below = {f"budget.{part}.{name}": usd for part, limits in parts.items() for name, usd in limits.items()}
    return {PROJECT_LIMIT: budget.limit, **below}


def _with_limit(budget: Budget, key: str, usd: float) -> Budget:
    if key == PROJECT_LIMIT:
        return replace(budget, limit=usd)
    _, part, name = key.split(".", 2)
    limits: Any = {part: {**getattr(budget, part), name: usd}}
    return replace(budget, **limits)


ENGINES_FILE = "engines.json"
"""In the run directory: the engine of each stage whose engine is `auto`, as it was chosen when the run began."""


def chosen_engines(root: Path) -> Mapping[str, str]:
    """Return the engines that were chosen for stages of a run; empty before it began.

    Raises UsageError where the file holds something else.
    """
    path = root / "run" / ENGINES_FILE
    try:
        content = loads_json(path.read_text(encoding="utf-8"))
    except OSError:
        return {}
    except ValueError:
        content = None
    if not isinstance(content, dict) or not all(isinstance(item, str) for item in content.values()):
        raise no_chosen_engines(path)
    return content


def no_chosen_engines(path: Path) -> UsageError:
    """Return the error of a file of chosen engines that holds something else."""
    return UsageError(f"{path} does not hold engines by stage; move it away to have them chosen again")


def _put_chosen_engines(document: Document, engines: Mapping[str, str]) -> None:
    """Replace `engine: auto` by the engine that was chosen, or this package's; less than `exact: bits` implies it."""
    content = document.value if isinstance(document.value, dict) else {}
    stages = content.get("pipeline")
    is_free = content.get("exact", "bits") != "bits"
    for name, stage in stages.items() if isinstance(stages, dict) else ():
        if isinstance(stage, dict) and stage.get("engine", AUTO if is_free else NATIVE) == AUTO:
            is_trained = stage.get("kind") in TRAINS
            stage |= {"engine": engines.get(name, NATIVE) if is_trained else NATIVE, "engine_by": "plan"}


def project_of(
    document: Document,
    *,
    overrides: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    engines: Mapping[str, str] = MappingProxyType({}),
    check: Check = lambda project: (),
) -> Project:
    """The project in a document that has been read; the document is changed on the way.

    `engines` are those that were chosen for stages whose engine is `auto`.
    """
    widen_shorthands(document)
    choice = [override for override in overrides if override.startswith("preset=")]
    problems = apply_overrides(document, choice, {})
    preset, preset_problems = expand_preset(document)
    others = [override for override in overrides if override not in choice]
    problems += preset_problems + apply_overrides(document, others, env or {})
    widen_shorthands(document)
    _put_chosen_engines(document, engines)
    needs = missing_needs(document, preset) if preset else {}
    bound = bind(document)
    problems += [*needs.values(), *bound.problems]
    problems += [_place(document, problem) for problem in _check(document, bound, check, told=needs)]
    problems += secrets_in(document, reported={problem.path for problem in problems})
    if problems or bound.project is None:
        raise SpecError(sorted(problems, key=lambda problem: problem.line or 0))
    return replace(bound.project, pipeline=_with_epochs(bound.project.pipeline))


def secrets_in(document: Document, *, reported: Collection[str]) -> Iterator[Problem]:
    """Problems of texts that are secrets: what is in the file is copied, printed and recorded with the run.

    The variables of processes are the one place where a user may write one: it is sent with their jobs, and shown
    nowhere.
    """
    hint = "take it out of the file and say where it is: env:NAME or file:PATH where a field takes a reference"
    for path, text in _texts(document.value, ()):
        if VARIABLES not in path and dotted(path) not in reported and holds_secret(text):
            yield document.problem(path, "holds what looks like a secret (not shown here)", hint=hint)


VARIABLES = "environment"
"""Key of `launch` and of an entry of `engines`: variables by name."""


def _texts(value: Any, path: Path_) -> Iterator[tuple[Path_, str]]:
    """Yield every text of a document, keys too, with where it stands."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield (*path, key), key
            yield from _texts(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _texts(item, (*path, index))


def _check(document: Document, bound: Bound, check: Check, *, told: Iterable[str]) -> Iterator[Problem]:
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
    serving = bound.project.serving if bound.project is not None else {}
    graph = Project(name="", models=bound.models, data=bound.data, pipeline=_stages(bound), serving=serving)
    yield from check(bound.project or graph)
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
        match = re.fullmatch(r"([^\[\]]*)((?:\[[0-9]+\])*)", part)
        if match is None:
            break
        keys += [match[1], *(int(position) for position in re.findall(r"[0-9]+", match[2]))]
    return tuple(keys)


def _with_epochs(stages: Mapping[str, Stage]) -> Any:
    """The stages, with the default number of epochs written into those that give neither epochs nor steps."""
    completed = {}
    for name, stage in stages.items():
        bare = isinstance(stage, Optimization) and stage.epochs is None and stage.steps is None
        completed[name] = replace(stage, epochs=DEFAULT_EPOCHS) if bare else stage  # type: ignore[call-arg]
    return completed
