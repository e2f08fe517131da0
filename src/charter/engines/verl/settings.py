"""Settings that verl's trainers for PPO and SFT share: machines, checkpoints, resume, logs, optimizer, adapter, layout.

Read in verl/workers/config/optimizer.py, verl/trainer/config/engine/fsdp.yaml and verl/workers/engine/fsdp.
"""

from charter.engines.common.mapping import FieldMapper, Sheet
from charter.errors import Problem
from charter.spec.layout import WHOLE_BITS, Recompute, ZeroStage

CHECKPOINTS = "checkpoints"
"""Below the work directory: `global_step_N` and the file that names the last whole one."""
METRICS = "metrics"
"""Below the work directory: a JSONL file per start, since verl empties the file that it is given."""
SPARE_CHECKPOINTS = 1
"""verl removes an old checkpoint before it writes the next one (ensure_checkpoint_capacity)."""
LEAST_KEPT = 2
"""Whoever takes over the newest one has it whole while a next one is written."""


def map_trainer(sheet: Sheet, *, actor_and_critic: bool) -> None:
    """Map where checkpoints go, how many, and which one it goes on from."""
    handover = sheet.mapper.handover
    paths = handover.paths
    sheet.as_is("stage.checkpoint_every", "trainer.save_freq", note="the last step is always saved")
    checkpoints_to_keep = max(LEAST_KEPT, handover.keep_last) + SPARE_CHECKPOINTS
    names = ("max_actor_ckpt_to_keep", "max_critic_ckpt_to_keep") if actor_and_critic else ("max_ckpt_to_keep",)
    settings: dict[str, object] = {
        "nnodes": handover.num_nodes,
        "n_gpus_per_node": handover.per_node,
        "default_local_dir": f"{paths.work}/{CHECKPOINTS}",
        **dict.fromkeys(names, checkpoints_to_keep),
        "resume_mode": "auto" if paths.resume_from is None else "resume_path",
        "resume_from_path": paths.resume_from,
        "total_epochs": 1,
        "test_freq": -1,
        "project_name": handover.run,
        "experiment_name": handover.name,
        "logger": ["console", "file"],
    }
    for name, value in settings.items():
        sheet.put(f"trainer.{name}", value)


OPTIMIZERS = {"adamw": ("torch.optim", "AdamW"), "adamw_8bit": ("bitsandbytes.optim", "AdamW8bit")}
ADAM_EPSILON = 1e-8
"""Charter's, and torch's own."""


def map_optimizer(sheet: Sheet, sections: tuple[str, ...]) -> None:
    """Everything but the learning rate and the clip, which differ between actor and critic."""
    mapper, stage = sheet.mapper, sheet.mapper.handover.stage
    schedule = mapper.value("stage.schedule")
    assert hasattr(stage, "beta1")
    assert hasattr(stage, "beta2")
    betas = [stage.beta1, stage.beta2]
    for name in ("beta1", "beta2"):
        keys: dict[str, object] = {f"{section}.betas": list(betas) for section in sections}
        sheet.computed(f"stage.{name}", keys, "both in one list")
    module, optimizer = OPTIMIZERS[str(mapper.value("stage.optimizer"))]
    keys = {f"{section}.optimizer_impl": module for section in sections}
    keys |= {f"{section}.optimizer": optimizer for section in sections}
    sheet.computed("stage.optimizer", keys, "module and class")
    sheet.as_is(
        "stage.weight_decay",
        *(f"{section}.weight_decay" for section in sections),
        note="verl decays norms and biases too, Charter's engine does not",
    )
    sheet.as_is(
        "stage.warmup_steps",
        *(f"{section}.lr_warmup_steps" for section in sections),
        note="verl's first step of the warm-up has rate 0, Charter's 1/warmup_steps",
    )
    if schedule == "linear":
        mapper.refuse("stage.schedule", "lr_scheduler_type is constant or cosine")
    else:
        sheet.as_is("stage.schedule", *(f"{section}.lr_scheduler_type" for section in sections))
    sheet.as_is("stage.min_learning_rate_ratio", *(f"{section}.min_lr_ratio" for section in sections))


