"""A stage for OpenRLHF: the command lines of its programs; it reads no configuration file.

Data: JSONL with lists of messages, exactly `target_steps * global_batch` rows, so that one epoch over the file is the
stage, whatever its `epochs`; of PPO as many prompts as the stage has rollouts of. OpenRLHF shuffles the file by the
seed (utils/distributed_sampler.py) and cannot be told not to.

Roles of PPO share accelerators in three ways only: policy with reference, value with reward, or all of them with the
generator (with async training: all but the generator). All of them are trained with one ZeRO stage, one micro-batch and
one ring; a scored model is sharded exactly where that stage is 3.

Sources in OpenRLHF 0.11.2: cli/train_*.py (options), trainer/ppo_trainer.py (the KL controller),
trainer/ppo_utils/experience_maker.py (compute_advantages_and_returns) and samples_generator.py, models/utils.py
(compute_approx_kl, compute_reward), models/loss.py (ValueLoss), utils/agent.py (prompts are cut at the left).
"""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from charter.engines.common.adapter import ROW
from charter.engines.common.formulas import name_formulas
from charter.engines.common.mapping import NATIVE_ONLY, REASONS_OF_VALUES, Arguments, How
from charter.engines.common.rendered import RAY_SCRIPT, RenderedRun, Resume, ray_script
from charter.engines.common.request import Handover, RlPlacement, RolesTogether
from charter.engines.common.reward_file import (
    REWARDS_FILE,
    UNLIMITED,
    ExportedRewards,
    map_rewards,
)
from charter.engines.openrlhf.capabilities import CAPABILITIES, VERSION
from charter.engines.openrlhf.settings import (
    TRAINED_ROLES,
    adapter,
    differing,
    engine_wide,
    optimizer,
    optimizers,
    precision,
    reward_caller,
)
from charter.errors import Problem
from charter.spec.ppo_stage import PpoStage
from charter.spec.stage import DpoStage, PreferenceModelStage, SftStage
from charter.spec.stage_base import Stage

MODULES = {"sft": "train_sft", "preference_model": "train_rm", "dpo": "train_dpo"}


def supervised_arguments(handover: Handover) -> Arguments:
    """Options of the program that trains this kind, with the mapping of every field."""
    given, stage = Arguments(handover), handover.stage
    given.to("stage.init", "--model.model_name_or_path", handover.paths.models["init"])
    engine_wide(given, sequences_per_row=stage.SEQUENCES_PER_ROW, recompute="--model.gradient_checkpointing_enable")
    precision(given)
    optimizer(given, ("",), updates=handover.target_steps)
    given.to("stage.learning_rate", "--adam.lr")
    given.to("stage.seq_len", "--data.max_len", note="cut at the right, the last token becomes the end token")
    SUPERVISED[type(stage)](given, stage)
    return given


def _data(given: Arguments, stage: SftStage | PreferenceModelStage | DpoStage) -> None:
    rows = given.handover.target_steps * stage.global_batch
    given.to("stage.data", "--data.dataset", given.handover.paths.data["data"])
    given.give("--data.apply_chat_template")
    given.give("--data.max_samples", rows)
    given.give("--train.max_epochs", 1)
    note = f"{rows} rows: each as often as it is trained, in one epoch over the file"
    for field in ("stage.steps", "stage.epochs"):
        if given.fields.value(field) is None:
            given.unused(field, "steps and epochs are two ways to say one thing")
        else:
            given.fields.to(field, "--data.max_samples", how="computed", note=note)
    given.fields.same(
        "stage.dropout", 0.0, "dropout is what the model's own configuration says; only LoRA has an option"
    )


def _sft(given: Arguments, stage: SftStage) -> None:
    """Every assistant turn counts; the loss is the mean over all their tokens in a batch (trainer/sft_trainer.py)."""
    _data(given, stage)
    given.give("--data.input_key", "messages")
    given.give("--data.multiturn")
    adapter(given)
    given.fields.fixed("stage.packing", CAPABILITIES)


