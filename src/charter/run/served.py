"""Models that answer behind an endpoint: which they are, and how many servers Charter starts for a stage."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from charter.artifacts import durable
from charter.artifacts.allowance import ALLOWANCE, CallAllowance, allow, allowance, forget_taken, taken
from charter.artifacts.job import JobInput, served_name
from charter.errors import Problem
from charter.launch.machine import CPU, asked_accelerators, stage_threads
from charter.launch.servers import PoolSpec
from charter.run.graph import PlannedStage, serving_of
from charter.spec.execution import shares_accelerators
from charter.spec.ppo_stage import PpoStage
from charter.spec.project import QUANTISED, Project, batches_under_way
from charter.spec.stage import STAGE_KINDS
from charter.spec.stage_base import MODEL, Sampling


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
                max_num_seqs=pool.most_at_once,
                max_tokens=pool.max_tokens,
                memory_share=pool.memory_share,
                quantization=_quantization(project, name),
                first_slot=0 if shares_accelerators(stage.spec) else 1,
                threads=max(1, stage_threads(project, stage.spec) // pool.replicas),
            )
        )
    return tuple(pools)


def _quantization(project: Project, name: str) -> str | None:
    model = project.models.get(name)
    asked_for = QUANTISED.get(model.precision) if model is not None else None
    return None if asked_for is None else asked_for.method


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


def steps_at_once(project: Project, stage: PlannedStage) -> int:
    """Return the number of steps of a stage that are under way together: batches whose questions servers answer."""
    spec = stage.spec
    if not isinstance(spec, Sampling) or spec.MAKES == MODEL:
        return 1
    return batches_under_way(tuple(serving_of(stage, project).values()), spec.rollout_batch)


def asks_for_money(project: Project, stage: PlannedStage) -> bool:
    """Return True if a stage sends requests that have a price."""
    billed = {name for name, serving in project.serving.items() if serving.is_used and any(serving.token_prices or ())}
    return any(item.name in billed for items in stage.inputs.values() for item in items)


@dataclass(frozen=True, kw_only=True)
class Room:
    """Money that one limit leaves for calls."""

    limit: str
    """As charter.yaml calls it."""
    left_micro_usd: int
    """Of the limit, less what is spent."""
    stage: str | None = None
    """The stage that it holds for; None for all of the run."""
    elsewhere_micro_usd: int = 0
    """What other runs under it may still spend, and have not."""
    runs: int = 1
    """That spend under it now, with this one."""


@dataclass(kw_only=True)
class _Asking:
    """A stage whose calls have a bound, and the bounds that its processes may keep to."""

    stage: PlannedStage
    number: int
    said: list[CallAllowance] = field(default_factory=list)
    written: int = 0

    def unspent(self, spent_micro_usd: int) -> int:
        """Return what its calls may still cost: by the highest bound that a process may keep to, or by its claims."""
        taken_now = taken(self.stage.directory)
        if taken_now is not None:
            self.said = [item for item in self.said if item.number >= taken_now.number]
        most = max([0 if taken_now is None else taken_now.claimed_micro_usd, *(it.micro_usd or 0 for it in self.said)])
        return max(0, most - spent_micro_usd)

    def say(self, micro_usd: int | None, limit: str) -> None:
        """Take a bound, to be written, if it is another than the last."""
        if not self.said or self.said[-1].micro_usd != micro_usd:
            self.number += 1
            self.said.append(CallAllowance(micro_usd=micro_usd, number=self.number, limit=limit))

    def write(self) -> None:
        """Write the last bound."""
        if self.said and self.written != self.said[-1].number:
            allow(self.stage.directory, self.said[-1])
            self.written = self.said[-1].number


class CallAllowances:
    """Bounds of what the calls of each stage may cost, as its pools read them (`artifacts/allowance.py`).

    All bounds that processes may keep to, and what other runs may still spend, never exceed a limit together.
    """

    def __init__(self, project: Project) -> None:
        self._project = project
        self._asking: dict[str, _Asking] = {}
        self._ran: set[str] = set()

    def open(self, stage: PlannedStage, *, bounded: bool) -> None:
        """Bound a stage that is about to start from now on, or take away the bound of an earlier run."""
        self._asking.pop(stage.name, None)
        if bounded and asks_for_money(self._project, stage):
            durable.make_dir(stage.directory)
            forget_taken(stage.directory)
            self._asking[stage.name] = _Asking(stage=stage, number=allowance(stage.directory).number)
        elif (stage.directory / ALLOWANCE).exists():
            allow(stage.directory, CallAllowance())

    def wait(self, spent_micro_usd: Mapping[tuple[str, str], int]) -> None:
        """Let everything stand as it is; a stage without a bound may spend nothing yet."""
        for name, item in self._asking.items():
            if not item.said:
                item.say(spent_micro_usd.get((name, item.stage.asked_fingerprint), 0), "")

    def share(
        self, rooms: Sequence[Room] | None, spent_micro_usd: Mapping[tuple[str, str], int], running: Collection[str]
    ) -> int | None:
        """Decide the bounds: what is spent on calls, and an equal part of what the limits leave.

        A stage that starts beside others has no part until it runs too, and none gets what another has not let go of.
        `rooms` None: no limit stops anything. Returns what the run may still spend in all; None where nothing asks.
        """
        for name in self._ran.difference(running):
            self._asking.pop(name, None)
        self._ran = set(running)
        at_once = sum(name in running for name in self._asking)
        spent = {
            name: spent_micro_usd.get((name, item.stage.asked_fingerprint), 0) for name, item in self._asking.items()
        }
        for name, item in self._asking.items():
            if rooms is None:
                item.say(None, "")
                continue
            parts = at_once if name in running else 0 if at_once else 1
            part, limit = self._part(name, rooms, spent, parts)
            item.say(spent[name] + part, limit)
        if rooms is None or not self._asking:
            return None
        return sum(item.unspent(spent[name]) for name, item in self._asking.items())

    def _part(self, name: str, rooms: Sequence[Room], spent: Mapping[str, int], parts: int) -> tuple[int, str]:
        """Return a stage's part of what is left, and the limit that leaves the least."""
        beside = sum(item.unspent(spent[other]) for other, item in self._asking.items() if other != name)
        least, limit = 0, ""
        for room in rooms:
            if room.stage not in (None, name):
                continue
            left = max(0, room.left_micro_usd)
            is_own = room.stage is not None
            part = left if is_own else left // (parts * room.runs) if parts else 0
            part = min(part, left - room.elsewhere_micro_usd - (0 if is_own else beside))
            if not limit or part < least:
                least, limit = part, room.limit
        return max(0, least), limit

    def write(self) -> None:
        """Write the bounds that were decided."""
        for item in self._asking.values():
            item.write()


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
