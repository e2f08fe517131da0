"""Other values of every field of the stages in `plain_stages`."""

from dataclasses import fields

from charter.spec.layout import Adapter, Recompute, ZeroStage
from charter.spec.rewards import Environment, Mismatch, Reward
from charter.spec.stage_base import Guard, StageResources
from plain_stages import GENERATING, GROUPS, NAME, PPO, STAGES, accepted_stage, handover, layout_of, pairs

__all__ = [
    "GENERATING",
    "GROUPS",
    "NAME",
    "OTHER_LAYOUTS",
    "OTHER_VALUES",
    "PPO",
    "RIGHT",
    "STAGES",
    "accepted_stage",
    "handover",
    "layout_of",
    "pairs",
]


RIGHT = (Reward(name="right", kind="function", call="charter:number"),)


def _optimization():
    return {
        "learning_rate": [1e-6, 3e-4],
        "epochs": [1.0, 2.0, 0.5],
        "steps": [7, 300],
        "global_batch": [128, 32],
        "seq_len": [1024, 4096],
        "warmup_steps": [3, 10],
        "schedule": ["linear", "cosine"],
        "min_learning_rate_ratio": [0.0, 0.25],
        "weight_decay": [0.01, 0.1],
        "beta1": [0.8],
        "beta2": [0.999],
        "gradient_clip": [0.5, 2.0],
        "dropout": [0.1],
        "dtype": ["fp32", "fp16", "fp8"],
        "adapter": [Adapter(rank=8), Adapter(rank=16, alpha=8, base_bits=4)],
        "optimizer": ["adamw_8bit"],
        "guard": [Guard(on_divergence="skip"), Guard(spike_ratio=3.0)],
    }


def _sampling():
    return {
        "temperature": [0.7],
        "top_p": [0.9],
        "max_new_tokens": [256, 1024],
        "min_new_tokens": [0, 1, 8],
        "max_prompt_tokens": [256],
        "rollout_batch": [128],
        "mean_new_tokens": [100],
    }


EVERY_STAGE = {
    "seed": [8],
    "resources": [
        StageResources(attention="flash_attention_2"),
        StageResources(attention="eager"),
        StageResources(attention="flex_attention"),
        StageResources(compile=True),
    ],
    "checkpoint_every": [10, 33],
    "checkpoint_interval": [600.0],
    "hang_timeout": [60.0],
    "expected_fingerprint": ["0" * 64],
    "timeout": [3600.0],
    "needs_approval": [True],
    "engine_by": ["plan"],
}
PREFERENCES = {
    "init": ["other"],
    "data": [("others",), ("pairs", "others")],
    "label_smoothing": [0.1],
}
OTHER_VALUES = {
    "pretrain": {**EVERY_STAGE, **_optimization(), "init": ["other"], "data": [("others",)]},
    "sft": {**EVERY_STAGE, **_optimization(), "init": ["other"], "data": [("others",)], "packing": [True]},
    "preference_model": {
        **EVERY_STAGE,
        **_optimization(),
        **PREFERENCES,
        "pooling": ["mean"],
        "context": ["last_turn"],
        "head_learning_rate_ratio": [10.0],
        "shuffle_labels": [True],
        "use_margin": [True],
        "center_weight": [0.01],
    },
    "dpo": {
        **EVERY_STAGE,
        **_optimization(),
        **PREFERENCES,
        "beta": [0.3],
        "loss": ["ipo", "kto", "simpo", "orpo"],
        "target_margin": [0.5],
    },
    "ppo": {
        **EVERY_STAGE,
        **{name: values for name, values in _optimization().items() if name in {item.name for item in fields(PPO)}},
        **_sampling(),
        "policy": ["other"],
        "reward": ["other"],
        "prompts": [("others",)],
        "episodes": [8192],
        "minibatch": [32],
        "ppo_epochs": [2, 4],
        "value_learning_rate": [1e-5],
        "clip_ratio": [0.1],
        "value_clip": [0.5],
        "value_loss_weight": [0.1, 1.0],
        "entropy_weight": [0.01],
        "gae_lambda": [1.0, 0.9],
        "discount": [0.99],
        "kl_coefficient": [0.0, 0.1],
        "kl_target": [6.0],
        "kl_horizon": [5_000],
        "whiten_advantages": [True, False],
        "reward_clip": [5.0],
        "value_warmup_rollouts": [5],
        "estimator": ["gae", "rloo", "grpo", "reinforce", "online_dpo", "distill"],
        "reward_from": ["judge"],
        "samples_per_prompt": [1, 2, 4, 8],
        "kl_estimator": ["k3", "k2"],
        "loss_aggregation": ["sequence", "constant", "prompt"],
        "rewards": [
            (Reward(name="right", kind="function", call="charter:exact"),),
            (Reward(name="right", kind="function", call="charter:number", weight=2.0),),
            (Reward(name="kind", kind="judge", model="judge"),),
        ],
        "environment": [Environment(tools={"calculator": "charter:calculator"})],
        "gold": ["gold_judge"],
        "on_overoptimisation": ["stop"],
        "mixture": ["normalise_then_sum"],
        "max_failed_share": [0.2],
        "kl_in": ["loss", "reward"],
        "loss_horizon": [100],
        "clip_ratio_high": [0.28],
        "ratio": ["sequence", "product"],
        "surrogate": ["cispo", "sapo", "dppo"],
        "dual_clip": [3.0],
        "off_policy_mask": [0.5],
        "scale_advantages": ["batch", "mean", "none"],
        "equal_groups": ["drop", "refill"],
        "most_batches": [5],
        "mismatch": [Mismatch(high=2.0)],
        "asynchrony": ["one_step_off", "in_flight"],
        "max_age": [2],
        "teacher": ["judge"],
        "divergence": ["reverse"],
        "divergence_words": [10],
        "teacher_share": [0.25],
        "bootstrap_truncated": [True],
        "missing_end_penalty": [1.0],
        "stop_update_kl": [0.05],
        "mismatch_clip": [2.0],
        "ptx_weight": [0.5],
        "ptx_data": [("chat",)],
        "ptx_batch": [8],
        "seq_len": [2048],
        "generator": ["native"],
        "checkpoint_epochs": [True],
    },
}
"""Kind -> field -> other values than the stage's own; `kind` and `engine` choose the renderer."""
OTHER_LAYOUTS = {
    "data": [1, 4, 16],
    "tensor": [2],
    "pipeline": [2],
    "context": [2],
    "expert": [2],
    "sequence_parallel": [True],
    "zero": [ZeroStage.NONE, ZeroStage.OPTIMIZER, ZeroStage.GRADIENTS, ZeroStage.PARAMETERS],
    "micro_batch": [1, 4],
    "accumulation": [3, 5],
    "recompute": [Recompute.SELECTIVE, Recompute.FULL],
    "interleave": [2],
    "offload_optimizer": [True],
    "offload_parameters": [True],
    "offload_activations": [True],
    "replicas": [2],
}
