"""verl: one YAML file through Hydra, checkpoints by rank, weights merged by its own command."""

from typing import TYPE_CHECKING

from charter.engines.common.engine import PARQUET, TrainingEngine
from charter.engines.verl.capabilities import CAPABILITIES, PLACEMENTS, VERSION

if TYPE_CHECKING:
    from charter.artifacts.job import Job
    from charter.engines.common.adapter import EngineAdapter, LogReader
    from charter.engines.common.rendered import RenderedRun
    from charter.engines.common.request import Handover


def _render(handover: "Handover") -> "RenderedRun":
    from charter.engines.verl.mapping import render_verl

    return render_verl(handover)


def _adapter(job: "Job", python: str) -> "EngineAdapter":
    from charter.engines.verl.adapter import VerlAdapter

    return VerlAdapter(python=python)


def _log() -> "LogReader":
    from charter.engines.verl.adapter import LOG

    return LOG


VERL = TrainingEngine(
    capabilities=CAPABILITIES,
    placements=PLACEMENTS,
    title="verl",
    package="verl",
    version=VERSION,
    beside=("transformers", "torch"),
    checked_by="Hydra's composition over its own files in struct mode, validate_config, its configuration classes",
    data_suffix=PARQUET,
    render=_render,
    adapter=_adapter,
    log=_log,
)
