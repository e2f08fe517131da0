"""verl: one YAML file through Hydra, checkpoints by rank, weights merged by its own command."""

from charter.engines.common.engine import PARQUET, EngineCode, TrainingEngine
from charter.engines.verl.capabilities import CAPABILITIES, PLACEMENTS, VERSION


def _code() -> EngineCode:
    from charter.engines.verl.adapter import LOG, VerlAdapter
    from charter.engines.verl.mapping import render_verl

    return EngineCode(render=render_verl, adapter=lambda job, python: VerlAdapter(python=python), log=LOG)


VERL = TrainingEngine(
    capabilities=CAPABILITIES,
    placements=PLACEMENTS,
    title="verl",
    package="verl",
    version=VERSION,
    beside=("transformers", "torch"),
    checked_by="Hydra's composition over its own files in struct mode, validate_config, its configuration classes",
    data_suffix=PARQUET,
    code=_code,
)
