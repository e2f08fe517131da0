"""Settings of updates that cannot work, shared by every stage that trains: ranges, adapters, guards."""

from collections.abc import Iterator

from charter.errors import Problem
from charter.spec.layout import Adapter
from charter.spec.number_formats import FP8, INSTEAD, fp8_refusal
from charter.spec.ranges import (
    ABOVE_ONE,
    AT_LEAST_ONE,
    NOT_NEGATIVE,
    POSITIVE,
    SHARE,
    SHARE_BELOW_ONE,
    Range,
    check_ranges,
)
from charter.spec.stage_parts import Guard

ADAM: tuple[tuple[str, Range], ...] = (
    ("learning_rate", POSITIVE),
    ("warmup_steps", NOT_NEGATIVE),
    ("min_learning_rate_ratio", SHARE),
    ("weight_decay", NOT_NEGATIVE),
    ("beta1", SHARE_BELOW_ONE),
    ("beta2", SHARE_BELOW_ONE),
    ("gradient_clip", POSITIVE),
)
_GUARD: tuple[tuple[str, Range], ...] = (
    ("spike_ratio", ABOVE_ONE),
    ("roll_back_steps", AT_LEAST_ONE),
    ("skip_steps", NOT_NEGATIVE),
    ("most", AT_LEAST_ONE),
)


def check_dtype(dtype: str, engine: str, kind: str, path: str) -> Iterator[Problem]:
    """The number format is one that the engine trains in."""
    reason = fp8_refusal(engine, kind) if dtype == FP8 else None
    if reason is not None:
        yield Problem(message=reason, path=f"{path}.dtype", hint=INSTEAD)


def check_adapter(adapter: Adapter | None, path: str) -> Iterator[Problem]:
    """Ranges of a low-rank adapter."""
    if adapter is None:
        return
    yield from check_ranges(adapter, f"{path}.adapter", [("rank", AT_LEAST_ONE), ("alpha", AT_LEAST_ONE)])
    if adapter.base_bits not in (4, 8, 16):
        message = f"must be 4 (QLoRA), 8 or 16 (LoRA); found {adapter.base_bits}"
        yield Problem(message=message, path=f"{path}.adapter.base_bits")


def check_guard(guard: Guard | None, path: str) -> Iterator[Problem]:
    """What follows a divergence; going back has to leave out the data that it happened on."""
    if guard is None:
        return
    problems = list(check_ranges(guard, path, _GUARD))
    yield from problems
    if not problems and guard.on_divergence == "roll_back" and guard.skip_steps <= guard.roll_back_steps:
        message = (
            f"{guard.skip_steps} steps' data are left out after going back {guard.roll_back_steps} steps, "
            "so the data on which training diverged are met again"
        )
        yield Problem(message=message, path=f"{path}.skip_steps", hint=f"give more than {guard.roll_back_steps}")
