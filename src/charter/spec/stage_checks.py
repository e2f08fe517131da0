"""Values of a stage that have the right type but cannot work. Pure; see `checks` for the rest of the project."""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields

from charter.errors import Problem
from charter.spec.checks import check_accelerators, check_name, check_pool
from charter.spec.layout import Adapter
from charter.spec.ppo_stage import PpoStage, check_asynchrony, check_controller, check_divergence, check_online_dpo
from charter.spec.quantity import (
    ABOVE_ONE,
    AT_LEAST_ONE,
    NOT_NEGATIVE,
    POSITIVE,
    SHARE,
    SHARE_ABOVE_ZERO,
    SHARE_BELOW_HALF,
    SHARE_BELOW_ONE,
    Range,
    check_ranges,
    divisors_near,
)
from charter.spec.rewards import (
    GROUPED,
    OPTIONS_OF_REWARDS,
    SHIPPED_REWARD,
    SHIPPED_REWARDS,
    Reward,
    check_environment,
    check_teacher,
    check_turns,
)
from charter.spec.stage import (
    MAKES_RECORDS,
    CritiqueStage,
    DpoStage,
    EvalStage,
    GenerateStage,
    JudgeStage,
    LabelStage,
    PreferenceModelStage,
    PrepareStage,
    check_dpo,
    references,
)
from charter.spec.stage_base import Guard, Optimization, Sampling, Stage, StageResources
from charter.spec.suggest import did_you_mean

ADAM: tuple[tuple[str, Range], ...] = (
    ("learning_rate", POSITIVE),
    ("warmup_steps", NOT_NEGATIVE),
    ("min_learning_rate_ratio", SHARE),
    ("weight_decay", NOT_NEGATIVE),
    ("beta1", SHARE_BELOW_ONE),
    ("beta2", SHARE_BELOW_ONE),
    ("gradient_clip", POSITIVE),
)
_GUARD: tuple[tuple[str, Range], ...] = (
    ("spike_ratio", ABOVE_ONE),
    ("roll_back_steps", AT_LEAST_ONE),
    ("skip_steps", NOT_NEGATIVE),
    ("most", AT_LEAST_ONE),
)


def check_adapter(adapter: Adapter | None, path: str) -> Iterator[Problem]:
    """Ranges of a low-rank adapter."""
    if adapter is None:
        return
    yield from check_ranges(adapter, f"{path}.adapter", [("rank", AT_LEAST_ONE), ("alpha", AT_LEAST_ONE)])
    if adapter.base_bits not in (4, 8, 16):
        message = f"must be 4 (QLoRA), 8 or 16 (LoRA); found {adapter.base_bits}"
        yield Problem(message=message, path=f"{path}.adapter.base_bits")


def check_guard(guard: Guard | None, path: str) -> Iterator[Problem]:
    """Check the response to a divergence; going back has to leave out the data that it happened on."""
    if guard is None:
        return
    problems = list(check_ranges(guard, path, _GUARD))
    yield from problems
    if not problems and guard.on_divergence == "roll_back" and guard.skip_steps <= guard.roll_back_steps:
        message = (
            f"{guard.skip_steps} steps' data are left out after going back {guard.roll_back_steps} steps, "
            "so the data on which training diverged are met again"
        )
        yield Problem(message=message, path=f"{path}.skip_steps", hint=f"give more than {guard.roll_back_steps}")


_PPO: tuple[tuple[str, Range], ...] = (
    *ADAM,
    ("temperature", POSITIVE),
    ("value_learning_rate", POSITIVE),
    ("episodes", AT_LEAST_ONE),
    ("minibatch", AT_LEAST_ONE),
    ("ppo_epochs", AT_LEAST_ONE),
    ("clip_ratio", POSITIVE),
    ("value_clip", POSITIVE),
    ("value_loss_weight", NOT_NEGATIVE),
    ("entropy_weight", NOT_NEGATIVE),
    ("gae_lambda", SHARE),
    ("discount", SHARE_ABOVE_ZERO),
    ("kl_coefficient", NOT_NEGATIVE),
    ("kl_target", POSITIVE),
    ("kl_horizon", AT_LEAST_ONE),
    ("reward_clip", POSITIVE),
    ("samples_per_prompt", AT_LEAST_ONE),
    ("missing_end_penalty", NOT_NEGATIVE),
    ("stop_update_kl", POSITIVE),
    ("mismatch_clip", AT_LEAST_ONE),
    ("loss_horizon", AT_LEAST_ONE),
    ("clip_ratio_high", POSITIVE),
    ("dual_clip", ABOVE_ONE),
    ("off_policy_mask", POSITIVE),
    ("most_batches", AT_LEAST_ONE),
    ("max_failed_share", SHARE),
    ("ptx_weight", NOT_NEGATIVE),
    ("ptx_batch", AT_LEAST_ONE),
    ("seq_len", AT_LEAST_ONE),
)


