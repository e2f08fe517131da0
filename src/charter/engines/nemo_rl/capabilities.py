"""Layouts of NeMo RL on its DTensor backend: FSDP2, tensor, sequence and context parallelism."""

from charter.engines.common.capabilities import PARAMETERS, Capabilities, FixedField, RewardCalls, RlEngine
from charter.physics.precision import FSDP_MIXED

VERSION = "0.6.0"
COMMIT = "7ea279abfbeb698b092856d0dab61e7cf39bc909"
"""What the mapping was read from."""
CAPABILITIES = Capabilities(
    name="nemo_rl",
    does="FSDP2 with tensor, sequence and context parallelism, packing, offload",
    stack="fsdp",
    memory="fsdp",
    precision=FSDP_MIXED,
    zero=(PARAMETERS,),
    tensor=True,
    sequence_parallel=True,
    context=True,
    hybrid=True,
    offload_parameters=(PARAMETERS,),
    packs=True,
    kinds=("sft", "preference_model", "dpo", "ppo"),
    ray_kinds=("sft", "preference_model", "dpo", "ppo"),
    rewards=RewardCalls(
        no_values="NeMo RL tells an environment the text of an answer and its row",
        penalty=True,
        no_groups="its dynamic sampling leaves no place empty: it takes prompts of later rollouts, ends the run at its "
        "bound, and compares rewards before its penalty of long answers",
        no_tools="its tools are environments of its own, whose replies it tokenises by the chat template",
    ),
    without_fp8="fp8_cfg belongs to its Megatron backend; the DTensor backend, which is rendered, has none",
    fixed=(FixedField(field="packing", only=False, why="its batches count conversations, packed or not"),),
)
PLACEMENTS = RlEngine(
    does=CAPABILITIES,
    arrangements=("colocated",),
    roles=("policy", "reference", "reward"),
    reward_apart=True,
    source="NeMo RL 0.6.0: GRPO with a reward model environment, which has its own resources",
)
