"""Values of a stage that have the right type but cannot work. Pure; see `checks` for the rest of the project."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields

from charter.errors import Problem
from charter.spec.checks import check_accelerators, check_name
from charter.spec.feedback_checks import check_critique, check_generate, check_label
from charter.spec.ppo_checks import check_ppo
from charter.spec.ranges import (
    AT_LEAST_ONE,
    NOT_NEGATIVE,
    POSITIVE,
    SHARE_ABOVE_ZERO,
    SHARE_BELOW_HALF,
    SHARE_BELOW_ONE,
    Range,
    check_ranges,
)
from charter.spec.stage import (
    CritiqueStage,
    DpoStage,
    EvalStage,
    GenerateStage,
    JudgeStage,
    LabelStage,
    PpoStage,
    PreferenceModelStage,
    PrepareStage,
    Stage,
    StageResources,
    references,
)
from charter.spec.stage_kinds import MAKES_RECORDS
from charter.spec.stage_parts import Optimization, Sampling
from charter.spec.update_checks import ADAM, check_adapter, check_dtype, check_guard

_EVERY_STAGE: tuple[tuple[str, Range], ...] = (
    ("checkpoint_every", AT_LEAST_ONE),
    ("checkpoint_interval", POSITIVE),
    ("hang_timeout", POSITIVE),
    ("timeout", POSITIVE),
)
_OPTIMIZATION: tuple[tuple[str, Range], ...] = (
    *ADAM,
    ("epochs", POSITIVE),
    ("steps", AT_LEAST_ONE),
    ("global_batch", AT_LEAST_ONE),
    ("seq_len", AT_LEAST_ONE),
    ("dropout", SHARE_BELOW_ONE),
)
_SAMPLING: tuple[tuple[str, Range], ...] = (
    ("temperature", NOT_NEGATIVE),
    ("top_p", SHARE_ABOVE_ZERO),
    ("max_new_tokens", AT_LEAST_ONE),
    ("max_prompt_tokens", AT_LEAST_ONE),
    ("rollout_batch", AT_LEAST_ONE),
)
_PREPARE: tuple[tuple[str, Range], ...] = (
    ("overlap_words", AT_LEAST_ONE),
    ("near_duplicates", SHARE_ABOVE_ZERO),
    ("max_characters", AT_LEAST_ONE),
    ("max_rows", AT_LEAST_ONE),
)
_PREFERENCE_MODEL: tuple[tuple[str, Range], ...] = (
    ("head_learning_rate_ratio", POSITIVE),
    ("label_smoothing", SHARE_BELOW_HALF),
    ("center_weight", NOT_NEGATIVE),
)
_STAGE_RESOURCES: tuple[tuple[str, Range], ...] = (
    ("num_nodes", AT_LEAST_ONE),
    ("cpus", AT_LEAST_ONE),
    ("shards", AT_LEAST_ONE),
    ("micro_batch", AT_LEAST_ONE),
    ("tensor", AT_LEAST_ONE),
    ("pipeline", AT_LEAST_ONE),
    ("interleave", AT_LEAST_ONE),
    ("context", AT_LEAST_ONE),
    ("expert", AT_LEAST_ONE),
    ("replicas", AT_LEAST_ONE),
    ("zero", (lambda stage: stage in (0, 1, 2, 3), "must be 0, 1, 2 or 3")),
)
SUITE_NEEDS: Mapping[str, tuple[str, ...]] = {
    "perplexity": ("pairs",),
    "judge_agreement": ("judge", "pairs"),
    "pm_accuracy": ("reward", "pairs"),
    "pm_calibration": ("pairs", "reward|also_rewards"),
    "win_rate": ("against", "reward", "prompts"),
    "judge_win_rate": ("against", "judge", "prompts"),
    "independent_check": ("against", "prompts", "independent_pairs"),
    "hhh": ("reward|also_rewards|judge",),
    "multiple_choice": ("questions",),
    "refusal": ("refusal_prompts|benign_prompts",),
    "goodhart": ("checkpoints_of", "against", "reward", "prompts", "judge|independent_pairs"),
    "probes": ("judge", "probes"),
    "lm_eval": ("lm_eval_tasks",),
}
"""What a suite of an eval stage cannot be measured without; of names with a bar between them one is enough."""


def check_stage(name: str, stage: Stage) -> Iterator[Problem]:
    """Problems of one stage, apart from its edges."""
    path = f"pipeline.{name}"
    yield from check_name(name, path)
    for role, names in references(stage).items():
        if "" in names:
            yield Problem(message="holds an empty name", path=f"{path}.{role}")
    yield from _check_required_names(stage, path)
    yield from check_ranges(stage, path, _EVERY_STAGE)
    if stage.resources is not None:
        yield from _check_stage_resources(stage.resources, f"{path}.resources")
        yield from _check_shards(name, stage)
    if isinstance(stage, Optimization):
        yield from _check_optimization(stage, path)
    if isinstance(stage, Optimization | PpoStage):
        yield from check_dtype(stage.dtype, stage.engine, stage.kind, path)
    if isinstance(stage, Sampling):
        yield from _check_sampling(stage, path)
    for cls, check in _BY_KIND.items():
        if isinstance(stage, cls):
            yield from check(stage, path)


def _check_required_names(stage: Stage, path: str) -> Iterator[Problem]:
    """A list of names that must be given must also hold one."""
    for item in fields(stage):
        required = item.default is MISSING and item.default_factory is MISSING
        if required and item.name in stage.REFERENCES and getattr(stage, item.name) == ():
            yield Problem(message="is empty; name at least one", path=f"{path}.{item.name}")


def _check_stage_resources(resources: StageResources, path: str) -> Iterator[Problem]:
    yield from check_ranges(resources, path, _STAGE_RESOURCES)
    if resources.accelerators is not None:
        yield from check_accelerators([resources.accelerators], f"{path}.accelerators")


def _check_shards(name: str, stage: Stage) -> Iterator[Problem]:
    if stage.resources is not None and (stage.resources.shards or 1) > 1 and stage.kind not in MAKES_RECORDS:
        yield Problem(
            message=f"a stage of kind {stage.kind} has no batches of records to share",
            path=f"pipeline.{name}.resources.shards",
            hint=f"shards are for {', '.join(sorted(MAKES_RECORDS))}; to train on several processors write "
            "accelerators: cpu:4",
        )


def _check_optimization(stage: Optimization, path: str) -> Iterator[Problem]:
    yield from check_ranges(stage, path, _OPTIMIZATION)
    if stage.epochs is not None and stage.steps is not None:
        message = f"give either epochs or steps; found epochs {stage.epochs:g} and steps {stage.steps}"
        yield Problem(message=message, path=f"{path}.steps", hint="remove one of the two")
    if stage.steps is not None and stage.warmup_steps > stage.steps:
        message = f"{stage.warmup_steps} warm-up steps, but the stage has only {stage.steps} steps"
        yield Problem(message=message, path=f"{path}.warmup_steps")
    yield from check_adapter(stage.adapter, path)
    yield from check_guard(stage.guard, f"{path}.guard")


def _check_sampling(stage: Sampling, path: str) -> Iterator[Problem]:
    yield from check_ranges(stage, path, _SAMPLING)
    if stage.min_new_tokens > stage.max_new_tokens:
        message = f"{stage.min_new_tokens} is more than max_new_tokens, {stage.max_new_tokens}"
        yield Problem(message=message, path=f"{path}.min_new_tokens")
    if getattr(stage, "num_prompts", None) is not None:
        yield from check_ranges(stage, path, [("num_prompts", AT_LEAST_ONE)])


def _check_prepare(stage: PrepareStage, path: str) -> Iterator[Problem]:
    yield from check_ranges(stage, path, _PREPARE)
    if stage.max_characters is not None and stage.max_characters < stage.min_characters:
        message = f"{stage.max_characters} is less than min_characters, {stage.min_characters}"
        yield Problem(message=message, path=f"{path}.max_characters")
    for name in sorted(set(stage.data) & set(stage.held_out)):
        yield Problem(
            message=f"{name!r} is in held_out too: every row of it would be rejected",
            path=f"{path}.data",
            hint="name the evaluation sets in held_out, and in data what is trained on",
        )


def _check_judge(stage: JudgeStage, path: str) -> Iterator[Problem]:
    yield from check_ranges(stage, path, [("cross_entropy_weight", NOT_NEGATIVE)])


def _check_preference_model(stage: PreferenceModelStage, path: str) -> Iterator[Problem]:
    yield from check_ranges(stage, path, _PREFERENCE_MODEL)


def _check_dpo(stage: DpoStage, path: str) -> Iterator[Problem]:
    yield from check_ranges(stage, path, [("beta", POSITIVE), ("label_smoothing", SHARE_BELOW_HALF)])


def _check_eval(stage: EvalStage, path: str) -> Iterator[Problem]:
    if not stage.suites:
        yield Problem(message="is empty; name at least one", path=f"{path}.suites")
    for index, suite in enumerate(stage.suites):
        where = f"{path}.suites[{index}]"
        if suite in stage.suites[:index]:
            yield Problem(message=f"{suite!r} is named twice", path=where)
    if stage.also_judges and stage.judge is None:
        hint = "name one of them as judge; the others are compared with it"
        yield Problem(message="are given, but there is no judge", path=f"{path}.also_judges", hint=hint)
    elif stage.judge in stage.also_judges:
        message = f"{stage.judge!r} is the judge already; it would be compared with itself"
        yield Problem(message=message, path=f"{path}.also_judges", hint="remove it there")
    for name in sorted(set(stage.pairs) & set(stage.independent_pairs)):
        yield Problem(
            message=f"{name!r} is in pairs too: the independent check would be tested on what it learnt from",
            path=f"{path}.independent_pairs",
            hint="name human pairs that no other stage and no other role reads",
        )


def check_runnable(name: str, stage: Stage) -> Iterator[Problem]:
    """What a stage lacks to be run; a plan can be made without it."""
    if not isinstance(stage, EvalStage):
        return
    for index, suite in enumerate(stage.suites):
        missing = missing_needs(suite, lambda role: bool(getattr(stage, role)))
        if missing:
            yield Problem(
                message=f"the suite {suite!r} needs {' and '.join(missing)}",
                path=f"pipeline.{name}.suites[{index}]",
                hint=f"add {missing[0]} to the stage, or drop the suite",
            )


def missing_needs(suite: str, has: Callable[[str], bool]) -> list[str]:
    """What a suite cannot be measured without and is not there, in words."""
    needs = [need.split("|") for need in SUITE_NEEDS[suite]]
    return [" or ".join(names) for names in needs if not any(map(has, names))]


_BY_KIND: Mapping[type[Stage], Callable[..., Iterator[Problem]]] = {
    PrepareStage: _check_prepare,
    JudgeStage: _check_judge,
    CritiqueStage: check_critique,
    GenerateStage: check_generate,
    LabelStage: check_label,
    PreferenceModelStage: _check_preference_model,
    DpoStage: _check_dpo,
    EvalStage: _check_eval,
    PpoStage: check_ppo,
}
