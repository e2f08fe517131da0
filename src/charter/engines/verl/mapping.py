"""A stage for verl: its YAML file, the command that starts it, and what a resume of it is worth.

PPO, GRPO and RLOO run on its synchronous trainer (`python -m verl.trainer.main_ppo`), supervised fine-tuning on its
engine (`torchrun -m verl.trainer.sft_trainer`). Read in verl/trainer/ppo/core_algos.py, verl/trainer/ppo/ray_trainer.py
and verl/workers/utils/losses.py.
"""

from collections.abc import Mapping

from charter.engines.common.formulas import name_formulas
from charter.engines.common.mapping import ASKED_IN_LIST, FieldMapper, Sheet
from charter.engines.common.rendered import RAY_SCRIPT, RenderedRun, Resume, ray_script
from charter.engines.common.request import Handover
from charter.engines.common.reward_file import REWARDS_FILE, UNLIMITED, ExportedRewards, map_rewards
from charter.engines.verl.capabilities import CAPABILITIES, VERSION
from charter.engines.verl.settings import (
    ADAM_EPSILON,
    METRICS,
    check_machine,
    map_adapter,
    map_guard,
    map_layout,
    map_optimizer,
    map_precision,
    map_trainer,
)
from charter.errors import Problem
from charter.spec.ppo_stage import PpoStage
from charter.spec.rewards import SAPO_TEMPERATURES
from charter.spec.stage import SftStage

ALGORITHM, ACTOR, CRITIC = "algorithm", "actor_rollout_ref.actor", "critic"
NO_DUAL_CLIP = 1.0e8
"""Of `clip_ratio_c`, which bounds the loss of negative advantages; so large it never does, as in Charter."""
ESTIMATORS = {"gae": "gae", "rloo": "rloo", "grpo": "grpo"}
AGGREGATIONS = {
    "token": "token-mean",
    "sequence": "seq-mean-token-mean",
    "constant": "seq-mean-token-sum-norm",
}
FURTHER: Mapping[str, tuple[object, ...]] = {
    "ratio": ("sequence",),
    "surrogate": ("cispo", "sapo"),
    "loss_aggregation": ("constant",),
    "loss_horizon": (),
    "mismatch": (),
}
"""Options of its losses with more values than the usual ones."""
NO_AHEAD = (
    "its asynchronous trainers are programs with a configuration of their own (fully_async_main), which bounds the "
    "stale share of a batch and not the age of a token"
)
ONE_STEP_OFF = "one_step_off"
OF_ITS_RATIO = "its one-step-off trainer clips the ratio to the generator's own probabilities (bypass_mode)"
KL_NAMES = {"k1": "kl", "k3": "low_var_kl"}


def map_losses(sheet: Sheet, stage: PpoStage) -> None:
    """Everything between a score and a gradient."""
    _advantages(sheet, stage)
    _kl(sheet, stage)
    _policy(sheet, stage)
    _value(sheet, stage)
    _refused(sheet)


def _advantages(sheet: Sheet, stage: PpoStage) -> None:
    mapper = sheet.mapper
    if stage.estimator in ESTIMATORS:
        keys = {f"{ALGORITHM}.adv_estimator": stage.estimator, f"{CRITIC}.enable": stage.has_value_model}
        keys |= {f"{ALGORITHM}.norm_adv_by_std_in_grpo": True} if stage.estimator == "grpo" else {}
        sheet.computed("stage.estimator", keys, "and whether there is a value model")
    else:
        hint = "estimator gae with gae_lambda 1, ppo_epochs 1 and minibatch = rollout_batch has the same gradient"
        mapper.refuse("stage.estimator", "its REINFORCE++ has no value model", hint)
    if stage.estimator == "grpo" and stage.scale_advantages == "none":
        off: dict[str, object] = {f"{ALGORITHM}.norm_adv_by_std_in_grpo": False}
        sheet.computed("stage.scale_advantages", off, "none: off")
    else:
        mapper.same("stage.scale_advantages", "group", "norm_adv_by_std_in_grpo is on or off, and of grpo alone")
    sheet.as_is("stage.gae_lambda", f"{ALGORITHM}.lam")
    sheet.as_is("stage.discount", f"{ALGORITHM}.gamma")
    if stage.estimator == "grpo":
        sheet.idle("stage.whiten_advantages", "grpo scales by the group's deviation, here and there")
    elif stage.estimator == "gae":
        mapper.same("stage.whiten_advantages", True, "compute_gae_advantage_return always whitens")
    else:
        mapper.same("stage.whiten_advantages", False, "compute_rloo_outcome_advantage never whitens")


