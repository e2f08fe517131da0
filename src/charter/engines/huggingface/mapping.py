"""A stage as the files and the command of TRL's scripts, and what a resume of it is worth.

Pretraining, SFT, preference models, DPO and KTO by TRL's SFTTrainer, RewardTrainer, DPOTrainer and KTOTrainer, GRPO and
RLOO by GRPOTrainer and RLOOTrainer (1.16.0).
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

import yaml

from charter.engines.common.adapter import ROW
from charter.engines.common.formulas import NO_LOWER, TOKEN_ENTROPY, has_token_entropy, name_formulas
from charter.engines.common.rendered import RenderedRun, Resume
from charter.engines.common.request import Handover
from charter.engines.common.reward_file import UNLIMITED, ExportedRewards, map_rewards
from charter.engines.huggingface.capabilities import CAPABILITIES, TRL
from charter.engines.huggingface.settings import (
    ACCELERATE_FILE,
    DEEPSPEED_FILE,
    OUTPUT,
    Configuration,
    launch,
    map_batches,
    map_optimization,
    map_parallelism,
    map_trainer,
)
from charter.errors import SpecError
from charter.spec.ppo_stage import PpoStage
from charter.spec.rewards import SAPO_TEMPERATURES
from charter.spec.stage import DpoStage, PreferenceModelStage, PretrainStage, SftStage
from charter.spec.stage_base import Optimization, Stage

ESTIMATORS = ("grpo", "rloo")
LOSS_TYPES = {"token": "dapo", "sequence": "grpo", "constant": "dr_grpo"}
NO_VALUE_MODEL = "decides nothing here: the estimator has no value model"
CALLER = f'''
_COLUMNS, _SECONDS = {{}}, {{}}


def _column(name):
    """A reward as TRL calls it, one after the other: all completions at once, with the columns of their rows."""

    def column(prompts, completions, completion_ids, {ROW}, **_):
        import time

        began = time.perf_counter()
        asked = zip(completions, completion_ids, {ROW}, strict=True)
        _COLUMNS[name] = [reward_of(name, answer[-1]["content"], row, tokens=len(ids)) for answer, ids, row in asked]
        _SECONDS[name] = (time.perf_counter() - began) / max(len({ROW}), 1)
        if name == list(REWARDS)[-1]:
            for row, *rewards in zip({ROW}, *(_COLUMNS[each] for each in REWARDS), strict=True):
                note_scores(row, dict(zip(REWARDS, rewards)), _SECONDS)
        return _COLUMNS[name]

    column.__name__ = name
    return column


globals().update({{f"reward_{{number}}": _column(name) for number, name in enumerate(REWARDS)}})
'''
ASKED_ONE_BY_ONE = f"        asked = zip(completions, completion_ids, {ROW}, strict=True)"
ASKED_AHEAD = f"""        if name in JUDGES:
            ask_ahead([answer[-1]["content"] for answer in completions], {ROW}, [name])
{ASKED_ONE_BY_ONE}"""
FURTHER: Mapping[str, tuple[object, ...]] = {
    "ratio": ("sequence",),
    "surrogate": ("cispo", "sapo"),
    "off_policy_mask": (),
    "loss_aggregation": ("constant",),
    "loss_horizon": (),
    "mismatch": (),
}
"""Options of GRPOTrainer's loss with more values than the usual ones."""
MIXTURES = {"sum_then_normalise": "sum_then_normalize", "normalise_then_sum": "normalize_then_sum"}


