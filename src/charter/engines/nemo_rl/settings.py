"""Settings that all of NeMo RL's algorithms share: steps, checkpoints, logs, machines, and its `policy` section.

Read in nemo_rl/models/policy and nemo_rl/models/automodel/setup.py.
"""

from charter.engines.common.mapping import Sheet
from charter.engines.nemo_rl.capabilities import CAPABILITIES
from charter.errors import Problem
from charter.spec.layout import WHOLE_BITS, Recompute, ZeroStage
from charter.spec.stage_base import FP8

CHECKPOINTS, LOGS = "checkpoints", "logs"
"""Below the work directory."""


def map_run(sheet: Sheet, algorithm: str, *, length_fields: tuple[str, ...]) -> None:
    """One pass over a file that holds the rows of all steps, in Charter's order; no validation."""
    handover = sheet.mapper.handover
    steps: dict[str, object] = {f"{algorithm}.max_num_steps": handover.target_steps, f"{algorithm}.max_num_epochs": 1}
    for field in length_fields:
        sheet.computed(field, steps, "steps in all; the file holds just the rows of those, as one epoch")
    sheet.put(f"{algorithm}.val_period", 0)
    for name in ("val_at_start", "val_at_end"):
        sheet.put(f"{algorithm}.{name}", False)
    sheet.as_is("seed", f"{algorithm}.seed")
    sheet.as_is("stage.checkpoint_every", "checkpointing.save_period", note="the last step is always saved")
    work = handover.paths.work
    settings: dict[str, object] = {
        "enabled": True,
        "checkpoint_dir": f"{work}/{CHECKPOINTS}",
        "metric_name": None,
        "higher_is_better": False,
        "keep_top_k": handover.keep_last + 1,
        "checkpoint_must_save_by": None,
        "save_optimizer": True,
        "model_save_format": "safetensors",
        "save_consolidated": True,
    }
    for name, value in settings.items():
        sheet.put(f"checkpointing.{name}", value)
    _logger(sheet, f"{work}/{LOGS}")
    cluster = {"gpus_per_node": handover.per_node, "num_nodes": handover.num_nodes, "segment_size": None}
    sheet.put("cluster", cluster)


def _logger(sheet: Sheet, directory: str) -> None:
    """TensorBoard files beside the console; nothing is sent anywhere."""
    handover = sheet.mapper.handover
    settings: dict[str, object] = {
        "log_dir": directory,
        "wandb_enabled": False,
        "swanlab_enabled": False,
        "tensorboard_enabled": True,
        "mlflow_enabled": False,
        "monitor_gpus": False,
        "num_val_samples_to_print": 0,
        "wandb": {"project": handover.run, "name": handover.name},
        "tensorboard": {},
        "gpu_monitoring": {"collection_interval": 10, "flush_interval": 10},
    }
    sheet.put("logger", settings)


EPSILON = 1e-8
"""Adam's, as in Charter's engine."""
PRECISIONS = {"bf16": "bfloat16", "fp32": "float32", "fp16": "float16", FP8: "bfloat16"}
"""What is computed in 8 bits is refused."""
OFF = {"enabled": False}
NO_DEGREE = {
    "pipeline": "its DTensor backend has no pipeline (its Megatron backend is not rendered)",
    "expert": "expert parallelism of its DTensor backend is not rendered",
    "interleave": "there is no pipeline",
}


def map_policy(sheet: Sheet, role: str, *, sequences_per_row: int, batch_field: str) -> None:
    """Everything of the trained model but what is generated with it."""
    mapper = sheet.mapper
    model = mapper.handover.paths.models[role]
    keys: dict[str, object] = {"policy.model_name": model, "policy.tokenizer.name": model}
    sheet.computed(f"stage.{role}", keys, "where its weights are")
    sheet.put("policy.tokenizer.chat_template", "default")
    precision = {"policy.precision": PRECISIONS[str(mapper.value("stage.dtype"))]}
    if mapper.value("stage.dtype") == FP8:
        mapper.refuse("stage.dtype", CAPABILITIES.without_fp8, "dtype: bf16")
    else:
        sheet.computed("stage.dtype", dict(precision), "compute type; weights and optimizer are kept in fp32")
    sheet.put("policy.offload_optimizer_for_logprob", False)
    for name in ("megatron_cfg", "dynamic_batching", "sequence_packing"):
        sheet.put(f"policy.{name}", dict(OFF))
    _layout(sheet)
    _batches(sheet, sequences_per_row, batch_field)
    _optimizer(sheet)
    _adapter(sheet)
    mapper.same("stage.guard", None, "it has no guard against divergence; Charter's engine would stop there")


