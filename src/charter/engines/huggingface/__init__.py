"""TRL, Accelerate and DeepSpeed: three ways to run TRL's scripts, each at a pinned version."""

from charter.engines.common.engine import EngineCode, TrainingEngine
from charter.engines.huggingface import capabilities


def _code() -> EngineCode:
    from charter.engines.huggingface.adapter import adapter_of
    from charter.engines.huggingface.mapping import render_trl

    return EngineCode(render=render_trl, adapter=lambda job, python: adapter_of(job))


_CHECKED = "TrlParser with the classes of its scripts"
TRL = TrainingEngine(
    capabilities=capabilities.TRL,
    title="TRL",
    package="trl",
    version="1.16.0",
    beside=("accelerate", "transformers", "torch"),
    checked_by=f"{_CHECKED}; Accelerate's ClusterConfig and launcher; DeepSpeedConfig",
    reads="tokens",
    has_peft=True,
    has_processors=True,
    code=_code,
)
ACCELERATE = TrainingEngine(
    capabilities=capabilities.ACCELERATE,
    title="Accelerate",
    package="accelerate",
    version="1.15.0",
    beside=("trl", "transformers", "torch"),
    checked_by=f"{_CHECKED}; Accelerate's ClusterConfig and launcher",
    reads="tokens",
    has_peft=True,
    has_processors=True,
    code=_code,
)
DEEPSPEED = TrainingEngine(
    capabilities=capabilities.DEEPSPEED,
    title="DeepSpeed",
    package="deepspeed",
    version="0.19.8",
    beside=("trl", "accelerate", "transformers", "torch"),
    checked_by=f"DeepSpeedConfig, transformers' HfTrainerDeepSpeedConfig; {_CHECKED}; Accelerate's launcher",
    reads="tokens",
    has_peft=True,
    has_processors=True,
    code=_code,
)
