"""NeMo RL: one complete YAML file for an example script of its checkout."""

from typing import TYPE_CHECKING

from charter.engines.common.engine import TrainingEngine
from charter.engines.nemo_rl.capabilities import CAPABILITIES, COMMIT, PLACEMENTS, VERSION

if TYPE_CHECKING:
    from charter.artifacts.job import Job
    from charter.engines.common.adapter import EngineAdapter, LogReader
    from charter.engines.common.rendered import RenderedRun
    from charter.engines.common.request import Handover


def _render(handover: "Handover") -> "RenderedRun":
    from charter.engines.nemo_rl.mapping import render_nemo_rl

    return render_nemo_rl(handover)


def _adapter(job: "Job", python: str) -> "EngineAdapter":
    from charter.engines.nemo_rl.adapter import NemoRlAdapter

    return NemoRlAdapter()


def _log() -> "LogReader":
    from charter.engines.nemo_rl.adapter import LOG

    return LOG


NEMO_RL = TrainingEngine(
    capabilities=CAPABILITIES,
    placements=PLACEMENTS,
    title="NeMo RL",
    package="github.com/NVIDIA-NeMo/RL",
    checkout="NEMO_RL_DIR",
    version=VERSION,
    beside=("transformers", "torch"),
    checked_by=f"a recorded schema of its MasterConfig classes at {COMMIT[:7]} (its package on PyPI is empty)",
    render=_render,
    adapter=_adapter,
    log=_log,
)
