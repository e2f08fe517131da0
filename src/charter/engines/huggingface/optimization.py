"""Updates of weights, by transformers' TrainingArguments (5.23.0) and TRL's ModelConfig (1.16.0)."""

from charter.engines.huggingface.capabilities import CAPABILITIES
from charter.engines.huggingface.configuration import Configuration
from charter.spec.layout import WHOLE_BITS, Adapter
from charter.spec.stage import FP8, DpoStage, Optimization, PpoStage, PreferenceModelStage, Stage

EPSILON = 1e-8
"""Of Adam's denominator, as in `charter.train.optimizers`."""
LOSS_SCALE_POWER, LOSS_SCALE_WINDOW = 16, 2000
"""Of fp16: the first scale as a power of 2, and the updates until it doubles, as in `charter.train.optimizers`."""
TORCH_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", FP8: "bfloat16"}
"""Of weights; what is computed in 8 bits is refused."""
NO_GUARD = "TRL goes on through a loss that is not finite, and has no guard against jumps"
WARMUP = "in step s the rate is s / warm-up, here (s + 1) / warm-up: TRL's first update has rate 0 (optimization.py)"


def map_optimization(configuration: Configuration, stage: Optimization | PpoStage, *, updates: int = 1) -> None:
    """Learning rate, Adam, precision, adapter; `updates` optimizer steps make one step of ours."""
    write, mapper = configuration.write, configuration.mapper
    write("stage.learning_rate", {"learning_rate": stage.learning_rate})
    _map_schedule(configuration, stage)
    warmup = f"{updates} updates for each rollout; {WARMUP}" if updates > 1 else WARMUP
    write("stage.warmup_steps", {"warmup_steps": stage.warmup_steps * updates}, how="computed", note=warmup)
    decayed = "of all weights but norms and biases (get_decay_parameter_names), here of all but vectors"
    write("stage.weight_decay", {"weight_decay": stage.weight_decay}, note=decayed)
    write("stage.beta1", {"adam_beta1": stage.beta1})
    write("stage.beta2", {"adam_beta2": stage.beta2})
    configuration.put({"adam_epsilon": EPSILON})
    write("stage.gradient_clip", {"max_grad_norm": stage.gradient_clip})
    mapper.same("stage.guard", None, NO_GUARD)
    _map_dtype(configuration, stage.dtype)
    _map_adapter(configuration, stage.adapter, stage.dtype)
    _map_optimizer(configuration, stage)


def _map_schedule(configuration: Configuration, stage: Optimization | PpoStage) -> None:
    ratio, name = stage.min_learning_rate_ratio, "stage.min_learning_rate_ratio"
    by_update = "moves with every update, here with every rollout" if isinstance(stage, PpoStage) else ""
    if stage.schedule == "constant":
        settings: dict[str, object] = {"lr_scheduler_type": "constant_with_warmup"}
        configuration.mapper.charter(name, "decides nothing here: a constant rate does not decay")
    elif stage.schedule == "linear":
        settings = {"lr_scheduler_type": "polynomial"}
        end = {"lr_end": stage.learning_rate * ratio, "power": 1.0}
        note = "learning_rate * ratio, with power 1, is the same line (optimization.py, polynomial decay)"
        if ratio < 1:
            configuration.write(name, {"lr_scheduler_kwargs": end}, how="computed", note=note)
        else:
            configuration.mapper.refuse(name, "its polynomial decay has to end below the peak", "schedule: constant")
    else:
        settings = {"lr_scheduler_type": "cosine_with_min_lr"}
        configuration.write(
            name, {"lr_scheduler_kwargs": {"min_lr_rate": ratio}}, how="computed", note="under the name min_lr_rate"
        )
    note = "; ".join(part for part in (f"{stage.schedule} in transformers' name", by_update) if part)
    configuration.write("stage.schedule", settings, how="computed", note=note)


