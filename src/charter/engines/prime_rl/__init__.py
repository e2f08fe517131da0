"""prime-rl: one YAML file for `rl`, with a taskset, a loss and the script that starts it beside it."""

from typing import TYPE_CHECKING

from charter.engines.common.engine import TrainingEngine
from charter.engines.prime_rl.capabilities import CAPABILITIES, COMMIT, PLACEMENTS, VERSION

if TYPE_CHECKING:
    from charter.artifacts.job import Job
    from charter.engines.common.adapter import EngineAdapter, LogReader
    from charter.engines.common.rendered import RenderedRun
    from charter.engines.common.request import Handover


def _render(handover: "Handover") -> "RenderedRun":
    from charter.engines.prime_rl.mapping import render_prime_rl

    return render_prime_rl(handover)


def _adapter(job: "Job", python: str) -> "EngineAdapter":
    from charter.engines.prime_rl.adapter import PrimeRlAdapter

    return PrimeRlAdapter()


def _log() -> "LogReader":
    from charter.engines.prime_rl.adapter import LOG

    return LOG


PRIME_RL = TrainingEngine(
    capabilities=CAPABILITIES,
    placements=PLACEMENTS,
    title="prime-rl",
    package="prime-rl",
    version=VERSION,
    beside=("verifiers", "vllm", "torch"),
    checked_by=f"a recorded JSON schema of its RLConfig at {COMMIT[:7]} (its configuration package is not on PyPI)",
    render=_render,
    adapter=_adapter,
    log=_log,
)
