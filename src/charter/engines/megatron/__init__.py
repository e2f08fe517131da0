"""Megatron-LM: the command line of its pretrain_gpt.py, and what has to be made for it once."""

from charter.engines.common.engine import EngineCode, TrainingEngine
from charter.engines.megatron.capabilities import CAPABILITIES, VERSION


def _code() -> EngineCode:
    from charter.engines.megatron.adapter import LOG, MegatronAdapter
    from charter.engines.megatron.mapping import render_megatron

    return EngineCode(render=render_megatron, adapter=lambda job, python: MegatronAdapter(python=python), log=LOG)


MEGATRON = TrainingEngine(
    capabilities=CAPABILITIES,
    title="Megatron-LM",
    package="github.com/NVIDIA/Megatron-LM",
    version=VERSION,
    beside=("torch",),
    checked_by="options recorded from its parser; by hand its parser and its checks (validate_args)",
    reads="nothing",
    code=_code,
)