def check_ppo(stage: PpoStage, path: str) -> Iterator[Problem]:
    """Problems of a PPO stage, apart from those that every stage can have."""
    yield from check_ranges(stage, path, _PPO)
    yield from check_adapter(stage.adapter, path)
    yield from check_guard(stage.guard, f"{path}.guard")
    yield from _check_estimator(stage, path)
    yield from _check_pretraining_mix(stage, path)
    yield from _check_rewards(stage, path)
    yield from _check_loss(stage, path)
    yield from check_asynchrony(stage, path)
    yield from check_online_dpo(stage, path)
    yield from check_controller(stage, path)
    yield from check_divergence(stage, path)
    batch = stage.rollout_batch
    if batch < 1 or stage.episodes < 1 or stage.minibatch < 1:
        return
    if stage.episodes % batch:
        below, above = stage.episodes // batch * batch, -(-stage.episodes // batch) * batch
        nearest = " or ".join(str(number) for number in (below, above) if number)
        message = f"{stage.episodes} is not a multiple of rollout_batch, {batch}"
        yield Problem(message=message, path=f"{path}.episodes", hint=f"the nearest that work: {nearest}")
    elif stage.value_warmup_rollouts >= stage.episodes // batch:
        message = f"the policy would never learn: there are {stage.episodes // batch} rollouts in all"
        yield Problem(message=message, path=f"{path}.value_warmup_rollouts")
    if batch % stage.minibatch:
        message = f"{stage.minibatch} does not divide rollout_batch, {batch}"
        nearest = " or ".join(str(number) for number in divisors_near(batch, stage.minibatch))
        hint = f"the nearest that work: {nearest}"
        yield Problem(message=message, path=f"{path}.minibatch", hint=hint)


def _check_estimator(stage: PpoStage, path: str) -> Iterator[Problem]:
    """Estimators that compare the answers to one prompt need several, and have no value model."""
    batch, samples = stage.rollout_batch, stage.samples_per_prompt
    if batch >= 1 and samples >= 1 and batch % samples:
        nearest = " or ".join(str(number) for number in divisors_near(batch, samples))
        message = f"{samples} does not divide rollout_batch, {batch}"
        yield Problem(message=message, path=f"{path}.samples_per_prompt", hint=f"the nearest that work: {nearest}")
    if stage.estimator == "reinforce":
        yield from _check_reinforce(stage, path)
    of_rewards = {name: getattr(stage, name) for name in OPTIONS_OF_REWARDS}
    yield from check_teacher(stage.estimator, stage.teacher, of_rewards, path)
    if stage.has_value_model or stage.estimator not in GROUPED:
        return
    if samples == 1:
        message = f"the estimator {stage.estimator} compares the answers to one prompt and needs 2 or more; found 1"
        hint = "give samples_per_prompt, for example 4, or take the estimator gae"
        yield Problem(message=message, path=f"{path}.samples_per_prompt", hint=hint)
    for name, unset in (("value_warmup_rollouts", 0), ("bootstrap_truncated", False), ("discount", 1.0)):
        value = getattr(stage, name)
        if value != unset:
            reason = "does not discount" if name == "discount" else "has no value model"
            yield Problem(
                message=f"the estimator {stage.estimator} {reason}; found {value}",
                path=f"{path}.{name}",
                hint=f"remove {name}, or take the estimator gae",
            )