def _kl(sheet: Sheet, stage: PpoStage) -> None:
    """grpo has the penalty in the loss, always as k3; the others in the reward, token by token."""
    mapper, in_loss = sheet.mapper, stage.estimator == "grpo"
    penalised = sheet.mapper.value("stage.kl_coefficient") != 0  # else verl would hold a reference that nothing reads
    sheet.put(f"{ALGORITHM}.use_kl_in_reward", penalised and not in_loss)
    sheet.put(f"{ACTOR}.use_kl_loss", penalised and in_loss)
    sheet.put(f"{ACTOR}.kl_loss_type", KL_NAMES["k3"])
    sheet.put(f"{ALGORITHM}.kl_ctrl.type", "fixed")
    sheet.as_is("stage.kl_coefficient", f"{ACTOR}.kl_loss_coef" if in_loss else f"{ALGORITHM}.kl_ctrl.kl_coef")
    note = "k1 is its kl, k3 its low_var_kl, held within 10 nats; grpo has low_var_kl in the loss whichever is named"
    sheet.computed("stage.kl_estimator", {f"{ALGORITHM}.kl_penalty": KL_NAMES[stage.kl_estimator]}, note)
    mapper.same(
        "stage.kl_target",
        None,
        "its adaptive controller aims at nats per token, not per answer, and no checkpoint holds its coefficient "
        "(apply_kl_penalty, _save_checkpoint)",
    )
    sheet.idle("stage.kl_horizon", "it belongs to kl_target")


def _policy(sheet: Sheet, stage: PpoStage) -> None:
    clip, high = sheet.mapper.value("stage.clip_ratio"), sheet.mapper.value("stage.clip_ratio_high")
    sheet.as_is("stage.clip_ratio", *(f"{ACTOR}.{name}" for name in ("clip_ratio", "clip_ratio_low")))
    upper = {f"{ACTOR}.clip_ratio_high": clip if high is None else high}
    sheet.computed("stage.clip_ratio_high", upper, "clip_ratio where none is given")
    bound = sheet.mapper.value("stage.dual_clip")
    dual = {f"{ACTOR}.clip_ratio_c": NO_DUAL_CLIP if bound is None else bound}
    sheet.computed("stage.dual_clip", dual, "so large that it never binds where none is given")
    sheet.as_is("stage.entropy_weight", f"{ACTOR}.entropy_coeff")
    mean = AGGREGATIONS[stage.loss_aggregation]
    keys: dict[str, object] = {f"{ACTOR}.loss_agg_mode": mean, f"{CRITIC}.loss_agg_mode": mean}
    sheet.computed("stage.loss_aggregation", keys, "means over the global minibatch")
    if stage.loss_aggregation == "constant":
        horizon: dict[str, object] = {f"{ACTOR}.loss_scale_factor": stage.loss_horizon or stage.max_new_tokens}
        sheet.computed("stage.loss_horizon", horizon, "max_new_tokens where none is given")
    else:
        sheet.idle("stage.loss_horizon", "it belongs to loss_aggregation: constant")
    loss = {"clip": "gspo" if stage.ratio == "sequence" else "vanilla"}.get(stage.surrogate, stage.surrogate)
    mode: dict[str, object] = {f"{ACTOR}.policy_loss.loss_mode": loss}
    sheet.computed("stage.ratio", mode, "gspo: ratios of whole answers")
    sheet.computed("stage.surrogate", mode, "cispo: the ratio held on both sides, without gradient")
    if stage.surrogate == "sapo":
        sheet.put(f"{ACTOR}.tau_pos", SAPO_TEMPERATURES[0])
        sheet.put(f"{ACTOR}.tau_neg", SAPO_TEMPERATURES[1])
    _correction(sheet, stage)


