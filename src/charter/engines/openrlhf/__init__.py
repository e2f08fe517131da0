"""OpenRLHF: command lines of its programs; it reads no configuration file."""

from charter.engines.common.engine import EngineCode, TrainingEngine
from charter.engines.openrlhf.capabilities import CAPABILITIES, PLACEMENTS, VERSION


def _code() -> EngineCode:
    from charter.engines.openrlhf.adapter import LOG, OpenRlhfAdapter
    from charter.engines.openrlhf.mapping import render_openrlhf

    return EngineCode(render=render_openrlhf, adapter=lambda job, python: OpenRlhfAdapter(python=python), log=LOG)


OPENRLHF = TrainingEngine(
    capabilities=CAPABILITIES,
    placements=PLACEMENTS,
    title="OpenRLHF",
    package="openrlhf",
    version=VERSION,
    beside=("deepspeed", "transformers", "torch"),
    checked_by="its own argument parsers and the checks after them, taken from the installed package",
    code=_code,
)
