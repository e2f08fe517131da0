"""GRPO and RLOO by TRL's GRPOTrainer and RLOOTrainer (1.16.0)."""

from charter.engines.huggingface.batches import map_batches
from charter.engines.huggingface.capabilities import CAPABILITIES
from charter.engines.huggingface.configuration import Configuration
from charter.engines.huggingface.optimization import map_optimization
from charter.engines.huggingface.trainer import map_trainer
from charter.spec.stage import PpoStage

ESTIMATORS = ("grpo", "rloo")
NO_VALUE_MODEL = "decides nothing here: the estimator has no value model"


def map_reinforcement(configuration: Configuration, stage: PpoStage) -> None:
    """A policy that is sampled and updated in turn; refuses estimators with a value model."""
    mapper = configuration.mapper
    mapper.refuse_native_rewards()
    updates = stage.rollout_batch // stage.minibatch * stage.ppo_epochs
    if stage.estimator not in ESTIMATORS:
        reason = "TRL's PPO was removed in 1.13; GRPOTrainer and RLOOTrainer have no value model"
        mapper.refuse("stage.estimator", reason, "estimator: grpo or rloo, or another engine")
    map_trainer(configuration, model="policy", data="prompts", updates=updates)
    map_batches(configuration, batch=stage.minibatch, field="minibatch")
    map_optimization(configuration, stage, updates=updates)
    configuration.deepspeed["gradient_clipping"] = stage.gradient_clip
    configuration.put({"enable_jit_checkpoint": False, "shuffle_dataset": False, "disable_dropout": True})
    configuration.put({"reward_model_name_or_path": configuration.handover.paths.models["reward"]})
    mapper.charter("stage.reward", "a sequence classifier, which Charter writes as reward_model_name_or_path")
    note = f"rollouts * {updates} updates"
    mapper.to("stage.episodes", configuration.place("max_steps"), how="computed", note=note)
    _map_rollout(configuration, stage)
    _map_generator(configuration, stage)
    _map_penalty(configuration, stage)
    _map_estimator(configuration, stage)
    _refuse_unknown(configuration, stage)


def _map_rollout(configuration: Configuration, stage: PpoStage) -> None:
    write = configuration.write
    write("stage.rollout_batch", {"generation_batch_size": stage.rollout_batch})
    write("stage.samples_per_prompt", {"num_generations": stage.samples_per_prompt})
    write("stage.ppo_epochs", {"num_iterations": stage.ppo_epochs})
    write("stage.temperature", {"temperature": stage.temperature})
    write("stage.top_p", {"top_p": stage.top_p})
    write("stage.max_new_tokens", {"max_completion_length": stage.max_new_tokens})
    configuration.put({"top_k": 0, "repetition_penalty": 1.0, "mask_truncated_completions": False})
    least = "min_tokens" if stage.generator == "vllm" else "min_new_tokens"
    if stage.min_new_tokens:
        note = f"as {least} of the generator"
        write("stage.min_new_tokens", {"generation_kwargs": {least: stage.min_new_tokens}}, how="computed", note=note)
    else:
        configuration.mapper.same("stage.min_new_tokens", 0, "an answer may be empty")
    configuration.mapper.charter(
        "stage.max_prompt_tokens", "TRL cuts no prompts, so Charter leaves longer ones out of the rows"
    )
    configuration.mapper.charter("stage.mean_new_tokens", "for the plan alone")
    configuration.mapper.same("stage.checkpoint_epochs", False, "a checkpoint inside a rollout would lose the rollout")


def _map_generator(configuration: Configuration, stage: PpoStage) -> None:
    placement, mapper = configuration.handover.placement, configuration.mapper
    uses_vllm = stage.generator == "vllm"
    settings: dict[str, object] = {"use_vllm": uses_vllm}
    arrangement = placement.arrangement if placement else "colocated"
    if arrangement in ("split", "async") or (placement is not None and len(placement.groups) > 1):
        configuration.refuse_engine(
            f"trl places all roles on the same accelerators; the plan has them {arrangement}, in "
            f"{len(placement.groups) if placement else 0} groups",
            "another engine: verl, openrlhf",
        )
    if uses_vllm:
        settings |= {
            "vllm_mode": "colocate",
            "vllm_tensor_parallel_size": placement.generator_tensor if placement else 1,
            "vllm_gpu_memory_utilization": CAPABILITIES[configuration.handover.engine].vllm_share,
            "vllm_enable_sleep_mode": arrangement == "offloaded",
            "vllm_max_model_length": stage.max_prompt_tokens + stage.max_new_tokens,
        }
    configuration.write("stage.generator", settings, how="computed", note="vLLM inside the trainer, or generate()")
    if stage.generator == "vllm" and stage.estimator == "grpo":
        weighs = stage.mismatch_clip is not None
        correction: dict[str, object] = {"vllm_importance_sampling_correction": weighs}
        if weighs:
            correction |= {
                "vllm_importance_sampling_mode": "token_truncate",
                "vllm_importance_sampling_clip_max": stage.mismatch_clip,
            }
        configuration.write("stage.mismatch_clip", correction, how="computed", note="cut token by token, as here")
    else:
        mapper.same("stage.mismatch_clip", None, "only GRPOTrainer with vLLM weighs the generator's probabilities")


