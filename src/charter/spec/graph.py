"""The pipeline as a graph: which stage reads what, in which order they run, what is wrong with the edges."""

from collections.abc import Iterable, Iterator

from charter.errors import Problem
from charter.spec.project import ModelSpec, Project, Serving
from charter.spec.stage import TRAINS, references
from charter.spec.stage_base import MODEL, Stage
from charter.spec.suggest import did_you_mean

CHOOSING = frozenset({"judge", "also_judges", "reward"})
"""Roles of models whose judgements are read from the probabilities of a few tokens."""
PREFERENCE_MODEL_ROLES = frozenset({"reward", "also_rewards", "control_reward"})
"""Roles that need a score, which only a preference model gives: a stage's, or a model marked `reward_model`."""
MAKES_PAIRS = frozenset({"label", "prepare"})
MAKES_TEXTS = frozenset({"critique", "generate", "prepare"})
_PAIR_ROLES = {
    ("preference_model", "data"): MAKES_PAIRS,
    ("dpo", "data"): MAKES_PAIRS,
    ("judge", "pairs"): MAKES_PAIRS,
    ("eval", "pairs"): MAKES_PAIRS,
    ("eval", "independent_pairs"): MAKES_PAIRS,
    ("label", "candidates"): MAKES_PAIRS,
    ("label", "demonstrations"): MAKES_PAIRS,
    ("sft", "data"): MAKES_TEXTS,
}
"""(kind of the reader, role) -> kinds of stage whose records have the form that it reads."""


def inputs_of(project: Project, stage_name: str) -> dict[str, tuple[str, ...]]:
    """Return the inputs of a stage by role: `{"policy": ("sl_cai",), "prompts": ("red_team",)}`."""
    return references(project.pipeline[stage_name])


def stage_inputs(project: Project, stage_name: str) -> tuple[str, ...]:
    """The stages that a stage reads from, each once, in the order of its fields."""
    names = (name for names in inputs_of(project, stage_name).values() for name in names)
    return tuple(dict.fromkeys(name for name in names if name in project.pipeline))


def execution_order(project: Project) -> tuple[str, ...]:
    """The stages, every input before its reader; among those that are ready the file's order decides."""
    waiting = {name: set(stage_inputs(project, name)) for name in project.pipeline}
    order: list[str] = []
    while waiting:
        ready = next((name for name, inputs in waiting.items() if inputs.issubset(order)), None)
        if ready is None:
            raise ValueError(f"the stages {', '.join(waiting)} wait for each other; check_graph names the cycle")
        order.append(ready)
        del waiting[ready]
    return tuple(order)


def check_graph(project: Project, *, unreadable: Iterable[str] = ()) -> list[Problem]:
    """Everything wrong with names and edges: clashes, unknown or unfit inputs, cycles.

    `unreadable` are names that the file defines but whose definition has errors of its own.
    """
    skipped = frozenset(unreadable)
    problems = _clashes(project)
    for name, stage in project.pipeline.items():
        for role, names in references(stage).items():
            problems += _check_role(project, name, stage, role, names, skipped)
            problems += _check_batch(project, name, stage, role, names)
            problems += _check_choices(project, name, stage, role, names)
    problems += _check_tokenizers(project, skipped)
    problems += _check_cycles(project)
    return problems


def _check_batch(
    project: Project, stage_name: str, stage: Stage, role: str, names: tuple[str, ...]
) -> Iterator[Problem]:
    """A stage that trains waits for every answer: it cannot ask a model whose answers take a day."""
    answering = names if stage.kind in TRAINS and role not in ("init", "policy") else ()
    for name in answering:
        if name in project.serving and project.serving[name].batch:
            message = f"{name!r} is asked by batch, and every step of a {stage.kind} stage would wait for it a day"
            hint = f"leave serving.{name}.batch out, or ask another model while training"
            yield Problem(message=message, path=f"pipeline.{stage_name}.{role}", hint=hint)


def _check_choices(
    project: Project, stage_name: str, stage: Stage, role: str, names: tuple[str, ...]
) -> Iterator[Problem]:
    """Judgements are read from log-probabilities, which not every server gives; label stages may count votes."""
    if role not in CHOOSING or getattr(stage, "votes", None):
        return
    for name in names:
        serving = project.serving.get(name)
        if serving is None or not serving.is_used or serving.gives_log_probabilities:
            continue
        message = (
            f"judgements of {name!r} are read from log-probabilities, and its server gives none ({_silence(serving)})"
        )
        other = "give votes, 5 say, or " if hasattr(stage, "votes") else ""
        hint = f"{other}ask a model whose server gives them (vLLM, SGLang, OpenAI's chat API)"
        yield Problem(message=message, path=f"pipeline.{stage_name}.{role}", hint=hint)


def _silence(serving: Serving) -> str:
    if serving.api == "messages":
        return "api: messages knows none"
    return "thinking_tokens: it thinks first" if serving.thinking_tokens else "log_probabilities: none"


def _clashes(project: Project) -> list[Problem]:
    problems = []
    owner: dict[str, str] = {}
    for section, table in {"models": project.models, "data": project.data, "pipeline": project.pipeline}.items():
        for name in table:
            if name in owner:
                message = f"the name {name!r} is already used in `{owner[name]}`"
                hint = "models, data and stages share one namespace; rename one of the two"
                problems.append(Problem(message=message, path=f"{section}.{name}", hint=hint))
            owner.setdefault(name, section)
    return problems


