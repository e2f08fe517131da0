"""Tables of what engines and servers can do: the layouts that each executes, the kinds of stage, the accelerators.

A plan enumerates what they allow, runs and submissions refuse what they do not, and the docs print them.

Read in public documentation in November 2026: Megatron-Core parallelism guide and `ModelParallelConfig`
(docs.nvidia.com/megatron-core), DeepSpeed configuration and transformers' integration (ZeRO stages, offload of the
optimizer with ZeRO 2 and 3, of parameters with ZeRO-3), accelerate's guides on FSDP2, context and sequence
parallelism, NeMo RL training backends (DTensor: FSDP2, TP, SP, CP; Megatron: all of Megatron-Core), OpenRLHF and verl
repositories; and since then in the code of the versions that Charter renders files for, whose refusals these tables
keep clear of. What an engine can do only with extra packages or forks is left out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from charter.catalog.accelerators import CPU, Accelerator
from charter.errors import UsageError
from charter.physics.memory_profiles import DEEPSPEED, FSDP, HUGGINGFACE, MEGATRON_STACK, MemoryProfile
from charter.physics.memory_profiles import NATIVE as NATIVE_MEMORY
from charter.physics.precision import FSDP_MIXED, MEGATRON, ZERO_PAPER, TrainingPrecision
from charter.spec.execution import ExecutableLayout
from charter.spec.layout import ZeroStage
from charter.spec.stage import NATIVE, Stage, StageResources

NONE, OPTIMIZER, GRADIENTS, PARAMETERS = ZeroStage
SIXTEEN_BITS = ("bf16", "fp16")
EVERY_KIND = ("pretrain", "sft", "judge", "preference_model", "dpo", "ppo")
"""Of a library of parallelism, around which any loop can be written."""
NVIDIA, AMD, GOOGLE = "NVIDIA", "AMD", "Google"
"""Makers of accelerators as the catalog spells them."""


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """Abilities of one engine, and the names of the constants that its time and memory use."""

    name: str
    does: str
    """In words, for messages."""
    stack: str
    """Profile of `physics.stacks`, whose constants time takes; empty: the native one of a device."""
    memory: MemoryProfile
    precision: TrainingPrecision
    zero: tuple[ZeroStage, ...]
    zero_searched: tuple[ZeroStage, ...] = ()
    """ZeRO stages that a search tries; empty: all that it has."""
    tensor: bool = False
    sequence_parallel: bool = False
    pipeline: bool = False
    interleave: bool = False
    even_pipeline: bool = False
    """Every pipeline stage has as many layers, where the embedding and the output count as one each or not at all."""
    context: bool = False
    context_of_pairs: bool = True
    """Two answers that are compared can be shared over accelerators as one sequence can."""
    context_only_sharded: bool = False
    """Context parallelism goes with ZeRO-3 alone."""
    context_divides_heads: bool = False
    """Context parallelism gives every rank complete heads (Ulysses)."""
    expert: bool = False
    hybrid: bool = False
    """Hybrid sharding: ZeRO-3 inside a node, copies between nodes (HSDP)."""
    zero_beside_pipeline: tuple[ZeroStage, ...] = (NONE, OPTIMIZER)
    offload_optimizer: tuple[ZeroStage, ...] = ()
    """ZeRO stages with which the optimizer may be kept in host memory."""
    offload_parameters: tuple[ZeroStage, ...] = ()
    exact_batch: bool = True
    """Every rank takes the same number of micro-batches of one size, so that both divide the batch."""
    packs: bool = False
    """Sequences of different length share a row, so nothing is padded."""
    kinds: tuple[str, ...] = EVERY_KIND
    """Kinds of stage that it trains."""
    vllm_share: float = 0.0
    """Of an accelerator's memory, that vLLM takes beside the trainer where a stage asks for `generator: vllm`; 0 where
    it is not a choice, since the engine has one way to generate."""
    vllm_everywhere: bool = False
    """Every data rank has a vLLM of its own beside it; else the first rank alone."""
    makers: tuple[str, ...] = (NVIDIA,)
    """Of the accelerators that its documentation names."""
    untried: tuple[str, ...] = ()
    """Those of `makers` on which nobody here has seen it run, which a plan says."""

    @property
    def searched(self) -> tuple[ZeroStage, ...]:
        """ZeRO stages that a search tries."""
        return self.zero_searched or self.zero


_ALL_ZERO = (NONE, OPTIMIZER, GRADIENTS, PARAMETERS)
_ENGINES = (
    Capabilities(
        name=NATIVE,
        does="FSDP2 (ZeRO-3), HSDP, DDP, tensor parallelism inside a node, offload to the host",
        stack="",
        memory=NATIVE_MEMORY,
        precision=FSDP_MIXED,
        zero=(NONE, GRADIENTS, PARAMETERS),
        # ZeRO-2 keeps every parameter gathered, which costs the memory of DDP's weights and saves no time against it
        # that the model of a step knows: it is for those who have measured that it helps.
        zero_searched=(NONE, PARAMETERS),
        exact_batch=False,
        tensor=True,
        hybrid=True,
        offload_parameters=(GRADIENTS, PARAMETERS),
        vllm_share=0.4,
        makers=(NVIDIA, AMD),
        untried=(AMD,),
    ),
    Capabilities(
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
    Capabilities(
        name="deepspeed",
        does="ZeRO 1 to 3, offload of the optimizer (ZeRO 2, 3) and of parameters (ZeRO-3)",
        stack="deepspeed-zero",
        memory=DEEPSPEED,
        precision=ZERO_PAPER,
        zero=_ALL_ZERO,
        offload_optimizer=(GRADIENTS, PARAMETERS),
        offload_parameters=(PARAMETERS,),
        kinds=("pretrain", "sft", "preference_model", "dpo"),
        makers=(NVIDIA, AMD),
        untried=(AMD,),
    ),
    Capabilities(
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
        makers=(NVIDIA, AMD),
        untried=(AMD,),
    ),
    Capabilities(
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
        makers=(NVIDIA, AMD),
        untried=(AMD,),
    ),
    Capabilities(
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
        vllm_share=0.3,  # the default of GRPOConfig and RLOOConfig
        vllm_everywhere=True,
        makers=(NVIDIA, AMD),
        untried=(AMD,),
    ),
    Capabilities(
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
    Capabilities(
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
        makers=(NVIDIA, AMD),
        untried=(AMD,),
    ),
    Capabilities(
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
ENGINES = {engine.name: engine for engine in _ENGINES}
SERVER_MAKERS = (NVIDIA, AMD, GOOGLE)
"""Of accelerators on which vLLM answers, which is what pools are planned with (docs.vllm.ai, "Installation")."""


def capabilities(name: str) -> Capabilities:
    """Return what an engine can do, by its name.

    >>> capabilities("megatron").pipeline, capabilities("native").pipeline
    (True, False)
    """
    if name not in ENGINES:
        raise UsageError(f"engine {name!r} is not known; one of {', '.join(ENGINES)}")
    return ENGINES[name]


DEGREES = ("tensor", "pipeline", "interleave", "context", "expert", "sequence_parallel")
"""Fields of a layout which an engine either has or not."""


def unsupported(
    layout: ExecutableLayout | StageResources, engine: Capabilities, *, on_accelerator: bool = True
) -> Iterator[tuple[str, str]]:
    """Yield each field of a layout that an engine cannot execute, with the reason; what is not given is not looked at.

    Offloading is a word without effect `on_accelerator=False`, where everything is in the host's memory anyway.

    >>> list(unsupported(ExecutableLayout(data=2, tensor=2, pipeline=2), capabilities("native")))
    [('pipeline', 'the native engine runs pipeline: 1 only; found 2')]
    """
    for field in DEGREES:
        value = getattr(layout, field) or 1
        if getattr(engine, field) or not (value is True or value > 1):
            continue
        if field == "sequence_parallel":
            yield field, f"the {engine.name} engine runs tensor parallelism without sequence parallelism"
        else:
            yield field, f"the {engine.name} engine runs {field}: 1 only; found {value}"
    if layout.zero is not None and layout.zero not in engine.zero:
        stages = one_of([int(stage) for stage in engine.zero])
        yield "zero", f"the {engine.name} engine runs zero: {stages}; found {int(layout.zero)}"
    elif (layout.pipeline or 1) > 1 and layout.zero is not None and layout.zero not in engine.zero_beside_pipeline:
        stages = one_of([int(stage) for stage in engine.zero if stage in engine.zero_beside_pipeline])
        yield "zero", f"beside a pipeline the {engine.name} engine runs zero: {stages}; found {int(layout.zero)}"
    if (layout.replicas or 1) > 1 and not engine.hybrid:
        yield "replicas", f"the {engine.name} engine has no hybrid sharding (replicas: 1 only); found {layout.replicas}"
    if on_accelerator and layout.offload not in (None, "none"):
        yield from _offload(str(layout.offload), layout.zero, engine)


def _offload(what: str, zero: int | None, engine: Capabilities) -> Iterator[tuple[str, str]]:
    stages = engine.offload_parameters if what == "all" else engine.offload_optimizer
    if not stages:
        yield "offload", f"the {engine.name} engine has no offload: {what} on accelerators"
    elif zero is not None and zero not in stages:
        needed = one_of([int(stage) for stage in stages])
        yield "offload", f"offload: {what} goes with zero: {needed} in the {engine.name} engine; found {int(zero)}"


def refused_kernels(stage: Stage, *, attention: str | None, compiled: bool) -> Iterator[tuple[str, str]]:
    """Yield each field of kernels with which the native engine would compute a stage wrongly, with the reason.

    >>> from charter.spec.stage import SftStage
    >>> sft = SftStage(init="a", data=("d",), dtype="fp32")
    >>> list(refused_kernels(sft, attention="flash_attention_2", compiled=False))
    [('attention', 'flash_attention_2 computes in 16 bits only, dtype is fp32; use bf16, or attention sdpa')]
    """
    dtype, dropout = getattr(stage, "dtype", "fp32"), getattr(stage, "dropout", 0.0)
    if attention == "flash_attention_2" and dtype not in SIXTEEN_BITS:
        yield "attention", f"{attention} computes in 16 bits only, dtype is {dtype}; use bf16, or attention sdpa"
    if attention == "flex_attention" and dropout:
        yield "attention", f"{attention} has no dropout of attention weights; use dropout 0, or attention sdpa"
    if compiled and stage.kind == "ppo":
        yield (
            "compile",
            "compile and PPO do not go together: rollouts call the plain module, whose last bits differ from the "
            "compiled one's, and the first ratio of the two would not be 1; remove compile",
        )


def one_of(values: Sequence[object]) -> str:
    """Return alternatives in words.

    >>> one_of((0, 2, 3)), one_of((1,))
    ('0, 2 or 3', '1')
    """
    *most, last = map(str, values)
    return f"{', '.join(most)} or {last}" if most else last


def hardware_refusal(engine: str, kind: str, accelerator: Accelerator) -> str | None:
    """Return why an engine does not train on an accelerator, with those that do; None where it does.

    Every engine of PyTorch runs on processors too, slowly.

    >>> from charter.catalog.accelerators import get
    >>> hardware_refusal("native", "sft", get("H100")) is None
    True
    >>> hardware_refusal("native", "sft", get("Trainium2"))
    'engine native does not run on Trainium2 (AWS), nor does any other engine that Charter knows'
    """
    if accelerator.vendor in capabilities(engine).makers or accelerator.kind == CPU:
        return None
    others = [one.name for one in _ENGINES if accelerator.vendor in one.makers and kind in one.kinds]
    instead = f"; engine: {one_of(tuple(others))} does" if others else ", nor does any other engine that Charter knows"
    return f"engine {engine} does not run on {accelerator.name} ({accelerator.vendor}){instead}"


def server_refusal(accelerator: Accelerator) -> str | None:
    """Return why no server of models is planned on an accelerator; None where one is.

    >>> from charter.catalog.accelerators import get
    >>> server_refusal(get("TPU-v5p")) is None, server_refusal(get("Gaudi3"))
    (True, 'vLLM does not run on Gaudi3-128GB (Intel), as Charter starts it')
    """
    if accelerator.vendor in SERVER_MAKERS or accelerator.kind == CPU:
        return None
    return f"vLLM does not run on {accelerator.name} ({accelerator.vendor}), as Charter starts it"
