"""TRL, Accelerate and DeepSpeed: three ways to run TRL's scripts, each at a pinned version."""

from charter.engines.common.engine import HandoverEngine
from charter.engines.huggingface.render import render_trl

CHECKED = "TrlParser with the classes of its scripts"
SUPERVISED = ("pretrain", "sft", "preference_model", "dpo")

TRL = HandoverEngine(
    name="trl",
    title="TRL",
    package="trl",
    version="1.16.0",
    checked_by=f"{CHECKED}; Accelerate's ClusterConfig and launcher; DeepSpeedConfig",
    kinds=("sft", "preference_model", "dpo", "ppo"),
    render=render_trl,
)
ACCELERATE = HandoverEngine(
    name="accelerate",
    title="Accelerate",
    package="accelerate",
    version="1.15.0",
    checked_by=f"{CHECKED}; Accelerate's ClusterConfig and launcher",
    kinds=SUPERVISED,
    render=render_trl,
)
DEEPSPEED = HandoverEngine(
    name="deepspeed",
    title="DeepSpeed",
    package="deepspeed",
    version="0.19.8",
    checked_by=f"DeepSpeedConfig, transformers' HfTrainerDeepSpeedConfig; {CHECKED}; Accelerate's launcher",
    kinds=SUPERVISED,
    render=render_trl,
)
HUGGINGFACE_ENGINES = (TRL, ACCELERATE, DEEPSPEED)