def check_machine(sheet: Sheet, *, beside: int = 0) -> None:
    """Accelerators, all of them used: by the layout, and `beside` it by the reward model."""
    handover = sheet.mapper.handover
    path = f"pipeline.{handover.name}.resources"
    used = handover.layout.num_accelerators + beside
    if handover.is_cpu:
        problem = Problem(path=path, message="NeMo RL needs accelerators", hint="take engine native or trl")
    elif used != handover.num_accelerators:
        problem = Problem(path=path, message=f"NeMo RL uses {used} accelerators, the machines have another number")
    else:
        return
    sheet.mapper.problems.append(problem)


def _layout(sheet: Sheet) -> None:
    mapper, layout = sheet.mapper, sheet.mapper.handover.layout
    for name, why in NO_DEGREE.items():
        mapper.same(f"layout.{name}", 1, why)
    dtensor = "policy.dtensor_cfg"
    sheet.put(dtensor, {"enabled": True, "_v2": True, "env_vars": {}, "custom_parallel_plan": None})
    _attention(sheet)
    if layout.zero is ZeroStage.PARAMETERS or (layout.zero is ZeroStage.NONE and layout.data * layout.context == 1):
        sheet.computed("layout.zero", {f"{dtensor}.enabled": True}, "its DTensor backend shards by FSDP2")
    else:
        mapper.refuse("layout.zero", "its DTensor backend shards by FSDP2, so it has ZeRO-3 only")
    sheet.as_is("layout.tensor", f"{dtensor}.tensor_parallel_size", "policy.make_sequence_length_divisible_by")
    sheet.as_is("layout.context", f"{dtensor}.context_parallel_size")
    sheet.as_is("layout.sequence_parallel", f"{dtensor}.sequence_parallel")
    sheet.as_is("layout.replicas", f"{dtensor}.dp_replicate_size")
    note = "NeMo RL takes all processes divided by tensor and context parallelism"
    mapper.to("layout.data", "the number of processes", how="computed", note=note)
    if layout.recompute is Recompute.SELECTIVE:
        mapper.refuse("layout.recompute", "activation_checkpointing of its DTensor backend is on or off")
    else:
        on: dict[str, object] = {f"{dtensor}.activation_checkpointing": layout.recompute is Recompute.FULL}
        sheet.computed("layout.recompute", on, "full: on, none: off")
    offload: dict[str, object] = {f"{dtensor}.cpu_offload": layout.offload_parameters}
    sheet.computed("layout.offload_parameters", offload, "FSDP2's CPUOffloadPolicy: parameters and optimizer")
    if layout.offload_optimizer and not layout.offload_parameters:
        mapper.refuse("layout.offload_optimizer", "cpu_offload takes parameters and optimizer together", "offload: all")
    else:
        note = "on together with offload_parameters"
        mapper.to("layout.offload_optimizer", f"{sheet.file}: {dtensor}.cpu_offload", how="computed", note=note)


def _attention(sheet: Sheet) -> None:
    resources = sheet.mapper.handover.stage.resources
    if resources is not None and resources.compile:
        sheet.mapper.refuse("stage.resources", "torch.compile of the forward pass is not offered", "compile: false")
    if resources is not None and resources.attention:
        sheet.put("policy.dtensor_cfg.automodel_kwargs", {"attn_implementation": resources.attention})