def map_reinforcement(configuration: Configuration, stage: PpoStage) -> None:
    """A policy that is sampled and updated in turn; refuses estimators with a value model."""
    mapper = configuration.mapper
    caller = CALLER.replace(ASKED_ONE_BY_ONE, ASKED_AHEAD) if stage.judges else CALLER
    rewards = map_rewards(mapper, stage, TRL, caller)
    if stage.estimator == "online_dpo":
        reason = (
            "OnlineDPOTrainer of TRL 1.16.0, which is experimental and has no script, also learns from pairs of equal "
            "rewards, the first answer as the better one, and takes log-probabilities at temperature 1"
        )
        mapper.refuse("stage.estimator", reason, "engine: native")
        raise SpecError(mapper.problems)
    if stage.estimator != "grpo":
        mapper.same("stage.mixture", "sum_then_normalise", "RLOOTrainer adds rewards up before it compares them")
    name_formulas(mapper, stage)
    ahead = "its async GRPO is experimental, with a server of vLLM and FSDP2 alone, and no script runs it"
    mapper.refuse_native_rewards(FURTHER if stage.estimator == "grpo" else {}, ahead=ahead)
    updates = stage.rollout_batch // stage.minibatch * stage.ppo_epochs
    if stage.estimator not in ESTIMATORS:
        reason = "TRL's PPO was removed in 1.13; GRPOTrainer and RLOOTrainer have no value model"
        mapper.refuse("stage.estimator", reason, "estimator: grpo or rloo, or another engine")
    map_trainer(configuration, model="policy", data="prompts", updates=updates)
    map_batches(configuration, batch=stage.minibatch, field="minibatch")
    map_optimization(configuration, stage, updates=updates)
    configuration.deepspeed["gradient_clipping"] = stage.gradient_clip
    configuration.put({"enable_jit_checkpoint": False, "shuffle_dataset": False, "disable_dropout": True})
    _map_rewards(configuration, stage, rewards)
    note = f"rollouts * {updates} updates"
    mapper.to("stage.episodes", configuration.place("max_steps"), how="computed", note=note)
    _map_rollout(configuration, stage)
    _map_generator(configuration, stage)
    _map_penalty(configuration, stage)
    _map_estimator(configuration, stage)
    _refuse_unknown(configuration, stage)


def _map_rewards(configuration: Configuration, stage: PpoStage, rewards: ExportedRewards) -> None:
    """One model, or the functions of a file that the script imports from its own directory, after the model."""
    configuration.files |= rewards.files
    if not stage.rewards or rewards.model is not None:
        configuration.put({"reward_model_name_or_path": configuration.handover.paths.models["reward"]})
    note = "a sequence classifier, which Charter writes as reward_model_name_or_path"
    configuration.mapper.charter("stage.reward", "decides nothing here: there is a list" if stage.rewards else note)
    if stage.rewards:
        listed = [*([rewards.model] if rewards.model else []), *rewards.functions]
        names = [f"rewards.reward_{number}" for number in range(len(rewards.functions))]
        configuration.put({"reward_funcs": names, "reward_weights": [item.weight for item in listed]})
    if len(stage.rewards) > 1 and stage.estimator == "grpo":
        mixture = {"multi_objective_aggregation": MIXTURES[stage.mixture]}
        configuration.write("stage.mixture", mixture, how="computed", note="one that fits no row is left out of it")


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
            "an engine that gives roles accelerators of their own (docs/reference/engine-mapping.md)",
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
        _map_correction(configuration, stage)
    else:
        for name in ("mismatch_clip", "mismatch"):
            mapper.same(f"stage.{name}", None, "only GRPOTrainer with vLLM weighs the generator's probabilities")


def _map_correction(configuration: Configuration, stage: PpoStage) -> None:
    """Weights of the generator's tokens: cut (`tis`), or left out beyond the bounds (`icepop`)."""
    weighs = stage.correction
    correction: dict[str, object] = {"vllm_importance_sampling_correction": weighs is not None}
    if weighs is not None:
        if weighs.method == "sequence_mask":
            reason = "its sequence modes weigh by the product over an answer, not by the geometric mean"
            configuration.mapper.refuse("stage.mismatch", reason, "method: tis or icepop")
        mode = "token_truncate" if weighs.method == "tis" else "token_mask"
        correction |= {"vllm_importance_sampling_mode": mode, "vllm_importance_sampling_clip_max": weighs.high}
        if weighs.low is not None:
            correction["vllm_importance_sampling_clip_min"] = weighs.low
    note = "cut token by token, as here; or left out beyond the bounds (token_mask)"
    for name in ("mismatch_clip", "mismatch"):
        configuration.write(f"stage.{name}", correction, how="computed", note=note)


