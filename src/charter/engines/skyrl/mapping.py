"""A stage of GRPO for SkyRL: one YAML file, and the script that starts SkyRL's trainer with it.

The script holds four classes over SkyRL's own, by the places that those leave for it: prompts come in the file's order
(its own loader shuffles), an answer is scored by rewards.py once its tokens are there, a line of metrics is written for
each step, and paths are those of the export. Losses and advantages are SkyRL's own.

Read in skyrl 0.3.0: train/config/config.py, train/trainer.py, train/entrypoints/main_base.py, train/utils/utils.py
(validate_cfg), train/generators/skyrl_gym_generator.py, backends/skyrl_train/utils/ppo_utils.py and
off_policy_correction_utils.py, backends/skyrl_train/workers/worker.py (how losses are summed over ranks),
backends/skyrl_train/distributed/fsdp_strategy.py; in skyrl-gym 0.4.0 envs/base_text_env.py.
"""

from collections.abc import Mapping

from charter.engines.common.adapter import ROW
from charter.engines.common.formulas import TOKEN_ENTROPY, has_token_entropy, name_formulas
from charter.engines.common.mapping import FieldMapper, Sheet, without_value_model
from charter.engines.common.rendered import RAY_SCRIPT, RenderedRun, Resume, ray_script
from charter.engines.common.request import Handover
from charter.engines.common.reward_file import UNLIMITED, map_rewards
from charter.engines.skyrl.capabilities import CAPABILITIES, VERSION
from charter.errors import Problem
from charter.spec.layout import WHOLE_BITS, Recompute, ZeroStage
from charter.spec.ppo_stage import PpoStage
from charter.spec.rewards import SAPO_TEMPERATURES
from charter.spec.stage_base import FP8

FILE, ENTRY_FILE = "skyrl.yaml", "run_skyrl.py"
CHECKPOINTS, EXPORT, METRICS = "checkpoints", "export", "metrics.jsonl"
"""Below the work directory: `global_step_N`, the final weights likewise, and a line for each step."""
ENVIRONMENT = "charter"
TRAINER, ALGORITHM, POLICY = "trainer", "trainer.algorithm", "trainer.policy"
GENERATOR, ENGINE = "generator", "generator.inference_engine"
CORRECTION, OPTIMIZER = f"{ALGORITHM}.off_policy_correction", f"{POLICY}.optimizer_config"
LEAST_KEPT = 2
"""Checkpoints: whoever takes over the newest one has it whole while a next one is written."""
FURTHER: Mapping[str, tuple[object, ...]] = {
    "ratio": ("sequence",),
    "surrogate": ("cispo", "sapo"),
    "loss_aggregation": ("constant", "prompt"),
    "loss_horizon": (),
    "mismatch": (),
}
"""Options of its losses with more values than the usual ones."""
AGGREGATIONS = {
    "token": "token_mean",
    "sequence": "sequence_mean",
    "prompt": "prompt_mean",
    "constant": "seq_mean_token_sum_norm",
}
NO_AHEAD = (
    "its asynchronous trainer takes old log-probabilities by the weights that learn, where here the ratio is to the "
    "weights that drew, and bounds how many groups are ahead and not the age of a token"
)
NEVER = 1.0e8
"""A bound of weights that is never reached."""


def skyrl_sheet(mapper: FieldMapper, stage: PpoStage) -> Sheet:
    """`SkyRLTrainConfig`, with the mapping of every field."""
    sheet = Sheet(mapper, FILE)
    sheet.files |= map_rewards(mapper, stage, CAPABILITIES, "").files
    name_formulas(mapper, stage)
    mapper.refuse_native_rewards(FURTHER, ahead=NO_AHEAD)
    _run(sheet, stage)
    _machine(sheet)
    _model(sheet, stage)
    _layout(sheet)
    _batches(sheet, stage)
    _optimizer(sheet, stage)
    _schedule(sheet, stage)
    _estimator(sheet, stage)
    _kl(sheet, stage)
    _loss(sheet, stage)
    _sampling(sheet, stage)
    _absent(sheet, stage)
    sheet.files[ENTRY_FILE] = ENTRY_TEXT
    return sheet


