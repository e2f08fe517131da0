"""Which layouts each engine can execute, and whose constants its time and memory take.

Read in public documentation in November 2026: Megatron-Core parallelism guide and `ModelParallelConfig`
(docs.nvidia.com/megatron-core), DeepSpeed configuration and transformers' integration (ZeRO stages, offload of the
optimizer with ZeRO 2 and 3, of parameters with ZeRO-3), accelerate's guides on FSDP2, context and sequence
parallelism, NeMo RL training backends (DTensor: FSDP2, TP, SP, CP; Megatron: all of Megatron-Core), OpenRLHF and verl
repositories; and since then in the code of the versions that `charter.handover` renders, whose refusals these spaces
keep clear of. What an engine can do only with extra packages or forks is left out.
"""

from dataclasses import dataclass

from charter.errors import UsageError
from charter.estimate.memory.profile import DEEPSPEED, FSDP, HUGGINGFACE, MEGATRON_STACK, MemoryProfile
from charter.estimate.memory.profile import NATIVE as NATIVE_MEMORY
from charter.estimate.precision import FSDP_MIXED, MEGATRON, ZERO_PAPER, TrainingPrecision
from charter.spec.layout import Recompute, ZeroStage

NONE, OPTIMIZER, GRADIENTS, PARAMETERS = ZeroStage
EVERY_KIND = ("pretrain", "sft", "judge", "preference_model", "dpo", "ppo")
"""Of a library of parallelism, around which any loop can be written."""


@dataclass(frozen=True, kw_only=True)
class EngineSpace:
    """One engine: what it can be told to do, and how it behaves."""

    name: str
    does: str
    """In words, for messages."""
    stack: str
    """Profile of `estimate.training.stack_profiles`; empty: the native one of the device."""
    memory: MemoryProfile
    precision: TrainingPrecision
    zero: tuple[ZeroStage, ...]
    tensor: bool = False
    sequence_parallel: bool = False
    pipeline: bool = False
    interleave: bool = False
    even_pipeline: bool = False
    """Every pipeline stage has as many layers, where the embedding and the output count as one each or not at all."""
    context: bool = False
    context_of_pairs: bool = True
    """Whether two answers that are compared can be shared over accelerators as one sequence can."""
    context_only_sharded: bool = False
    """Context parallelism goes with ZeRO-3 alone."""
    context_divides_heads: bool = False
    """Context parallelism gives every rank whole heads (Ulysses)."""
    expert: bool = False
    hybrid: bool = False
    """Hybrid sharding: ZeRO-3 inside a node, copies between nodes (HSDP)."""
    zero_beside_pipeline: tuple[ZeroStage, ...] = (NONE, OPTIMIZER)
    recompute: tuple[Recompute, ...] = (Recompute.NONE, Recompute.FULL)
    """Selective recomputation is left out where attention is fused and keeps no scores: it would change nothing."""
    offload_optimizer: tuple[ZeroStage, ...] = ()
    """ZeRO stages with which the optimizer may be kept in host memory."""
    offload_parameters: tuple[ZeroStage, ...] = ()
    exact_batch: bool = True
    """Every rank takes the same number of micro-batches of one size, so that both divide the batch."""
    packs: bool = False
    """Sequences of different length share a row, so nothing is padded."""
    kinds: tuple[str, ...] = EVERY_KIND
    """Kinds of stage that it trains."""


