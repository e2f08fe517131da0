"""MaxText: a YAML file over its base.yml, and scripts that start it on the hosts of a TPU slice."""

from charter.engines.common.engine import PARQUET, EngineCode, TrainingEngine
from charter.engines.maxtext.capabilities import CAPABILITIES, COMMIT, DATE, VERSION


def _code() -> EngineCode:
    from charter.engines.maxtext.adapter import LOG, MaxTextAdapter
    from charter.engines.maxtext.mapping import render_maxtext

    return EngineCode(render=render_maxtext, adapter=lambda job, python: MaxTextAdapter(python=python), log=LOG)


MAXTEXT = TrainingEngine(
    capabilities=CAPABILITIES,
    title="MaxText",
    package="maxtext",
    version=VERSION,
    beside=("jax", "flax", "orbax-checkpoint"),
    checked_by=f"a recorded schema of its configuration classes at {COMMIT[:7]} ({DATE})",
    data_suffix=PARQUET,
    code=_code,
)
