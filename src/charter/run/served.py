"""Models that answer behind an endpoint: which they are, and which stages can do without their weights."""

from collections.abc import Collection, Iterator, Mapping, Sequence

from charter.artifacts import durable
from charter.artifacts.allowance import ALLOWANCE, allow
from charter.errors import Problem
from charter.run.graph import PlannedStage
from charter.spec.project import Project
from charter.spec.stage import MODEL, STAGE_KINDS, PpoStage
from charter.units import MICRO_USD_PER_USD

ASKED = {
    "generate": frozenset({"policy"}),
    "critique": frozenset({"policy", "critic"}),
    "label": frozenset({"policy", "judge"}),
    "eval": frozenset({"judge", "also_judges"}),
}
"""Roles of which a stage wants answers alone; every other one needs weights."""


def asks_for_money(project: Project, stage: PlannedStage) -> bool:
    """Return True if a stage sends requests that have a price."""
    billed = {name for name, serving in project.serving.items() if serving.is_used and any(serving.token_prices or ())}
    return any(item.name in billed for items in stage.inputs.values() for item in items)


class CallAllowances:
    """Bounds of what the calls of each stage may cost, as its pools read them (`artifacts/allowance.py`)."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._stages: dict[str, PlannedStage] = {}
        self._said: dict[str, int | None] = {}
        self._ran: set[str] = set()

    def open(self, stage: PlannedStage, *, bounded: bool) -> None:
        """Bound a stage that is about to start from now on, or take away the bound of an earlier run."""
        self._said.pop(stage.name, None)
        if bounded and asks_for_money(self._project, stage):
            durable.make_dir(stage.directory)
            self._stages[stage.name] = stage
        elif (stage.directory / ALLOWANCE).exists():
            allow(stage.directory, None)

    def say(
        self,
        left_usd: Mapping[str, float] | None,
        spent_micro_usd: Mapping[tuple[str, str], int],
        running: Collection[str],
    ) -> None:
        """Write the bounds: what is spent on calls, and of what the limits leave an equal part; smaller ones first.

        A stage that starts beside others has no part until it runs too. None: no limit stops anything.
        """
        for name in self._ran.difference(running):
            self._stages.pop(name, None)
        self._ran = set(running)
        at_once = sum(name in running for name in self._stages)
        bounds: dict[str, int | None] = {}
        for name, stage in self._stages.items():
            parts = at_once if name in running else 0 if at_once else 1
            part = max(0.0, left_usd[name]) / parts if left_usd is not None and parts else 0.0
            spent = spent_micro_usd.get((name, stage.asked_fingerprint), 0)
            bounds[name] = None if left_usd is None else spent + int(part * MICRO_USD_PER_USD)
        for name, bound in sorted(bounds.items(), key=lambda item: item[1] or 0):
            if name not in self._said or self._said[name] != bound:
                allow(self._stages[name].directory, bound)
                self._said[name] = bound


def loads_weights(project: Project, stage: PlannedStage) -> bool:
    """Return True if some model of a stage is loaded into its own process."""
    served = {name for name, serving in project.serving.items() if serving.is_used}
    return any(
        item.name not in served
        for items in stage.inputs.values()
        for item in items
        if item.source == "model" or (item.stage_kind and STAGE_KINDS[item.stage_kind].MAKES == MODEL)
    )


def check_served(project: Project, todo: Sequence[PlannedStage]) -> Iterator[Problem]:
    """Roles that need weights, where the model is only served."""
    for stage in todo:
        served_roles = ASKED.get(stage.spec.kind, frozenset())
        if isinstance(stage.spec, PpoStage) and stage.spec.judges:
            served_roles = frozenset({stage.spec.judge_role})
        for role, items in stage.inputs.items():
            for item in items:
                if (
                    item.source == "model"
                    and item.path is None
                    and item.name in project.serving
                    and role not in served_roles
                ):
                    yield Problem(
                        path=f"pipeline.{stage.name}.{role}",
                        message=f"needs the weights of {item.name!r}, which is only served "
                        f"({project.serving[item.name].endpoint})",
                        hint=f"give models.{item.name}.model the path of a Hugging Face directory",
                    )
