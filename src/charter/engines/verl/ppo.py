"""PPO, GRPO and RLOO on verl's synchronous trainer: `python -m verl.trainer.main_ppo`."""

from charter.engines.common.mapping import FieldMapper
from charter.engines.common.request import Handover
from charter.engines.common.sheet import Sheet
from charter.engines.verl.fsdp import check_machine, map_layout
from charter.engines.verl.optimizer import map_adapter, map_guard, map_optimizer, map_precision
from charter.engines.verl.ppo_losses import map_losses
from charter.engines.verl.trainer import map_trainer
from charter.errors import Problem
from charter.spec.stage import PpoStage

FILE = "ppo.yaml"
ACTOR, ROLLOUT, REF = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref"
MODEL, REWARD = "actor_rollout_ref.model", "reward.reward_model"
ENGINES = (f"{ACTOR}.fsdp_config", f"{REF}.fsdp_config", "critic.fsdp")
TEMPLATE_TOKENS = 128
"""Room for what the reward model's chat template adds to a prompt and an answer."""
AGENT_WORKERS = 8
"""verl's own default; a batch of fewer prompts has one each."""
MEMORY_SHARE = 0.5
"""Of an accelerator for vLLM while it generates; verl's own default. Weights and cache are freed for training."""


def ppo_sheet(mapper: FieldMapper, stage: PpoStage) -> Sheet:
    """The file that Hydra composes over verl's `ppo_trainer`."""
    sheet = Sheet(mapper, FILE)
    sheet.put("defaults", ["ppo_trainer", "_self_"])
    mapper.refuse_native_rewards()
    check_machine(mapper)
    _models(sheet)
    _data(sheet, stage)
    _batches(sheet, stage)
    map_losses(sheet, stage)
    map_optimizer(sheet, (f"{ACTOR}.optim", "critic.optim"))
    map_precision(sheet, ENGINES)
    map_adapter(sheet, MODEL)
    map_guard(sheet)
    map_layout(sheet, ENGINES, (MODEL, "critic.model"), "policy")
    for section in (ACTOR, "critic"):
        sheet.put(f"{section}.strategy", "fsdp2")
    _sampling(sheet, stage)
    _placement(sheet)
    _seeds(sheet)
    _schedule(sheet, stage)
    return sheet


def _models(sheet: Sheet) -> None:
    paths, handover = sheet.mapper.handover.paths, sheet.mapper.handover
    sheet.computed("stage.policy", {f"{MODEL}.path": paths.models["policy"]}, "where its weights are")
    reward = paths.models["reward"]
    keys: dict[str, object] = {f"{REWARD}.enable": True, f"{REWARD}.model_path": reward, "critic.model.path": reward}
    note = "a sequence classifier with one score; the value model starts from it, as in Charter's engine"
    sheet.computed("stage.reward", keys, note)
    tensor = handover.placement.generator_tensor if handover.placement else 1
    for section in (ROLLOUT, f"{REWARD}.rollout"):
        sheet.put(f"{section}.name", "vllm")
        sheet.put(f"{section}.tensor_model_parallel_size", tensor)
        sheet.put(f"{section}.gpu_memory_utilization", MEMORY_SHARE)


def _data(sheet: Sheet, stage: PpoStage) -> None:
    """The prompts of every rollout lie in the file one after the other, in Charter's order: nothing is shuffled."""
    mapper, data = sheet.mapper, sheet.mapper.handover.paths.data["prompts"]
    keys: dict[str, object] = {"data.train_files": data, "data.val_files": data, "data.shuffle": False}
    sheet.computed("stage.prompts", keys, "one Parquet file, in Charter's order, each prompt as often as it is used")
    length = stage.max_prompt_tokens + stage.max_new_tokens
    shape = mapper.handover.architectures.get("reward")
    room = TEMPLATE_TOKENS if shape is None else max(1, min(TEMPLATE_TOKENS, shape.max_position_embeddings - length))
    sheet.computed(
        "stage.max_prompt_tokens",
        {
            "data.max_prompt_length": stage.max_prompt_tokens,
            "data.truncation": "left",
            "data.filter_overlong_prompts": False,
            f"{REWARD}.rollout.prompt_length": length,
        },
        "longer prompts are cut at the left; the reward model reads prompt and answer",
    )
    keys = {"data.max_response_length": stage.max_new_tokens, f"{REWARD}.rollout.prompt_length": length}
    sheet.computed("stage.max_new_tokens", keys, "the reward model reads prompt and answer")
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
        unit = samples * (handover.num_accelerators if field == "stage.rollout_batch" else 1)
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
    if arrangement in ("split", "async") or (placement is not None and len(placement.groups) > 1):
        reason = "its synchronous trainer has all roles on all accelerators"
        path, planned = f"pipeline.{handover.name}.resources", f"the plan's arrangement is {arrangement}"
        hint = "openrlhf and nemo_rl place roles apart"
        sheet.mapper.problems.append(
            Problem(path=path, message=f"verl cannot express it: {reason}; {planned}", hint=hint)
        )
    waits = arrangement == "offloaded"
    for engine in ENGINES:
        sheet.put(f"{engine}.param_offload", waits)
        if engine != ENGINES[1]:
            sheet.put(f"{engine}.optimizer_offload", waits)


def _seeds(sheet: Sheet) -> None:
    keys = ["data.seed", f"{ROLLOUT}.seed", f"{ACTOR}.data_loader_seed", "critic.data_loader_seed"]
    sheet.as_is("seed", *keys, *(f"{engine}.seed" for engine in ENGINES))


def _schedule(sheet: Sheet, stage: PpoStage) -> None:
    waits = stage.value_warmup_rollouts
    note = "the policy learns from its step critic_warmup on, counted from 1; its schedule starts then"
    sheet.computed("stage.value_warmup_rollouts", {"trainer.critic_warmup": waits + 1 if waits else 0}, note)
    steps: Handover = sheet.mapper.handover
    note = "episodes / rollout_batch rollouts"
    sheet.computed("stage.episodes", {"trainer.total_training_steps": steps.target_steps}, note)
    sheet.put("trainer.val_before_train", False)
    map_trainer(sheet, actor_and_critic=True)