def _map_penalty(configuration: Configuration, stage: PpoStage) -> None:
    mapper = configuration.mapper
    where = "in the loss by k3" if stage.estimator == "grpo" else "in the reward by k1"
    configuration.write("stage.kl_coefficient", {"beta": stage.kl_coefficient}, note=where)
    mapper.same("stage.kl_target", None, "the coefficient of TRL's trainers is fixed")
    mapper.charter("stage.kl_horizon", "decides nothing here: there is no kl_target")
    if stage.estimator == "grpo":
        configuration.put({"use_bias_correction_kl": False})  # else k3 is weighed by the ratio, which has a gradient
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
        is_cispo = stage.surrogate == "cispo"
        loss = LOSS_TYPES[stage.loss_aggregation] if stage.surrogate == "clip" else stage.surrogate
        note = "dapo: over the tokens of a rollout, here of a minibatch; grpo: mean of each answer's mean; dr_grpo"
        write("stage.loss_aggregation", {"loss_type": loss}, how="computed", note=note)
        write("stage.surrogate", {"loss_type": loss}, how="computed", note="cispo: its bound is the ratio itself")
        if stage.surrogate == "sapo":
            above, others = SAPO_TEMPERATURES
            configuration.put({"sapo_temperature_pos": above, "sapo_temperature_neg": others})
        if is_cispo and stage.clip_ratio < NO_LOWER:
            mapper.refuse("stage.clip_ratio", "its cispo has no lower bound", "clip_ratio: 1, which is none here too")
        if stage.off_policy_mask is None or stage.generator == "native":
            write("stage.off_policy_mask", {"off_policy_mask_threshold": stage.off_policy_mask})
        else:
            reason = "beside vLLM it measures from vLLM's probabilities, and Charter from the trainer's own"
            mapper.refuse("stage.off_policy_mask", reason, "generator: native")
        horizon = stage.loss_horizon or stage.max_new_tokens
        if stage.loss_aggregation == "constant" and horizon != stage.max_new_tokens:
            mapper.refuse("stage.loss_horizon", "dr_grpo divides by max_completion_length", "leave loss_horizon out")
        else:
            mapper.charter("stage.loss_horizon", "decides nothing here: it is max_new_tokens, or there is no constant")
        write("stage.clip_ratio", {"epsilon": stage.clip_ratio})
        deviation = "scale_rewards has no other value; it adds 1e-4 to every deviation, here 1e-6 to that of a group"
        mapper.same("stage.scale_advantages", ("group", "batch", "none"), deviation)
        _map_clip_above(configuration, stage)
        _map_entropy(configuration, stage)
        configuration.put({"scale_rewards": stage.scale_advantages})
        write("stage.ratio", {"importance_sampling_level": stage.ratio}, note="of a token, or of a whole answer (GSPO)")
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


def _map_entropy(configuration: Configuration, stage: PpoStage) -> None:
    """A mean over tokens, whatever the loss of the policy is (grpo_trainer.py, _compute_loss)."""
    if has_token_entropy(configuration.mapper, stage):
        configuration.write("stage.entropy_weight", {"entropy_coef": stage.entropy_weight}, note=TOKEN_ENTROPY)


def _map_clip_above(configuration: Configuration, stage: PpoStage) -> None:
    """The upper bound of the ratio, which both trainers take; neither bounds the loss of negative advantages by it."""
    if stage.surrogate == "cispo":
        above = stage.clip_ratio if stage.clip_ratio_high is None else stage.clip_ratio_high
        note = "the largest ratio itself: 1 and what is above it"
        configuration.write("stage.clip_ratio_high", {"epsilon_high": 1 + above}, how="computed", note=note)
    elif stage.clip_ratio_high is None:
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


Supervised = PretrainStage | SftStage | PreferenceModelStage | DpoStage


def map_supervised(configuration: Configuration, stage: Supervised) -> None:
    """A stage that learns from fixed rows."""
    map_trainer(configuration, model="init", data="data")
    mapper = configuration.mapper
    map_batches(configuration, batch=stage.global_batch, field="global_batch")
    map_optimization(configuration, stage)
    configuration.deepspeed["gradient_clipping"] = stage.gradient_clip
    configuration.write("stage.seq_len", {"max_length": stage.seq_len}, note=configuration.kind.cut_note)
    mapper.charter("stage.epochs", "counted in steps, which max_steps says, and written row by row in the data file")
    mapper.charter("stage.steps", "the target that max_steps says; Charter checks that it was reached")
    mapper.same("stage.dropout", 0.0, "TRL's scripts load a model with the dropout of its own config")
    configuration.put({"train_sampling_strategy": "sequential", "enable_jit_checkpoint": True})


def _map_pretraining(configuration: Configuration, stage: PretrainStage) -> None:
    map_supervised(configuration, stage)
    _map_language(configuration, is_packed=False)


def _map_sft(configuration: Configuration, stage: SftStage) -> None:
    map_supervised(configuration, stage)
    _map_language(configuration, is_packed=stage.packing)
    note = "packed by best fit, and drawn in TRL's own order" if stage.packing else "a conversation is a row"
    configuration.write("stage.packing", {"packing": stage.packing}, note=note)
    if not stage.packing:
        return
    configuration.put({"packing_strategy": "bfd", "train_sampling_strategy": "random"})
    configuration.mapper.fixed("stage.packing", CAPABILITIES[configuration.handover.engine])
    if configuration.handover.layout.context > 1:
        configuration.mapper.refuse("stage.packing", "SFTTrainer refuses packing beside context parallelism")


