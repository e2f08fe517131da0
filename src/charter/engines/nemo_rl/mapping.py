"""A stage for NeMo RL: a complete YAML file, the example script that reads it, and what a resume of it is worth.

SFT, reward model, DPO, and GRPO with RLOO as its leave-one-out form. Read in nemo_rl/algorithms/{sft,rm,dpo,grpo}.py
and nemo_rl/algorithms/advantage_estimator.py.
"""

from collections.abc import Callable, Mapping
from typing import Any

from charter.engines.common.formulas import name_formulas
from charter.engines.common.mapping import NATIVE_ONLY, REASONS_OF_VALUES, FieldMapper, Sheet, without_value_model
from charter.engines.common.rendered import RAY_SCRIPT, RenderedRun, Resume, ray_script
from charter.engines.common.request import Handover
from charter.engines.common.reward_file import REWARDS_FILE, UNLIMITED, ExportedRewards, map_rewards
from charter.engines.nemo_rl.capabilities import CAPABILITIES, COMMIT, VERSION
from charter.engines.nemo_rl.settings import OFF, PRECISIONS, check_machine, map_policy, map_run
from charter.errors import Problem
from charter.spec.ppo_stage import PpoStage
from charter.spec.stage import DpoStage, PreferenceModelStage, SftStage
from charter.spec.stage_base import Stage

LENGTH = ("stage.epochs", "stage.steps")
PAIRS = 2


def sft_sheet(mapper: FieldMapper, stage: SftStage) -> Sheet:
    """`examples/run_sft.py`."""
    sheet = Sheet(mapper, "sft.yaml")
    map_run(sheet, "sft", length_fields=LENGTH)
    sheet.put("sft.only_unmask_final", False)
    _policy(sheet, sequences_per_row=1)
    _supervised_data(sheet, "openai_format", processor="sft_processor")
    for name in ("add_bos", "add_eos", "add_generation_prompt"):
        sheet.put(f"data.{name}", False)
    mapper.fixed("stage.packing", CAPABILITIES)
    return sheet


def reward_sheet(mapper: FieldMapper, stage: PreferenceModelStage) -> Sheet:
    """`examples/run_rm.py`."""
    sheet = Sheet(mapper, "rm.yaml")
    map_run(sheet, "rm", length_fields=LENGTH)
    _policy(sheet, sequences_per_row=PAIRS)
    sheet.put("policy.reward_model_cfg", {"enabled": True, "reward_model_type": "bradley_terry"})
    _supervised_data(sheet, "PreferenceDataset")
    same = mapper.same
    same("stage.pooling", "last", "its reward model is a sequence classifier, which reads the last token")
    same("stage.head_learning_rate_ratio", 1.0, "all parameters have one learning rate")
    same("stage.label_smoothing", 0.0, "its Bradley-Terry loss takes labels as they are")
    same("stage.use_margin", False, "its Bradley-Terry loss has no margin")
    same("stage.center_weight", 0.0, "its Bradley-Terry loss has no such term")
    mapper.charter("stage.context", "how much of a conversation a row holds is decided when the file is written")
    mapper.charter("stage.shuffle_labels", "labels are permuted when the file is written")
    return sheet


def dpo_sheet(mapper: FieldMapper, stage: DpoStage) -> Sheet:
    """`examples/run_dpo.py`."""
    sheet = Sheet(mapper, "dpo.yaml")
    map_run(sheet, "dpo", length_fields=LENGTH)
    _policy(sheet, sequences_per_row=PAIRS)
    _supervised_data(sheet, "PreferenceDataset")
    sheet.as_is("stage.beta", "dpo.reference_policy_kl_penalty")
    for name, value in (("preference_loss_weight", 1.0), ("sft_loss_weight", 0.0)):
        sheet.put(f"dpo.{name}", value)
    for name in ("preference_average_log_probs", "sft_average_log_probs"):
        sheet.put(f"dpo.{name}", False)
    mapper.same("stage.loss", "dpo", REASONS_OF_VALUES.get(stage.loss, NATIVE_ONLY))
    mapper.same("stage.label_smoothing", 0.0, "its loss takes labels as they are (DPOLossFn)")
    mapper.same("stage.target_margin", 0.0, "of simpo, which it does not have")
    return sheet