def _preference_model(given: Arguments, stage: PreferenceModelStage) -> None:
    """Bradley-Terry on the score at the last token (models/loss.py PairWiseLoss, models/model.py)."""
    _data(given, stage)
    _pairs(given)
    given.give("--model.loss_type", "sigmoid")
    given.give("--model.compute_fp32_loss_enable")
    given.give("--ds.value_head_prefix", "score")
    given.switch("stage.use_margin", "--model.margin_loss_enable", note="from the column margin")
    fields = given.fields
    fields.same("stage.pooling", "last", "the score is read at the last token")
    fields.charter("stage.context", "Charter writes the rows with so much of the conversation")
    fields.charter("stage.shuffle_labels", "Charter permutes the labels when it writes the rows")
    fields.same("stage.head_learning_rate_ratio", 1.0, "it has one learning rate for body and head")
    fields.same("stage.label_smoothing", 0.0, "its loss of reward models has no smoothing")
    fields.same("stage.center_weight", 0.0, "its loss of reward models has no such term")
    fields.fixed("stage.adapter", CAPABILITIES)


def _dpo(given: Arguments, stage: DpoStage) -> None:
    """The reference is the model that training starts from (models/loss.py DPOLoss)."""
    _data(given, stage)
    _pairs(given)
    given.give("--ref.model_name_or_path", given.handover.paths.models["init"])
    given.to("stage.beta", "--model.beta")
    given.fields.same("stage.target_margin", 0.0, "of simpo, which it does not have")
    if stage.loss == "ipo":
        given.switch("stage.loss", "--model.ipo_enable", how="computed", note="eq. 17 of IPO, as here")
        given.fields.same("stage.label_smoothing", 0.0, "its IPO takes every label for certain")
    else:
        given.to("stage.label_smoothing", "--model.label_smoothing")
        given.fields.same("stage.loss", "dpo", REASONS_OF_VALUES.get(stage.loss, NATIVE_ONLY))
    adapter(given)


SUPERVISED: Mapping[type[Stage], Any] = {SftStage: _sft, PreferenceModelStage: _preference_model, DpoStage: _dpo}


def _pairs(given: Arguments) -> None:
    given.give("--data.prompt_key", "prompt")
    given.give("--data.chosen_key", "chosen")
    given.give("--data.rejected_key", "rejected")


ESTIMATORS = {"gae": "gae", "reinforce": "gae", "rloo": "rloo", "grpo": "group_norm"}
NO_RANGE = 1e9
"""Bounds of rewards that no reward reaches: OpenRLHF cannot leave them out, and its own are 10."""


def estimator_arguments(given: Arguments, stage: PpoStage) -> None:
    """Advantages, the KL penalty, and what belongs to a value model."""
    name = ESTIMATORS[stage.estimator]
    unscaled = stage.estimator == "grpo" and stage.scale_advantages == "none"
    if unscaled:
        name = "dr_grpo"
        given.fields.to("stage.scale_advantages", "--algo.advantage.estimator", how="computed", note="dr_grpo: none")
    else:
        deviation = "it has the group's deviation, plus 1e-9 where it is 1e-6 here, or none, of grpo alone"
        given.fields.same("stage.scale_advantages", "group", deviation)
    note = {"reinforce": "whole returns less the value are GAE with lambda 1", "grpo": "its name of GRPO"}
    how: How = "computed" if stage.estimator in note else "as_is"
    option = "--algo.advantage.estimator"
    given.to("stage.estimator", option, name, how=how, note=note.get(stage.estimator, ""))
    _kl(given, stage)
    _rewards(given, stage)
    if stage.has_value_model:
        _value_model(given, stage)
    else:
        _compared(given, stage)