def _run(sheet: Sheet, stage: PpoStage) -> None:
    handover = sheet.mapper.handover
    paths, target = handover.paths, handover.target_steps
    note = "one file of JSON lines in Charter's order, each prompt as often as it is used"
    sheet.computed("stage.prompts", {"data.train_data": [paths.data["prompts"]]}, note)
    sheet.put("data.val_data", [])
    steps: dict[str, object] = {f"{TRAINER}.max_training_steps": target, f"{TRAINER}.epochs": 1}
    sheet.computed("stage.episodes", steps, "in rollouts: episodes / rollout_batch, which the file holds just once")
    sheet.as_is("stage.checkpoint_every", f"{TRAINER}.ckpt_interval", note="the last step is always saved")
    settings: dict[str, object] = {
        "project_name": handover.run,
        "run_name": handover.name,
        "logger": "console",
        "eval_interval": -1,
        "eval_before_train": False,
        "hf_save_interval": target,
        "max_ckpts_to_keep": max(LEAST_KEPT, handover.keep_last),
        "ckpt_path": f"{paths.work}/{CHECKPOINTS}",
        "export_path": f"{paths.work}/{EXPORT}",
        "log_path": f"{paths.work}/logs",
        "resume_mode": "latest" if paths.resume_from is None else "from_path",
        "resume_path": paths.resume_from,
        "print_example_interval": 0,
        "enable_ray_gpu_monitor": False,
    }
    for name, value in settings.items():
        sheet.put(f"{TRAINER}.{name}", value)
    sheet.as_is("seed", f"{TRAINER}.seed", note="vLLM's seed too")


