"""Layouts of prime-rl on one node: FSDP2 beside a vLLM that has accelerators of its own and draws ahead of training."""

from charter.engines.common.capabilities import PARAMETERS, Capabilities, RewardCalls, RlEngine
from charter.physics.precision import FSDP_MIXED

VERSION = "0.8.0"
COMMIT = "559b44772e471d1538537b8805cc77f3824a5e64"
"""What the mapping was read from, of 21 August 2026."""
CAPABILITIES = Capabilities(
    name="prime_rl",
    does="FSDP2 on one node, packing, offload, a generator beside it that draws ahead",
    stack="fsdp",
    memory="fsdp-blocks",
    precision=FSDP_MIXED,
    zero=(PARAMETERS,),
    offload_optimizer=(PARAMETERS,),
    offload_parameters=(PARAMETERS,),
    packs=True,
    kinds=("ppo",),
    rewards=RewardCalls(
        values=frozenset({"tokens"}),
        no_values="a task of verifiers tells a reward the text of an answer, its length and its row",
        no_tools="its tools are those of a harness of verifiers, in the chat template's form, and the calls of this "
        "stage are tags",
        tasksets=True,
        no_groups="its filter leaves out every answer whose advantage is 0, and its gate samples on without an end",
        drops_failed=True,
    ),
    without_fp8="trainer.model.quantization belongs to its own model classes, and Charter renders any architecture",
)
PLACEMENTS = RlEngine(
    does=CAPABILITIES,
    arrangements=("async",),
    roles=("policy",),
    one_node=True,
    lead=1,
    source="prime-rl 559b447: rl starts inference and trainer on accelerators of one node (several need its own Slurm "
    "jobs), and the orchestrator draws one batch ahead (TARGET_LAG); it holds no reference, value or reward model",
)