def _check_rewards(stage: PpoStage, path: str) -> Iterator[Problem]:
    """The reward is one model or a list, and every item of a list names what its kind needs."""
    if not stage.rewards and stage.reward is None and stage.teacher is None:
        hint = "give `reward`, a preference model, or `rewards`, a list"
        yield Problem(message="nothing says what the reward is", path=f"{path}.reward", hint=hint)
    if stage.rewards and (stage.reward is not None or stage.reward_from != "preference_model"):
        hint = "name the model in the list: {name: ..., kind: preference_model, model: ...}"
        yield Problem(message="`reward` and `rewards` are both given", path=f"{path}.reward", hint=hint)
    names = [item.name for item in stage.rewards]
    for index, item in enumerate(stage.rewards):
        place = f"{path}.rewards[{index}]"
        if item.name in names[:index]:
            yield Problem(message=f"{item.name!r} is named twice", path=f"{place}.name")
        if re.fullmatch(r"[a-z][a-z0-9_]*", item.name) is None:
            message = f"{item.name!r} cannot be part of the name of a metric"
            yield Problem(message=message, path=f"{place}.name", hint="small letters, digits and _")
        if not math.isfinite(item.weight):
            yield Problem(message=f"must be finite; found {item.weight}", path=f"{place}.weight")
        yield from check_ranges(item, place, (("timeout", POSITIVE), ("memory", POSITIVE), ("processes", AT_LEAST_ONE)))
        yield from _check_reward(item, place)
        yield from _check_rubric(stage, item, place)
    yield from check_turns(stage.environment, stage.rewards, path)
    if sum(item.kind == "preference_model" for item in stage.rewards) > 1:
        yield Problem(message="more than one preference_model; a list has at most one", path=f"{path}.rewards")
    yield from _check_gold(stage, path)
    if stage.mixture == "normalise_then_sum" and (stage.estimator != "grpo" or not stage.rewards):
        message = "each reward is compared within its group, which needs a list and the estimator grpo"
        yield Problem(message=message, path=f"{path}.mixture", hint="remove mixture")


def _check_reward(item: Reward, path: str) -> Iterator[Problem]:
    if item.kind != "function":
        if item.kind != "env" and item.model is None:
            yield Problem(message=f"a {item.kind} needs its model", path=f"{path}.model")
        for name in ("call", "arguments"):
            if getattr(item, name) is not None:
                yield Problem(message=f"belongs to a function, not to a {item.kind}", path=f"{path}.{name}")
        return
    if item.model is not None:
        yield Problem(message="a function has no model", path=f"{path}.model")
    place, _, name = (item.call or "").rpartition(":")
    if item.call is not None and item.call.startswith(SHIPPED_REWARD):
        if name not in SHIPPED_REWARDS:
            hint = did_you_mean(name, SHIPPED_REWARDS)
            yield Problem(message=f"no shipped reward is called {name!r}", path=f"{path}.call", hint=hint)
    elif not place.endswith(".py") or not name.isidentifier():
        hint = f"charter:{SHIPPED_REWARDS[0]}, or path/to/file.py:function"
        yield Problem(message="a function needs its name, and where it stands", path=f"{path}.call", hint=hint)


def _check_loss(stage: PpoStage, path: str) -> Iterator[Problem]:
    """Options of the loss that another one leaves without a meaning."""
    idle: list[tuple[str, bool, str]] = [
        ("loss_horizon", stage.loss_horizon is not None and stage.loss_aggregation != "constant", "loss_aggregation"),
        ("scale_advantages", stage.scale_advantages != "group" and stage.estimator != "grpo", "estimator grpo"),
        ("scale_advantages", stage.scale_advantages != "group" and stage.mixture != "sum_then_normalise", "mixture"),
        ("equal_groups", stage.equal_groups != "keep" and stage.samples_per_prompt < 2, "samples_per_prompt"),
        ("dual_clip", stage.dual_clip is not None and stage.surrogate != "clip", "surrogate clip"),
        ("clip_ratio_high", stage.clip_ratio_high is not None and stage.surrogate == "sapo", "surrogate"),
        ("ratio", stage.ratio != "token" and stage.surrogate == "dppo", "surrogate"),
        ("mismatch", stage.mismatch is not None and stage.mismatch_clip is not None, "mismatch_clip"),
        ("kl_in", stage.kl_in is not None and stage.kl_coefficient == 0, "kl_coefficient above 0"),
    ]
    for name, is_idle, beside in idle:
        if is_idle:
            message = f"{getattr(stage, name)} has no meaning here: look at {beside}"
            yield Problem(message=message, path=f"{path}.{name}", hint=f"remove {name}, or change {beside}")
    if stage.estimator == "reinforce":
        unset_of = {"clip_ratio_high": None, "ratio": "token", "surrogate": "clip", "dual_clip": None}
        for name, unset in {**unset_of, "off_policy_mask": None}.items():
            if (value := getattr(stage, name)) != unset:
                message = f"the estimator reinforce has no ratio to clip; found {value}"
                yield Problem(message=message, path=f"{path}.{name}", hint=f"remove {name}")
    correction = stage.mismatch
    if correction is not None:
        yield from check_ranges(correction, f"{path}.mismatch", (("low", NOT_NEGATIVE), ("high", POSITIVE)))
        low, high = correction.low or 0.0, math.inf if correction.high is None else correction.high
        if low > high:
            yield Problem(message=f"low, {low:g}, is above high, {high:g}", path=f"{path}.mismatch.low")
        if correction.method != "tis" and correction.low is None and correction.high is None:
            message = f"{correction.method} without bounds leaves out nothing"
            yield Problem(message=message, path=f"{path}.mismatch.method", hint="give low and high")