def _machine(sheet: Sheet) -> None:
    """All roles on all accelerators; those that wait do so in host memory."""
    handover, layout = sheet.mapper.handover, sheet.mapper.handover.layout
    placement = handover.placement
    arrangement = placement.arrangement if placement is not None else "offloaded"
    tensor = placement.generator_tensor if placement is not None else 1
    path = f"pipeline.{handover.name}.resources"
    used, there = layout.num_accelerators, handover.num_accelerators
    if handover.is_cpu:
        message, hint = "needs accelerators", "take engine native or trl"
    elif arrangement in ("split", "async"):
        message, hint = f"is rendered with all roles on all accelerators, the plan's arrangement is {arrangement}", ""
    elif used != there:
        message, hint = f"trains on all accelerators: the layout has {used}, the machines {there}", "plan it again"
    elif there % tensor:
        message, hint = f"cannot divide {there} accelerators into generators of {tensor}", "another tensor size"
    else:
        message = hint = ""
    if message:
        hint = hint or "plan it for skyrl"
        sheet.mapper.problems.append(Problem(path=path, message=f"SkyRL {message}", hint=hint))
    sheet.put(f"{TRAINER}.placement", {
        "colocate_all": True,
        **{f"{role}_num_nodes": handover.num_nodes for role in ("policy", "ref")},
        **{f"{role}_num_gpus_per_node": handover.per_node for role in ("policy", "ref")},
    })  # fmt: skip
    sheet.put(f"{ENGINE}.num_engines", there // tensor)
    sheet.put(f"{ENGINE}.tensor_parallel_size", tensor)


def _model(sheet: Sheet, stage: PpoStage) -> None:
    mapper = sheet.mapper
    path = mapper.handover.paths.models["policy"]
    both: dict[str, object] = {f"{section}.model.path": path for section in (POLICY, f"{TRAINER}.ref")}
    sheet.computed("stage.policy", both, "where its weights are; the reference is the policy as it began")
    sheet.put(f"{TRAINER}.strategy", "fsdp")
    if stage.dtype == "bf16":
        dtype: dict[str, object] = {f"{ENGINE}.model_dtype": "bfloat16"}
        sheet.computed("stage.dtype", dtype, "computed in bf16; weights, sums and optimizer are kept in fp32")
    else:
        reason = CAPABILITIES.without_fp8 if stage.dtype == FP8 else "its FSDP gathers parameters in bfloat16"
        mapper.refuse("stage.dtype", reason, "dtype: bf16")
    _attention(sheet, stage)
    adapter, place = stage.adapter, f"{POLICY}.model.lora"
    if adapter is not None and adapter.base_bits != WHOLE_BITS:
        mapper.refuse("stage.adapter", "it has LoRA, not a base in 4 bits", "base_bits: 16")
    else:
        rank, alpha = (0, 16) if adapter is None else (adapter.rank, adapter.alpha)
        lora = {"rank": rank, "alpha": alpha, "dropout": 0.0, "target_modules": "all-linear"}
        sheet.computed("stage.adapter", {place: lora}, "rank 0 trains all weights")
        sheet.put(f"{place}.lora_sync_path", f"{mapper.handover.paths.work}/lora")
    reason = (
        "it leaves out updates whose gradient norm is not finite, and has no other guard; Charter's would stop there"
    )
    mapper.same("stage.guard", None, reason)


FLASH = "flash_attention_2"


def _attention(sheet: Sheet, stage: PpoStage) -> None:
    """Rows without padding lie one after the other, and flash attention alone keeps them apart."""
    resources, layout = stage.resources, sheet.mapper.handover.layout
    attention = (resources.attention if resources is not None else None) or FLASH
    if resources is not None and resources.compile:
        reason = "its use_torch_compile is of log-probabilities, not of the model"
        sheet.mapper.refuse("stage.resources", reason, "no compile")
    elif attention not in (FLASH, "sdpa"):
        sheet.mapper.refuse("stage.resources", f"it has {FLASH} and sdpa, not {attention}", f"attention: {FLASH}")
    elif attention != FLASH and layout.context > 1:
        reason = f"Ulysses goes with rows without padding, and those with {FLASH}"
        sheet.mapper.refuse("stage.resources", reason, f"attention: {FLASH}")
    sheet.put(f"{TRAINER}.flash_attn", attention == FLASH)
    sheet.put(f"{TRAINER}.remove_microbatch_padding", attention == FLASH)


NO_DEGREE = {
    "tensor": "its FSDP trainer has no tensor parallelism (its Megatron trainer is not rendered)",
    "pipeline": "its FSDP trainer has no pipeline",
    "interleave": "there is no pipeline",
    "expert": "its FSDP trainer has no expert parallelism",
    "replicas": "it is rendered for shards over all accelerators",
}


def _layout(sheet: Sheet) -> None:
    mapper, layout = sheet.mapper, sheet.mapper.handover.layout
    for name, why in NO_DEGREE.items():
        mapper.same(f"layout.{name}", 1, why)
    mapper.same("layout.sequence_parallel", False, "there is no tensor parallelism")
    both = (POLICY, f"{TRAINER}.ref")
    if layout.zero is ZeroStage.PARAMETERS or (layout.zero is ZeroStage.NONE and layout.num_accelerators == 1):
        keys: dict[str, object] = {f"{section}.fsdp_config.reshard_after_forward": True for section in both}
        keys |= {f"{section}.fsdp_config.fsdp_size": -1 for section in both}
        sheet.computed("layout.zero", keys, "FSDP2 over all accelerators, resharded after each block")
    else:
        mapper.refuse("layout.zero", "it shards by FSDP2, which has ZeRO-3 only")
    mapper.to(
        "layout.data",
        f"{FILE}: {TRAINER}.placement",
        how="computed",
        note="all accelerators divided by sequence_parallel_size",
    )
    _context(sheet, both)
    if layout.recompute is Recompute.SELECTIVE:
        mapper.refuse("layout.recompute", "gradient_checkpointing recomputes whole layers or none", "full, or none")
    else:
        on: dict[str, object] = {f"{TRAINER}.gradient_checkpointing": layout.recompute is Recompute.FULL}
        sheet.computed("layout.recompute", on, "full: on, none: off")
    on_host = {f"{section}.fsdp_config.cpu_offload": layout.offload_parameters for section in both}
    sheet.computed("layout.offload_parameters", dict(on_host), "FSDP2's CPUOffloadPolicy: parameters and optimizer")
    if layout.offload_optimizer and not layout.offload_parameters:
        reason = "offload_after_step brings the optimizer back for every update; only both together stay on the host"
        mapper.refuse("layout.offload_optimizer", reason, "offload: all, or none")
    else:
        sheet.computed("layout.offload_optimizer", dict(on_host), "on together with offload_parameters")


def _context(sheet: Sheet, sections: tuple[str, ...]) -> None:
    """Ulysses gives every rank whole heads (distributed/ulysses/monkey_patch.py asserts both divisions)."""
    mapper = sheet.mapper
    context, shape = mapper.handover.layout.context, mapper.handover.architectures.get("policy")
    if shape is not None and not shape.divides_heads(context, copies=True):
        heads = f"{shape.num_heads} heads and {shape.kv_heads} key/value heads"
        mapper.refuse("layout.context", f"Ulysses divides the heads, and the model has {heads}")
        return
    keys: dict[str, object] = {f"{section}.sequence_parallel_size": context for section in sections}
    sheet.computed("layout.context", keys, "Ulysses: ranks share a sequence and divide its heads")


def _batches(sheet: Sheet, stage: PpoStage) -> None:
    """SkyRL counts prompts where Charter counts answers, and derives the accumulation (validate_batch_sizes)."""
    mapper, layout, samples = sheet.mapper, sheet.mapper.handover.layout, stage.samples_per_prompt
    sheet.as_is("stage.samples_per_prompt", f"{GENERATOR}.n_samples_per_prompt")
    fields = {
        "stage.rollout_batch": (stage.rollout_batch, f"{TRAINER}.train_batch_size"),
        "stage.minibatch": (stage.minibatch, f"{TRAINER}.policy_mini_batch_size"),
    }
    for name, (answers, key) in fields.items():
        note = "in prompts: answers / samples_per_prompt"
        if answers % samples or answers % layout.data:
            mapper.refuse(name, f"it must be a multiple of samples_per_prompt ({samples}) and of data ({layout.data})")
        elif stage.rollout_batch % stage.minibatch:
            mapper.refuse(name, f"minibatch ({stage.minibatch}) must divide rollout_batch ({stage.rollout_batch})")
        else:
            order = "; updates go over the rollout in the order of its prompts" if name.endswith("minibatch") else ""
            sheet.computed(name, {key: answers // samples}, f"{note}{order}")
    micro = layout.micro_batch
    if stage.minibatch % (layout.data * micro):
        reason = f"data x micro_batch ({layout.data} x {micro}) must divide minibatch ({stage.minibatch})"
        mapper.refuse("layout.micro_batch", reason)
    else:
        names = ("micro_train_batch_size_per_gpu", "micro_forward_batch_size_per_gpu")
        sheet.as_is("layout.micro_batch", *(f"{TRAINER}.{name}" for name in names))
    derived = max(1, stage.minibatch // (layout.data * micro))
    mapper.same("layout.accumulation", derived, f"it takes minibatch / (data x micro_batch) = {derived}")
    note = "each in the same order"
    sheet.as_is("stage.ppo_epochs", f"{TRAINER}.update_epochs_per_batch", note=note)


def _optimizer(sheet: Sheet, stage: PpoStage) -> None:
    if stage.optimizer == "adamw":
        sheet.mapper.same("stage.optimizer", "adamw", "torch's AdamW with its epsilon of 1e-8")
    else:
        sheet.mapper.refuse("stage.optimizer", "it has no Adam with moments of 8 bits", "optimizer: adamw")
    sheet.as_is("stage.learning_rate", f"{OPTIMIZER}.lr")
    note = "it decays norms and biases too, Charter's engine does not"
    sheet.as_is("stage.weight_decay", f"{OPTIMIZER}.weight_decay", note=note)
    for name in ("beta1", "beta2"):
        betas: dict[str, object] = {f"{OPTIMIZER}.adam_betas": [stage.beta1, stage.beta2]}
        sheet.computed(f"stage.{name}", betas, "both in one list")
    sheet.as_is("stage.gradient_clip", f"{OPTIMIZER}.max_grad_norm")


SCHEDULES = {"constant": "constant_with_warmup", "linear": "linear", "cosine": "cosine"}


def _schedule(sheet: Sheet, stage: PpoStage) -> None:
    """transformers' schedules, a step of which is an update and not a rollout."""
    mapper = sheet.mapper
    each = max(1, stage.rollout_batch // stage.minibatch) * stage.ppo_epochs
    shape: dict[str, object] = {f"{OPTIMIZER}.scheduler": SCHEDULES[stage.schedule]}
    sheet.computed("stage.schedule", shape, "transformers' curve of that name, over updates")
    rises: dict[str, object] = {f"{OPTIMIZER}.num_warmup_steps": stage.warmup_steps * each}
    note = "in updates: warmup_steps x updates of a rollout; its first has rate 0, Charter's 1/warmup_steps"
    sheet.computed("stage.warmup_steps", rises, note)
    if stage.schedule == "constant":
        sheet.idle("stage.min_learning_rate_ratio", "a constant rate has no floor")
    else:
        mapper.same("stage.min_learning_rate_ratio", 0.0, f"its {stage.schedule} schedule ends at 0")


def _estimator(sheet: Sheet, stage: PpoStage) -> None:
    mapper, key = sheet.mapper, f"{ALGORITHM}.advantage_estimator"
    is_grpo = stage.estimator == "grpo"
    if is_grpo:
        keys: dict[str, object] = {key: "grpo", f"{ALGORITHM}.grpo_norm_by_std": stage.scale_advantages == "group"}
        sheet.computed("stage.estimator", keys, "the score less the mean of its group")
        if stage.scale_advantages in ("group", "none"):
            sheet.computed("stage.scale_advantages", keys, "group: by the deviation; none: off")
        else:
            reason = "grpo divides by the deviation of a group or by nothing, maxrl by the mean and 1e-6, so not by 0"
            mapper.refuse("stage.scale_advantages", reason, "scale_advantages: group, or none")
    elif stage.estimator == "rloo":
        sheet.computed("stage.estimator", {key: "rloo"}, "the score less the mean of the others of its group")
        mapper.same("stage.scale_advantages", "group", "grpo_norm_by_std belongs to grpo")
    else:
        hint = "estimator: grpo or rloo"
        mapper.refuse("stage.estimator", "it is rendered without a value model, for estimators of groups", hint)
        sheet.idle("stage.scale_advantages", "it belongs to grpo")
    if is_grpo:
        sheet.idle("stage.whiten_advantages", "grpo compares within groups, here and there")
    else:
        reason = "its advantage_batch_normalize takes the mean of padded places too"
        mapper.same("stage.whiten_advantages", False, reason)


def _kl(sheet: Sheet, stage: PpoStage) -> None:
    """grpo has the penalty in the loss, as k3; rloo in the reward of each token."""
    mapper, penalised = sheet.mapper, stage.kl_coefficient > 0
    in_loss = stage.has_kl_loss
    sheet.put(f"{ALGORITHM}.use_kl_loss", penalised and in_loss)
    sheet.put(f"{ALGORITHM}.use_kl_in_reward", penalised and not in_loss)
    if penalised and in_loss and stage.loss_aggregation != "sequence":
        reason = "its KL term is a mean over answers of each answer's mean, however the policy's loss is reduced"
        mapper.refuse("stage.kl_coefficient", reason, "loss_aggregation: sequence, or kl_coefficient: 0")
    else:
        sheet.as_is("stage.kl_coefficient", f"{ALGORITHM}.kl_loss_coef", note="of the reward too, where it is there")
    if penalised and not in_loss:
        kind: dict[str, object] = {f"{ALGORITHM}.kl_estimator_type": stage.kl_estimator}
        sheet.computed("stage.kl_estimator", kind, "k3 is held within 10 nats")
    else:
        sheet.put(f"{ALGORITHM}.kl_estimator_type", "k3")
        sheet.idle("stage.kl_estimator", "there is no penalty, or it is k3 in the loss whichever is named")
    reason = "its adaptive controller aims at nats per token, not per answer, and no checkpoint holds its coefficient"
    mapper.same("stage.kl_target", None, reason)
    sheet.put(f"{ALGORITHM}.kl_ctrl.type", "fixed")
    sheet.idle("stage.kl_horizon", "it belongs to kl_target")


def _loss(sheet: Sheet, stage: PpoStage) -> None:
    mapper = sheet.mapper
    high = stage.clip_ratio if stage.clip_ratio_high is None else stage.clip_ratio_high
    cispo = f"{ALGORITHM}.cispo.cispo_eps_clip"
    lower: dict[str, object] = {f"{ALGORITHM}.eps_clip_low": stage.clip_ratio, f"{cispo}_low": stage.clip_ratio}
    sheet.computed("stage.clip_ratio", lower, "of cispo under a name of its own")
    upper: dict[str, object] = {f"{ALGORITHM}.eps_clip_high": high, f"{cispo}_high": high}
    sheet.computed("stage.clip_ratio_high", upper, "clip_ratio where none is given")
    name = {"clip": "gspo" if stage.ratio == "sequence" else "regular"}.get(stage.surrogate, stage.surrogate)
    kind: dict[str, object] = {f"{ALGORITHM}.policy_loss_type": name if stage.dual_clip is None else "dual_clip"}
    sheet.computed("stage.ratio", kind, "gspo: ratios of whole answers")
    sheet.computed("stage.surrogate", kind, "cispo: the ratio held on both sides, without gradient")
    if stage.surrogate == "sapo":
        sheet.put(f"{ALGORITHM}.sapo.tau_pos", SAPO_TEMPERATURES[0])
        sheet.put(f"{ALGORITHM}.sapo.tau_neg", SAPO_TEMPERATURES[1])
    if stage.dual_clip is None:
        sheet.mapper.same("stage.dual_clip", None, "regular has no such bound")
    else:
        sheet.as_is("stage.dual_clip", f"{ALGORITHM}.clip_ratio_c", note="policy_loss_type: dual_clip")
    mean: dict[str, object] = {f"{ALGORITHM}.loss_reduction": AGGREGATIONS[stage.loss_aggregation]}
    sheet.computed("stage.loss_aggregation", mean, "over the minibatch of all ranks")
    if stage.loss_aggregation == "constant":
        horizon: dict[str, object] = {f"{ALGORITHM}.max_seq_len": stage.loss_horizon or stage.max_new_tokens}
        sheet.computed("stage.loss_horizon", horizon, "max_new_tokens where none is given; it cuts no answer")
    else:
        sheet.idle("stage.loss_horizon", "it belongs to loss_aggregation: constant")
    sheet.put(f"{ALGORITHM}.use_entropy_loss", stage.entropy_weight != 0)
    if has_token_entropy(mapper, stage):
        sheet.as_is("stage.entropy_weight", f"{ALGORITHM}.entropy_loss_coef", note=TOKEN_ENTROPY)
    _correction(sheet, stage)


def _correction(sheet: Sheet, stage: PpoStage) -> None:
    """Weights of the generator's tokens: cut above, left out outside of bounds, or whole answers left out."""
    weighs = stage.correction
    values: dict[str, object] = {"tis_ratio_type": None if weighs is None else "token"}
    if weighs is not None:
        low, high = weighs.low or 0.0, NEVER if weighs.high is None else weighs.high
        if weighs.method == "tis" and weighs.low is not None:
            reason = "its weights of tokens are cut above, and have no lower bound"
            sheet.mapper.refuse("stage.mismatch", reason, "mismatch: {method: tis, high: 2}")
        values["token_tis_ratio_clip_high"] = NEVER if weighs.method == "sequence_mask" else high
        if weighs.method == "icepop":
            values |= {"token_mask_is_threshold_low": low, "token_mask_is_threshold_high": high}
        if weighs.method == "sequence_mask":
            values |= {"sequence_mask_metric": "geometric", "geo_mask_low": low, "geo_mask_high": high}
    keys: dict[str, object] = {f"{CORRECTION}.{name}": value for name, value in values.items()}
    for name in ("mismatch_clip", "mismatch"):
        sheet.computed(f"stage.{name}", keys, "tis by token; icepop masks tokens, sequence_mask whole answers")


MEMORY_SHARE = 0.8
"""Of an accelerator for vLLM while it generates; SkyRL's own default. Models wait in host memory meanwhile."""


def _sampling(sheet: Sheet, stage: PpoStage) -> None:
    mapper, place = sheet.mapper, f"{GENERATOR}.sampling_params"
    sheet.as_is("stage.temperature", f"{place}.temperature")
    sheet.as_is("stage.top_p", f"{place}.top_p")
    together: dict[str, object] = {
        f"{ENGINE}.engine_init_kwargs": {"max_model_len": stage.max_prompt_tokens + stage.max_new_tokens}
    }
    new: dict[str, object] = {f"{place}.max_generate_length": stage.max_new_tokens, **together}
    sheet.computed("stage.max_new_tokens", new, "and prompt and answer together")
    prompt: dict[str, object] = {
        f"{TRAINER}.max_prompt_length": stage.max_prompt_tokens,
        f"{GENERATOR}.max_input_length": stage.max_prompt_tokens,
        **together,
    }
    sheet.computed("stage.max_prompt_tokens", prompt, "longer prompts are left out by it, so none is written")
    sheet.put(f"{GENERATOR}.max_turns", 1)
    sheet.put(f"{GENERATOR}.batched", False)
    sheet.put(f"{ENGINE}.backend", "vllm")
    share: dict[str, object] = {f"{ENGINE}.gpu_memory_utilization": MEMORY_SHARE}
    sheet.computed("stage.generator", share, "vLLM whichever is named")
    sheet.put("environment.env_class", ENVIRONMENT)
    mapper.fixed("stage.min_new_tokens", CAPABILITIES)
    mapper.charter("stage.mean_new_tokens", "read by the planner alone")
    mapper.same("stage.checkpoint_epochs", False, "it saves between steps only")
    if stage.rewards:
        sheet.idle("stage.reward", "there is a list of rewards")
    else:
        hint = "rewards that are functions"
        mapper.refuse("stage.reward", "it scores by environments, and serves no reward model", hint)


def _absent(sheet: Sheet, stage: PpoStage) -> None:
    same = sheet.mapper.same
    same("stage.reward_clip", None, "scores are taken as they are")
    same("stage.missing_end_penalty", None, "an answer without an end can be scored 0 there, not less by so much")
    losses = "its loss has no language-modelling term"
    without_value_model(sheet, algorithms="grpo and rloo have", once="all epochs over a rollout are run", losses=losses)


ITSELF = '"__main__"'
"""In the script that is rendered; spelt out there, this module would be taken for a program."""
ENTRY_TEXT = f'''"""SkyRL's trainer with Charter's rewards, prompts in the file's order, and a file of metrics."""

import json
import numbers
import pathlib
import sys
import time

import ray
import skyrl_gym
from omegaconf import OmegaConf
from skyrl.backends.skyrl_train.inference_servers.utils import resolve_policy_model_name
from skyrl.train.config import SkyRLTrainConfig
from skyrl.train.entrypoints.main_base import BasePPOExp
from skyrl.train.generators.skyrl_gym_generator import SkyRLGymGenerator
from skyrl.train.trainer import RayPPOTrainer
from skyrl.train.utils import validate_cfg
from skyrl.train.utils.tracking import Tracking
from skyrl.train.utils.utils import initialize_ray
from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput
from torchdata.stateful_dataloader import StatefulDataLoader

WORK = pathlib.Path(__file__).resolve().parent


class Environment(BaseTextEnv):
    """One turn, whose answer the generator scores, since it knows the tokens."""

    def __init__(self, env_config, extras):
        super().__init__()
        self.extras = extras

    def step(self, action):
        self.extras["reply"] = action
        return BaseTextEnvStepOutput(observations=[], reward=0.0, done=True, metadata={{}})


class Generator(SkyRLGymGenerator):
    def _post_process_agent_loop_output(self, output, extras, trajectory_id):
        import rewards

        count = len(output.response_ids)
        total = rewards.rewards_of(extras["reply"], extras["{ROW}"], tokens=count)[0]
        output.reward = [0.0] * (count - 1) + [total]
        return output


class Trainer(RayPPOTrainer):
    def _build_train_dataloader_and_compute_training_steps(self):
        rows, settings = self.train_dataset, self.cfg.trainer
        self.train_dataloader = StatefulDataLoader(
            rows, batch_size=settings.train_batch_size, shuffle=False, drop_last=True, collate_fn=rows.collate_fn
        )
        self.total_training_steps = min(len(self.train_dataloader), settings.max_training_steps)


class Metrics(Tracking):
    def log(self, data, step, commit=False):
        super().log(data, step, commit)
        values = {{name: float(value) for name, value in data.items() if isinstance(value, numbers.Real)}}
        with (WORK / "{METRICS}").open("a", encoding="utf-8") as file:
            file.write(json.dumps({{"step": step, "time": time.time(), "data": values}}) + "\\n")


class Experiment(BasePPOExp):
    def get_generator(self, cfg, tokenizer, inference_engine_client):
        return Generator(
            generator_cfg=cfg.generator,
            skyrl_gym_cfg=cfg.environment.skyrl_gym,
            inference_engine_client=inference_engine_client,
            tokenizer=tokenizer,
            policy_model_name=resolve_policy_model_name(cfg),
        )

    def get_trainer(self, **parts):
        return Trainer(**parts)

    def get_tracker(self):
        names = self.cfg.trainer
        return Metrics(names.project_name, names.run_name, backend=names.logger, config=self.cfg)


def settings():
    """The file, with places below this directory as whole paths, since workers of Ray begin elsewhere."""
    values = OmegaConf.to_container(OmegaConf.load(sys.argv[1]))
    trainer, model = values["trainer"], values["trainer"]["policy"]["model"]
    places = [(values["data"]["train_data"], 0), (model["lora"], "lora_sync_path"), (trainer, "resume_path")]
    places += [(trainer, name) for name in ("ckpt_path", "export_path", "log_path")]
    places += [(trainer[role]["model"], "path") for role in ("policy", "ref") if (WORK / model["path"]).is_dir()]
    for place, name in places:
        if place[name] is not None:
            place[name] = str(WORK / place[name])
    return SkyRLTrainConfig.from_dict_config(OmegaConf.create(values))


@ray.remote(num_cpus=1)
def train(cfg):
    sys.path.insert(0, str(WORK))
    skyrl_gym.register(id="{ENVIRONMENT}", entry_point=Environment)
    Experiment(cfg).run()


def main():
    cfg = settings()
    validate_cfg(cfg)
    initialize_ray(cfg)
    ray.get(train.remote(cfg))


if __name__ == {ITSELF}:
    main()
'''
RESUME = Resume(
    guarantee="same_data_order",
    reason=(
        "weights, optimizer, schedule, random states of every rank and the place in the prompts come back; "
        "vLLM draws anew, so the answers of a repeated rollout differ"
    ),
    source=f"SkyRL {VERSION}: train/trainer.py (save_checkpoints), distributed/fsdp_strategy.py, torchdata",
)
NOTES = (
    "checkpoints are whole once latest_ckpt_global_step.txt names their step",
    f"final weights are {EXPORT}/global_step_N/policy, written once at the last step; of LoRA the adapter",
    "several nodes write one checkpoint: the work directory has to be on a file system that all of them share",
    UNLIMITED,
)


def render_skyrl(handover: Handover) -> RenderedRun:
    """The stage as SkyRL's configuration; a `SpecError` holds every field that it cannot express."""
    mapper = FieldMapper(handover)
    sheet = skyrl_sheet(mapper, handover.stage_as(PpoStage))
    rows = mapper.finish()
    work = handover.paths.work
    files = {FILE: sheet.text(), **sheet.files}
    command: tuple[str, ...] = ("python", f"{work}/{ENTRY_FILE}", f"{work}/{FILE}")
    if handover.starts_ray:
        files[RAY_SCRIPT] = ray_script(handover)
        command = ("bash", RAY_SCRIPT, *command)
    return RenderedRun(files=files, command=command, mapping=rows, resume=RESUME, formulas=mapper.formulas, notes=NOTES)
