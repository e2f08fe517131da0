"""NeMo RL: one complete YAML file for an example script of its checkout."""

from charter.engines.common.engine import EngineCode, TrainingEngine
from charter.engines.nemo_rl.capabilities import CAPABILITIES, COMMIT, PLACEMENTS, VERSION


def _code() -> EngineCode:
    from charter.engines.nemo_rl.adapter import LOG, NemoRlAdapter
    from charter.engines.nemo_rl.mapping import render_nemo_rl

    return EngineCode(render=render_nemo_rl, adapter=lambda job, python: NemoRlAdapter(), log=LOG)


NEMO_RL = TrainingEngine(
    capabilities=CAPABILITIES,
    placements=PLACEMENTS,
    title="NeMo RL",
    package="github.com/NVIDIA-NeMo/RL",
    checkout="NEMO_RL_DIR",
    version=VERSION,
    beside=("transformers", "torch"),
    checked_by=f"a recorded schema of its MasterConfig classes at {COMMIT[:7]} (its package on PyPI is empty)",
    code=_code,
)
