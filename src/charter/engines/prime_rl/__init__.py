"""prime-rl: one YAML file for `rl`, with a taskset, a loss and the script that starts it beside it."""

from charter.engines.common.engine import EngineCode, TrainingEngine
from charter.engines.prime_rl.capabilities import CAPABILITIES, COMMIT, PLACEMENTS, VERSION


def _code() -> EngineCode:
    from charter.engines.prime_rl.adapter import LOG, PrimeRlAdapter
    from charter.engines.prime_rl.mapping import render_prime_rl

    return EngineCode(render=render_prime_rl, adapter=lambda job, python: PrimeRlAdapter(), log=LOG)


PRIME_RL = TrainingEngine(
    capabilities=CAPABILITIES,
    placements=PLACEMENTS,
    title="prime-rl",
    package="prime-rl",
    version=VERSION,
    beside=("verifiers", "vllm", "torch"),
    checked_by=f"a recorded JSON schema of its RLConfig at {COMMIT[:7]} (its configuration package is not on PyPI)",
    code=_code,
)
