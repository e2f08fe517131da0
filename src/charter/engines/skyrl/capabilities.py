"""Layouts of SkyRL: FSDP2 with sequence parallelism of attention, which takes turns with vLLM on all accelerators."""

from charter.engines.common.capabilities import PARAMETERS, Capabilities, FixedField, RewardCalls, RlEngine
from charter.physics.precision import FSDP_MIXED

VERSION, DATE = "0.3.0", "2026-07-17"
"""What the mapping was read from: the package on PyPI, and the day of its files."""
CAPABILITIES = Capabilities(
    name="skyrl",
    does="FSDP2 (ZeRO-3), sequence parallelism of attention (counted as context), packing, offload",
    stack="fsdp",
    memory="fsdp-policy",
    precision=FSDP_MIXED,
    zero=(PARAMETERS,),
    context=True,
    context_divides_heads=True,
    offload_parameters=(PARAMETERS,),
    packs=True,
    kinds=("ppo",),
    ray_kinds=("ppo",),
    rewards=RewardCalls(
        values=frozenset({"tokens"}),
        no_values="SkyRL's generator tells a reward the text of an answer, its tokens and its row",
        no_tools="its turns are tokenised by the chat template, and the calls of this stage are tags",
        no_groups="its dynamic sampling takes the prompts of later rollouts and ends the run where they are too few, "
        "and its filter of equal groups does not act on rewards of tokens, which its generator makes",
    ),
    without_fp8="its FSDP gathers parameters in bfloat16",
    fixed=(
        FixedField(
            field="min_new_tokens",
            only=1,
            why="vLLM's min_tokens is fixed to 1 (engine_utils.py): an answer has at least one token before its end",
        ),
    ),
)
PLACEMENTS = RlEngine(
    does=CAPABILITIES,
    arrangements=("offloaded",),
    roles=("policy", "reference"),
    source="SkyRL 0.3.0: placement.colocate_all, where models and optimizer wait in host memory while others compute; "
    "its placements apart and its asynchronous trainer are not rendered, nor is its value model",
)
