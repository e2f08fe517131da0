"""Time and memory of each engine: its profile, its constants, and how much memory it may fill."""

from dataclasses import dataclass
from functools import cache
from math import exp

from charter.calibration.fitted import bundled
from charter.catalog.accelerators import CPU, Accelerator
from charter.engines import capabilities
from charter.engines.common.capabilities import Capabilities
from charter.physics.constants import moved
from charter.physics.memory.constants import TrainingMemoryConstants
from charter.physics.precision import FP32, TrainingPrecision
from charter.physics.training.constants import TrainingConstants
from charter.physics.training.stack_profiles import PROFILES, StackProfile
from charter.physics.training.step_time import native_profile
from charter.plan.physics.knowledge import TRAINING, Knowledge, memory_of_stack
from charter.spec.stage import NATIVE


@dataclass(frozen=True, kw_only=True)
class EngineKnowledge:
    """Constants of one engine."""

    does: Capabilities
    training: TrainingConstants
    memory: TrainingMemoryConstants
    memory_half_width: float | None
    """Of the 80 % interval of peak memory, in logarithms; None: that of the plan's own knowledge."""

    def profile(self, accelerator: Accelerator) -> StackProfile:
        """Return the profile by which the engine's code runs on a device."""
        return PROFILES[self.does.stack] if self.does.stack else native_profile(accelerator)

    def precision(self, dtype: str, accelerator: Accelerator) -> TrainingPrecision:
        """Bytes per parameter as the engine keeps them."""
        return FP32 if dtype == "fp32" or accelerator.kind == CPU else self.does.precision

    def usable_bytes(self, accelerator: Accelerator, knowledge: Knowledge) -> float:
        """Bytes that an estimate may reach so that its 90th percentile still fits."""
        if self.memory_half_width is None or accelerator.kind == CPU:
            return knowledge.usable_bytes(accelerator)
        return accelerator.memory_bytes * exp(-self.memory_half_width)


def engine_knowledge(name: str, knowledge: Knowledge) -> EngineKnowledge:
    """The constants of an engine; of the native one those of the plan, which may have been calibrated."""
    if name == NATIVE:
        return EngineKnowledge(
            does=capabilities(name),
            training=knowledge.training,
            memory=knowledge.training_memory,
            memory_half_width=None,
        )
    return _shipped(name)


@cache
def _shipped(name: str) -> EngineKnowledge:
    does = capabilities(name)
    stack = memory_of_stack(does.memory.name, "training memory")
    fitted = bundled().quantities[TRAINING].fitted
    return EngineKnowledge(
        does=does,
        training=moved(TrainingConstants(), fitted.shift(PROFILES[does.stack].family)),
        memory=stack.training,
        memory_half_width=stack.half_width,
    )
