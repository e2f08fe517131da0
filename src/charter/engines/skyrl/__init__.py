"""SkyRL: one YAML file, and the script that starts its trainer with the rewards beside it."""

from typing import TYPE_CHECKING

from charter.engines.common.engine import TrainingEngine
from charter.engines.skyrl.capabilities import CAPABILITIES, PLACEMENTS, VERSION

if TYPE_CHECKING:
    from charter.artifacts.job import Job
    from charter.engines.common.adapter import EngineAdapter, LogReader
    from charter.engines.common.rendered import RenderedRun
    from charter.engines.common.request import Handover


def _render(handover: "Handover") -> "RenderedRun":
    from charter.engines.skyrl.mapping import render_skyrl

    return render_skyrl(handover)


def _adapter(job: "Job", python: str) -> "EngineAdapter":
    from charter.engines.skyrl.adapter import SkyRlAdapter

    return SkyRlAdapter()


def _log() -> "LogReader":
    from charter.engines.skyrl.adapter import LOG

    return LOG


SKYRL = TrainingEngine(
    capabilities=CAPABILITIES,
    placements=PLACEMENTS,
    title="SkyRL",
    package="skyrl",
    version=VERSION,
    beside=("skyrl-gym", "vllm", "torch"),
    checked_by="a recorded schema of its SkyRLTrainConfig; by hand its own classes and validate_cfg",
    render=_render,
    adapter=_adapter,
    log=_log,
)
