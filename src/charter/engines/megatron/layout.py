"""A layout as Megatron-LM's parallelism: TP, SP, PP with interleaving, CP, EP and the distributed optimizer.

Sources at the recorded commit: megatron/training/arguments.py validate_args (what belongs together),
megatron/core/pipeline_parallel/schedules.py (micro-batches of an interleaved schedule), transformer_config.py (MoE).
"""

from charter.engines.common.arguments import Arguments
from charter.spec.architecture import Architecture
from charter.spec.layout import Recompute, ZeroStage


def layout_arguments(given: Arguments, model: Architecture, *, batch: int, seq_len: int) -> None:
    """Every field of the layout."""
    layout, fields = given.handover.layout, given.fields
    if layout.num_accelerators == given.handover.num_accelerators:
        note = "what tensor, pipeline and context parallelism leave of all accelerators"
        fields.to("layout.data", "--global-batch-size", how="computed", note=note)
    else:
        mismatch = (
            f"it divides {given.handover.num_accelerators} accelerators, the layout is of {layout.num_accelerators}"
        )
        fields.refuse("layout.data", mismatch)
    _batch(given, batch)
    _tensor(given)
    _pipeline(given, model)
    _context(given, seq_len)
    _expert(given, model)
    _optimizer(given)
    _recompute(given)
    fields.same("layout.replicas", 1, "its sharded data parallelism (FSDP) is not mapped")
    fields.same("layout.offload_parameters", False, "parameters stay on the accelerator")


def _batch(given: Arguments, batch: int) -> None:
    layout = given.handover.layout
    given.to("layout.micro_batch", "--micro-batch-size")
    rows_per_step = layout.micro_batch * layout.accumulation * layout.data
    if rows_per_step == batch:
        given.to("stage.global_batch", "--global-batch-size")
        note = "batch over micro-batch and data parallelism"
        given.fields.to("layout.accumulation", "--global-batch-size", how="computed", note=note)
    else:
        reason = f"micro-batch x accumulation x data parallelism is {rows_per_step}, the batch {batch}"
        given.fields.refuse("stage.global_batch", reason)
        given.fields.refuse("layout.accumulation", reason)


def _tensor(given: Arguments) -> None:
    layout = given.handover.layout
    given.to("layout.tensor", "--tensor-model-parallel-size")
    if layout.sequence_parallel and layout.tensor == 1:
        reason = "without tensor parallelism it is turned off (validate_args)"
        given.fields.refuse("layout.sequence_parallel", reason, "sequence_parallel: false")
    else:
        given.switch("layout.sequence_parallel", "--sequence-parallel")


def _pipeline(given: Arguments, model: Architecture) -> None:
    """Stages of as many layers; of 126 layers embedding and loss count as one each (transformer_block.py)."""
    layout = given.handover.layout
    given.to("layout.pipeline", "--pipeline-model-parallel-size")
    if layout.interleave == 1 and model.num_layers % layout.pipeline and not (model.num_layers + 2) % layout.pipeline:
        given.give("--account-for-embedding-in-pipeline-split")
        given.give("--account-for-loss-in-pipeline-split")
    elif model.num_layers % (layout.pipeline * layout.interleave):
        reason = f"{model.num_layers} layers are divided evenly over stages and their chunks"
        given.fields.refuse("layout.interleave" if layout.interleave > 1 else "layout.pipeline", reason)
    if layout.interleave == 1:
        given.fields.same("layout.interleave", 1, "one chunk of layers per stage")
    elif layout.pipeline == 1:
        given.fields.refuse("layout.interleave", "chunks belong to a pipeline of two stages or more", "interleave: 1")
    elif layout.accumulation % layout.pipeline > 0:
        reason = f"{layout.accumulation} micro-batches leave a group that is smaller than {layout.pipeline} stages"
        given.fields.refuse("layout.interleave", reason, f"accumulation that is a multiple of {layout.pipeline}")
    else:
        given.to("layout.interleave", "--num-virtual-stages-per-pipeline-rank")


def _context(given: Arguments, seq_len: int) -> None:
    context = given.handover.layout.context
    if context > 1 and seq_len % (2 * context):
        reason = f"a row of {seq_len} tokens is cut into twice as many parts as accelerators share it"
        given.fields.refuse("layout.context", reason, f"a multiple of {2 * context}")
    else:
        given.to("layout.context", "--context-parallel-size")


def _expert(given: Arguments, model: Architecture) -> None:
    layout, fields = given.handover.layout, given.fields
    experts = model.mixture.num_experts if model.mixture else 1
    if experts % layout.expert:
        fields.refuse("layout.expert", f"{experts} experts are divided evenly over accelerators")
    elif layout.expert > 1 and layout.tensor > 1 and not layout.sequence_parallel:
        fields.refuse("layout.expert", "beside tensor parallelism it needs the sequence's", "sequence_parallel: true")
    else:
        given.to("layout.expert", "--expert-model-parallel-size")
        if model.mixture is not None:
            given.give("--expert-tensor-parallel-size", 1)


def _optimizer(given: Arguments) -> None:
    """ZeRO-1 is the distributed optimizer; its communication overlaps with the backward and the forward pass."""
    layout, fields = given.handover.layout, given.fields
    if layout.zero in (ZeroStage.GRADIENTS, ZeroStage.PARAMETERS):
        fields.refuse("layout.zero", "it shards the optimizer; its FSDP saves another format", "resources: {zero: 1}")
    elif layout.zero is ZeroStage.OPTIMIZER:
        given.give("--use-distributed-optimizer")
        given.give("--overlap-grad-reduce")
        given.give("--overlap-param-gather")
        fields.to("layout.zero", "--use-distributed-optimizer")
    else:
        given.give("--overlap-grad-reduce")
        fields.same("layout.zero", ZeroStage.NONE, "--use-distributed-optimizer is left out")
    if layout.offload_optimizer and layout.zero is not ZeroStage.OPTIMIZER:
        fields.refuse("layout.offload_optimizer", "it offloads the distributed optimizer only", "resources: {zero: 1}")
    else:
        given.switch("layout.offload_optimizer", "--optimizer-cpu-offload")
        if layout.offload_optimizer:
            given.give("--use-precision-aware-optimizer")


def _recompute(given: Arguments) -> None:
    recompute = given.handover.layout.recompute
    if recompute is Recompute.NONE:
        given.fields.same("layout.recompute", Recompute.NONE, "--recompute-granularity is left out")
        return
    given.to("layout.recompute", "--recompute-granularity", recompute.value)
    if recompute is Recompute.FULL:
        given.give("--recompute-method", "uniform")
        given.give("--recompute-num-layers", 1)