def _correction(sheet: Sheet, stage: PpoStage) -> None:
    """Weights of the generator's tokens, held below a bound; a whole list of its other forms is not rendered."""
    weighs, place = stage.correction, f"{ALGORITHM}.rollout_correction"
    if weighs is not None and (weighs.method != "tis" or weighs.low is not None):
        reason = "rollout_is is rendered with an upper bound; its rejections mask by another statistic (rollout_rs)"
        sheet.mapper.refuse("stage.mismatch", reason, "mismatch: {method: tis, high: 2}")
    values: dict[str, object] = {f"{place}.rollout_is": None if weighs is None else "token"}
    values |= {} if weighs is None else {f"{place}.rollout_is_threshold": weighs.high}
    for name in ("mismatch_clip", "mismatch"):
        sheet.computed(f"stage.{name}", values, "truncated importance sampling per token")


def _value(sheet: Sheet, stage: PpoStage) -> None:
    sheet.as_is("stage.value_clip", f"{CRITIC}.cliprange_value")
    sheet.as_is("stage.value_learning_rate", f"{CRITIC}.optim.lr")
    sheet.as_is("stage.learning_rate", f"{ACTOR}.optim.lr")
    _value_weight(sheet, stage)


def _value_weight(sheet: Sheet, stage: PpoStage) -> None:
    """verl has no weight of the value loss, but an optimizer of its own for it.

    Adam's update of weight x loss is that of the loss with its epsilon divided by the weight, and so is the clip.
    """
    weight, clip, optim = stage.value_loss_weight, stage.gradient_clip, f"{CRITIC}.optim"
    keys: dict[str, object] = {f"{ACTOR}.optim.clip_grad": clip, f"{ACTOR}.grad_clip": clip}
    if weight > 0:
        keys |= {f"{optim}.clip_grad": clip / weight}
        adam: dict[str, object] = {f"{optim}.override_optimizer_config": {"eps": ADAM_EPSILON / weight}}
        note = "Adam's epsilon and the critic's clip divided by the weight make the same update"
        sheet.computed("stage.value_loss_weight", {f"{optim}.clip_grad": clip / weight, **adam}, note)
    else:
        sheet.mapper.refuse("stage.value_loss_weight", "a value model that does not learn cannot be told to verl")
    sheet.computed("stage.gradient_clip", keys, "the critic's is divided by value_loss_weight")


def _refused(sheet: Sheet) -> None:
    same = sheet.mapper.same
    same("stage.reward_clip", None, "verl trains on the reward model's score as it is")
    same("stage.missing_end_penalty", None, "verl does not look whether an answer has ended")
    same("stage.bootstrap_truncated", False, "compute_gae_advantage_return takes the end of every answer as terminal")
    same("stage.stop_update_kl", None, "all ppo_epochs are run")
    same("stage.ptx_weight", 0.0, "the actor's loss has no language-modelling term")
    same("stage.ptx_data", ((),), "the actor's loss has no language-modelling term")
    same("stage.reward_from", "preference_model", ASKED_IN_LIST)
    sheet.idle("stage.ptx_batch", "there is no ptx_data")
    sheet.idle("stage.seq_len", "there is no ptx_data")


CALLER = '''
def compute_score(data_source, solution_str, ground_truth, extra_info, **_):
    """The rewards of one answer as verl's reward loop calls them."""
    total, each = rewards_of(solution_str, ground_truth)
    return {"score": total, **{f"reward_{name}": reward for name, reward in each.items()}}
'''
PPO_FILE = "ppo.yaml"
ROLLOUT, REF = "actor_rollout_ref.rollout", "actor_rollout_ref.ref"
MODEL, REWARD = "actor_rollout_ref.model", "reward.reward_model"
PPO_ENGINES = (f"{ACTOR}.fsdp_config", f"{REF}.fsdp_config", "critic.fsdp")
TEMPLATE_TOKENS = 128
"""Room for what the reward model's chat template adds to a prompt and an answer."""
AGENT_WORKERS = 8
"""verl's own default; a batch of fewer prompts has one each."""
MEMORY_SHARE = 0.5
"""Of an accelerator for vLLM while it generates; verl's own default. Weights and cache are freed for training."""


