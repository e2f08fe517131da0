"""All engines that stages are handed over to, by name."""

from charter.engines.common.engine import HandoverEngine
from charter.engines.common.rendered import RenderedRun
from charter.engines.common.request import Handover
from charter.engines.huggingface.engines import HUGGINGFACE_ENGINES
from charter.engines.megatron.engine import MEGATRON
from charter.engines.nemo_rl.render import NEMO_RL
from charter.engines.openrlhf.engine import OPENRLHF
from charter.engines.verl.render import VERL
from charter.errors import Problem, SpecError, UsageError

HANDOVER_ENGINES: tuple[HandoverEngine, ...] = (*HUGGINGFACE_ENGINES, VERL, NEMO_RL, OPENRLHF, MEGATRON)
"""In the order of the support table."""


def handover_engine(name: str) -> HandoverEngine:
    """The engine of that name; a `UsageError` lists those that exist."""
    for engine in HANDOVER_ENGINES:
        if engine.name == name:
            return engine
    names = ", ".join(engine.name for engine in HANDOVER_ENGINES)
    raise UsageError(f"no stage can be handed over to {name!r}; the engines are {names}")


def check_kind(name: str, engine_name: str, kind: str) -> None:
    """Refuse a stage of a kind that the engine does not train, with those that do."""
    engine = handover_engine(engine_name)
    if kind in engine.kinds:
        return
    able = ", ".join(other.name for other in HANDOVER_ENGINES if kind in other.kinds) or "the native engine only"
    raise SpecError(
        [
            Problem(
                path=f"pipeline.{name}.engine",
                message=f"{engine.title} does not train stages of kind {kind}; it trains {', '.join(engine.kinds)}",
                hint=f"engines that do: {able}",
            )
        ]
    )


def render(handover: Handover) -> RenderedRun:
    """The stage as its engine's configuration; a `SpecError` holds every field that the engine cannot express."""
    check_kind(handover.name, handover.engine, handover.stage.kind)
    return handover_engine(handover.engine).render(handover)
