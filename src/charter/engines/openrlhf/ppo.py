"""OpenRLHF's train_ppo_ray: PPO, REINFORCE with a baseline, RLOO and GRPO.

Data (`Handover.paths.data["prompts"]`): JSONL with a list of messages under `prompt`, as many prompts as the stage
has rollouts of, so that one pass over the file is the stage.
Sources in OpenRLHF 0.11.2: cli/train_ppo_ray.py, trainer/ppo_trainer.py, trainer/ppo_utils/experience_maker.py and
samples_generator.py, models/loss.py, models/utils.py, utils/agent.py (prompts are cut at the left).
"""

import math

from charter.engines.common.arguments import Arguments
from charter.engines.common.request import Handover
from charter.engines.openrlhf.common import engine_wide, optimizer, precision
from charter.engines.openrlhf.estimators import estimator_arguments
from charter.engines.openrlhf.placement import data_sizes, placement_arguments, trained_micro_batch
from charter.spec.stage import PpoStage

MODULE = "train_ppo_ray"
AGGREGATIONS = {"token": "token-mean", "sequence": "seq-mean-token-mean"}


def ppo_arguments(handover: Handover) -> Arguments:
    """Options of the program, with the mapping of every field."""
    given, stage = Arguments(handover), handover.stage
    assert isinstance(stage, PpoStage)
    given.fields.refuse_native_rewards()
    updates = stage.rollout_batch // stage.minibatch * stage.ppo_epochs
    engine_wide(
        given,
        sequences_per_row=1,
        recompute="--actor.gradient_checkpointing_enable",
        micro_batch=trained_micro_batch(given),
    )
    precision(given)
    _optimizers(given, stage, updates)
    _models(given, stage)
    _rollouts(given, stage)
    estimator_arguments(given, stage)
    _policy(given, stage)
    _absent(given, stage)
    placement_arguments(given, stage)
    return given


def _optimizers(given: Arguments, stage: PpoStage, updates: int) -> None:
    prefixes = ("actor.", "critic.") if stage.has_value_model else ("actor.",)
    optimizer(given, prefixes, updates=given.handover.target_steps * updates, updates_per_step=updates)
    given.to("stage.learning_rate", "--actor.adam.lr")
    if stage.has_value_model:
        given.to("stage.value_learning_rate", "--critic.adam.lr")
    else:
        given.unused("stage.value_learning_rate", "the estimator has no value model")
    given.to("stage.ppo_epochs", "--train.max_epochs")


def _models(given: Arguments, stage: PpoStage) -> None:
    models = given.handover.paths.models
    given.to("stage.policy", "--actor.model_name_or_path", models["policy"])
    if stage.reward_from == "preference_model":
        given.to("stage.reward", "--reward.model_name_or_path", models["reward"])
        given.fields.same("stage.reward_from", "preference_model", "a sequence classifier")
    else:
        given.fields.charter("stage.reward", "refused with reward_from")
        reason = "a reward is a model with a scalar head, or a server of its own (--reward.remote_url)"
        given.fields.refuse("stage.reward_from", reason, "reward_from: preference_model")
    if stage.has_value_model:
        given.give("--critic.model_name_or_path", models["reward"])
    given.give("--ds.value_head_prefix", "score")
    reason = "its weight sync sends an adapter's parameters under names that vLLM does not know (ppo_actor.py)"
    given.fields.same("stage.adapter", None, reason)


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
    reason = "vLLM's min_tokens is fixed to 1 (samples_generator.py): an answer has at least one token before its end"
    if stage.min_new_tokens == 1:
        given.fields.same("stage.min_new_tokens", 1, reason)
    else:
        given.fields.refuse("stage.min_new_tokens", reason, "min_new_tokens: 1")
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
    for name in ("clip_ratio_high", "dual_clip"):
        given.fields.same(f"stage.{name}", None, "the two-sided and dual forms of its clip are not rendered")
    given.fields.same("stage.scale_advantages", "group", "only the group's deviation is rendered")
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
    if stage.mismatch_clip is None:
        given.give("--algo.advantage.is_correction_level", "off")
        given.fields.to("stage.mismatch_clip", "--algo.advantage.is_correction_level")
    else:
        given.give("--algo.advantage.is_correction_level", "token")
        given.give("--algo.advantage.is_correction_mode", "clip")
        given.give("--algo.advantage.is_correction_gating", "ratio")
        option = "--algo.advantage.is_correction_threshold"
        note = "token-wise weights held from 0 to this (models/loss.py PolicyLoss)"
        given.to("stage.mismatch_clip", option, 0.0, stage.mismatch_clip, how="computed", note=note)


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
