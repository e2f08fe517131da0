"""MaxText: a YAML file over its base.yml, and scripts that start it on the hosts of a TPU slice."""

from typing import TYPE_CHECKING

from charter.engines.common.engine import PARQUET, TrainingEngine
from charter.engines.maxtext.capabilities import CAPABILITIES, COMMIT, DATE, VERSION

if TYPE_CHECKING:
    from charter.artifacts.job import Job
    from charter.engines.common.adapter import EngineAdapter, LogReader
    from charter.engines.common.rendered import RenderedRun
    from charter.engines.common.request import Handover


def _render(handover: "Handover") -> "RenderedRun":
    from charter.engines.maxtext.mapping import render_maxtext

    return render_maxtext(handover)


def _adapter(job: "Job", python: str) -> "EngineAdapter":
    from charter.engines.maxtext.adapter import MaxTextAdapter

    return MaxTextAdapter(python=python)


def _log() -> "LogReader":
    from charter.engines.maxtext.adapter import LOG

    return LOG


MAXTEXT = TrainingEngine(
    capabilities=CAPABILITIES,
    title="MaxText",
    package="maxtext",
    version=VERSION,
    beside=("jax", "flax", "orbax-checkpoint"),
    checked_by=f"a recorded schema of its configuration classes at {COMMIT[:7]} ({DATE})",
    data_suffix=PARQUET,
    render=_render,
    adapter=_adapter,
    log=_log,
)
