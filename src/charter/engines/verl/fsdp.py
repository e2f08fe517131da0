"""A layout as verl's FSDP engine spells it.

Read in verl/trainer/config/engine/fsdp.yaml and verl/workers/engine/fsdp.
"""

from charter.engines.common.mapping import FieldMapper
from charter.engines.common.sheet import Sheet
from charter.errors import Problem
from charter.spec.layout import Recompute, ZeroStage

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


def check_machine(mapper: FieldMapper) -> None:
    """verl runs on accelerators, and on all of those that it was given."""
    handover = mapper.handover
    path = f"pipeline.{handover.name}.resources"
    if handover.is_cpu:
        hint = "take engine native or trl on processors"
        mapper.problems.append(Problem(path=path, message="verl needs accelerators for FSDP and vLLM", hint=hint))
    elif handover.layout.num_accelerators != handover.num_accelerators:
        mismatch = f"the layout has {handover.layout.num_accelerators}, the machines {handover.num_accelerators}"
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
    if shape is not None and (shape.num_heads % context or (shape.kv_heads % context and context % shape.kv_heads)):
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