def _policy(sheet: Sheet, *, sequences_per_row: int) -> None:
    mapper = sheet.mapper
    check_machine(sheet)
    map_policy(sheet, "init", sequences_per_row=sequences_per_row, batch_field="stage.global_batch")
    mapper.same("stage.dropout", 0.0, "the model is trained as it is, without dropout of its own")
    note = "longer rows do not count in its loss, so none is written"
    sheet.as_is("stage.seq_len", "policy.max_total_sequence_length", "data.max_input_seq_length", note=note)


def _supervised_data(sheet: Sheet, dataset: str, *, processor: str | None = None) -> None:
    train: dict[str, object] = {"dataset_name": dataset, "data_path": sheet.mapper.handover.paths.data["data"]}
    sheet.computed("stage.data", {"data.train": train}, "one file of JSON lines, each row as often as it is used")
    default: dict[str, object] = {"prompt_file": None, "system_prompt_file": None}
    sheet.put("data.default", default | ({"processor": processor} if processor else {}))
    sheet.put("data.validation", None)
    sheet.put("data.shuffle", False)
    sheet.put("data.num_workers", 1)


ENVIRONMENT, ENVIRONMENT_FILE, ENTRY_FILE = "charter", "rewards_environment.py", "run_grpo.py"
ENVIRONMENT_TEXT = '''"""The environment of rewards.py for NeMo RL: one turn, whose answers the functions reward."""

import ray
import torch
from nemo_rl.environments.interfaces import EnvironmentInterface, EnvironmentReturn

import rewards


@ray.remote
class RewardsEnvironment(EnvironmentInterface):
    def __init__(self, cfg):
        self.cfg = cfg

    def step(self, message_log_batch, metadata):
        answers = [log[-1]["content"] for log in message_log_batch]
        rows = [item["ground_truth"] for item in metadata]
        totals = [rewards.rewards_of(answer, row)[0] for answer, row in zip(answers, rows, strict=True)]
        return EnvironmentReturn(
            observations=[{"role": "environment", "content": ""} for _ in answers],
            metadata=metadata,
            next_stop_strings=[None] * len(answers),
            rewards=torch.tensor(totals),
            terminateds=torch.ones(len(answers), dtype=torch.bool),
            answers=answers,
        )

    def global_post_process_and_metrics(self, batch):
        return batch, {}

    def shutdown(self):
        pass
'''
ENTRY_TEXT = f'''"""NeMo RL's examples/run_grpo.py, with the environment `{ENVIRONMENT}` of rewards_environment.py."""

import os
import runpy
import sys

work = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, work)
os.environ["PYTHONPATH"] = os.pathsep.join([work, *filter(None, [os.environ.get("PYTHONPATH")])])

from nemo_rl.distributed.ray_actor_environment_registry import ACTOR_ENVIRONMENT_REGISTRY
from nemo_rl.distributed.virtual_cluster import PY_EXECUTABLES
from nemo_rl.environments.utils import register_env

NAME = "rewards_environment.RewardsEnvironment"
ACTOR_ENVIRONMENT_REGISTRY[NAME] = PY_EXECUTABLES.SYSTEM
register_env("{ENVIRONMENT}", NAME)
script = os.path.join(os.environ["NEMO_RL_DIR"], "examples", "run_grpo.py")
sys.argv[0] = script
runpy.run_path(script, run_name="__main__")
'''
FURTHER: Mapping[str, tuple[object, ...]] = {"ratio": ("sequence",), "surrogate": ("cispo",), "mismatch": ()}
"""Options of its loss with more values than the usual ones."""
NO_AHEAD = (
    "its async GRPO takes old log-probabilities by the weights that learn, and weighs each token by what they moved "
    "since it was drawn, where here the ratio is to the weights that drew and clip_ratio bounds it; and its generator "
    "needs accelerators of its own, which a plan for NeMo RL does not set apart"
)
"""Of `one_step_off`, whose age its max_trajectory_age_steps: 1 has too, and of all others (algorithms/grpo.py,
async_grpo_train; algorithms/loss/loss_functions.py, ClippedPGLossFn)."""
UNPLANNED_REFIT = (
    "with in_flight_weight_updates its weights change wherever a token happens to be, and max_trajectory_age_steps "
    f"bounds the age of an answer's first one, where here every version draws an equal share; {NO_AHEAD}"
)
CORRECTIONS = {"tis": "tis", "icepop": "icepop", "sequence_mask": "seq-mask-tis"}
MEMORY_SHARE = 0.6
"""Of an accelerator for vLLM; NeMo RL's own default (examples/configs/grpo_math_1B.yaml)."""
TEMPLATE_TOKENS = 128
"""Room for what the reward model's chat template adds."""
REWARD = "env.reward_model"


