"""Engines of other projects, a folder each: capabilities, configuration files, checkpoints and logs, without torch.

A new engine is one folder here and one entry of `ENGINES`; what the folder holds is in `common/engine.py`.
"""

from typing import TYPE_CHECKING

from charter.engines.common.capabilities import Capabilities, RlEngine
from charter.engines.common.engine import TrainingEngine
from charter.engines.fsdp import FSDP
from charter.engines.huggingface import ACCELERATE, DEEPSPEED, TRL
from charter.engines.maxtext import MAXTEXT
from charter.engines.megatron import MEGATRON
from charter.engines.native import NATIVE
from charter.engines.nemo_rl import NEMO_RL
from charter.engines.openrlhf import OPENRLHF
from charter.engines.prime_rl import PRIME_RL
from charter.engines.skyrl import SKYRL
from charter.engines.verl import VERL
from charter.errors import Problem, SpecError, UsageError

if TYPE_CHECKING:
    from charter.engines.common.adapter import LogReader
    from charter.engines.common.rendered import RenderedRun
    from charter.engines.common.request import Handover

ENGINES: tuple[TrainingEngine, ...] = (
    NATIVE,
    TRL,
    ACCELERATE,
    DEEPSPEED,
    VERL,
    OPENRLHF,
    NEMO_RL,
    PRIME_RL,
    SKYRL,
    MEGATRON,
    MAXTEXT,
    FSDP,
)
"""All of them, in the order in which tables and messages name them."""


def engine_names() -> tuple[str, ...]:
    """Return the values of a stage's field `engine`."""
    return tuple(engine.name for engine in ENGINES)


def capabilities(name: str) -> Capabilities:
    """Return what an engine can do, by its name.

    >>> capabilities("megatron").pipeline, capabilities("native").pipeline
    (True, False)
    """
    for engine in ENGINES:
        if engine.name == name:
            return engine.capabilities
    raise UsageError(f"engine {name!r} is not known; one of {', '.join(engine_names())}")


def rl_engines() -> dict[str, RlEngine]:
    """Return the engines that place the roles of a PPO stage themselves, by name.

    `native` is not one of them: it runs all roles on the same accelerators, with its own layouts.
    """
    return {engine.name: engine.placements for engine in ENGINES if engine.placements is not None}


def handover_engines() -> tuple[TrainingEngine, ...]:
    """Return the engines for which a stage can be rendered."""
    return tuple(engine for engine in ENGINES if engine.code is not None)


def log_readers() -> "dict[str, LogReader]":
    """Return the readers of the logs of engines, by name."""
    codes = {engine.name: engine.code() for engine in ENGINES if engine.code is not None}
    return {name: code.log for name, code in codes.items() if code.log is not None}


def handover_engine(name: str) -> TrainingEngine:
    """Return the engine of that name for which a stage can be rendered; a `UsageError` lists those that exist."""
    for engine in handover_engines():
        if engine.name == name:
            return engine
    names = ", ".join(engine.name for engine in handover_engines())
    raise UsageError(f"no stage can be handed over to {name!r}; the engines are {names}")


def check_kind(name: str, engine_name: str, kind: str) -> None:
    """Refuse a stage of a kind that the engine does not train, with those that do."""
    engine = handover_engine(engine_name)
    if kind in engine.kinds:
        return
    able = ", ".join(other.name for other in handover_engines() if kind in other.kinds) or "the native engine only"
    raise SpecError(
        [
            Problem(
                path=f"pipeline.{name}.engine",
                message=f"{engine.title} does not train stages of kind {kind}; it trains {', '.join(engine.kinds)}",
                hint=f"engines that do: {able}",
            )
        ]
    )


def render(handover: "Handover") -> "RenderedRun":
    """Return a stage as its engine's configuration; a `SpecError` holds every field that the engine cannot express."""
    check_kind(handover.name, handover.engine, handover.stage.kind)
    engine = handover_engine(handover.engine)
    assert engine.code is not None
    return engine.code().render(handover)


def fp8_instead() -> str:
    """Return what works where a stage cannot be trained in fp8."""
    able = [engine.capabilities for engine in ENGINES if engine.capabilities.fp8_kinds]
    return ", or ".join(
        [*(f"engine: {item.name} in a stage of kind {' or '.join(item.fp8_kinds)}" for item in able), "dtype: bf16"]
    )


def fp8_refusal(engine: str, kind: str) -> str | None:
    """Return the reason why a stage cannot be trained in fp8, or None.

    >>> fp8_refusal("megatron", "sft"), fp8_refusal("megatron", "ppo")
    (None, 'megatron trains stages of kind pretrain, sft in fp8, this is ppo')
    """
    able = capabilities(engine)
    if not able.fp8_kinds:
        return f"{engine} does not train in fp8: {able.without_fp8}"
    if kind in able.fp8_kinds:
        return None
    return f"{engine} trains stages of kind {', '.join(able.fp8_kinds)} in fp8, this is {kind}"