def _check_reinforce(stage: PpoStage, path: str) -> Iterator[Problem]:
    """One step of the policy for each rollout, by whole returns: what belongs to PPO's several steps is refused."""
    if stage.ppo_epochs != 1:
        message = f"the estimator reinforce goes once over a rollout; found {stage.ppo_epochs}"
        yield Problem(message=message, path=f"{path}.ppo_epochs", hint="remove ppo_epochs, or take the estimator gae")
    if stage.minibatch != stage.rollout_batch:
        message = f"the estimator reinforce makes one step of a whole rollout, {stage.rollout_batch} answers; found "
        hint = f"minibatch: {stage.rollout_batch}, or a smaller rollout_batch"
        yield Problem(message=f"{message}{stage.minibatch}", path=f"{path}.minibatch", hint=hint)
    for name, unset, reason in (
        ("gae_lambda", 0.95, "takes whole returns"),
        ("clip_ratio", 0.2, "has no ratio to clip"),
        ("bootstrap_truncated", False, "takes whole returns"),
        ("stop_update_kl", None, "goes once over a rollout"),
        ("asynchrony", None, "has no ratio, and would learn from an older policy's answers as from its own"),
    ):
        if (value := getattr(stage, name)) != unset:
            message = f"the estimator reinforce {reason}; found {value}"
            yield Problem(message=message, path=f"{path}.{name}", hint=f"remove {name}, or take the estimator gae")


def _check_pretraining_mix(stage: PpoStage, path: str) -> Iterator[Problem]:
    """The mix has both a weight and data, or neither."""
    if stage.ptx_data and stage.ptx_weight == 0:
        hint = "give ptx_weight, for example 1, or remove ptx_data"
        yield Problem(message="is 0, so ptx_data would not be learnt", path=f"{path}.ptx_weight", hint=hint)
    if stage.ptx_weight > 0 and not stage.ptx_data:
        message = f"a ptx_weight of {stage.ptx_weight:g} needs data to learn"
        hint = "name conversations or texts, or remove ptx_weight"
        yield Problem(message=message, path=f"{path}.ptx_data", hint=hint)


_CLAMP: Range = (lambda value: 0 < value < 0.5, "must be above 0 and below 0.5")
_LABEL: tuple[tuple[str, Range], ...] = (
    ("principles_per_pair", AT_LEAST_ONE),
    ("reasoning_tokens", AT_LEAST_ONE),
    ("clamp", _CLAMP),
    ("few_shot", NOT_NEGATIVE),
    ("votes", NOT_NEGATIVE),
    ("max_invalid_share", SHARE),
)


def check_critique(stage: CritiqueStage, path: str) -> Iterator[Problem]:
    """Problems of a critique stage."""
    yield from check_ranges(stage, path, [("revisions", AT_LEAST_ONE), ("few_shot", NOT_NEGATIVE)])
    yield from _check_demonstrations(stage, path, "worked critiques")


def check_generate(stage: GenerateStage, path: str) -> Iterator[Problem]:
    """Problems of a generate stage."""
    yield from check_ranges(stage, path, [("answers_per_prompt", AT_LEAST_ONE), ("few_shot", AT_LEAST_ONE)])
    if stage.makes == "prompts" and stage.num_prompts is None:
        hint = "add  num_prompts: 10_000"
        yield Problem(message="how many new prompts are to be made?", path=f"{path}.num_prompts", hint=hint)
    if stage.makes == "answers" and stage.answers_per_prompt > 1 and stage.temperature == 0:
        message = f"at temperature 0 all {stage.answers_per_prompt} answers to a prompt are the same"
        yield Problem(message=message, path=f"{path}.answers_per_prompt", hint="raise temperature")