def _map_language(configuration: Configuration, *, is_packed: bool) -> None:
    """Rows hold their tokens and which of them count, so that TRL neither tokenises nor chooses."""
    configuration.put(
        {
            "loss_type": "nll",
            "completion_only_loss": False,
            "assistant_only_loss": False,
            "router_aux_loss_coef": 0.0,
            "packing": is_packed,
        }
    )
    context = configuration.handover.layout.context
    if context > 1:
        configuration.put({"pad_to_multiple_of": 2 * context})


def _map_preference_model(configuration: Configuration, stage: PreferenceModelStage) -> None:
    """A sequence classifier with one label; its head is drawn at random, here it starts from zero."""
    map_supervised(configuration, stage)
    mapper = configuration.mapper
    configuration.put({"disable_dropout": True})
    pooled = "transformers reads a sequence classifier at the last token that is not padding"
    mapper.same("stage.pooling", "last", pooled)
    mapper.charter("stage.context", "Charter cuts the conversation before it writes the rows")
    mapper.charter("stage.shuffle_labels", "Charter permutes the labels before it writes the rows")
    mapper.charter("stage.use_margin", "Charter writes the column `margin`, which RewardTrainer subtracts")
    mapper.same("stage.head_learning_rate_ratio", 1.0, "the Trainer has one learning rate for all weights")
    mapper.same("stage.label_smoothing", 0.0, "RewardTrainer knows hard labels only, so Charter refuses soft ones")
    configuration.write("stage.center_weight", {"center_rewards_coefficient": stage.center_weight})


def _map_dpo(configuration: Configuration, stage: DpoStage) -> None:
    map_supervised(configuration, stage)
    mapper = configuration.mapper
    configuration.put({"disable_dropout": True, "precompute_ref_log_probs": False, "router_aux_loss_coef": 0.0})
    configuration.write("stage.beta", {"beta": stage.beta})
    mapper.same("stage.target_margin", 0.0, "of simpo, for which TRL has no script")
    if stage.loss == "kto":
        _map_kto(configuration, stage)
        return
    others = {"ipo": "ipo of DPOTrainer divides log-probabilities by the length of their answer first"}
    if stage.loss == "dpo":
        configuration.write(
            "stage.loss", {"loss_type": ["sigmoid"]}, how="computed", note=f"dpo: DPOTrainer; {KTO_NOTE}"
        )
    else:
        reason = others.get(stage.loss, "TRL's trainer of it is experimental, and has no script")
        mapper.refuse("stage.loss", reason, "loss: dpo or kto")
    smoothing = "the sigmoid loss of DPOTrainer has no label smoothing, and its robust loss is another one"
    mapper.same("stage.label_smoothing", 0.0, smoothing)


KTO_NOTE = (
    "kto: KTOTrainer, whose reference point is of one micro-batch of all processes, so that is the whole batch; it "
    "reads a prompt with the answer of the row before, so Charter orders the rows of a batch"
)


def _map_kto(configuration: Configuration, stage: DpoStage) -> None:
    """Each answer by itself: both weights are 1, but for labels that are taken to be wrong.

    With the share e of them 1 - s(x) becomes e + (1 - 2 e)(1 - s(x)), for good answers as for bad ones (kto_trainer.py,
    _compute_loss).
    """
    configuration.write("stage.loss", {"loss_type": "kto"}, how="computed", note=KTO_NOTE)
    weight = 1 - 2 * stage.label_smoothing
    note = "1 - 2 x label_smoothing: the same gradient; the loss that it logs is less by label_smoothing"
    weights = {"desirable_weight": weight, "undesirable_weight": weight}
    configuration.write("stage.label_smoothing", weights, how="computed", note=note)
    layout = configuration.handover.layout
    if layout.accumulation > 1:
        reason = "KTOTrainer takes the reference point of kto anew from every micro-batch, here it is one of the batch"
        hint = f"micro_batch: {layout.micro_batch * layout.accumulation}, or more accelerators"
        configuration.mapper.refuse("layout.accumulation", reason, hint)


