"""Changes to a plan, as the controls of its page: values over `charter.yaml`, the new plan beside the old. Pure."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any
from urllib.parse import urlencode

from charter.errors import UsageError
from charter.physics.terms import Interval
from charter.plan.plan import Plan
from charter.plan.stage_memory import Peak
from charter.plan.stage_plan import MicroUsd, StagePlan
from charter.plan.what_if import overrides_of
from charter.report.plan_cells import (
    VERDICT_WORDS,
    full_share,
    hardware,
    held_groups,
    layout,
    peak_of_limit,
    seconds_range,
    usd_range,
)
from charter.report.plan_notes import longest_pole, split_rejected
from charter.report.plan_page.front import front_points, gantt
from charter.spec.project import Project
from charter.units import format_seconds, format_usd

NONE = "none"
"""Of a limit: as if `charter.yaml` had none."""
MOST_CHARACTERS = 400
OPEN_SECTIONS = ("resources", "budget", "deadline", "objective", "risk", "costs")
"""Sections that further settings may change: where and how. None of them names a file."""
_STAGE_NUMBER = re.compile(r"pipeline\.[\w-]+\.[a-z_0-9]+")
_NUMBER = re.compile(r"true|false|[-+]?[\d_]+(\.[\d_]+)?([eE][-+]?\d+)?")


@dataclass(frozen=True, kw_only=True)
class WhatIfQuestion:
    """The controls as texts; an empty one leaves the file's value as it is."""

    accelerators: str = ""
    """`H100:8`, or several of them."""
    market: str = ""
    deadline: str = ""
    budget: str = ""
    nodes: str = ""
    max_nodes: str = ""
    objective: str = ""
    more: str = ""
    """Further settings, one `path=value` per line."""

    @classmethod
    def of(cls, given: Mapping[str, str]) -> "WhatIfQuestion":
        """From a query or a form; UsageError where a value is longer than any that makes sense."""
        values = {item.name: given.get(item.name, "").strip() for item in fields(cls)}
        for name, value in values.items():
            if len(value) > MOST_CHARACTERS:
                raise UsageError(f"{name}: {len(value)} characters; a what-if takes up to {MOST_CHARACTERS}")
            if any(ord(letter) < 32 and letter not in "\r\n\t" for letter in value):
                raise UsageError(f"{name}: holds control characters; write it as in charter.yaml")
        return cls(**values)

    def overrides(self, project: Project) -> tuple[str, ...]:
        """The `--set` values; UsageError for one that cannot be meant."""
        settings: list[str] = []
        for name, value in self._given().items():
            if name == "more" or not value:
                continue
            if ";" in value:
                raise UsageError(f"{name}: {value!r} holds a semicolon; write it as in charter.yaml")
            if value.lower() == NONE and name in ("budget", "deadline"):
                settings.append(f"{name}=null")
            else:
                settings += overrides_of(f"{name}={value}", project)
        return (*settings, *self._more())

    def query(self) -> str:
        """The part of an address that asks the same again; a link to share."""
        return urlencode({name: value for name, value in self._given().items() if value})

    def _given(self) -> dict[str, str]:
        return {item.name: getattr(self, item.name) for item in fields(self)}

    def _more(self) -> list[str]:
        return [_checked(line.strip()) for line in self.more.splitlines() if line.strip()]


def _checked(line: str) -> str:
    """A further setting: of where and how anything, of a stage numbers alone, so that nothing names a file."""
    path, equals, value = (part.strip() for part in line.partition("="))
    if not equals or not path or not value:
        raise UsageError(f"{line}: write a setting like pipeline.ppo.episodes=640 or resources.max_nodes=8")
    if path.partition(".")[0] in OPEN_SECTIONS:
        return f"{path}={value}"
    if _STAGE_NUMBER.fullmatch(path) and _NUMBER.fullmatch(value):
        return f"{path}={value}"
    raise UsageError(
        f"{line}: here can be changed {', '.join(OPEN_SECTIONS)}, and numbers of stages; "
        "for anything else edit charter.yaml, or ask charter plan --set"
    )