def check_label(stage: LabelStage, path: str) -> Iterator[Problem]:
    """Problems of a label stage."""
    yield from check_ranges(stage, path, _LABEL)
    yield from _check_demonstrations(stage, path, "judged pairs")
    sampled = {"policy": stage.policy, "prompts": stage.prompts, "pairs": stage.pairs}
    sources = [name for name, value in sampled.items() if value]
    missing = [name for name in sampled if name not in sources]
    if sources and missing:
        message = f"sampling pairs needs policy, prompts and pairs; {' and '.join(missing)} missing"
        yield Problem(message=message, path=path, hint=f"add {missing[0]}, or remove {' and '.join(sources)}")
    elif not sources and not stage.candidates:
        hint = "give candidates (answers that exist), or policy, prompts and pairs (answers to sample)"
        yield Problem(message="has nothing to label", path=path, hint=hint)
    if stage.format != "multiple_choice":
        for name in ("chain_of_thought", "few_shot"):
            if getattr(stage, name):
                message = f"is for questions that show both answers; the format is {stage.format}"
                yield Problem(message=message, path=f"{path}.{name}", hint="use format: multiple_choice")


def _check_demonstrations(stage: CritiqueStage | LabelStage, path: str, what: str) -> Iterator[Problem]:
    if stage.few_shot and stage.demonstrations is None:
        message = f"{stage.few_shot} examples are to be shown, but `demonstrations` names no data set of {what}"
        yield Problem(message=message, path=f"{path}.few_shot")
    if stage.demonstrations is not None and not stage.few_shot:
        message = "names a data set of which nothing is shown"
        yield Problem(message=message, path=f"{path}.demonstrations", hint="add  few_shot: 4")


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
    ("memory", AT_LEAST_ONE),
    ("shards", AT_LEAST_ONE),
    ("micro_batch", AT_LEAST_ONE),
    ("decode_batch", NOT_NEGATIVE),
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
    "exact_match": ("prompts",),
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
    for name, pool in (resources.pools or {}).items():
        yield from check_pool(pool, f"{path}.pools.{name}")


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


def _check_eval(stage: EvalStage, path: str) -> Iterator[Problem]:
    if not stage.suites:
        yield Problem(message="is empty; name at least one", path=f"{path}.suites")
    yield from check_environment(stage.environment, f"{path}.environment", suites=stage.suites)
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
    """Check that a stage has all that a run needs; a plan can be made without it."""
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
    """Return the missing requirements without which a suite cannot be measured, in words."""
    needs = [need.split("|") for need in SUITE_NEEDS[suite]]
    return [" or ".join(names) for names in needs if not any(map(has, names))]


_BY_KIND: Mapping[type[Stage], Callable[..., Iterator[Problem]]] = {
    PrepareStage: _check_prepare,
    JudgeStage: _check_judge,
    CritiqueStage: check_critique,
    GenerateStage: check_generate,
    LabelStage: check_label,
    PreferenceModelStage: _check_preference_model,
    DpoStage: check_dpo,
    EvalStage: _check_eval,
    PpoStage: check_ppo,
}


def _check_gold(stage: PpoStage, path: str) -> Iterator[Problem]:
    """Weights of what is learnt from, and of the gold, which has none."""
    weights = {item.name: item.weight for item in stage.rewards}
    if stage.gold is not None and weights.get(stage.gold) != 0:
        hint = "add it to rewards with weight: 0"
        yield Problem(message=f"{stage.gold!r} is no reward of weight 0", path=f"{path}.gold", hint=hint)
    if weights and not any(weights.values()):
        yield Problem(message="every weight is 0, so nothing is learnt", path=f"{path}.rewards")
    if stage.on_overoptimisation == "stop" and stage.gold is None:
        yield Problem(message="nothing is watched without a gold", path=f"{path}.on_overoptimisation")


def _check_rubric(stage: PpoStage, item: Reward, path: str) -> Iterator[Problem]:
    """Criteria belong to a judge; answers are compared within a group that is large enough."""
    rubric, place = item.rubric, f"{path}.rubric"
    if rubric is None:
        return
    if item.kind != "judge":
        yield Problem(message=f"belongs to a judge, not to a {item.kind}", path=place)
    yield from check_ranges(rubric, place, (("per_prompt", AT_LEAST_ONE), ("opponents", AT_LEAST_ONE)))
    samples = stage.samples_per_prompt
    if rubric.ask == "pairwise" and samples <= rubric.opponents:
        message = f"{rubric.opponents} others of a group of {samples}"
        yield Problem(message=message, path=f"{place}.opponents", hint="raise samples_per_prompt")
    elif rubric.ask != "pairwise" and rubric.opponents != 1:
        yield Problem(message="only `ask: pairwise` compares answers", path=f"{place}.opponents")
    if rubric.only and (rubric.per_prompt or 0) > len(rubric.only):
        yield Problem(message=f"{rubric.per_prompt} of the {len(rubric.only)} in `only`", path=f"{place}.per_prompt")
