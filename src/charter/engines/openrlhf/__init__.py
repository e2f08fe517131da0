"""OpenRLHF: command lines of its programs; it reads no configuration file."""

from typing import TYPE_CHECKING

from charter.engines.common.engine import TrainingEngine
from charter.engines.openrlhf.capabilities import CAPABILITIES, PLACEMENTS, VERSION

if TYPE_CHECKING:
    from charter.artifacts.job import Job
    from charter.engines.common.adapter import EngineAdapter, LogReader
    from charter.engines.common.rendered import RenderedRun
    from charter.engines.common.request import Handover


def _render(handover: "Handover") -> "RenderedRun":
    from charter.engines.openrlhf.mapping import render_openrlhf

    return render_openrlhf(handover)


def _adapter(job: "Job", python: str) -> "EngineAdapter":
    from charter.engines.openrlhf.adapter import OpenRlhfAdapter

    return OpenRlhfAdapter(python=python)


def _log() -> "LogReader":
    from charter.engines.openrlhf.adapter import LOG

    return LOG


OPENRLHF = TrainingEngine(
    capabilities=CAPABILITIES,
    placements=PLACEMENTS,
    title="OpenRLHF",
    package="openrlhf",
    version=VERSION,
    beside=("deepspeed", "transformers", "torch"),
    checked_by="its own argument parsers and the checks after them, taken from the installed package",
    render=_render,
    adapter=_adapter,
    log=_log,
)