def command(overrides: Sequence[str], place: str) -> str:
    """The command line that plans the same, to copy: nothing is written to `charter.yaml` for anybody.

    >>> command(["deadline=3d", "resources.accelerators=[H100:8]"], "lab")
    "charter plan lab --set deadline=3d --set 'resources.accelerators=[H100:8]'"
    """
    parts = ["charter", "plan", place, *(part for item in overrides for part in ("--set", item))]
    return shlex.join(parts)


SHARED, MODEL = "shared by all", "model"
"""What belongs to no role beside others, and where there is only one."""


def memory_by_role(plan: Plan) -> dict[str, Any]:
    """Bytes per accelerator at the fullest moment, by role and within it by part, and what a plan may use.

    Groups of accelerators that do something else than the main ones have rows of their own.
    """
    rows = list(_rows(plan))
    roles = dict.fromkeys(role for row in rows for role in row["roles"])
    return {"roles": list(roles), "rows": rows}


def _rows(plan: Plan) -> Iterator[dict[str, Any]]:
    for stage in plan.stages:
        for name, peak, capacity in held_groups(stage.option):
            if peak.total_bytes > 0:
                parts = _by_role(peak)
                yield {
                    "stage": f"{stage.name} ({name})" if name else stage.name,
                    "roles": {role: sum(terms.values()) for role, terms in parts.items()},
                    "parts": parts,
                    "capacity": capacity,
                    "moment": peak.moment,
                }


def _by_role(peak: Peak) -> dict[str, dict[str, float]]:
    alone = len({role for role, _ in peak.parts if role}) == 0
    by_role: dict[str, dict[str, float]] = {}
    for role, term in peak.parts:
        parts = by_role.setdefault(role or (MODEL if alone else SHARED), {})
        parts[term.part] = parts.get(term.part, 0.0) + term.value
    return by_role


SAME = 0.005
"""A median that moved by less is shown as unchanged: far inside the width of any estimate."""


@dataclass(frozen=True, kw_only=True)
class Total:
    """One total of a plan, and how it differs from the plan as it is."""

    name: str
    value: str
    base: str
    change: str
    """`+12 %`, `unchanged`; nothing without a change."""
    direction: str
    """`more`, `less` or nothing."""


@dataclass(frozen=True, kw_only=True)
class Limit:
    """The budget or the deadline, and whether the plan keeps it."""

    name: str
    limit: str
    verdict: str
    state: str
    """`ok`, `p90 over`, `over` or `unpriced`."""


@dataclass(frozen=True, kw_only=True)
class StageLine:
    """One stage of a plan, and what of it is other than in the plan as it is."""

    name: str
    kind: str
    hardware: str
    hardware_before: str
    """Where it differs."""
    layout: str
    peak: str
    full_percent: int
    seconds: str
    seconds_change: str
    usd: str
    usd_change: str
    longest: bool


@dataclass(frozen=True, kw_only=True)
class RefusedOption:
    """An option that a stage does not have, and why."""

    stage: str
    option: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class PlanView:
    """View model of the plan page; JSON as it stands."""

    name: str
    objective: str
    totals: tuple[Total, ...]
    limits: tuple[Limit, ...]
    stages: tuple[StageLine, ...]
    refused: tuple[RefusedOption, ...]
    advice: tuple[str, ...]
    changed: tuple[str, ...]
    """The `--set` values that made it; none of the plan as it is."""
    command: str
    charts: dict[str, Any]


def plan_view(plan: Plan, base: Plan, *, changed: Sequence[str] = (), command: str = "") -> PlanView:
    """`plan` beside `base`; without a change both are the same."""
    return PlanView(
        name=plan.name,
        objective=plan.objective,
        totals=_totals(plan, base, changed=bool(changed)),
        limits=_limits(plan),
        stages=tuple(_stage(stage, base.stage(stage.name), longest_pole(plan)) for stage in plan.stages),
        refused=tuple(
            RefusedOption(stage=stage.name, option=item.option, reason=item.reason)
            for stage in plan.stages
            for item in split_rejected(stage)[1]
        ),
        advice=(*plan.advice, *plan.budget_advice),
        changed=tuple(changed),
        command=command,
        charts=charts(plan),
    )


