"""Layouts of TRL, Accelerate and DeepSpeed: DDP, FSDP2 and ZeRO, context parallelism by Accelerate's guide."""

from charter.engines.common.capabilities import (
    ALL_ZERO,
    AMD,
    GRADIENTS,
    NONE,
    NVIDIA,
    PARAMETERS,
    Capabilities,
    FixedField,
    RewardCalls,
)
from charter.physics.precision import FSDP_MIXED, ZERO_PAPER

_WITHOUT_FP8 = "linear layers of torchao or TransformerEngine under Accelerate are not mapped; none of it was checked"
FLASH = "flash_attention_2"
_FIXED = (
    FixedField(
        field="packing",
        only=False,
        why=f"TRL keeps packed conversations apart with {FLASH} only (sft_trainer.py)",
        attention=FLASH,
    ),
)
DEEPSPEED = Capabilities(
    name="deepspeed",
    does="ZeRO 1 to 3, offload of the optimizer (ZeRO 2, 3) and of parameters (ZeRO-3)",
    stack="deepspeed-zero",
    memory="deepspeed",
    precision=ZERO_PAPER,
    zero=ALL_ZERO,
    offload_optimizer=(GRADIENTS, PARAMETERS),
    offload_parameters=(PARAMETERS,),
    compares_batches=False,
    kinds=("pretrain", "sft", "preference_model", "dpo"),
    makers=(NVIDIA, AMD),
    untried=(AMD,),
    several_nodes=True,
    without_fp8="it is told of 16-bit weights beside an fp32 copy; products in 8 bits are not mapped",
    fixed=_FIXED,
)

ACCELERATE = Capabilities(
    name="accelerate",
    does="FSDP2, HSDP, DDP, context parallelism, offload of all",
    stack="huggingface",
    memory="fsdp-or-copies",
    precision=FSDP_MIXED,
    zero=(NONE, PARAMETERS),
    context=True,
    context_of_pairs=False,
    context_only_sharded=True,
    hybrid=True,
    offload_parameters=(PARAMETERS,),
    compares_batches=False,
    kinds=("pretrain", "sft", "preference_model", "dpo"),
    makers=(NVIDIA, AMD),
    untried=(AMD,),
    several_nodes=True,
    without_fp8=_WITHOUT_FP8,
    fixed=_FIXED,
)

TRL = Capabilities(
    name="trl",
    does="DDP, FSDP2 and ZeRO 1 to 3 through accelerate, packing, offload",
    stack="huggingface",
    memory="huggingface",
    precision=FSDP_MIXED,
    zero=ALL_ZERO,
    offload_optimizer=(GRADIENTS, PARAMETERS),
    offload_parameters=(PARAMETERS,),
    packs=True,
    compares_batches=False,
    kinds=("sft", "preference_model", "dpo", "ppo"),
    old_from_update="one update of grpo",  # grpo_trainer.py, `generate_every`; RLOOTrainer always reads the rollout
    vllm_share=0.3,  # the default of GRPOConfig and RLOOConfig
    vllm_everywhere=True,
    makers=(NVIDIA, AMD),
    untried=(AMD,),
    several_nodes=True,
    rewards=RewardCalls(
        values=frozenset({"tokens"}),
        no_values="TRL tells a reward function the completion, its tokens and its row",
        model=True,
        mixtures=("sum_then_normalise", "normalise_then_sum"),
        no_tools="TRL's scripts take no tools and no environment; GRPOTrainer does, from a script of your own",
    ),
    without_fp8=_WITHOUT_FP8,
    fixed=_FIXED,
)
CAPABILITIES = {item.name: item for item in (TRL, ACCELERATE, DEEPSPEED)}
