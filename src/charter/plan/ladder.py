"""The inverse of a plan: which models and methods fit some hardware, a budget and a deadline, and how much data."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from charter.errors import InfeasibleError
from charter.plan.by_kind import Inquiry, KindFile, kind_file
from charter.plan.plan import Plan

LORA_RANK = 16
"""Of the cheaper method: the rank that guides of adapters begin with."""
JUDGES = ("70B", "32B", "8B")
"""Sizes of judges for `cai`, the largest first."""
LADDER = ("405B", "70B", "32B", "14B", "8B", "3B", "1B")
"""Sizes that are tried where no model is named, the largest first."""
AMOUNT = {
    "pretrain": "tokens",
    "sft": "tokens",
    "preference_model": "pairs",
    "dpo": "pairs",
    "ppo": "prompts",
    "grpo": "prompts",
}
"""What of a kind can be more or less."""
MOST_DOUBLINGS = 12
"""Of the amount of data, when the most that a budget pays for is looked for: a factor of 4,096."""


@dataclass(frozen=True, kw_only=True)
class Rung:
    """One model with one method, and what became of its plan."""

    inquiry: Inquiry
    size: str
    method: str
    plan: Plan | None = None
    why: str = ""
    """The reason where it fits nowhere."""

    @property
    def verdict(self) -> str:
        """Return `fits`, `over budget`, `late` or `does not fit`, at p50."""
        if self.plan is None:
            return "does not fit"
        usd, limit = self.plan.project_usd, self.plan.budget_usd
        if limit is not None and (usd is None or usd.p50 / 1e6 > limit):
            return "over budget" if usd is not None else "no price"
        deadline = self.plan.deadline_seconds
        return "late" if deadline is not None and self.plan.seconds.p50 > deadline else "fits"


def methods(inquiry: Inquiry) -> Iterator[tuple[str, Inquiry]]:
    """Yield the methods of a kind, the dearest first: all weights, then adapters; for `cai` smaller judges.

    >>> [name for name, _ in methods(Inquiry(kind="sft"))]
    ['all weights', 'LoRA 16']
    >>> [name for name, _ in methods(Inquiry(kind="cai", judge="8B"))]
    ['judge 8B']
    """
    if inquiry.kind == "cai":
        for judge in JUDGES if inquiry.judge is None else (inquiry.judge,):
            yield f"judge {judge}", replace(inquiry, judge=judge)
    elif inquiry.lora is not None or inquiry.kind == "pretrain":
        yield "all weights" if inquiry.lora is None else f"LoRA {inquiry.lora}", inquiry
    else:
        yield "all weights", inquiry
        yield f"LoRA {LORA_RANK}", replace(inquiry, lora=LORA_RANK)


def rungs(inquiry: Inquiry, plan_of: Callable[[KindFile], Plan]) -> Iterator[Rung]:
    """Yield every model, the largest first, with every method; one model where the inquiry names it."""
    for size in LADDER if inquiry.model is None else (inquiry.model,):
        for method, question in methods(replace(inquiry, model=size)):
            try:
                yield Rung(inquiry=question, size=size, method=method, plan=plan_of(kind_file(question)))
            except InfeasibleError as error:
                yield Rung(inquiry=question, size=size, method=method, why=str(error).splitlines()[0])


def with_amount(inquiry: Inquiry, number: int) -> Inquiry:
    """Return the inquiry about another amount of data.

    >>> with_amount(Inquiry(kind="dpo"), 5).pairs
    5
    """
    change: dict[str, Any] = {AMOUNT[inquiry.kind]: number}
    return replace(inquiry, **change)


def most_data(rung: Rung, plan_of: Callable[[KindFile], Plan]) -> Rung | None:
    """Return the rung with the most data that budget and deadline still pay for; None without either, or if not more.

    The amount is doubled until a plan is over, then the last doubling is halved twice: within a quarter of the most.
    """
    name = AMOUNT.get(rung.inquiry.kind)
    if name is None or rung.plan is None or (rung.plan.budget_usd is None and rung.plan.deadline_seconds is None):
        return None
    amount = getattr(rung.inquiry, name)
    if amount is None:
        return None

    def at(number: int) -> Rung:
        scaled = with_amount(rung.inquiry, number)
        return replace(rung, inquiry=scaled, plan=plan_of(kind_file(scaled)))

    best, low, high = None, amount, amount
    for _ in range(MOST_DOUBLINGS):
        high = 2 * low
        if (tried := at(high)).verdict != "fits":
            break
        best, low = tried, high
    for _ in range(2):
        middle = (low + high) // 2
        if (tried := at(middle)).verdict == "fits":
            best, low = tried, middle
        else:
            high = middle
    return best
