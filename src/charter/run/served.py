"""Models that answer behind an endpoint: which they are, and which stages can do without their weights.

Server pools of a stage: which models Charter starts servers for, from where, and how many.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from charter.artifacts import durable
from charter.artifacts.checkpoints import ALLOWANCE, allow
from charter.artifacts.job import JobInput, served_name
from charter.errors import Problem
from charter.launch.machine import CPU, asked_accelerators, stage_threads
from charter.launch.servers import PoolSpec
from charter.run.graph import PlannedStage, serving_of
from charter.spec.execution import shares_accelerators
from charter.spec.ppo_stage import PpoStage
from charter.spec.project import Project
from charter.spec.stage import STAGE_KINDS
from charter.spec.stage_base import MODEL
from charter.units import MICRO_USD_PER_USD


def stage_pools(project: Project, stage: PlannedStage) -> tuple[PoolSpec, ...]:
    """Return the servers that are started beside a stage, one entry for each model that it asks."""
    inputs = {item.name: item for items in stage.inputs.values() for item in items}
    pools = []
    for name, serving in serving_of(stage, project).items():
        if (pool := serving.pool) is None:
            continue
        pools.append(
            PoolSpec(
                model=name,
                served_name=served_name(inputs[name], serving),
                path=_weights(inputs[name]),
                engine=pool.engine,
                replicas=pool.replicas,
                tensor=pool.tensor,
                max_num_seqs=pool.max_num_seqs,
                max_tokens=pool.max_tokens,
                memory_share=pool.memory_share,
                first_slot=0 if shares_accelerators(stage.spec) else 1,
                threads=max(1, stage_threads(project, stage.spec) // pool.replicas),
            )
        )
    return tuple(pools)


def accelerators_of_node(project: Project, stage: PlannedStage) -> int:
    """Return the accelerators of a node that the servers of a stage share; 0 on processors."""
    kind, count = asked_accelerators(project, stage.spec)
    return 0 if kind in ("", CPU) else count


def _weights(item: JobInput) -> str:
    """The directory of a model, or its public name where an engine fetches it by that."""
    named = item.model.model if item.model is not None else None
    if named is not None and (item.path is None or not Path(item.path).exists()):
        return named
    return str(item.location())


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
    """Bounds of what the calls of each stage may cost, as its pools read them (`artifacts/checkpoints.py`)."""

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
