"""Megatron-LM: the command line of its pretrain_gpt.py, and what has to be made for it once."""

from typing import TYPE_CHECKING

from charter.engines.common.engine import TrainingEngine
from charter.engines.megatron.capabilities import CAPABILITIES, VERSION

if TYPE_CHECKING:
    from charter.artifacts.job import Job
    from charter.engines.common.adapter import EngineAdapter, LogReader
    from charter.engines.common.rendered import RenderedRun
    from charter.engines.common.request import Handover


def _render(handover: "Handover") -> "RenderedRun":
    from charter.engines.megatron.mapping import render_megatron

    return render_megatron(handover)


def _adapter(job: "Job", python: str) -> "EngineAdapter":
    from charter.engines.megatron.adapter import MegatronAdapter

    return MegatronAdapter(python=python)


def _log() -> "LogReader":
    from charter.engines.megatron.adapter import LOG

    return LOG


MEGATRON = TrainingEngine(
    capabilities=CAPABILITIES,
    title="Megatron-LM",
    package="github.com/NVIDIA/Megatron-LM",
    version=VERSION,
    beside=("torch",),
    checked_by="options recorded from its parser; by hand its parser and its checks (validate_args)",
    reads="nothing",
    render=_render,
    adapter=_adapter,
    log=_log,
)