NATIVE = EngineSpace(
    name="native",
    does="FSDP2 (ZeRO-3), HSDP, DDP, tensor parallelism inside a node, offload to the host",
    stack="",
    exact_batch=False,
    memory=NATIVE_MEMORY,
    precision=FSDP_MIXED,
    zero=(NONE, PARAMETERS),
    tensor=True,
    hybrid=True,
    offload_optimizer=(PARAMETERS,),
    offload_parameters=(PARAMETERS,),
)
_FSDP2 = EngineSpace(
    name="fsdp",
    does="FSDP2 (ZeRO-3), HSDP, DDP, tensor and context parallelism, offload",
    stack="fsdp",
    memory=FSDP,
    precision=FSDP_MIXED,
    zero=(NONE, PARAMETERS),
    tensor=True,
    sequence_parallel=True,
    context=True,
    hybrid=True,
    offload_optimizer=(PARAMETERS,),
    offload_parameters=(PARAMETERS,),
)
_ALL_ZERO = (NONE, OPTIMIZER, GRADIENTS, PARAMETERS)
_SPACES = (
    NATIVE,
    EngineSpace(
        name="megatron",
        does="tensor, sequence, pipeline (interleaved), context and expert parallelism, distributed optimizer (ZeRO-1)",
        stack="megatron-core",
        memory=MEGATRON_STACK,
        precision=MEGATRON,
        zero=(NONE, OPTIMIZER),
        tensor=True,
        sequence_parallel=True,
        pipeline=True,
        interleave=True,
        even_pipeline=True,
        context=True,
        expert=True,
        packs=True,
        kinds=("pretrain", "sft"),
    ),
    EngineSpace(
        name="deepspeed",
        does="ZeRO 1 to 3, offload of the optimizer (ZeRO 2, 3) and of parameters (ZeRO-3)",
        stack="deepspeed-zero",
        memory=DEEPSPEED,
        precision=ZERO_PAPER,
        zero=_ALL_ZERO,
        offload_optimizer=(GRADIENTS, PARAMETERS),
        offload_parameters=(PARAMETERS,),
        kinds=("pretrain", "sft", "preference_model", "dpo"),
    ),
    _FSDP2,
    EngineSpace(
        name="accelerate",
        does="FSDP2, HSDP, DDP, context parallelism, offload of all",
        stack="huggingface",
        memory=FSDP,
        precision=FSDP_MIXED,
        zero=(NONE, PARAMETERS),
        context=True,
        context_of_pairs=False,
        context_only_sharded=True,
        hybrid=True,
        offload_parameters=(PARAMETERS,),
        kinds=("pretrain", "sft", "preference_model", "dpo"),
    ),
    EngineSpace(
        name="trl",
        does="DDP, FSDP2 and ZeRO 1 to 3 through accelerate, packing, offload",
        stack="huggingface",
        memory=HUGGINGFACE,
        precision=FSDP_MIXED,
        zero=_ALL_ZERO,
        offload_optimizer=(GRADIENTS, PARAMETERS),
        offload_parameters=(PARAMETERS,),
        packs=True,
        kinds=("sft", "preference_model", "dpo", "ppo"),
    ),
    EngineSpace(
        name="openrlhf",
        does="DeepSpeed ZeRO 1 to 3, ring attention (context parallelism), packing, offload of the optimizer",
        stack="deepspeed-zero",
        memory=DEEPSPEED,
        precision=ZERO_PAPER,
        zero=_ALL_ZERO,
        context=True,
        offload_optimizer=(GRADIENTS, PARAMETERS),
        packs=True,
        kinds=("sft", "preference_model", "dpo", "ppo"),
    ),
    EngineSpace(
        name="verl",
        does="FSDP (ZeRO-3), HSDP, sequence parallelism of attention (counted as context), packing, offload",
        stack="fsdp",
        memory=FSDP,
        precision=FSDP_MIXED,
        zero=(PARAMETERS,),
        context=True,
        context_divides_heads=True,
        hybrid=True,
        offload_parameters=(PARAMETERS,),
        packs=True,
        kinds=("sft", "ppo"),
    ),
    EngineSpace(
        name="nemo_rl",
        does="FSDP2 with tensor, sequence and context parallelism, packing, offload",
        stack="fsdp",
        memory=FSDP,
        precision=FSDP_MIXED,
        zero=(PARAMETERS,),
        tensor=True,
        sequence_parallel=True,
        context=True,
        hybrid=True,
        offload_parameters=(PARAMETERS,),
        packs=True,
        kinds=("sft", "preference_model", "dpo", "ppo"),
    ),
)
ENGINES = {space.name: space for space in _SPACES}


def engine_space(name: str) -> EngineSpace:
    """The space of an engine by name.

    >>> engine_space("megatron").pipeline, engine_space("native").pipeline
    (True, False)
    """
    if name not in ENGINES:
        raise UsageError(f"engine {name!r} is not known; one of {', '.join(ENGINES)}")
    return ENGINES[name]
