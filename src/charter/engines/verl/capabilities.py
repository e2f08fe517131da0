"""Layouts of verl: FSDP with sequence parallelism of attention."""

from charter.engines.common.capabilities import AMD, NVIDIA, PARAMETERS, Capabilities, FixedField, RewardCalls, RlEngine
from charter.physics.precision import FSDP_MIXED

VERSION = "0.9.1"
"""What the mapping was read from."""
CAPABILITIES = Capabilities(
    name="verl",
    does="FSDP (ZeRO-3), HSDP, sequence parallelism of attention (counted as context), packing, offload",
    stack="fsdp",
    memory="fsdp-policy",
    precision=FSDP_MIXED,
    zero=(PARAMETERS,),
    context=True,
    context_divides_heads=True,
    hybrid=True,
    offload_parameters=(PARAMETERS,),
    packs=True,
    kinds=("sft", "ppo"),
    several_nodes=True,
    ray_kinds=("ppo",),
    makers=(NVIDIA, AMD),
    untried=(AMD,),
    rewards=RewardCalls(
        no_values="verl tells a reward function the text of an answer and its row",
        penalty=True,
        no_tools="its tools are classes of its own in the chat template's form, and the calls of this stage are tags",
        no_groups="its filter_groups leaves no place empty: it samples on without a bound, with later prompts",
    ),
    without_fp8="its FSDP gathers parameters in bfloat16",
    fixed=(
        FixedField(field="packing", only=False, why="its batches count conversations; padding is removed in any case"),
    ),
)
PLACEMENTS = RlEngine(
    does=CAPABILITIES,
    arrangements=("colocated", "offloaded", "async"),
    ahead_roles=("policy", "reference"),
    source="verl 0.9.1: hybrid workers, param_offload and optimizer_offload; one_step_off_policy, whose generator has "
    "accelerators of its own; its fully asynchronous trainer bounds no token's age and is not rendered",
)
