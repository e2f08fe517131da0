"""SkyRL: one YAML file, and the script that starts its trainer with the rewards beside it."""

from charter.engines.common.engine import EngineCode, TrainingEngine
from charter.engines.skyrl.capabilities import CAPABILITIES, PLACEMENTS, VERSION


def _code() -> EngineCode:
    from charter.engines.skyrl.adapter import LOG, SkyRlAdapter
    from charter.engines.skyrl.mapping import render_skyrl

    return EngineCode(render=render_skyrl, adapter=lambda job, python: SkyRlAdapter(), log=LOG)


SKYRL = TrainingEngine(
    capabilities=CAPABILITIES,
    placements=PLACEMENTS,
    title="SkyRL",
    package="skyrl",
    version=VERSION,
    beside=("skyrl-gym", "vllm", "torch"),
    checked_by="a recorded schema of its SkyRLTrainConfig; by hand its own classes and validate_cfg",
    code=_code,
)