def map_precision(sheet: Sheet, engines: tuple[str, ...]) -> None:
    """Weights in fp32, forward and backward in bf16."""
    mapper = sheet.mapper
    if mapper.value("stage.dtype") != "bf16":
        reason = "FSDP's parameters are gathered in bfloat16 whatever `dtype` says (engine/fsdp/transformer_impl.py)"
        mapper.refuse("stage.dtype", reason, "dtype: bf16")
        return
    keys: dict[str, object] = {f"{engine}.dtype": "bfloat16" for engine in engines}
    keys |= {f"{engine}.model_dtype": "fp32" for engine in engines}
    sheet.computed("stage.dtype", keys, "compute type; weights and optimizer are kept in fp32")


def map_adapter(sheet: Sheet, model: str) -> None:
    """LoRA on all linear layers; rank 0 is none."""
    adapter = getattr(sheet.mapper.handover.stage, "adapter", None)
    if adapter is not None and adapter.base_bits != WHOLE_BITS:
        sheet.mapper.refuse("stage.adapter", "its FSDP engine has LoRA, not a base in 4 bits", "base_bits: 16")
        return
    rank, alpha = (0, 16) if adapter is None else (adapter.rank, adapter.alpha)
    keys = {f"{model}.lora_rank": rank, f"{model}.lora_alpha": alpha, f"{model}.target_modules": "all-linear"}
    sheet.computed("stage.adapter", keys, "rank 0 trains all weights")


def map_guard(sheet: Sheet) -> None:
    """verl leaves out an update whose gradient norm is not finite (optimizer_step of the FSDP engine)."""
    sheet.mapper.same(
        "stage.guard",
        None,
        "verl leaves out updates whose gradient norm is not finite, and has no other guard; "
        "Charter's engine would stop there",
    )


FLASH = "flash_attention_2"
NO_DEGREE = {
    "tensor": "verl's FSDP engine has no tensor parallelism (its Megatron engine is not rendered)",
    "pipeline": "verl's FSDP engine has no pipeline parallelism",
    "expert": "verl's FSDP engine has no expert parallelism",
    "interleave": "there is no pipeline",
}


def map_layout(sheet: Sheet, engines: tuple[str, ...], models: tuple[str, ...], role: str) -> None:
    """Sharding, sequence parallelism, offload and recomputation of all trained models.

    `engines` are the sections of the FSDP engines, `models` those of the models; `role` names the model whose heads
    Ulysses divides.
    """
    mapper = sheet.mapper
    layout = mapper.handover.layout
    for name, why in NO_DEGREE.items():
        mapper.same(f"layout.{name}", 1, why)
    mapper.same("layout.sequence_parallel", False, "it goes with tensor parallelism")
    map_attention(sheet, models)
    _sharding(sheet, engines)
    _context(sheet, engines, role)
    _offload(sheet, engines)
    if layout.recompute is Recompute.SELECTIVE:
        mapper.refuse("layout.recompute", "enable_gradient_checkpointing recomputes whole layers or none")
    else:
        keys = {f"{model}.enable_gradient_checkpointing": layout.recompute is Recompute.FULL for model in models}
        sheet.computed("layout.recompute", keys, "full: on, none: off")


def map_attention(sheet: Sheet, models: tuple[str, ...]) -> None:
    """Flash attention on rows without padding unless told otherwise; other implementations get padded rows.

    Without padding the rows of a micro-batch lie one after the other, and only flash attention keeps them apart.
    """
    mapper, resources = sheet.mapper, sheet.mapper.handover.stage.resources
    if resources is None:
        return
    if resources.compile:
        mapper.refuse(
            "stage.resources", "its use_torch_compile is of log-probabilities, not of the model", "no compile"
        )
    attention = resources.attention
    if attention == "flex_attention":
        mapper.refuse("stage.resources", "it does not keep rows without padding apart", "attention: flash_attention_2")
    elif attention not in (None, FLASH) and mapper.handover.layout.context > 1:
        mapper.refuse("stage.resources", f"Ulysses works with {FLASH} only, not {attention}", f"attention: {FLASH}")
    elif attention is not None:
        for model in models:
            sheet.put(f"{model}.override_config.attn_implementation", attention)
            sheet.put(f"{model}.use_remove_padding", attention == FLASH)