def _kl(given: Arguments, stage: PpoStage) -> None:
    given.to("stage.kl_coefficient", "--algo.kl.init_coef")
    if stage.estimator == "grpo":
        given.give("--algo.kl.use_loss")
        given.give("--algo.kl.estimator", "k3")
        given.unused("stage.kl_estimator", "the penalty of grpo is in the loss and always k3")
    else:
        note = "held within 10 nats per token" + ("; outside of the comparison" if stage.estimator == "rloo" else "")
        given.to("stage.kl_estimator", "--algo.kl.estimator", note=note)
    reason = "its target is per token, ours per answer, and its controller starts anew at every resume"
    given.fields.same("stage.kl_target", None, reason)
    given.unused("stage.kl_horizon", "without kl_target the coefficient is fixed")


def _rewards(given: Arguments, stage: PpoStage) -> None:
    if stage.reward_clip is None:
        given.give("--reward.clip_range", -NO_RANGE, NO_RANGE)
        given.fields.to("stage.reward_clip", "--reward.clip_range", how="computed", note="wider than any reward")
    elif stage.has_value_model:
        option = "--reward.clip_range"
        given.to("stage.reward_clip", option, -stage.reward_clip, stage.reward_clip, how="computed", note="both ends")
    else:
        reason = f"with {stage.estimator} it clips what is left of the comparison, not the reward"
        given.fields.refuse("stage.reward_clip", reason, "leave reward_clip out")


def _value_model(given: Arguments, stage: PpoStage) -> None:
    fields = given.fields
    given.to("stage.value_clip", "--critic.value_clip")
    fields.same("stage.whiten_advantages", True, f"with {ESTIMATORS[stage.estimator]} advantages are always whitened")
    given.to("stage.discount", "--algo.advantage.gamma")
    if stage.estimator == "reinforce":
        given.give("--algo.advantage.lambd", 1.0)
        given.unused("stage.gae_lambda", "reinforce takes whole returns")
    else:
        given.to("stage.gae_lambda", "--algo.advantage.lambd")
    _value_warmup(given, stage)


def _value_warmup(given: Arguments, stage: PpoStage) -> None:
    """The policy's schedule stands still while only the value model learns, so that it would end too early."""
    field = "stage.value_warmup_rollouts"
    moves = stage.schedule != "constant" or stage.warmup_steps > 0
    if stage.value_warmup_rollouts and moves:
        reason = "the policy's learning rate stands still in those rollouts, and its schedule would not reach its end"
        given.fields.refuse(field, reason, "schedule: constant and warmup_steps: 0, or no value_warmup_rollouts")
        return
    note = "the policy learns in rollouts after this one, counted from 0 (ppo_train)"
    given.to(field, "--critic.freezing_steps", stage.value_warmup_rollouts - 1, how="computed", note=note)


def _compared(given: Arguments, stage: PpoStage) -> None:
    """rloo and grpo: the answers to one prompt are compared, there is no value model."""
    no_value = f"{stage.estimator} has no value model"
    for name in ("value_clip", "value_loss_weight", "gae_lambda"):
        given.unused(f"stage.{name}", no_value)
    given.fields.same("stage.value_warmup_rollouts", 0, no_value)
    given.fields.same("stage.discount", 1.0, f"{stage.estimator} does not discount")
    if stage.estimator == "grpo":
        given.unused("stage.whiten_advantages", "grpo scales by the deviation of a prompt's answers")
    else:
        reason = "advantages of rloo are not whitened (experience_maker.py)"
        given.fields.same("stage.whiten_advantages", False, reason)


GENERATE = "generate"
ENGINE_NAMES = {"policy": "actor", "reference": "ref", "value": "critic", "reward": "reward"}
TOGETHER = {frozenset({"policy", "reference"}): "actor_ref", frozenset({"value", "reward"}): "critic_reward"}
SHARED_MEMORY, OWN_MEMORY = 0.5, 0.9
"""Of an accelerator for vLLM: the README's template for shared ones, and what leaves room for CUDA's own on others."""


