"""Constants of the planner beside its formulas: fitted ones, those of each engine and number format, paces of a run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from math import exp
from statistics import NormalDist
from typing import TypeVar

from charter.catalog.accelerators import CPU, Accelerator, catalog
from charter.engines import capabilities, fp8_instead, fp8_refusal
from charter.engines.common.capabilities import Capabilities
from charter.physics.constants import (
    InferenceMemoryConstants,
    ServingConstants,
    TrainingConstants,
    TrainingMemoryConstants,
    moved,
)
from charter.physics.fitted import WIDEST, Bundle, Pace, QuantityFit, Spread, bundled
from charter.physics.fitted import Knowledge as Situation
from charter.physics.memory_profiles import OF_ENGINES
from charter.physics.precision import FP32, TrainingPrecision
from charter.physics.runs import RlConstants
from charter.physics.serving_devices import GenerationEngine
from charter.physics.stacks import PROFILES, StackProfile
from charter.physics.step_time import native_profile
from charter.physics.terms import Z90, Interval, enough_memory
from charter.spec.sections import RiskSettings
from charter.spec.stage_base import FP8, NATIVE, Optimization, Stage

# -------- Constants of the planner beside its formulas: fitted ones, their uncertainty, and paces measured on a run.

TRAINING, SERVING = "training step time", "generation"
TRAINING_MEMORY, INFERENCE_MEMORY = "training-memory", "inference-memory"
RL_STEP = "rl step"
NATIVE_STACKS = {
    TRAINING: "huggingface",
    SERVING: "transformers",
    TRAINING_MEMORY: "native",
    INFERENCE_MEMORY: "transformers",
}
"""Whose constants the native engine takes: Hugging Face layers and decoding, and a memory list of its own."""
LOCAL_SIGMA = 0.30
LOCAL_SIGMA_SOURCE = "judgement (standard deviation of the logarithm); measured paces replace it"
ENDPOINT_SIGMA = 0.86
ENDPOINT_SIGMA_SOURCE = (
    "no measurement of the server: its limits, and answers that stream at 60 tokens per second; p10 and p90 are a "
    "factor of 3 away, judgement"
)
"""Of the logarithm: exp(0.86 x 1.2816) = 3. Hosted models stream at 20 to 200 tokens per second."""
CPU_USABLE_SHARE = 0.95
"""Share of the machine's memory that a local plan may fill; judgement."""
Constants = TypeVar("Constants")