def _check_role(
    project: Project,
    stage_name: str,
    stage: Stage,
    role: str,
    names: tuple[str, ...],
    skipped: frozenset[str],
) -> list[Problem]:
    problems = []
    wanted = stage.REFERENCES[role]
    for index, name in enumerate(names):
        path = f"pipeline.{stage_name}.{role}" + (f"[{index}]" if len(names) > 1 else "")
        if name in names[:index]:
            problems.append(Problem(message=f"{name!r} is named twice", path=path))
        elif name == stage_name:
            message, hint = f"stage {stage_name!r} reads its own output", "name an earlier stage"
            problems.append(Problem(message=message, path=path, hint=hint))
        elif name not in skipped:
            problems += _check_name(project, stage, role, name, wanted, path)
    return problems


def _check_name(project: Project, stage: Stage, role: str, name: str, wanted: str, path: str) -> list[Problem]:
    candidates = fitting_names(project, stage, role)
    source = project.pipeline.get(name)
    if source is None and name not in project.models and name not in project.data:
        section = "models" if wanted == MODEL else "data"
        hint = did_you_mean(name, candidates) or f"add {name!r} under `{section}`"
        return [Problem(message=f"nothing is called {name!r}", path=path, hint=hint)]
    if name in candidates:
        return []
    hint = f"fitting: {', '.join(candidates)}" if candidates else ""
    if _needs_scores(stage, role) and name in project.models:
        hint = f"if {name!r} gives scores, add  reward_model: true  to its entry of `models`"
    message = f"needs {_need(stage, role, wanted)}, but {name!r} is {_what(project, name)}"
    return [Problem(message=message, path=path, hint=hint)]


def fitting_names(project: Project, stage: Stage, role: str) -> list[str]:
    """The names that may stand in a role of a stage, in the order of the file."""
    if stage.REFERENCES[role] == MODEL:
        plain = [name for name, model in project.models.items() if _model_fits(stage, role, model)]
        return plain + [name for name, item in project.pipeline.items() if _fits_model_role(stage, role, item)]
    return list(project.data) + [name for name, item in project.pipeline.items() if _fits_data_role(stage, role, item)]


def _needs_scores(stage: Stage, role: str) -> bool:
    """Return True if a role needs a preference model; a judge whose ratings are the reward is a language model."""
    rates = role == "reward" and getattr(stage, "reward_from", "") == "judge" and not getattr(stage, "rewards", ())
    return role in PREFERENCE_MODEL_ROLES and not rates


def _model_fits(stage: Stage, role: str, model: ModelSpec) -> bool:
    if _needs_scores(stage, role):
        return model.reward_model
    return not model.reward_model or (stage.kind, role) == ("preference_model", "init")


def _fits_model_role(stage: Stage, role: str, source: Stage) -> bool:
    if source is stage or source.MAKES != MODEL:
        return False
    if _needs_scores(stage, role):
        return source.kind == "preference_model"
    return source.kind != "preference_model" or (stage.kind, role) == ("preference_model", "init")


def _fits_data_role(stage: Stage, role: str, source: Stage) -> bool:
    if source is stage or source.MAKES == MODEL or source.kind == "eval":
        return False
    kinds = _PAIR_ROLES.get((stage.kind, role))
    return kinds is None or source.kind in kinds


def _need(stage: Stage, role: str, wanted: str) -> str:
    if _needs_scores(stage, role):
        return "a preference_model stage, or a model with `reward_model: true`"
    if wanted == MODEL:
        return "a language model: an entry of `models` or a stage that makes one"
    kinds = _PAIR_ROLES.get((stage.kind, role))
    if kinds is MAKES_PAIRS:
        return "preference pairs: an entry of `data` or a label stage"
    if kinds is MAKES_TEXTS:
        return "conversations: an entry of `data`, or a critique or generate stage"
    return "data: an entry of `data` or a stage that makes some"


def _what(project: Project, name: str) -> str:
    if name in project.pipeline:
        kind = project.pipeline[name].kind
        return f"{'an' if kind == 'eval' else 'a'} {kind} stage"
    if name in project.models:
        return "a reward model" if project.models[name].reward_model else "a model"
    return "a data set"


def _check_tokenizers(project: Project, skipped: frozenset[str]) -> list[Problem]:
    problems = []
    for model_name, model in project.models.items():
        for index, name in enumerate(model.tokenizer.train_on if model.tokenizer else ()):
            if name in project.data or name in skipped:
                continue
            path = f"models.{model_name}.tokenizer.train_on[{index}]"
            hint = did_you_mean(name, project.data) or f"add {name!r} under `data`"
            problems.append(Problem(message=f"no data set is called {name!r}", path=path, hint=hint))
    return problems


def _check_cycles(project: Project) -> list[Problem]:
    """One problem per knot of stages that wait for each other, with one way round it."""
    waiting = {name: [edge for edge in stage_inputs(project, name) if edge != name] for name in project.pipeline}
    done: set[str] = set()
    while ready := [name for name in waiting if name not in done and done.issuperset(waiting[name])]:
        done.update(ready)
    problems, reported = [], set(done)
    for start in waiting:
        if start in reported:
            continue
        trail: list[str] = [start]
        while (step := next(edge for edge in waiting[trail[-1]] if edge not in done)) not in trail:
            trail.append(step)
        cycle = trail[trail.index(step) :]
        if reported.isdisjoint(cycle):
            shown = " -> ".join([*cycle, cycle[0]])
            message = f"the stages form a cycle: {shown} (each reads the next)"
            problems.append(Problem(message=message, path=f"pipeline.{cycle[0]}", hint="remove one of these edges"))
        reported.update(trail)
    return problems