ROLLOUTS = "TRL 1.16.0, grpo_trainer.py and rloo_trainer.py: _prepare_inputs, RepeatSampler"
RESTORED = "weights, optimizer, schedule, step and the random states of every process are restored"
TRAINER = "transformers 5.23.0, trainer.py: _save_checkpoint, _load_rng_state; sampler of train_sampling_strategy"
MEASURED = (
    "measured with TRL 1.16.0 on processors in fp32: SFT, preference model, DPO, KTO, GRPO and RLOO went on from a "
    "checkpoint to the weights of an undisturbed run; all but KTO and RLOO also with an adapter"
)


def resume_of(configuration: Configuration) -> Resume:
    """The guarantee of this stage on these processes."""
    stage, handover, order = configuration.handover.stage, configuration.handover, configuration.kind.order
    if isinstance(stage, PpoStage) and stage.generator == "vllm":
        return Resume(
            guarantee="best_effort",
            reason="prompts of finished rollouts are skipped; the random state of vLLM is not kept",
            source=ROLLOUTS,
        )
    if isinstance(stage, SftStage) and stage.packing:
        return Resume(
            guarantee="same_data_order",
            reason=f"{RESTORED}; the packed rows are drawn by data_seed again and the rows before are skipped",
            source=TRAINER,
        )
    if configuration.backend == "process" and handover.is_cpu and configuration.mapper.value("stage.dtype") == "fp32":
        return Resume(guarantee="bit_exact", reason=f"{RESTORED}; {order}", source=MEASURED)
    what = {
        "process": "on an accelerator, or in 16 bits, sums in another order were not ruled out",
        "torchrun": "sums over processes in the order of an undisturbed run were not measured",
        "ddp": "gradient buckets of DDP may settle otherwise after a restart, and sums with them",
        "fsdp": "sums over processes in the order of an undisturbed run were not measured",
        "deepspeed": "DeepSpeed's own loss scale and buckets were not measured",
    }[configuration.backend]
    return Resume(
        guarantee="same_data_order",
        reason=f"{RESTORED}; {order}; {what}",
        source=TRAINER if isinstance(stage, Optimization) else ROLLOUTS,
    )


MAPPINGS: Mapping[type[Stage], Callable[[Configuration, Any], None]] = {
    PretrainStage: _map_pretraining,
    SftStage: _map_sft,
    PreferenceModelStage: _map_preference_model,
    DpoStage: _map_dpo,
    PpoStage: map_reinforcement,
}
CACHE = "datasets"
"""Below the work directory: what the library `datasets` makes of the data file."""


def render_trl(handover: Handover) -> RenderedRun:
    """The stage as TRL's configuration; a `SpecError` holds everything that it cannot express."""
    configuration = Configuration(handover)
    MAPPINGS[type(handover.stage)](configuration, handover.stage)
    map_parallelism(configuration)
    return RenderedRun(
        mapping=configuration.mapper.finish(),
        files=_files(configuration),
        command=launch(configuration),
        resume=resume_of(configuration),
        environment={"HF_DATASETS_CACHE": f"{handover.paths.work}/{CACHE}", "TOKENIZERS_PARALLELISM": "false"},
        formulas=configuration.mapper.formulas,
        notes=_notes(configuration),
    )


def _files(configuration: Configuration) -> dict[str, str]:
    files = {configuration.trainer_file: _yaml(configuration.trainer), **configuration.files}
    if configuration.accelerate:
        files[ACCELERATE_FILE] = _yaml(configuration.accelerate)
    if configuration.backend == "deepspeed":
        files[DEEPSPEED_FILE] = json.dumps(configuration.deepspeed, indent=2) + "\n"
    return files


def _yaml(settings: dict[str, object]) -> str:
    return yaml.safe_dump(settings, sort_keys=False, allow_unicode=True, width=120)


def _notes(configuration: Configuration) -> tuple[str, ...]:
    notes = [
        "TRL's scripts ignore keys that they do not know; the files were checked by TRL's parser, hand edits are not.",
        f"Checkpoints are {OUTPUT}/checkpoint-N; the final weights lie in {OUTPUT}.",
    ]
    if configuration.backend == "process":
        notes.append("One process sees one accelerator: with several in the machine set CUDA_VISIBLE_DEVICES.")
    if configuration.trainer.get("use_peft"):
        notes.append(f"{OUTPUT} holds the adapter alone: `charter run` merges it, after an export you do.")
    if configuration.files:
        notes.append(UNLIMITED)
    if configuration.script == "reward":
        notes.append("The head is drawn at random from the seed; Charter's own engine starts from zeros.")
    return tuple(notes)