def grpo_sheet(mapper: FieldMapper, stage: PpoStage) -> Sheet:
    """`examples/run_grpo.py`."""
    sheet = Sheet(mapper, "grpo.yaml")
    rewards = map_rewards(mapper, stage, CAPABILITIES, "")
    name_formulas(mapper, stage)
    mapper.refuse_native_rewards(FURTHER, ahead=UNPLANNED_REFIT if stage.asynchrony == "in_flight" else NO_AHEAD)
    map_run(sheet, "grpo", length_fields=("stage.episodes",))
    map_policy(sheet, "policy", sequences_per_row=1, batch_field="stage.minibatch")
    rows = sheet.mapper.handover.layout.micro_batch
    sheet.put("policy.logprob_batch_size", rows)
    sheet.put("policy.max_total_sequence_length", stage.max_prompt_tokens + stage.max_new_tokens)
    _estimator(sheet, stage)
    _loss(sheet, stage)
    _sampling(sheet, stage)
    _data(sheet, stage)
    if stage.rewards:
        _functions(sheet, stage, rewards)
    else:
        _reward(sheet, stage)
    _refused(sheet)
    return sheet


def _estimator(sheet: Sheet, stage: PpoStage) -> None:
    mapper = sheet.mapper
    is_rloo = stage.estimator == "rloo"
    if stage.estimator in ("grpo", "rloo"):
        switches = {
            "normalize_rewards": not is_rloo and stage.scale_advantages == "group",
            "use_leave_one_out_baseline": is_rloo,
        }
        keys: dict[str, object] = {f"grpo.{name}": value for name, value in switches.items()}
        keys["grpo.adv_estimator"] = {"name": "grpo", **switches}
        sheet.computed(
            "stage.estimator", keys, "rloo: leave one out and no scale; grpo: the group's mean and deviation"
        )
    else:
        hint = "estimator grpo or rloo, or an engine that trains a value model (docs/reference/engine-mapping.md)"
        mapper.refuse("stage.estimator", "Charter renders its GRPO trainer, which has no value model", hint)
    if stage.estimator == "grpo" and stage.scale_advantages == "none":
        sheet.computed("stage.scale_advantages", {"grpo.normalize_rewards": False}, "none: off")
    else:
        mapper.same("stage.scale_advantages", "group", "normalize_rewards is on or off, and of grpo alone")
    if stage.estimator == "rloo" and stage.kl_coefficient:
        reason = "its estimator compares scores without a KL penalty in them (GRPOAdvantageEstimator)"
        mapper.refuse("stage.kl_coefficient", reason, "kl_coefficient: 0, or estimator grpo, which has it in the loss")
    else:
        sheet.as_is("stage.kl_coefficient", "loss_fn.reference_policy_kl_penalty")
    if stage.estimator == "grpo":
        sheet.idle("stage.whiten_advantages", "grpo scales by the group's deviation, here and there")
    else:
        mapper.same("stage.whiten_advantages", False, "its GRPO trainer does not whiten over the batch")
    answers = stage.rollout_batch
    if answers % stage.samples_per_prompt:
        mapper.refuse("stage.rollout_batch", "samples_per_prompt must divide it")
    else:
        prompts: dict[str, object] = {"grpo.num_prompts_per_step": answers // stage.samples_per_prompt}
        sheet.computed("stage.rollout_batch", prompts, "in prompts: answers / samples_per_prompt")
    sheet.as_is("stage.samples_per_prompt", "grpo.num_generations_per_prompt")
    mapper.same("stage.ppo_epochs", 1, "its GRPO trainer goes over a rollout once")


def _loss(sheet: Sheet, stage: PpoStage) -> None:
    mapper = sheet.mapper
    sheet.as_is("stage.clip_ratio", "loss_fn.ratio_clip_min")
    high = stage.clip_ratio if stage.clip_ratio_high is None else stage.clip_ratio_high
    sheet.computed("stage.clip_ratio_high", {"loss_fn.ratio_clip_max": high}, "clip_ratio where none is given")
    sheet.as_is("stage.dual_clip", "loss_fn.ratio_clip_c")
    by_token: dict[str, object] = {"loss_fn.token_level_loss": stage.loss_aggregation == "token"}
    sheet.computed("stage.loss_aggregation", by_token, "token: on, sequence: off")
    sheet.put("loss_fn.reference_policy_kl_type", "k3")
    for name in ("kl_input_clamp_value", "kl_output_clamp_value"):
        sheet.put(f"loss_fn.{name}", None)
    for name in ("use_kl_in_reward", "use_on_policy_kl_approximation", "force_on_policy_ratio", "disable_ppo_ratio"):
        sheet.put(f"loss_fn.{name}", False)
    sheet.put("grpo.skip_reference_policy_logprobs_calculation", stage.kl_coefficient == 0)
    sheet.idle("stage.kl_estimator", "grpo has k3 in the loss whichever is named, rloo no penalty here")
    ratios: dict[str, object] = {"loss_fn.sequence_level_importance_ratios": stage.ratio == "sequence"}
    sheet.computed("stage.ratio", ratios, "on: ratios of whole answers (GSPO)")
    cispo: dict[str, object] = {"loss_fn.use_cispo": stage.surrogate == "cispo"}
    sheet.computed("stage.surrogate", cispo, "on: the ratio held on both sides, without gradient")
    _correction(sheet, stage)
    mapper.same("stage.entropy_weight", 0.0, "its loss has no entropy term")


def _correction(sheet: Sheet, stage: PpoStage) -> None:
    """Weights of the generator's tokens: cut, or left out beyond the bounds."""
    weighs, place = stage.correction, "loss_fn.truncated_importance_sampling"
    if weighs is not None and weighs.high is None:
        sheet.mapper.refuse("stage.mismatch", "its corrections need an upper bound (ClippedPGLossFn)", "give high")
    if weighs is not None and stage.ratio == "sequence":
        reason = "beside ratios of whole answers it weighs by the product over an answer"
        sheet.mapper.refuse("stage.ratio", reason, "ratio: token, or no mismatch")
    values: dict[str, object] = {
        "loss_fn.use_importance_sampling_correction": weighs is not None,
        f"{place}_type": None if weighs is None else CORRECTIONS[weighs.method],
        f"{place}_ratio": None if weighs is None else weighs.high,
        **({} if weighs is None or weighs.low is None else {f"{place}_ratio_min": weighs.low}),
    }
    for name in ("mismatch_clip", "mismatch"):
        sheet.computed(f"stage.{name}", values, "by token; seq-mask-tis leaves out whole answers")


def _sampling(sheet: Sheet, stage: PpoStage) -> None:
    mapper, handover = sheet.mapper, sheet.mapper.handover
    generation, placement = "policy.generation", handover.placement
    sheet.put(f"{generation}.backend", "vllm")
    sheet.as_is("stage.temperature", f"{generation}.temperature", f"{generation}.val_temperature")
    sheet.as_is("stage.top_p", f"{generation}.top_p", f"{generation}.val_top_p")
    for name in ("top_k", "val_top_k", "stop_token_ids", "stop_strings"):
        sheet.put(f"{generation}.{name}", None)
    total = stage.max_prompt_tokens + stage.max_new_tokens
    length: dict[str, object] = {"policy.max_total_sequence_length": total}
    new = {f"{generation}.max_new_tokens": stage.max_new_tokens}
    sheet.computed("stage.max_new_tokens", {**new, **length}, "and prompt and answer together")
    prompt = {"data.max_input_seq_length": stage.max_prompt_tokens}
    note = "longer prompts do not count in its loss, so none is written; prompt and answer together"
    sheet.computed("stage.max_prompt_tokens", {**prompt, **length}, note)
    vllm: dict[str, object] = {
        "async_engine": False,
        "precision": PRECISIONS[stage.dtype],
        "kv_cache_dtype": "auto",
        "logprobs_mode": "processed_logprobs",
        "tensor_parallel_size": placement.generator_tensor if placement else 1,
        "pipeline_parallel_size": 1,
        "expert_parallel_size": 1,
        "gpu_memory_utilization": MEMORY_SHARE,
        "max_model_len": total,
        "skip_tokenizer_init": True,
        "enforce_eager": False,
    }
    sheet.put(f"{generation}.vllm_cfg", vllm)
    sheet.put(f"{generation}.vllm_kwargs", {})
    colocated = {"enabled": True, "resources": {"gpus_per_node": None, "num_nodes": None}}
    sheet.put(f"{generation}.colocated", colocated)
    sheet.computed("stage.generator", {f"{generation}.backend": "vllm"}, "vLLM whichever is named")
    mapper.same("stage.min_new_tokens", 0, "it passes no min_tokens to vLLM")
    mapper.charter("stage.mean_new_tokens", "read by the planner alone")
    mapper.same("stage.checkpoint_epochs", False, "it saves between steps only")


def _data(sheet: Sheet, stage: PpoStage) -> None:
    path = sheet.mapper.handover.paths.data["prompts"]
    train: dict[str, object] = {"data.train": {"dataset_name": "ResponseDataset", "data_path": path}}
    sheet.computed("stage.prompts", train, "one file of JSON lines in Charter's order: input and output")
    sheet.put("data.default", {
        "input_key": "input", "output_key": "output", "prompt_file": None, "system_prompt_file": None,
        "processor": "math_hf_data_processor", "env_name": ENVIRONMENT if stage.rewards else "reward_model",
    })  # fmt: skip
    sheet.put("data.validation", None)
    sheet.put("data.shuffle", False)
    sheet.put("data.num_workers", 1)
    sheet.put("data.use_multiple_dataloader", False)


def _functions(sheet: Sheet, stage: PpoStage, rewards: ExportedRewards) -> None:
    """An environment of one turn, registered by the script that starts NeMo RL; DAPO's penalty where it is listed."""
    handover = sheet.mapper.handover
    check_machine(sheet)
    _arranged(sheet, ())
    sheet.idle("stage.reward", "there is a list of rewards")
    sheet.put(f"env.{ENVIRONMENT}", {"rewards": f"{handover.paths.work}/{REWARDS_FILE}"})
    environment = ENVIRONMENT_TEXT
    if stage.judges:
        totals = "        totals ="
        environment = environment.replace(totals, f"        rewards.ask_ahead(answers, rows)\n{totals}")
    sheet.files |= {**rewards.files, ENVIRONMENT_FILE: environment, ENTRY_FILE: ENTRY_TEXT}
    if rewards.penalty is not None:
        sheet.put("grpo.reward_shaping", {
            "enabled": True,
            "overlong_buffer_length": (rewards.penalty.arguments or {})["cache"],
            "overlong_buffer_penalty": rewards.penalty.weight,
            "max_response_length": stage.max_new_tokens,
            "stop_properly_penalty_coef": None,
        })  # fmt: skip


def _arranged(sheet: Sheet, others: tuple[str, ...]) -> None:
    """Refuse arrangements of the plan that are not rendered."""
    handover = sheet.mapper.handover
    path = f"pipeline.{handover.name}.resources"
    arrangement = handover.placement.arrangement if handover.placement is not None else "colocated"
    if arrangement not in ("colocated", *others):
        message = f"the arrangement {arrangement} of NeMo RL is not rendered"
        hint = "colocated, or split for the reward" if others else "colocated"
        sheet.mapper.problems.append(Problem(path=path, message=message, hint=hint))


def _reward(sheet: Sheet, stage: PpoStage) -> None:
    """The reward model has accelerators of its own: those that the layout leaves (setup of grpo.py)."""
    handover = sheet.mapper.handover
    left = handover.num_accelerators - handover.layout.num_accelerators
    nodes, share = (1, left) if handover.num_nodes == 1 else (left // handover.per_node, handover.per_node)
    path = f"pipeline.{handover.name}.resources"
    if left < 1 or nodes * share != left:
        reason = "its reward model needs accelerators of its own (of several nodes, whole ones), and the layout leaves"
        hint = "place the reward model apart, or take an engine in which it shares accelerators"
        sheet.mapper.problems.append(Problem(path=path, message=f"{reason} {left}", hint=hint))
    else:
        check_machine(sheet, beside=left)
    _arranged(sheet, ("split",))
    model = handover.paths.models["reward"]
    dtensor = {
        "_v2": True, "enabled": True, "sequence_parallel": False, "tensor_parallel_size": 1,
        "context_parallel_size": 1, "custom_parallel_plan": None, "cpu_offload": False,
        "activation_checkpointing": False,
    }  # fmt: skip
    environment: dict[str, object] = {
        "enabled": True,
        "model_name": model,
        "tokenizer": {"name": model},
        "precision": PRECISIONS[stage.dtype],
        "batch_size": handover.layout.micro_batch,
        "checkpoint_path": None,
        "max_model_len": stage.max_prompt_tokens + stage.max_new_tokens + TEMPLATE_TOKENS,
        "offload_optimizer_for_logprob": False,
        "resources": {"gpus_per_node": share, "num_nodes": nodes},
        "dtensor_cfg": dtensor,
        "reward_model_cfg": {"enabled": True, "reward_model_type": "bradley_terry"},
        "dynamic_batching": dict(OFF),
        "sequence_packing": dict(OFF),
        "max_grad_norm": None,
    }
    sheet.computed("stage.reward", {REWARD: environment}, "a sequence classifier on accelerators of its own")


def _refused(sheet: Sheet) -> None:
    same = sheet.mapper.same
    same("stage.reward_clip", None, "scores are taken as they are")
    same("stage.missing_end_penalty", None, "it does not look whether an answer has ended")
    same("stage.kl_target", None, "its KL coefficient is fixed")
    losses = "its loss has no language-modelling term"
    without_value_model(sheet, algorithms="grpo and rloo have", once="a rollout is gone over once", losses=losses)
    sheet.idle("stage.kl_horizon", "it belongs to kl_target")


DIRECTORY = "${NEMO_RL_DIR}"
"""Its checkout; the package on PyPI holds nothing."""
SOURCE = f"NeMo RL {VERSION} ({COMMIT[:7]}): nemo_rl/utils/checkpoint.py, nemo_rl/algorithms"
SUPERVISED = Resume(
    guarantee="same_data_order",
    reason=(
        "weights, optimizer, schedule and the place in the data come back; random states do not (it saves none), "
        "which matters only to what draws while it trains"
    ),
    source=SOURCE,
)
GRPO = Resume(
    guarantee="same_data_order",
    reason=(
        "weights, optimizer, schedule and the place in the prompts come back; random states do not, and vLLM draws "
        "anew, so the answers of a repeated rollout differ"
    ),
    source=SOURCE,
)
NOTES = (
    "a checkpoint is whole once tmp_step_N is called step_N; a start takes the highest number in its directory",
    "NEMO_RL_DIR is the checkout, at the commit of its version; it runs its scripts with uv, or in an environment",
)


def render_nemo_rl(handover: Handover) -> RenderedRun:
    """The stage as NeMo RL's configuration; a `SpecError` holds every field that it cannot express."""
    mapper = FieldMapper(handover)
    write, resume = SHEETS[type(handover.stage)]
    sheet = write(mapper, handover.stage)
    rows = mapper.finish()
    name = sheet.file.removesuffix(".yaml")
    files = {sheet.file: sheet.text(), **sheet.files}
    config = f"{handover.paths.work}/{sheet.file}"
    script = f"{handover.paths.work}/{ENTRY_FILE}" if sheet.files else f"{DIRECTORY}/examples/run_{name}.py"
    command: tuple[str, ...] = ("python", script, "--config", config)
    if handover.starts_ray:
        files[RAY_SCRIPT] = ray_script(handover)
        command = ("bash", RAY_SCRIPT, *command)
    notes = (*NOTES, UNLIMITED) if sheet.files else NOTES
    return RenderedRun(files=files, command=command, mapping=rows, resume=resume, formulas=mapper.formulas, notes=notes)


SHEETS: Mapping[type[Stage], tuple[Callable[[FieldMapper, Any], Sheet], Resume]] = {
    SftStage: (sft_sheet, SUPERVISED),
    PreferenceModelStage: (reward_sheet, SUPERVISED),
    DpoStage: (dpo_sheet, SUPERVISED),
    PpoStage: (grpo_sheet, GRPO),
}
"""Writer of the configuration of a kind, and what a resumed run keeps."""