def charts(plan: Plan) -> dict[str, Any]:
    """Return the values of the page's charts."""
    return {
        "stages": [stage.name for stage in plan.stages],
        "gantt": gantt(plan, start=None),
        "memory": memory_by_role(plan),
        "pareto": [
            front_points(stage)
            for stage in plan.stages
            if len(stage.options) > 1 and all(option.usd is not None for option in stage.options)
        ],
    }


def _totals(plan: Plan, base: Plan, *, changed: bool) -> tuple[Total, ...]:
    money, money_before = plan.project_usd, base.project_usd
    hours, hours_before = plan.gpu_hours, base.gpu_hours
    return (
        _total("Time", seconds_range(plan.seconds), seconds_range(base.seconds), plan.seconds, base.seconds, changed),
        _total("Cost", usd_range(money), usd_range(money_before), money, money_before, changed),
        _total("GPU-hours", _hours(hours), _hours(hours_before), hours, hours_before, changed),
    )


def _total(
    name: str,
    value: str,
    base: str,
    found: Interval | MicroUsd | None,
    before: Interval | MicroUsd | None,
    changed: bool,
) -> Total:
    text = change_text(_median(found), _median(before)) if changed else ""
    direction = "more" if text.startswith("+") else "less" if text.startswith("-") else ""
    return Total(name=name, value=value, base=base, change=text, direction=direction)


def _median(found: Interval | MicroUsd | None) -> float | None:
    return None if found is None else float(found.p50)


def _hours(value: Interval) -> str:
    return "none" if value.p90 == 0 else f"{value.p50:,.0f}-{value.p90:,.0f}"


def change_text(value: float | None, base: float | None) -> str:
    """A median beside that of the plan as it is.

    >>> change_text(112.0, 100.0), change_text(100.1, 100.0), change_text(300.0, 100.0), change_text(1.0, None)
    ('+12 %', 'unchanged', '+200 %', '')
    """
    if value is None or base is None:
        return ""
    if value == base or (base and abs(value / base - 1) < SAME):
        return "unchanged"
    if not base:
        return "+ from nothing"
    return f"{100 * (value / base - 1):+.0f} %"


def _limits(plan: Plan) -> tuple[Limit, ...]:
    limits = []
    if plan.budget_usd is not None and plan.budget_verdict is not None:
        limits.append(_limit("Budget", format_usd(plan.budget_usd), plan.budget_verdict))
    if plan.deadline_seconds is not None and plan.deadline_verdict is not None:
        limits.append(_limit("Deadline", format_seconds(plan.deadline_seconds), plan.deadline_verdict))
    return tuple(limits)


def _limit(name: str, limit: str, state: str) -> Limit:
    return Limit(name=name, limit=limit, verdict=VERDICT_WORDS[state], state=state)


def _stage(stage: StagePlan, base: StagePlan | None, pole: StagePlan) -> StageLine:
    option = stage.option
    before = "" if base is None else hardware(base.option)
    return StageLine(
        name=stage.name,
        kind=stage.kind,
        hardware=hardware(option),
        hardware_before=before if before != hardware(option) else "",
        layout=layout(option),
        peak=f"{' / '.join(peak_of_limit(stage))} GiB",
        full_percent=round(100 * full_share(option)),
        seconds=seconds_range(option.seconds),
        seconds_change=_change(option.seconds.p50, None if base is None else base.option.seconds.p50),
        usd=usd_range(stage.usd),
        usd_change=_change(_median(stage.usd), None if base is None else _median(base.usd)),
        longest=stage is pole,
    )


def _change(value: float | None, base: float | None) -> str:
    text = change_text(value, base)
    return "" if text == "unchanged" else text