@dataclass(frozen=True, kw_only=True)
class Knowledge:
    """Constants of the stack that will run, and the widths of its intervals."""

    training: TrainingConstants = field(default_factory=TrainingConstants)
    serving: Mapping[str, ServingConstants] = field(default_factory=dict)
    """Of an engine that answers, by its label; `""` for one that nobody measured."""
    training_memory: TrainingMemoryConstants = field(default_factory=TrainingMemoryConstants)
    inference_memory: InferenceMemoryConstants = field(default_factory=InferenceMemoryConstants)
    rl: Mapping[str, RlConstants] = field(default_factory=dict)
    """Of a step of reinforcement learning, by the stack's name; `""` for a stack that nobody measured."""
    rl_situations: Mapping[str, Situation] = field(default_factory=dict)
    spreads: Mapping[str, Spread] = field(default_factory=dict)
    situations: Mapping[str, Situation] = field(default_factory=dict)
    measured: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Quantity -> source -> rows that the widths come from."""
    errors: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)
    """Quantity -> group -> situation -> typical error of rows that were predicted without their stack or source."""
    paces: tuple[Pace, ...] = ()
    memory_risk: float = RiskSettings.out_of_memory
    """Probability of not fitting up to which a layout counts as fitting."""
    source: str = "priors of the constants"
    as_of: str = ""

    @classmethod
    def of(cls, bundle: Bundle) -> "Knowledge":
        """Constants of a calibration; what it lacks comes from the shipped one."""
        fits = {**bundled().quantities, **bundle.quantities}
        return cls(
            training=_constants(TrainingConstants, fits, TRAINING),
            serving=_by_stack(ServingConstants, fits.get(SERVING)),
            training_memory=_constants(TrainingMemoryConstants, fits, TRAINING_MEMORY),
            inference_memory=_constants(InferenceMemoryConstants, fits, INFERENCE_MEMORY),
            rl=_by_stack(RlConstants, fits.get(RL_STEP)),
            rl_situations=_rl_situations(fits.get(RL_STEP)),
            spreads={name: fit.spread for name, fit in fits.items()},
            measured={name: fit.sources for name, fit in fits.items()},
            errors={name: fit.errors for name, fit in fits.items()},
            situations={name: _situation(fits[name], stack) for name, stack in NATIVE_STACKS.items()},
            paces=bundle.paces,
            source=bundle.source,
            as_of=bundle.as_of,
        )

    def half_width(self, quantity: str, group: str) -> float:
        """Half-width of the 80 % interval of a quantity, in logarithms."""
        if quantity == RL_STEP:
            return self.rl_half_width(NATIVE)
        spread = self.spreads.get(quantity, Spread(half_widths={}))
        return spread.half_width(group, self.situations.get(quantity, "unseen"))

    def serving_constants(self, engine: GenerationEngine) -> ServingConstants:
        """Return what the passes of an engine take: of its own stack, else of one that nobody measured."""
        return self.serving.get(engine.label) or self.serving.get("") or ServingConstants()

    def rl_constants(self, stack: str) -> RlConstants:
        """Return the time of a step of reinforcement learning beside its phases, under a stack."""
        return self.rl.get(stack) or self.rl.get("") or RlConstants()

    def rl_sigma(self, stack: str) -> float:
        """Standard deviation of the logarithm of a step's time under a stack."""
        return self.rl_half_width(stack) / Z90

    def rl_half_width(self, stack: str) -> float:
        """Half-width of the 80 % interval of a step's time under a stack, in logarithms.

        The widest for one that no row has: those that were measured were off by factors too, until their engines' code
        was read. A measured one has the width of stacks that were left out of the fit, since each has a single source.
        """
        situation = self.rl_situations.get(stack, "unseen")
        if situation == "unseen":
            return WIDEST
        spread = self.spreads.get(RL_STEP, Spread(half_widths={}))
        return spread.half_width("rl time", "unseen" if situation == "seen" else situation)

    def told(self, quantity: str, group: str, *, rl_stack: str | None = None) -> str:
        """Return the measurements behind a quantity's width, in words; `rl_stack` is another engine's than ours."""
        rows = self.measured.get(quantity, {})
        if not rows:
            return "no measurements: the widest that is allowed"
        stack = rl_stack or NATIVE_STACKS.get(quantity, "native")
        situation = self.rl_situations.get(stack, "unseen") if rl_stack else self.situations.get(quantity, "unseen")
        if quantity == RL_STEP and situation == "unseen":
            return f"no step of stack {stack!r} was measured: the widest that is allowed, a factor of {exp(WIDEST):.1f}"
        occurrence = "in none of them" if situation == "unseen" else "in some of them"
        dated = f" of {self.as_of}" if self.as_of else ""
        return (
            f"{group}, from {sum(rows.values())} rows of {len(rows)} sources ({', '.join(sorted(rows))}), each "
            f"predicted without itself; stack {stack!r} {occurrence}{self._typical_error(quantity, group, situation)}; "
            f"{self.source}{dated}"
        )

    def _typical_error(self, quantity: str, group: str, situation: Situation) -> str:
        """The error of such rows, in words; nothing where no row of the kind was predicted in this situation."""
        error = self.errors.get(quantity, {}).get(group, {}).get(situation)
        if error is None:
            return ""
        where = "stacks" if situation == "unseen" else "sources"
        return f", and {group} of {where} left out is {error:.0%} off in the median"

    def usable_bytes(self, accelerator: Accelerator) -> float:
        """Bytes that an estimate may reach so that it fits the device but for `memory_risk`."""
        if accelerator.kind == CPU:
            return CPU_USABLE_SHARE * accelerator.memory_bytes
        return self.below(accelerator.memory_bytes, self.half_width(TRAINING_MEMORY, "training memory"))

    def enough_bytes(self, need: Interval, group: str, accelerator: Accelerator) -> float:
        """Bytes to plan with, by `enough_memory`; the estimate itself where nothing measured gives a width.

        Those are processors, and a calibration on a source alone.
        """
        spread = self.spreads.get(TRAINING_MEMORY, Spread(half_widths={}))
        measured = spread.is_measured(group, self.situations.get(TRAINING_MEMORY, "unseen"))
        return enough_memory(need, group) if measured and accelerator.kind != CPU else need.p50

    def below(self, limit_bytes: float, half_width: float) -> float:
        """Bytes whose need stays within a limit but for `memory_risk`, the half-width being that of 80 %."""
        return limit_bytes * exp(-half_width * NormalDist().inv_cdf(1 - self.memory_risk) / Z90)

    def pace(self, accelerator: Accelerator, kind: str) -> Pace | None:
        """Return the measured over the estimated time of a stage of this kind on this accelerator."""
        return next((pace for pace in self.paces if (pace.accelerator, pace.kind) == (accelerator.name, kind)), None)

    def time_sigma(self, stage: Stage, accelerator: Accelerator, *, moe: bool) -> float:
        """Standard deviation of the logarithm of a stage's working time."""
        quantity, group = time_group(stage, moe=moe)
        if self.pace(accelerator, stage.kind) is not None:
            return self.spreads[quantity].half_width(group, "calibrated") / Z90 if self.spreads else LOCAL_SIGMA / 2
        return LOCAL_SIGMA if accelerator.kind == CPU else self.half_width(quantity, group) / Z90


def time_group(stage: Stage, *, moe: bool) -> tuple[str, str]:
    """The quantity and the group of measurements whose errors a stage's time shares."""
    if stage.ROLLS_OUT:
        return RL_STEP, "rl time"
    if isinstance(stage, Optimization):
        adapter = stage.adapter is not None
        return TRAINING, "training moe" if moe else "training adapter" if adapter else "training dense"
    return SERVING, "inference time"