def ppo_sheet(mapper: FieldMapper, stage: PpoStage, rewards: ExportedRewards) -> Sheet:
    """The file that Hydra composes over verl's `ppo_trainer`."""
    sheet = Sheet(mapper, PPO_FILE)
    sheet.put("defaults", ["ppo_trainer", "_self_"])
    name_formulas(mapper, stage)
    ahead = stage.asynchrony == ONE_STEP_OFF
    mapper.refuse_native_rewards({**FURTHER, **({"asynchrony": ()} if ahead else {})}, ahead=NO_AHEAD)
    check_machine(mapper, beside=_generating(mapper.handover))
    _models(sheet, stage, rewards)
    _data(sheet, stage)
    _batches(sheet, stage)
    map_losses(sheet, stage)
    map_optimizer(sheet, (f"{ACTOR}.optim", "critic.optim"))
    map_precision(sheet, PPO_ENGINES)
    map_adapter(sheet, MODEL)
    map_guard(sheet)
    map_layout(sheet, PPO_ENGINES, (MODEL, "critic.model"), "policy")
    for section in (ACTOR, "critic"):
        sheet.put(f"{section}.strategy", "fsdp2")
    _sampling(sheet, stage)
    _placement(sheet)
    _seeds(sheet)
    _schedule(sheet, stage)
    if ahead:
        _one_step_off(sheet, stage)
    return sheet


def _models(sheet: Sheet, stage: PpoStage, rewards: ExportedRewards) -> None:
    paths, handover = sheet.mapper.handover.paths, sheet.mapper.handover
    sheet.computed("stage.policy", {f"{MODEL}.path": paths.models["policy"]}, "where its weights are")
    if stage.rewards:
        _functions(sheet, stage, rewards)
    else:
        reward = paths.models["reward"]
        keys: dict[str, object] = {
            f"{REWARD}.enable": True,
            f"{REWARD}.model_path": reward,
            "critic.model.path": reward,
        }
        note = "a sequence classifier with one score; the value model starts from it, as in Charter's engine"
        sheet.computed("stage.reward", keys, note)
    tensor = handover.placement.generator_tensor if handover.placement else 1
    for section in (ROLLOUT, f"{REWARD}.rollout"):
        sheet.put(f"{section}.name", "vllm")
        sheet.put(f"{section}.tensor_model_parallel_size", tensor)
        sheet.put(f"{section}.gpu_memory_utilization", MEMORY_SHARE)


def _functions(sheet: Sheet, stage: PpoStage, rewards: ExportedRewards) -> None:
    """No reward model; one file that the reward loop calls for each answer, and DAPO's penalty where it is listed."""
    paths = sheet.mapper.handover.paths
    sheet.idle("stage.reward", "there is a list of rewards")
    sheet.put(f"{REWARD}.enable", False)
    sheet.put("critic.model.path", paths.models["policy"])
    file = {"path": f"{paths.work}/{REWARDS_FILE}", "name": "compute_score"}
    sheet.put("reward.custom_reward_function", file)
    if rewards.penalty is not None:
        cache = {"enable": True, "len": (rewards.penalty.arguments or {})["cache"], "log": False}
        sheet.put("reward.reward_manager.name", "dapo")
        sheet.put("reward.reward_kwargs", {
            "max_resp_len": stage.max_new_tokens,
            "overlong_buffer_cfg": {**cache, "penalty_factor": rewards.penalty.weight},
        })  # fmt: skip


def _data(sheet: Sheet, stage: PpoStage) -> None:
    """The prompts of every rollout lie in the file one after the other, in Charter's order: nothing is shuffled."""
    mapper, data = sheet.mapper, sheet.mapper.handover.paths.data["prompts"]
    keys: dict[str, object] = {"data.train_files": data, "data.val_files": data, "data.shuffle": False}
    sheet.computed("stage.prompts", keys, "one Parquet file, in Charter's order, each prompt as often as it is used")
    length = stage.max_prompt_tokens + stage.max_new_tokens
    shape = mapper.handover.architectures.get("reward")
    room = TEMPLATE_TOKENS if shape is None else max(1, min(TEMPLATE_TOKENS, shape.max_position_embeddings - length))
    reads: dict[str, object] = {} if stage.rewards else {f"{REWARD}.rollout.prompt_length": length}
    note = "the length of an answer" if stage.rewards else "the reward model reads prompt and answer"
    keys = {
        "data.max_prompt_length": stage.max_prompt_tokens,
        "data.truncation": "left",
        "data.filter_overlong_prompts": False,
    }
    cut = "longer prompts are cut at the left"
    sheet.computed("stage.max_prompt_tokens", keys | reads, f"{cut}; {note}" if reads else cut)
    sheet.computed("stage.max_new_tokens", {"data.max_response_length": stage.max_new_tokens, **reads}, note)
    if reads:
        sheet.put(f"{REWARD}.rollout.response_length", room)


