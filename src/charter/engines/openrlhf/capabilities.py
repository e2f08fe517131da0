"""Layouts of OpenRLHF: DeepSpeed and ring attention."""

from charter.engines.common.capabilities import (
    ALL_ZERO,
    GRADIENTS,
    PARAMETERS,
    Capabilities,
    FixedField,
    RewardCalls,
    RlEngine,
)
from charter.physics.precision import ZERO_PAPER

VERSION = "0.11.2"
"""What the mapping was read from."""
CAPABILITIES = Capabilities(
    name="openrlhf",
    does="DeepSpeed ZeRO 1 to 3, ring attention (context parallelism), packing, offload of the optimizer",
    stack="deepspeed-zero",
    memory="deepspeed",
    precision=ZERO_PAPER,
    zero=ALL_ZERO,
    context=True,
    offload_optimizer=(GRADIENTS, PARAMETERS),
    packs=True,
    kinds=("sft", "preference_model", "dpo", "ppo"),
    several_nodes=True,
    ray_kinds=("ppo",),
    rewards=RewardCalls(
        no_values="OpenRLHF tells a reward function the text of prompt and answer, and the label",
        penalty=True,
        no_tools="its agents tokenise what a tool says apart, and take a class of your own (--train.agent_func_path)",
    ),
    without_fp8="--ds.param_dtype is bf16 or fp16",
    fixed=(
        FixedField(
            field="packing",
            only=False,
            why="it packs the rows of a micro-batch, and a batch counts conversations, not rows of seq_len tokens",
        ),
        FixedField(
            field="adapter",
            only=None,
            why="the head of a reward model is not among an adapter's weights, and is lost when it is saved",
            kinds=("preference_model",),
        ),
        FixedField(
            field="adapter",
            only=None,
            why="its weight sync sends an adapter's parameters under names that vLLM does not know (ppo_actor.py)",
            kinds=("ppo",),
        ),
        FixedField(
            field="min_new_tokens",
            only=1,
            why="vLLM's min_tokens is fixed to 1 (samples_generator.py): an answer has a token or more before its end",
        ),
    ),
)
PLACEMENTS = RlEngine(
    does=CAPABILITIES,
    arrangements=("colocated", "split", "async"),
    roles_apart=True,
    one_mode=True,
    source="OpenRLHF: *_num_nodes of every role, colocate_* and async_train, adam_offload",
)