def check_machine(mapper: FieldMapper, *, beside: int = 0) -> None:
    """verl runs on accelerators, and on all of those that it was given; the generator may have some `beside`."""
    handover = mapper.handover
    path = f"pipeline.{handover.name}.resources"
    if handover.is_cpu:
        hint = "take engine native or trl on processors"
        mapper.problems.append(Problem(path=path, message="verl needs accelerators for FSDP and vLLM", hint=hint))
    elif (used := handover.layout.num_accelerators + beside) != handover.num_accelerators:
        mismatch = f"the layout has {used}, the machines {handover.num_accelerators}"
        mapper.problems.append(Problem(path=path, message=f"verl trains on all accelerators; {mismatch}"))


def _sharding(sheet: Sheet, engines: tuple[str, ...]) -> None:
    mapper, layout = sheet.mapper, sheet.mapper.handover.layout
    world = layout.num_accelerators
    if layout.zero is ZeroStage.PARAMETERS or (layout.zero is ZeroStage.NONE and world == 1):
        keys: dict[str, object] = {f"{engine}.strategy": "fsdp2" for engine in engines}
        keys |= {f"{engine}.reshard_after_forward": True for engine in engines}
        sheet.computed("layout.zero", keys, "FSDP2 shards parameters, gradients and optimizer")
    else:
        mapper.refuse("layout.zero", "its FSDP engine shards parameters too, so it has ZeRO-3 only")
    size = world // layout.replicas if layout.replicas > 1 else -1
    sheet.computed(
        "layout.replicas",
        {f"{engine}.fsdp_size": size for engine in engines},
        "accelerators of one sharded copy: data x context / replicas; -1 is all of them",
    )
    mapper.to(
        "layout.data",
        "the number of processes",
        how="computed",
        note="verl takes all processes divided by ulysses_sequence_parallel_size",
    )


def _context(sheet: Sheet, engines: tuple[str, ...], role: str) -> None:
    """Ulysses gives every rank whole heads (verl/models/transformers/monkey_patch.py asserts both divisions)."""
    mapper = sheet.mapper
    context, shape = mapper.handover.layout.context, mapper.handover.architectures.get(role)
    if shape is not None and not shape.divides_heads(context, copies=True):
        heads = f"{shape.num_heads} heads and {shape.kv_heads} key/value heads"
        mapper.refuse("layout.context", f"Ulysses divides the heads, and the model has {heads}")
        return
    keys: dict[str, object] = {f"{engine}.ulysses_sequence_parallel_size": context for engine in engines}
    sheet.computed("layout.context", keys, "Ulysses: ranks share a sequence and divide its heads")


def _offload(sheet: Sheet, engines: tuple[str, ...]) -> None:
    """`offload_policy` keeps parameters and optimizer on the host in training; the other two only between phases."""
    layout, mapper = sheet.mapper.handover.layout, sheet.mapper
    keys: dict[str, object] = {f"{engine}.offload_policy": layout.offload_parameters for engine in engines}
    sheet.computed("layout.offload_parameters", keys, "FSDP2's CPUOffloadPolicy: parameters and optimizer on the host")
    if layout.offload_optimizer and not layout.offload_parameters:
        reason = "optimizer_offload brings the optimizer back for every update; only both together stay on the host"
        mapper.refuse("layout.offload_optimizer", reason, "offload: all, or none")
        return
    note = "on together with offload_parameters"
    mapper.to("layout.offload_optimizer", *(f"{sheet.file}: {key}" for key in keys), how="computed", note=note)