def _batches(sheet: Sheet, stage: PpoStage) -> None:
    """verl counts prompts where Charter counts answers, and derives the accumulation."""
    mapper, handover = sheet.mapper, sheet.mapper.handover
    layout, samples = handover.layout, stage.samples_per_prompt
    sheet.as_is("stage.samples_per_prompt", f"{ROLLOUT}.n")
    rows = {"stage.rollout_batch": stage.rollout_batch, "stage.minibatch": stage.minibatch}
    prompts = stage.rollout_batch // samples
    targets: dict[str, dict[str, object]] = {
        "stage.rollout_batch": {
            "data.train_batch_size": prompts,
            f"{ROLLOUT}.agent.num_workers": min(AGENT_WORKERS, prompts),
        },
        "stage.minibatch": {f"{ACTOR}.ppo_mini_batch_size": stage.minibatch // samples},
    }
    for field, answers in rows.items():
        unit = samples * (layout.num_accelerators if field == "stage.rollout_batch" else 1)
        if answers % samples or answers % layout.data or (answers % unit and field == "stage.rollout_batch"):
            reason = f"it must be a multiple of samples_per_prompt ({samples}) and of the accelerators that share it"
            mapper.refuse(field, reason)
        else:
            sheet.computed(field, targets[field], "in prompts: answers / samples_per_prompt")
    _micro_batches(sheet, stage)
    keys: dict[str, object] = {f"{ACTOR}.ppo_epochs": stage.ppo_epochs, "critic.ppo_epochs": stage.ppo_epochs}
    keys |= {f"{ACTOR}.shuffle": True, "critic.shuffle": True}
    sheet.computed("stage.ppo_epochs", keys, "each in a new order")


def _micro_batches(sheet: Sheet, stage: PpoStage) -> None:
    layout = sheet.mapper.handover.layout
    micro = layout.micro_batch
    if stage.minibatch % (layout.data * micro):
        reason = f"data x micro_batch ({layout.data} x {micro}) must divide minibatch ({stage.minibatch})"
        sheet.mapper.refuse("layout.micro_batch", reason)
    else:
        keys: dict[str, object] = {f"{section}.ppo_micro_batch_size_per_gpu": micro for section in (ACTOR, "critic")}
        keys |= {f"{section}.log_prob_micro_batch_size_per_gpu": micro for section in (ROLLOUT, REF)}
        sheet.computed("layout.micro_batch", keys, "answers of a forward pass, of the reference too")
    derived = max(1, stage.minibatch // (layout.data * micro))
    sheet.mapper.same("layout.accumulation", derived, f"verl takes minibatch / (data x micro_batch) = {derived}")


def _sampling(sheet: Sheet, stage: PpoStage) -> None:
    mapper = sheet.mapper
    sheet.as_is("stage.temperature", f"{ROLLOUT}.temperature")
    sheet.as_is("stage.top_p", f"{ROLLOUT}.top_p")
    mapper.same("stage.min_new_tokens", 0, "its agent loop passes no min_tokens to vLLM")
    mapper.charter("stage.mean_new_tokens", "read by the planner alone")
    sheet.computed("stage.generator", {f"{ROLLOUT}.name": "vllm"}, "vLLM whichever is named: verl has no other here")
    mapper.same("stage.checkpoint_epochs", False, "verl saves between steps only")
    if stage.adapter is not None:
        sheet.put(f"{ROLLOUT}.load_format", "safetensors")


def _placement(sheet: Sheet) -> None:
    """All roles on all accelerators; offloaded, they wait for each other on the host."""
    handover = sheet.mapper.handover
    placement = handover.placement
    arrangement = placement.arrangement if placement else "colocated"
    ahead = sheet.mapper.value("stage.asynchrony") == ONE_STEP_OFF
    apart = arrangement == "async" and ahead
    if not apart and (arrangement in ("split", "async") or (placement is not None and len(placement.groups) > 1)):
        reason = "its synchronous trainer has all roles on all accelerators"
        path, planned = f"pipeline.{handover.name}.resources", f"the plan's arrangement is {arrangement}"
        hint = "openrlhf and nemo_rl place roles apart"
        sheet.mapper.problems.append(
            Problem(path=path, message=f"verl cannot express it: {reason}; {planned}", hint=hint)
        )
    waits = arrangement == "offloaded"
    for engine in PPO_ENGINES:
        sheet.put(f"{engine}.param_offload", waits)
        if engine != PPO_ENGINES[1]:
            sheet.put(f"{engine}.optimizer_offload", waits)


def _generating(handover: Handover) -> int:
    """Accelerators that the generator has to itself."""
    groups = handover.placement.groups if handover.placement is not None else ()
    return sum(group.num_accelerators for group in groups if "generate" in group.roles)


MEMORY_APART = 0.8
"""Of an accelerator for vLLM that has it to itself, beside the buffers that weights arrive in."""


def _one_step_off(sheet: Sheet, stage: PpoStage) -> None:
    """Rollouts are drawn while the one before is learnt from: accelerators of two pools, weights sent by NCCL."""
    mapper, handover = sheet.mapper, sheet.mapper.handover
    generating = _generating(handover)
    if not generating:
        path = f"pipeline.{handover.name}.resources"
        message = "verl cannot express it: its one-step-off generator has accelerators of its own, here are none"
        mapper.problems.append(Problem(path=path, message=message, hint="plan it for verl"))
    nodes = {"nnodes": max(1, generating // handover.per_node), "n_gpus_per_node": min(generating, handover.per_node)}
    trainers = handover.layout.num_accelerators
    keys: dict[str, object] = {
        "actor_rollout_ref.hybrid_engine": False,
        f"{ALGORITHM}.rollout_correction.bypass_mode": True,
        f"{ROLLOUT}.free_cache_engine": False,
        f"{ROLLOUT}.calculate_log_probs": True,
        f"{ROLLOUT}.checkpoint_engine.backend": "nccl",
        "rollout": nodes,
    }
    note = "one_step_off_policy.main_ppo: the ratio is to the weights that drew, by the generator's own probabilities"
    sheet.computed("stage.asynchrony", keys, note)
    sheet.put(f"{ROLLOUT}.gpu_memory_utilization", MEMORY_APART)
    sheet.put("trainer.nnodes", max(1, trainers // handover.per_node))
    sheet.put("trainer.n_gpus_per_node", min(trainers, handover.per_node))
    # A resumed run has lost the prompts of the rollout that was drawn ahead, and would miss them at the end.
    sheet.put("trainer.total_epochs", 2)
    mapper.same("stage.ratio", "token", OF_ITS_RATIO)
    mapper.same("stage.surrogate", "clip", OF_ITS_RATIO)
    for name in ("mismatch", "mismatch_clip"):
        mapper.same(f"stage.{name}", None, f"{OF_ITS_RATIO}, so nothing is left to correct")
    if stage.has_value_model:
        reason = "with asynchrony: one_step_off it has values of the present value model, not of the one when it drew"
        mapper.refuse("stage.estimator", reason, "estimator: grpo, or rloo")
    if stage.adapter is not None:
        mapper.refuse("stage.adapter", "its one-step-off trainer is rendered without LoRA", "no adapter")
    if not stage.rewards:
        reason = "with asynchrony: one_step_off a reward model needs accelerators of its own, which no plan sets apart"
        mapper.refuse("stage.reward", reason, "rewards that are functions")


def _seeds(sheet: Sheet) -> None:
    keys = ["data.seed", f"{ROLLOUT}.seed", f"{ACTOR}.data_loader_seed", "critic.data_loader_seed"]
    sheet.as_is("seed", *keys, *(f"{engine}.seed" for engine in PPO_ENGINES))


def _schedule(sheet: Sheet, stage: PpoStage) -> None:
    waits = stage.value_warmup_rollouts
    note = "the policy learns from its step critic_warmup on, counted from 1; its schedule starts then"
    sheet.computed("stage.value_warmup_rollouts", {"trainer.critic_warmup": waits + 1 if waits else 0}, note)
    steps: Handover = sheet.mapper.handover
    note = "episodes / rollout_batch rollouts"
    sheet.computed("stage.episodes", {"trainer.total_training_steps": steps.target_steps}, note)
    sheet.put("trainer.val_before_train", False)
    map_trainer(sheet, actor_and_critic=True)


SFT_FILE = "sft.yaml"
SFT_ENGINES = ("engine",)


def sft_sheet(mapper: FieldMapper, stage: SftStage) -> Sheet:
    """The file that Hydra composes over verl's `sft_trainer_engine`."""
    sheet = Sheet(mapper, SFT_FILE)
    sheet.put("defaults", ["sft_trainer_engine", "_self_"])
    check_machine(mapper)
    _sft_data(sheet, stage)
    _sft_batches(sheet, stage)
    sheet.as_is("stage.learning_rate", "optim.lr")
    sheet.as_is("stage.gradient_clip", "optim.clip_grad")
    map_optimizer(sheet, ("optim",))
    map_precision(sheet, SFT_ENGINES)
    map_adapter(sheet, "model")
    map_guard(sheet)
    map_layout(sheet, SFT_ENGINES, ("model",), "init")
    sheet.put("engine.param_offload", False)
    sheet.put("engine.optimizer_offload", False)
    mapper.same("stage.dropout", 0.0, "verl trains the model as it is, without dropout of its own")
    mapper.fixed("stage.packing", CAPABILITIES)
    seed = mapper.handover.seed
    note = "the engine's seed; the rows' order in the file comes from it, verl's sampler always shuffles with seed 0"
    sheet.computed("seed", {"engine.seed": seed, "trainer.seed": seed}, note)
    for field in ("stage.epochs", "stage.steps"):
        keys: dict[str, object] = {"trainer.total_training_steps": mapper.handover.target_steps}
        sheet.computed(field, keys, "optimizer steps in all; the file holds just the rows of those, as one epoch")
    map_trainer(sheet, actor_and_critic=False)
    return sheet


def _sft_data(sheet: Sheet, stage: SftStage) -> None:
    paths = sheet.mapper.handover.paths
    sheet.computed("stage.init", {"model.path": paths.models["init"]}, "where its weights are")
    keys: dict[str, object] = {"data.train_files": paths.data["data"], "data.val_files": None}
    sheet.computed("stage.data", keys, "one Parquet file of conversations, each as often as it is used")
    keys = {"data.max_length": stage.seq_len, "data.truncation": "right"}
    sheet.computed("stage.seq_len", keys, "longer conversations are cut at the right")


def _sft_batches(sheet: Sheet, stage: SftStage) -> None:
    mapper, layout = sheet.mapper, sheet.mapper.handover.layout
    micro, data = layout.micro_batch, layout.data
    if stage.global_batch % (micro * data):
        reason = f"data x micro_batch ({data} x {micro}) must divide global_batch ({stage.global_batch})"
        mapper.refuse("layout.micro_batch", reason)
    else:
        sheet.as_is("layout.micro_batch", "data.micro_batch_size_per_gpu")
    sheet.put("data.use_dynamic_bsz", False)
    sheet.as_is("stage.global_batch", "data.train_batch_size")
    derived = max(1, stage.global_batch // (data * micro))
    mapper.same("layout.accumulation", derived, f"verl takes global_batch / (data x micro_batch) = {derived}")


SOURCE = f"verl {VERSION}: trainer/ppo/v1/trainer_base.py, trainer/sft_trainer.py, utils/checkpoint"
PPO_RESUME = Resume(
    guarantee="same_data_order",
    reason=(
        "weights, optimizers, schedules, random states of every rank and the place in the prompts come back; "
        "vLLM draws anew, so the answers of a repeated rollout differ"
    ),
    source=SOURCE,
)
AHEAD_RESUME = Resume(
    guarantee="best_effort",
    reason=(
        "weights, optimizers and schedules come back; the rollout that was drawn ahead is lost with its prompts, and "
        "the next one is drawn by the present weights"
    ),
    source=f"verl {VERSION}: experimental/one_step_off_policy/ray_trainer.py, experimental/separation/ray_trainer.py",
)
SFT_RESUME = Resume(
    guarantee="same_data_order",
    reason=(
        "weights, optimizer, schedule, random states of every rank and the place in the data come back; the file is "
        "one epoch, so no checkpoint before the last falls on an epoch's end, after which verl would skip one"
    ),
    source=f"{SOURCE}; verl issue 7401",
)
NOTES = (
    "checkpoints are whole once latest_checkpointed_iteration.txt names their step",
    "several nodes write one checkpoint: the work directory has to be on a file system that all of them share",
)
PACKAGES = "needs vllm and TransferQueue beside verl"
PPO_NOTES = (
    *NOTES,
    "the reward model has to be a sequence classifier with one score and a chat template, which vLLM serves",
    PACKAGES,
)


def render_verl(handover: Handover) -> RenderedRun:
    """The stage as verl's configuration; a `SpecError` holds every field that verl cannot express."""
    mapper = FieldMapper(handover)
    start = int(handover.paths.resume_from.rsplit("_", 1)[-1]) if handover.paths.resume_from else 0
    environment = {"VERL_FILE_LOGGER_PATH": f"{handover.paths.work}/{METRICS}/from_{start}.jsonl"}
    files = {f"{METRICS}/.keep": ""}
    notes: tuple[str, ...] = NOTES
    if isinstance(handover.stage, PpoStage):
        rewards = map_rewards(mapper, handover.stage, CAPABILITIES, CALLER)
        sheet = ppo_sheet(mapper, handover.stage, rewards)
        rows = mapper.finish()
        files |= rewards.files
        ahead = handover.stage.asynchrony == ONE_STEP_OFF
        program = "verl.experimental.one_step_off_policy.main_ppo" if ahead else "verl.trainer.main_ppo"
        command: tuple[str, ...] = ("python", "-m", program, *_hydra(PPO_FILE))
        command += ("hydra.searchpath=[pkg://verl.trainer.config]",) if ahead else ()
        command += (WORKERS_PYTHON,) if handover.on_ray else ()
        if handover.starts_ray:
            files[RAY_SCRIPT] = ray_script(handover)
            command = ("bash", RAY_SCRIPT, *command)
        resume, notes = (
            (AHEAD_RESUME if ahead else PPO_RESUME),
            ((*NOTES, PACKAGES, UNLIMITED) if rewards.files else PPO_NOTES),
        )
    else:
        sheet = sft_sheet(mapper, handover.stage_as(SftStage))
        rows = mapper.finish()
        command = (*_torchrun(handover), "-m", "verl.trainer.sft_trainer", *_hydra(SFT_FILE))
        resume = SFT_RESUME
    files[sheet.file] = sheet.text()
    return RenderedRun(
        files=files,
        command=command,
        mapping=rows,
        resume=resume,
        environment=environment,
        formulas=mapper.formulas,
        notes=notes,
    )


WORKERS_PYTHON = "ray_kwargs.ray_init.runtime_env.py_executable='${ENGINE_PYTHON}'"
"""verl's own configuration says that workers have the Python of their node's Ray, whatever else Ray was told."""


def _hydra(file: str) -> tuple[str, ...]:
    """Our file is added to verl's own search path, and Hydra writes nothing beside it."""
    name = file.removesuffix(".yaml")
    return ("--config-dir", ".", "--config-name", name, "hydra.run.dir=.", "hydra.output_subdir=null")


def _torchrun(handover: Handover) -> tuple[str, ...]:
    launcher = ("python", "-m", "torch.distributed.run", "--nproc-per-node", str(handover.per_node))
    if handover.num_nodes == 1:
        return (*launcher, "--standalone")
    several = ("--nnodes", str(handover.num_nodes), "--node-rank", "${NODE_RANK}")
    return (*launcher, *several, "--master-addr", "${MASTER_ADDR}", "--master-port", "${MASTER_PORT}")