def _batches(sheet: Sheet, sequences_per_row: int, batch_field: str) -> None:
    """It counts rows: a pair is one, of two sequences."""
    mapper, layout = sheet.mapper, sheet.mapper.handover.layout
    batch = mapper.value(batch_field)
    assert isinstance(batch, int)
    rows = layout.micro_batch // sequences_per_row
    if layout.micro_batch % sequences_per_row or rows < 1 or batch % (rows * layout.data):
        per = f"{layout.data} x {layout.micro_batch} / {sequences_per_row}"
        mapper.refuse("layout.micro_batch", f"data x micro_batch in rows ({per}) must divide {batch_field} ({batch})")
        rows = max(1, rows)
    else:
        note = "in rows: sequences of a micro-batch / sequences of a row"
        sheet.computed("layout.micro_batch", {"policy.train_micro_batch_size": rows}, note)
    sheet.as_is(batch_field, "policy.train_global_batch_size")
    derived = max(1, batch // (layout.data * rows))
    mapper.same("layout.accumulation", derived, f"NeMo RL takes batch / (data x micro-batch) = {derived}")


def _optimizer(sheet: Sheet) -> None:
    mapper = sheet.mapper
    adam = "policy.optimizer"
    if mapper.value("stage.optimizer") == "adamw":
        sheet.computed("stage.optimizer", {f"{adam}.name": "torch.optim.AdamW"}, "the class")
    else:
        mapper.refuse("stage.optimizer", "8-bit moments do not work on DTensors")
    sheet.as_is("stage.learning_rate", f"{adam}.kwargs.lr")
    note = "NeMo RL decays norms and biases too, Charter's engine does not"
    sheet.as_is("stage.weight_decay", f"{adam}.kwargs.weight_decay", note=note)
    for name in ("beta1", "beta2"):
        betas = [mapper.value("stage.beta1"), mapper.value("stage.beta2")]
        sheet.computed(f"stage.{name}", {f"{adam}.kwargs.betas": betas}, "both in one list")
    for name, value in (("eps", EPSILON), ("foreach", False), ("fused", False)):
        sheet.put(f"{adam}.kwargs.{name}", value)
    sheet.as_is("stage.gradient_clip", "policy.max_grad_norm")
    schedulers, note = _schedulers(sheet), "torch's schedulers one after the other"
    for name in ("schedule", "warmup_steps"):
        sheet.computed(f"stage.{name}", {"policy.scheduler": schedulers}, note)
    if mapper.value("stage.schedule") == "constant":
        sheet.idle("stage.min_learning_rate_ratio", "a constant rate has no floor")
    else:
        sheet.computed("stage.min_learning_rate_ratio", {"policy.scheduler": schedulers}, note)


def _schedulers(sheet: Sheet) -> list[dict[str, object]]:
    """Charter's schedule exactly: (s + 1) / W while it warms up, then constant, or down to the floor at the target."""
    value, steps = sheet.mapper.value, sheet.mapper.handover.target_steps
    warmup, floor = value("stage.warmup_steps"), value("stage.min_learning_rate_ratio")
    rate = value("stage.learning_rate")
    assert isinstance(warmup, int)
    assert isinstance(floor, float)
    assert isinstance(rate, float)
    left = max(1, steps - warmup)
    decay: dict[str, object] = {
        "constant": _scheduler("ConstantLR", factor=1.0, total_iters=left),
        "linear": _scheduler("LinearLR", start_factor=1.0, end_factor=floor, total_iters=left),
        "cosine": _scheduler("CosineAnnealingLR", T_max=left, eta_min=floor * rate),
    }[str(value("stage.schedule"))]
    if warmup == 0:
        return [decay, {"milestones": []}]
    rising = {"start_factor": 1 / warmup, "end_factor": 1.0, "total_iters": max(1, warmup - 1)}
    return [_scheduler("LinearLR", **rising), decay, {"milestones": [warmup]}]


def _scheduler(name: str, **settings: object) -> dict[str, object]:
    return {"name": f"torch.optim.lr_scheduler.{name}", "kwargs": settings}


def _adapter(sheet: Sheet) -> None:
    adapter = getattr(sheet.mapper.handover.stage, "adapter", None)
    key = "policy.dtensor_cfg.lora_cfg"
    if adapter is None:
        sheet.computed("stage.adapter", {key: dict(OFF)}, "all weights are trained")
    elif adapter.base_bits != WHOLE_BITS:
        sheet.mapper.refuse("stage.adapter", "its DTensor backend has LoRA, not a base in 4 bits", "base_bits: 16")
    else:
        lora: dict[str, object] = {
            "enabled": True,
            "target_modules": [],
            "exclude_modules": [],
            "match_all_linear": True,
            "dim": adapter.rank,
            "alpha": adapter.alpha,
            "dropout": 0.0,
            "dropout_position": "post",
            "lora_A_init": "xavier",
            "use_triton": False,
        }
        sheet.computed("stage.adapter", {key: lora}, "LoRA on all linear layers")