def placement_arguments(given: Arguments, stage: PpoStage) -> None:
    """Nodes and accelerators of every role, and of the generator."""
    placement = given.handover.placement or RlPlacement()
    trainers = [group for group in placement.groups if GENERATE not in group.roles]
    generators = [group for group in placement.groups if GENERATE in group.roles]
    for message, hint in _impossible(given, stage, placement, trainers):
        path = f"pipeline.{given.handover.name}.engine"
        given.fields.problems.append(Problem(path=path, message=f"openrlhf cannot {message}", hint=hint))
    if not generators:
        _all_together(given, stage, placement)
        return
    for group in trainers:
        _group(given, group)
    if placement.arrangement == "async":
        if len(trainers) == 1:
            # Beside synchronous training it would put the generator on the trainers' accelerators too.
            given.give("--train.colocate_all")
        given.give("--train.async_enable")
        given.give("--train.async_queue_size", max(1, stage.ahead))
    _generator(given, sum(group.num_accelerators for group in generators), placement, memory=OWN_MEMORY)


def trained_micro_batch(given: Arguments) -> int:
    """The smallest micro-batch of the roles that are trained, which all of them get."""
    placement = given.handover.placement or RlPlacement()
    micro_batches = [group.layout.micro_batch for group in placement.groups if TRAINED_ROLES & set(group.roles)]
    return min([given.handover.layout.micro_batch, *micro_batches])


def data_sizes(given: Arguments) -> list[int]:
    """Data-parallel size of every group of roles that computes on rollouts."""
    placement = given.handover.placement or RlPlacement()
    sizes = [group.layout.data for group in placement.groups if GENERATE not in group.roles]
    return sizes or [given.handover.layout.data]


def _all_together(given: Arguments, stage: PpoStage, placement: RlPlacement) -> None:
    handover = given.handover
    reward = [] if stage.rewards else ["reward"]
    roles = ["policy", "reference", *reward, *(["value"] if stage.has_value_model else [])]
    for role in roles:
        given.give(f"--{ENGINE_NAMES[role]}.num_nodes", handover.num_nodes)
        given.give(f"--{ENGINE_NAMES[role]}.num_gpus_per_node", handover.per_node)
    given.give("--train.colocate_all")
    given.give("--vllm.enable_sleep")
    if placement.arrangement == "offloaded":
        given.give("--ds.enable_sleep")
    _generator(given, handover.num_accelerators, placement, memory=SHARED_MEMORY)


