"""Layouts of Charter's own engine."""

from charter.engines.common.capabilities import AMD, GRADIENTS, NONE, NVIDIA, PARAMETERS, Capabilities
from charter.physics.precision import FSDP_MIXED
from charter.spec.layout import Recompute
from charter.spec.stage_base import NATIVE

FUSED_TYPES = frozenset({"llama", "mistral", "qwen2", "qwen3"})
"""Model types that one accelerator decodes by joint products, as a captured graph (`inference/fused.py`): two norms,
rotated attention, a gated feed-forward part."""
CAPABILITIES = Capabilities(
    name=NATIVE,
    does="FSDP2 (ZeRO-3), HSDP, DDP, tensor and sequence parallelism inside a node, context parallelism, offload to "
    "the host",
    stack="",
    memory="native",
    precision=FSDP_MIXED,
    zero=(NONE, GRADIENTS, PARAMETERS),
    recompute=tuple(Recompute),
    # ZeRO-2 keeps every parameter gathered, which costs the memory of DDP's weights and saves no time against it
    # that the model of a step knows: it is for those who have measured that it helps.
    zero_searched=(NONE, PARAMETERS),
    exact_batch=False,
    tensor=True,
    # Ranks would draw the same numbers for different heads, and torch draws none for parts of an embedding.
    tensor_drops=False,
    sequence_parallel=True,
    # It has run on processors alone, and answers are drawn with scores of other bits than it trains with.
    sequence_parallel_searched=False,
    sequence_parallel_samples=False,
    # Positions are exchanged for heads; run on processors alone too.
    context=True,
    context_searched=False,
    context_beside_tensor=False,
    context_divides_heads=True,
    context_of_roles=True,
    context_kinds=("pretrain", "sft", "preference_model", "dpo"),
    hybrid=True,
    offload_optimizer=(NONE, GRADIENTS, PARAMETERS),
    offload_parameters=(GRADIENTS, PARAMETERS),
    several_nodes=True,
    offload_activations=True,
    decode_batch=True,
    logits_of_answers=True,
    old_from_update="first minibatch",
    vllm_share=0.4,
    answers=("pretrain", "sft", "dpo", "ppo"),
    makers=(NVIDIA, AMD),
    untried=(AMD,),
    without_fp8="it multiplies in 32 bits, or in 16 by autocast",
)