def _map_dtype(configuration: Configuration, dtype: str) -> None:
    if dtype == "fp16" and configuration.handover.is_cpu:
        configuration.mapper.refuse("stage.dtype", "Accelerate has no fp16 on processors", "dtype: bf16")
    if dtype == FP8:
        configuration.mapper.refuse(
            "stage.dtype", CAPABILITIES[configuration.handover.engine].without_fp8, "dtype: bf16"
        )
    note = "autocast; weights and optimizer stay in fp32, since ModelConfig's dtype is float32"
    if configuration.backend == "deepspeed":
        is_half = dtype == "fp16"
        configuration.deepspeed["bf16"] = {"enabled": dtype == "bf16"}
        configuration.deepspeed["fp16"] = {"enabled": is_half} | (
            {
                "loss_scale": 0,
                "initial_scale_power": LOSS_SCALE_POWER,
                "loss_scale_window": LOSS_SCALE_WINDOW,
                "hysteresis": 1,
                "min_loss_scale": 1,
            }
            if is_half
            else {}
        )
        if dtype != "fp32":
            note = "DeepSpeed trains 16-bit weights beside an fp32 copy, and publishes the 16-bit ones"
    precision = {"bf16": dtype == "bf16", "fp16": dtype == "fp16"}
    configuration.write("stage.dtype", precision, how="computed", note=note)


def _map_adapter(configuration: Configuration, adapter: Adapter | None, dtype: str) -> None:
    configuration.put({"dtype": TORCH_DTYPES["fp32"]})
    if adapter is None:
        configuration.write("stage.adapter", {"use_peft": False}, how="computed", note="all weights are trained")
        return
    is_unquantised = adapter.base_bits == WHOLE_BITS
    if not is_unquantised and configuration.handover.layout.zero:
        configuration.mapper.refuse(
            "stage.adapter", "a base in 8 or 4 bits is not sharded", "zero: 0, or base_bits: 16"
        )
    if adapter.base_bits not in (4, 8, WHOLE_BITS):
        configuration.mapper.refuse("stage.adapter", "bitsandbytes has 8 and 4 bits")
    is_reward = isinstance(configuration.handover.stage, PreferenceModelStage)
    if not is_unquantised:
        configuration.put({"dtype": TORCH_DTYPES[dtype]})
    configuration.write(
        "stage.adapter",
        {
            "use_peft": True,
            "lora_r": adapter.rank,
            "lora_alpha": adapter.alpha,
            "lora_dropout": 0.0,
            "lora_target_modules": ["all-linear"],
            "lora_task_type": "SEQ_CLS" if is_reward else "CAUSAL_LM",
            "lora_modules_to_save": ["score"] if is_reward else None,
            "load_in_4bit": adapter.base_bits == 4,
            "load_in_8bit": adapter.base_bits == 8,
            "bnb_4bit_quant_type": "nf4",
            "use_bnb_nested_quant": False,
        },
        how="computed",
        note=f"{_adapter_note(configuration.handover.stage)}; TRL keeps the matrices of a quantised base in bf16",
    )


def _adapter_note(stage: Stage) -> str:
    """Return a note on the layers that have an adapter, and on the reference model."""
    note = "beside all linear layers but the output, as here"
    match stage:
        case PreferenceModelStage():
            return f"{note}; the head is trained whole, as here"
        case DpoStage() | PpoStage():
            return f"{note}; the reference is the model without its adapter, which is where it began, as here"
        case _:
            return note


def _map_optimizer(configuration: Configuration, stage: Optimization | PpoStage) -> None:
    if stage.optimizer == "adamw":
        note = "fused AdamW of torch; DeepSpeed's own where the optimizer is offloaded"
        configuration.write("stage.optimizer", {"optim": "adamw_torch_fused"}, how="computed", note=note)
    elif configuration.backend in ("fsdp", "deepspeed"):
        reason = "bitsandbytes' 8-bit Adam works on whole parameters"
        configuration.mapper.refuse("stage.optimizer", reason, "zero: 0, or optimizer: adamw")
    else:
        configuration.write(
            "stage.optimizer", {"optim": "adamw_bnb_8bit"}, how="computed", note="AdamW8bit of bitsandbytes"
        )