def memory_group(stage: Stage) -> tuple[str, str]:
    """The quantity and the group of measurements whose errors a stage's peak memory shares."""
    if stage.ROLLS_OUT:
        return TRAINING_MEMORY, "rl memory"
    if time_group(stage, moe=False)[0] == TRAINING:
        return TRAINING_MEMORY, "adapter memory" if getattr(stage, "adapter", None) is not None else "training memory"
    return INFERENCE_MEMORY, "inference memory"


@dataclass(frozen=True, kw_only=True)
class MemoryOfStack:
    """The memory model of one stack: its constants and the half-width of its 80 % interval in logarithms."""

    training: TrainingMemoryConstants
    inference: InferenceMemoryConstants
    half_width: float

    @property
    def sigma(self) -> float:
        """Standard deviation of the logarithm that gives the half-width."""
        return self.half_width / Z90


def memory_of_stack(stack: str, group: str) -> MemoryOfStack:
    """Return what the shipped calibration says of a memory profile, or of an engine for `inference memory`.

    The native engine has constants of its own only where its runs were measured; else the shared ones.

    >>> memory_of_stack("megatron", "training memory").half_width <= memory_of_stack("x", "adapter memory").half_width
    True
    """
    fits = bundled().quantities
    fit = fits[INFERENCE_MEMORY if group == "inference memory" else TRAINING_MEMORY]
    return MemoryOfStack(
        training=moved(TrainingMemoryConstants(), fits[TRAINING_MEMORY].fitted.shift(stack)),
        inference=moved(InferenceMemoryConstants(), fits[INFERENCE_MEMORY].fitted.shift(stack)),
        half_width=fit.spread.half_width(group, _situation(fit, stack)),
    )


@cache
def shipped() -> Knowledge:
    """Return the constants that the published measurements gave."""
    return Knowledge.of(bundled())


def _constants(kind: type[Constants], fits: Mapping[str, QuantityFit], quantity: str) -> Constants:
    fit = fits.get(quantity)
    return moved(kind(), fit.fitted.shift(NATIVE_STACKS[quantity])) if fit else kind()


def _by_stack(kind: type[Constants], fit: QuantityFit | None) -> dict[str, Constants]:
    if fit is None:
        return {}
    return {stack: moved(kind(), fit.fitted.shift(stack)) for stack in ("", *fit.fitted.stacks)}


def _rl_situations(fit: QuantityFit | None) -> dict[str, Situation]:
    return {} if fit is None else {stack: _situation(fit, stack) for stack in fit.fitted.stacks}


def _situation(fit: QuantityFit, stack: str) -> Situation:
    if stack in fit.calibrated_stacks:
        return "calibrated"
    return "seen" if stack in fit.measured_stacks else "unseen"


# -------- Time and memory of each engine: its profile, its constants, and how much memory it may fill.


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
        """Bytes that an estimate may reach so that it fits the device but for the plan's risk."""
        if self.memory_half_width is None or accelerator.kind == CPU:
            return knowledge.usable_bytes(accelerator)
        return knowledge.below(accelerator.memory_bytes, self.memory_half_width)


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
    stack = memory_of_stack(OF_ENGINES[does.memory].name, "training memory")
    fitted = bundled().quantities[TRAINING].fitted
    return EngineKnowledge(
        does=does,
        training=moved(TrainingConstants(), fitted.shift(PROFILES[does.stack].family)),
        memory=stack.training,
        memory_half_width=stack.half_width,
    )


# -------- Support for training a stage in its number format: by its engine, and on an accelerator.

MAKER = "NVIDIA"
"""Of the accelerators for which TransformerEngine has products in 8 bits (compute capability 8.9 and later)."""
FP8_COPIES_BYTES = 2.0
"""Per parameter of the layers: 8-bit copies of 16-bit weights, as they are and transposed."""


def format_refusal(dtype: str, engine: str, kind: str, accelerator: Accelerator) -> str | None:
    """Return why a stage cannot be trained so there, with accelerators on which it can; None where it can."""
    if dtype == "bf16" and not accelerator.has_bf16:
        return f"dtype bf16: {accelerator.name} has none; dtype: fp16 runs there, or take one that has"
    if dtype != FP8:
        return None
    reason = fp8_refusal(engine, kind)
    if reason is not None:
        return f"dtype fp8: {reason}; {fp8_instead()}"
    if multiplies_in_fp8(accelerator):
        return None
    able = ", ".join(item.name for item in catalog() if multiplies_in_fp8(item))
    lacks = f"{accelerator.name} has none by TransformerEngine"
    return f"dtype fp8: {lacks}; of the catalog these have: {able}; or dtype: bf16"


def multiplies_in_fp8(accelerator: Accelerator) -> bool:
    """Return True if TransformerEngine multiplies in 8 bits on it.

    >>> from charter.catalog.accelerators import get
    >>> [multiplies_in_fp8(get(name)) for name in ("A100", "H100", "L40S", "B200", "MI300X")]
    [False, True, True, True, False]
    """
    return accelerator.vendor == MAKER and FP8 in accelerator.dense_flops_per_second