def _map_penalty(configuration: Configuration, stage: PpoStage) -> None:
    mapper = configuration.mapper
    where = "in the loss by k3" if stage.estimator == "grpo" else "in the reward by k1"
    configuration.write("stage.kl_coefficient", {"beta": stage.kl_coefficient}, note=where)
    mapper.same("stage.kl_target", None, "the coefficient of TRL's trainers is fixed")
    mapper.charter("stage.kl_horizon", "decides nothing here: there is no kl_target")
    if stage.estimator == "grpo":
        mapper.charter("stage.kl_estimator", "decides nothing here: the loss of grpo has k3, in Charter too")
    else:
        mapper.same("stage.kl_estimator", "k1", "RLOOTrainer sums k1 over an answer (rloo_trainer.py)")
    mapper.same("stage.reward_clip", None, "TRL would clip the raw score, here the normalised one is clipped")
    mapper.same("stage.missing_end_penalty", None, "TRL has no penalty for an answer without an end")


def _map_estimator(configuration: Configuration, stage: PpoStage) -> None:
    write, mapper = configuration.write, configuration.mapper
    mapper.to("stage.estimator", "command: trl.scripts", how="computed", note="chooses GRPOTrainer or RLOOTrainer")
    configuration.put({"router_aux_loss_coef": 0.0})
    if stage.estimator == "grpo":
        loss = "dapo" if stage.loss_aggregation == "token" else "grpo"
        note = "dapo: over the tokens of a rollout, here of a minibatch; grpo: mean of each answer's mean"
        write("stage.loss_aggregation", {"loss_type": loss}, how="computed", note=note)
        write("stage.clip_ratio", {"epsilon": stage.clip_ratio})
        mapper.same("stage.scale_advantages", ("group", "batch", "none"), "scale_rewards has no other value")
        _map_clip_above(configuration, stage)
        write("stage.entropy_weight", {"entropy_coef": stage.entropy_weight})
        configuration.put({"scale_rewards": stage.scale_advantages, "importance_sampling_level": "token"})
        mapper.charter("stage.whiten_advantages", "decides nothing here: grpo scales groups instead")
        return
    _map_clip_above(configuration, stage)
    mapper.same("stage.scale_advantages", "group", "scores of rloo are not scaled")
    write("stage.clip_ratio", {"epsilon": stage.clip_ratio}, note="of whole answers, whose ratio is 1 in one update")
    reason = "RLOOTrainer clips the ratio of a whole answer, not of a token; with one update both are 1"
    if stage.ppo_epochs > 1:
        mapper.refuse("stage.ppo_epochs", reason, "ppo_epochs: 1")
    if stage.minibatch < stage.rollout_batch:
        share = f"a rollout_batch of {stage.rollout_batch} is updated in parts, and {reason}"
        mapper.refuse("stage.minibatch", share, f"minibatch: {stage.rollout_batch}")
    summed = (
        "RLOOTrainer divides the sum over tokens by the answers, here by the tokens: the same direction, longer by the "
        "mean length, which Adam scales away and gradient_clip does not"
    )
    mapper.same("stage.loss_aggregation", "token", summed)
    mapper.same("stage.entropy_weight", 0.0, "RLOOTrainer has no entropy bonus")
    normalised = "over answers, here over their tokens"
    write("stage.whiten_advantages", {"normalize_advantages": stage.whiten_advantages}, note=normalised)


def _map_clip_above(configuration: Configuration, stage: PpoStage) -> None:
    """The upper bound of the ratio, which both trainers take; neither bounds the loss of negative advantages by it."""
    if stage.clip_ratio_high is None:
        configuration.mapper.same("stage.clip_ratio_high", None, "epsilon_high is epsilon unless given")
    else:
        configuration.write("stage.clip_ratio_high", {"epsilon_high": stage.clip_ratio_high})
    configuration.mapper.same("stage.dual_clip", None, "`delta` bounds the ratio, not the loss")


def _refuse_unknown(configuration: Configuration, stage: PpoStage) -> None:
    mapper = configuration.mapper
    mapper.same("stage.reward_from", "preference_model", "TRL scores with a sequence classifier")
    mapper.same("stage.stop_update_kl", None, "TRL goes over a rollout as often as it is told")
    mapper.same("stage.ptx_weight", 0.0, "TRL mixes in no pretraining data")
    mapper.same("stage.ptx_data", ((),), "TRL mixes in no pretraining data")
    for name in ("ptx_batch", "seq_len"):
        mapper.charter(f"stage.{name}", "decides nothing here: there is no ptx_data")
    mapper.same("stage.discount", 1.0, "the trainers do not discount")
    mapper.same("stage.value_warmup_rollouts", 0, "there is no value model")
    mapper.same("stage.bootstrap_truncated", False, "there is no value model")
    for name in ("value_learning_rate", "value_clip", "value_loss_weight", "gae_lambda"):
        mapper.charter(f"stage.{name}", NO_VALUE_MODEL)