def _group(given: Arguments, group: RolesTogether) -> None:
    size, per_node = group.num_accelerators, given.handover.per_node
    nodes = max(1, size // per_node)
    for role in group.roles:
        given.give(f"--{ENGINE_NAMES[role]}.num_nodes", nodes)
        given.give(f"--{ENGINE_NAMES[role]}.num_gpus_per_node", size // nodes)
    shared = TOGETHER.get(frozenset(group.roles))
    if shared is not None:
        given.give(f"--train.colocate_{shared}")


def _generator(given: Arguments, size: int, placement: RlPlacement, *, memory: float) -> None:
    given.give("--vllm.num_engines", size // placement.generator_tensor)
    given.give("--vllm.tensor_parallel_size", placement.generator_tensor)
    given.give("--vllm.gpu_memory_utilization", memory)
    given.give("--vllm.sync_backend", "nccl")


def _impossible(
    given: Arguments, stage: PpoStage, placement: RlPlacement, trainers: list[RolesTogether]
) -> Iterator[tuple[str, str]]:
    layout, generators = given.handover.layout, [group for group in placement.groups if GENERATE in group.roles]
    if placement.arrangement == "async" and not stage.ahead:
        said = "asynchrony: one_step_off or in_flight"
        yield f"let a generator work ahead of training unless the file says {said}", "plan it again"
    if not generators and (len(trainers) > 1 or placement.arrangement in ("split", "async")):
        yield (
            f"run {placement.arrangement} without accelerators for the generator",
            "give it a group",
        )
    for group in generators:
        if len(group.roles) > 1:
            yield f"let the generator share with {', '.join(group.roles)} alone", "all roles together, or none"
    for group in trainers if generators else ():
        allowed = len(group.roles) == 1 or frozenset(group.roles) in TOGETHER
        everything = len(trainers) == 1 and placement.arrangement == "async"
        if not allowed and not everything:
            hint = "policy with reference and value with reward; all together only beside an async generator"
            yield f"put {', '.join(group.roles)} on the same accelerators beside a generator", hint
    for group in trainers:
        yield from differing(layout, group)
    for size in [sum(group.num_accelerators for group in generators)] if generators else []:
        if size % placement.generator_tensor:
            yield f"divide {size} accelerators into generators of {placement.generator_tensor}", "another tensor size"


MODULE = "train_ppo_ray"
AGGREGATIONS = {"token": "token-mean", "sequence": "seq-mean-token-mean"}
FURTHER: Mapping[str, tuple[object, ...]] = {"ratio": ("sequence",), "mismatch": (), "asynchrony": (), "max_age": ()}
"""Options with more values than the usual ones."""
NO_UPPER = 1e9
"""Bound of a ratio that none reaches."""


def ppo_arguments(handover: Handover) -> Arguments:
    """Options of the program, with the mapping of every field."""
    given, stage = Arguments(handover), handover.stage_as(PpoStage)
    rewards = map_rewards(given.fields, stage, CAPABILITIES, reward_caller(handover))
    name_formulas(given.fields, stage)
    given.fields.refuse_native_rewards(FURTHER)
    given.files |= rewards.files
    updates = stage.rollout_batch // stage.minibatch * stage.ppo_epochs
    engine_wide(
        given,
        sequences_per_row=1,
        recompute="--actor.gradient_checkpointing_enable",
        micro_batch=trained_micro_batch(given),
    )
    precision(given)
    optimizers(given, stage, updates)
    _models(given, stage, rewards)
    _rollouts(given, stage)
    estimator_arguments(given, stage)
    _policy(given, stage)
    _absent(given, stage)
    _asynchrony(given, stage)
    placement_arguments(given, stage)
    return given


LEARNERS_RATIO = (
    "its ratio is to the weights that learn, so clip_ratio does not bound what the age has moved; `mismatch` weighs it"
)


def _asynchrony(given: Arguments, stage: PpoStage) -> None:
    """A generator ahead of training begins a rollout as the trainer takes one out, so the queue's size is its age."""
    apart = given.handover.placement is not None and given.handover.placement.arrangement == "async"
    if not stage.ahead:
        given.fields.same("stage.asynchrony", None, "rollouts of the present policy")
    elif not apart:
        given.fields.refuse("stage.asynchrony", "the generator has no accelerators of its own here")
    elif stage.asynchrony == "one_step_off":
        note = f"the generator has accelerators of its own and is one rollout ahead: a queue of one; {LEARNERS_RATIO}"
        given.to("stage.asynchrony", "--train.async_queue_size", 1, how="computed", note=note)
    else:
        note = "weights change while answers are drawn; the oldest token is as many updates old as the queue is long; "
        note += LEARNERS_RATIO
        given.switch("stage.asynchrony", "--train.partial_rollout_enable", how="computed", note=note)
        given.to("stage.max_age", "--train.async_queue_size", how="computed", note="rollouts in flight and queued")
        return
    given.unused("stage.max_age", "no answers are in flight")


def _functions(given: Arguments, stage: PpoStage, rewards: ExportedRewards) -> None:
    """A file in place of a reward model, and DAPO's penalty where it is listed."""
    given.give("--reward.remote_url", f"{given.handover.paths.work}/{REWARDS_FILE}")
    given.give("--data.label_key", ROW)
    given.unused("stage.reward", "there is a list of rewards")
    if rewards.penalty is not None:
        given.give("--reward.overlong_buffer_len", (rewards.penalty.arguments or {})["cache"])
        given.give("--reward.overlong_penalty_factor", rewards.penalty.weight)


def _models(given: Arguments, stage: PpoStage, rewards: ExportedRewards) -> None:
    models = given.handover.paths.models
    given.to("stage.policy", "--actor.model_name_or_path", models["policy"])
    if stage.rewards:
        _functions(given, stage, rewards)
        given.fields.same("stage.reward_from", ("preference_model", "judge"), "decides nothing here: there is a list")
    elif stage.reward_from == "preference_model":
        given.to("stage.reward", "--reward.model_name_or_path", models["reward"])
        given.fields.same("stage.reward_from", "preference_model", "a sequence classifier")
    else:
        given.fields.charter("stage.reward", "refused with reward_from")
        reason = "a reward is a model with a scalar head, or a server of its own (--reward.remote_url)"
        given.fields.refuse("stage.reward_from", reason, "reward_from: preference_model")
    if stage.has_value_model:
        given.give("--critic.model_name_or_path", models["policy" if stage.rewards else "reward"])
    given.give("--ds.value_head_prefix", "score")
    given.fields.fixed("stage.adapter", CAPABILITIES)


def _rollouts(given: Arguments, stage: PpoStage) -> None:
    handover, samples = given.handover, stage.samples_per_prompt
    prompts = handover.target_steps * stage.rollout_batch // samples
    given.to("stage.prompts", "--data.prompt_dataset", handover.paths.data["prompts"])
    given.give("--data.input_key", "prompt")
    given.give("--data.apply_chat_template")
    given.give("--train.num_episodes", 1)
    note = "prompts in all: episodes over samples_per_prompt, in one pass over the file"
    given.to("stage.episodes", "--data.max_samples", prompts, how="computed", note=note)
    note = "counts prompts: rollout_batch over samples_per_prompt"
    given.to("stage.rollout_batch", "--rollout.batch_size", stage.rollout_batch // samples, how="computed", note=note)
    given.to("stage.samples_per_prompt", "--rollout.n_samples_per_prompt")
    given.give("--rollout.micro_batch_size", _scoring_batch(given, stage))
    given.to("stage.temperature", "--rollout.temperature")
    given.to("stage.top_p", "--rollout.top_p")
    given.to("stage.max_new_tokens", "--rollout.max_new_tokens")
    longest = stage.max_prompt_tokens + stage.max_new_tokens
    note = "longest prompt and answer together; longer prompts are cut at the left"
    given.to("stage.max_prompt_tokens", "--data.max_len", longest, how="computed", note=note)
    given.fields.fixed("stage.min_new_tokens", CAPABILITIES)
    given.fields.charter("stage.mean_new_tokens", "for the plan alone")
    given.fields.charter("stage.generator", "OpenRLHF generates with vLLM, whatever stands here")


def _scoring_batch(given: Arguments, stage: PpoStage) -> int:
    """Sequences of a forward pass over a rollout, so that every rank of every group has as many of them."""
    ranks = math.lcm(*data_sizes(given))
    wanted = given.handover.layout.micro_batch
    if stage.rollout_batch % ranks:
        reason = f"a rollout of {stage.rollout_batch} is divided evenly over groups of {data_sizes(given)} ranks"
        given.fields.refuse("stage.rollout_batch", reason, f"a multiple of {ranks}")
        return 1
    share = stage.rollout_batch // ranks
    return max(size for size in range(1, min(wanted, share) + 1) if share % size == 0)


def _policy(given: Arguments, stage: PpoStage) -> None:
    given.to("stage.clip_ratio", "--actor.eps_clip")
    if stage.clip_ratio_high is None:
        given.fields.same("stage.clip_ratio_high", None, "both sides have --actor.eps_clip")
    else:
        option, bounds = "--actor.eps_clip_low_high", (stage.clip_ratio, stage.clip_ratio_high)
        given.to("stage.clip_ratio_high", option, *bounds, how="computed", note="below and above 1")
    if stage.dual_clip is None:
        given.fields.same("stage.dual_clip", None, "--actor.dual_clip is left out")
    elif stage.dual_clip > 1:
        given.to("stage.dual_clip", "--actor.dual_clip")
    else:
        given.fields.refuse("stage.dual_clip", "its bound is above 1 (models/loss.py PolicyLoss)", "dual_clip: 3")
    aggregation = AGGREGATIONS[stage.loss_aggregation]
    others = [name for name, on in _token_means(stage) if on]
    if stage.loss_aggregation == "sequence" and others:
        reason = f"its {' and '.join(others)} are means over tokens whatever the loss of the policy is"
        given.fields.refuse("stage.loss_aggregation", reason, "loss_aggregation: token")
    else:
        given.to("stage.loss_aggregation", "--actor.loss_agg_mode", aggregation)
    if stage.entropy_weight:
        given.to("stage.entropy_weight", "--actor.entropy_coef")
    else:
        given.fields.same("stage.entropy_weight", 0.0, "--actor.entropy_coef is left out")
    if stage.ratio == "sequence":
        given.to("stage.ratio", "--actor.policy_loss_type", "gspo", how="computed", note="the mean over an answer")
    else:
        given.fields.same("stage.ratio", "token", "--actor.policy_loss_type is ppo")
    _correction(given, stage)


def _correction(given: Arguments, stage: PpoStage) -> None:
    """Weights of the generator's tokens (models/loss.py PolicyLoss): cut, or left out beyond the bounds."""
    weighs, prefix = stage.correction, "--algo.advantage.is_correction"
    fields = ("stage.mismatch_clip", "stage.mismatch")
    if weighs is None:
        given.give(f"{prefix}_level", "off")
        for name in fields:
            given.fields.to(name, f"{prefix}_level")
        return
    if stage.ratio == "sequence":
        reason = "beside ratios of whole answers its correction replaces the ratio (models/loss.py)"
        given.fields.refuse("stage.ratio", reason, "ratio: token, or no mismatch")
    given.give(f"{prefix}_level", "seq" if weighs.method == "sequence_mask" else "token")
    given.give(f"{prefix}_mode", "clip" if weighs.method == "tis" else "mask")
    given.give(f"{prefix}_gating", "ratio")
    low, high = weighs.low or 0.0, NO_UPPER if weighs.high is None else weighs.high
    note = "token-wise weights held between these, or left out beyond them (models/loss.py PolicyLoss)"
    for name in fields:
        given.to(name, f"{prefix}_threshold", low, high, how="computed", note=note)


def _token_means(stage: PpoStage) -> list[tuple[str, bool]]:
    """Losses beside the policy's that ppo_actor.py and ppo_critic.py aggregate by tokens."""
    return [
        ("value loss", stage.has_value_model),
        ("entropy", stage.entropy_weight != 0),
        ("KL loss", stage.estimator == "grpo" and stage.kl_coefficient != 0),
    ]


def _absent(given: Arguments, stage: PpoStage) -> None:
    """Map the fields of what OpenRLHF does not do."""
    fields = given.fields
    reason = "its penalty of cut answers replaces or scales the reward (ppo_utils/length_penalty.py)"
    fields.same("stage.missing_end_penalty", None, reason)
    fields.same("stage.bootstrap_truncated", False, "an answer's end is terminal, cut or not (experience_maker.py)")
    fields.same("stage.stop_update_kl", None, "all epochs over a rollout are made")
    fields.same("stage.ptx_weight", 0.0, "it has no pretraining mix")
    fields.same("stage.ptx_data", ((),), "it has no pretraining mix")
    for name in ("ptx_batch", "seq_len"):
        given.unused(f"stage.{name}", "there is no pretraining mix")
    fields.same("stage.checkpoint_epochs", False, "it saves after whole rollouts only (trainer/ppo_trainer.py)")


ARGUMENTS_FILE = "openrlhf.json"
"""What the command line says, for people and for Charter: OpenRLHF does not read it."""


def render_openrlhf(handover: Handover) -> RenderedRun:
    """The stage as a command line; a `SpecError` holds every field that OpenRLHF cannot express."""
    is_ppo = handover.stage.ROLLS_OUT
    given = ppo_arguments(handover) if is_ppo else supervised_arguments(handover)
    words, mapping = given.finish()
    module = f"openrlhf.cli.{MODULE if is_ppo else MODULES[handover.stage.kind]}"
    shown = {option: list(values) for option, values in given.given.items()}
    files = {ARGUMENTS_FILE: json.dumps({"module": module, "options": shown}, indent=2) + "\n", **given.files}
    if is_ppo and handover.starts_ray:
        files[RAY_SCRIPT] = ray_script(handover)
    return RenderedRun(
        files=files,
        command=(*_start(handover, module, is_ppo=is_ppo), *words),
        mapping=mapping,
        resume=_resume(is_ppo=is_ppo),
        environment={"HF_DATASETS_CACHE": f"{handover.paths.work}/datasets"},
        formulas=given.fields.formulas,
        notes=(*_notes(is_ppo=is_ppo), *((UNLIMITED,) if given.files else ())),
    )


def _start(handover: Handover, module: str, *, is_ppo: bool) -> tuple[str, ...]:
    """Of PPO one process drives Ray; of the others every accelerator has one (environment: RANK, LOCAL_RANK)."""
    if is_ppo:
        return (*(("bash", RAY_SCRIPT) if handover.starts_ray else ()), "python", "-m", module)
    nodes = (
        ("--standalone",)
        if handover.num_nodes == 1
        else ("--node-rank", "${NODE_RANK}", "--master-addr", "${MASTER_ADDR}", "--master-port", "${MASTER_PORT}")
    )
    sizes = ("--nnodes", str(handover.num_nodes), "--nproc-per-node", str(handover.per_node))
    return ("python", "-m", "torch.distributed.run", *sizes, *nodes, "-m", module)


def _resume(*, is_ppo: bool) -> Resume:
    if is_ppo:
        return Resume(
            guarantee="best_effort",
            reason="policy, value model, both optimizers and schedules, prompts and episode come back; no random state "
            "does, vLLM samples anew, and policy and value model are saved as two separate steps",
            source=f"OpenRLHF {VERSION}: trainer/ppo_trainer.py fit() and save_logs_and_checkpoints(); no file of the "
            "package saves a random state",
        )
    return Resume(
        guarantee="same_data_order",
        reason="weights, optimizer, schedule and the number of rows read come back, and rows follow from seed and "
        "epoch; no random state does, and CUDA kernels are not repeated bit for bit",
        source=f"OpenRLHF {VERSION}: utils/distributed_sampler.py, trainer/sft_trainer.py, rm_trainer.py, "
        "dpo_trainer.py; not measured, since it does not run without a GPU",
    )


def _notes(*, is_ppo: bool) -> tuple[str, ...]:
    notes = [
        "packing and ring attention need flash-attn; ring attention needs ring_flash_attn as well",
        "weights are loaded in the precision of --ds.param_dtype; DeepSpeed's optimizer keeps them in fp32",
        "OpenRLHF leaves out rows whose prompt fills --data.max_len less 2 tokens; Charter must not write them",
        "a warm-up starts at a rate of 0, ours at one part of it: one step later",
    ]
    if is_ppo:
        notes.append("prompts are shuffled by PyTorch's default seed: the controller sets none (ppo_trainer.py)")
    return tuple(notes)
