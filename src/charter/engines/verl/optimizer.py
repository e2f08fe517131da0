"""Updates of weights, as verl's FSDP engine spells them.

Read in verl/workers/config/optimizer.py and verl/workers/engine/fsdp.
"""

from charter.engines.common.sheet import Sheet
from charter.spec.layout import WHOLE_BITS

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
