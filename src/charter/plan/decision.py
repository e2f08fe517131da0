"""From the options of every stage to one problem in numbers and back, under an objective and its limits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from charter.catalog.price_book import PriceBook
from charter.plan.choose import PlanChoice, best
from charter.plan.gather import NODES, SLOTS, Candidates, accelerators_of, held
from charter.plan.offers import quota_of
from charter.plan.option import NEAR, Option
from charter.plan.problem import NO_LIMIT, P50, Array, ChoiceProblem, Goal, Move, Ways
from charter.plan.storage import (
    Freight,
    Location,
    StageStorage,
    bucket,
    location,
    move_seconds,
    move_usd,
    stage_storage,
)
from charter.plan.timeline import Sharing
from charter.spec.project import Project

# -------- From the options of every stage to one problem in numbers, and back from its answer to options.
#
# Numbers of stages are added there, but medians and p90s do not add. So the middle of a time is the median of the work
# plus the *mean* wait of a spot pool, since means add and the work of all stages errs together; the sum of the p90s is
# a figure that `choice.deadline` calibrates with the plan's joint draws.

QUEUE_P90 = 3.32
"""p90 over p50 of a wait: ln 10 / ln 2, of an exponential distribution. Judgement."""
QUEUE_P10 = 0.152
"""p10 over p50 likewise: ln(10/9) / ln 2."""
PROBE_SECONDS = 1e6
RANK_USD_PER_SECOND = 1e-9
"""What an option without a price is ranked by: its time. Far below a cent for any plan."""


@dataclass(frozen=True, kw_only=True)
class Whole:
    """A project as one problem; stage and row of the problem lead back to an option."""

    project: Project
    candidates: tuple[Candidates, ...]
    freights: Mapping[str, Freight]
    locations: tuple[Location, ...]
    capacity: Mapping[str, float]
    """Of every pool, whether it can run short or not."""
    problem: ChoiceProblem
    book: PriceBook

    def options(self, choice: PlanChoice) -> tuple[Option, ...]:
        """The options of a choice."""
        return tuple(item.options[row] for item, row in zip(self.candidates, choice.ways, strict=True))

    def sharing(self, options: Sequence[Option]) -> Sharing:
        """Return the resources that the chosen stages share, for the timeline."""
        demand = {item.name: held(item, option) for item, option in zip(self.candidates, options, strict=True)}
        used = {pool for amounts in demand.values() for pool in amounts}
        return Sharing(capacity={name: most for name, most in self.capacity.items() if name in used}, demand=demand)


def whole_problem(
    project: Project, candidates: Sequence[Candidates], freights: Mapping[str, Freight], book: PriceBook
) -> Whole:
    """The problem of choosing an option for each of `candidates`, which stand in execution order."""
    capacity = _capacity(project, candidates)
    locations = tuple(dict.fromkeys(location(option) for item in candidates for option in item.options))
    number = {place: index for index, place in enumerate(locations)}
    position = {item.name: index for index, item in enumerate(candidates)}
    problem = ChoiceProblem(
        inputs=tuple(tuple(position[name] for name in item.inputs) for item in candidates),
        ways=tuple(_ways(project, item, freights[item.name], number, tuple(capacity), book) for item in candidates),
        capacity=tuple(capacity.values()),
        moves={} if bucket(project) else _moves(candidates, freights, locations, book),
    )
    return Whole(
        project=project,
        candidates=tuple(candidates),
        freights=freights,
        locations=locations,
        capacity=capacity,
        problem=_scarce_only(problem),
        book=book,
    )


def _capacity(project: Project, candidates: Sequence[Candidates]) -> dict[str, float]:
    resources = project.resources
    pools = {
        option.place.pool: float(option.place.pool_nodes)
        for item in candidates
        for option in item.options
        if option.place.pool and option.place.pool_nodes is not None
    }
    quota = {accelerators_of(name): float(most) for name, most in quota_of(resources).items()}
    return {NODES: float(resources.max_nodes), SLOTS: float(resources.max_parallel_stages), **pools, **quota}


def _ways(
    project: Project,
    item: Candidates,
    freight: Freight,
    number: Mapping[Location, int],
    pools: tuple[str, ...],
    book: PriceBook,
) -> Ways:
    options = item.options
    seconds = [(option.overhead.wall_seconds, option.seconds.p90) for option in options]
    hubs = [hub_transfer(project, freight, option, book) for option in options]
    usd = _usd(project, item, seconds, book) + np.array([[money] * 2 for money, _ in hubs])
    queue = [option.place.queue_seconds for option in options]
    families = {family: index for index, family in enumerate(dict.fromkeys(map(item.family, options)))}
    return Ways(
        seconds=np.array(seconds),
        usd=usd,
        waits=np.array([(wait + late, wait * QUEUE_P90 + late) for wait, (_, late) in zip(queue, hubs, strict=True)]),
        not_before=np.array([option.place.lead_seconds for option in options]),
        site=np.array([number[location(option)] for option in options], dtype=np.intp),
        demand=np.array([[held(item, option).get(pool, 0.0) for pool in pools] for option in options]),
        family=np.array([families[item.family(option)] for option in options], dtype=np.intp),
    )


def _usd(project: Project, item: Candidates, seconds: Sequence[tuple[float, float]], book: PriceBook) -> Array:
    """Machines and storage; where an option has no price, the time in its place."""
    if item.unpriced:
        return np.array(seconds) * RANK_USD_PER_SECOND
    storage_lines: dict[str, tuple[float, float]] = {}
    rows = []
    for option, (p50, p90) in zip(item.options, seconds, strict=True):
        infra = option.place.infra
        if infra not in storage_lines:
            storage_lines[infra] = _storage_line(stage_storage(item.work, option, project, book))
        start, slope = storage_lines[infra]
        usd = option.usd
        assert usd is not None
        rows.append((usd.p50 + start + slope * p50, usd.p90 + start + slope * p90))
    return np.array(rows)


def _storage_line(storage: StageStorage) -> tuple[float, float]:
    """usd of storage as a straight line over the time of the stage: exact where no minimum duration binds."""

    def usd(seconds: float) -> float:
        return storage.kept.usd(seconds, while_running=storage.while_running, afterwards=storage.afterwards)

    start = usd(0.0)
    return start, (usd(PROBE_SECONDS) - start) / PROBE_SECONDS


def hub_transfer(project: Project, freight: Freight, option: Option, book: PriceBook) -> tuple[float, float]:
    """usd and seconds of a stage where everything goes through the storage that charter.yaml names; else nothing."""
    hub, here = bucket(project), location(option)
    if hub is None:
        return 0.0, 0.0
    usd = move_usd(freight.total_read_bytes, hub, here, book) + move_usd(freight.written_bytes, here, hub, book)
    return usd, move_seconds(freight.total_read_bytes, hub, here)


def _moves(
    candidates: Sequence[Candidates],
    freights: Mapping[str, Freight],
    locations: Sequence[Location],
    book: PriceBook,
) -> dict[tuple[int, int], Move]:
    """Return the moves between stages at each pair of places, where they are not always free."""
    position = {item.name: index for index, item in enumerate(candidates)}
    moves = {}
    for item in candidates:
        for writer, num_bytes in freights[item.name].read_bytes.items():
            usd = [[move_usd(num_bytes, source, target, book) for target in locations] for source in locations]
            seconds = [[move_seconds(num_bytes, source, target) for target in locations] for source in locations]
            if np.any(usd) or np.any(seconds):
                moves[(position[writer], position[item.name])] = Move(usd=np.array(usd), seconds=np.array(seconds))
    return moves


def _scarce_only(problem: ChoiceProblem) -> ChoiceProblem:
    """The same without the pools that cannot run short, whatever is chosen: exact, and much quicker."""
    number = len(problem.ways)
    before = [problem.before(stage) for stage in range(number)]
    most = np.array([ways.demand.max(axis=0) for ways in problem.ways])
    scarce = np.zeros(len(problem.capacity), dtype=bool)
    for stage in range(number):
        apart = {stage, *before[stage], *(other for other in range(number) if stage in before[other])}
        beside = [most[other] for other in range(number) if other not in apart]
        total = most[stage] + sum(beside, start=np.zeros_like(most[stage]))
        scarce |= (most[stage] > 0) & (total > np.array(problem.capacity))
    pools = np.flatnonzero(scarce)
    return replace(
        problem,
        ways=tuple(replace(ways, demand=ways.demand[:, pools]) for ways in problem.ways),
        capacity=tuple(problem.capacity[pool] for pool in pools),
    )


# -------- Objectives of a plan: cheapest, fastest or balanced, within deadline and budget.

Objective = Literal["cheapest", "fastest", "balanced"]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits at p90; None is no limit."""

    deadline_seconds: float | None = None
    budget_usd: float | None = None
    """Of objectives other than `cheapest`."""

    @property
    def seconds(self) -> tuple[float, float]:
        """p50 and p90."""
        return NO_LIMIT, NO_LIMIT if self.deadline_seconds is None else self.deadline_seconds

    @property
    def usd(self) -> tuple[float, float]:
        """p50 and p90."""
        return NO_LIMIT, NO_LIMIT if self.budget_usd is None else self.budget_usd


def decide(problem: ChoiceProblem, objective: Objective, limits: Limits) -> PlanChoice | None:
    """The plan that the objective asks for, or None when none keeps the limits.

    `cheapest`: the fastest of the plans that cost at most 5 % more than the cheapest, since the estimate cannot tell
    those apart. `fastest`: the earliest p50 finish, of those the cheapest. `balanced`: the least `log(time / shortest)
    + log(cost / lowest)`, which is the least product of both: a plan may cost 10 % more where it takes 10 % less.
    """
    if objective == "cheapest":
        return _nearly_cheapest(problem, limits)
    minimise: Literal["seconds", "product"] = "seconds" if objective == "fastest" else "product"
    return best(problem, Goal(minimise=minimise, seconds=limits.seconds, usd=limits.usd))


def ranked(problem: ChoiceProblem, objective: Objective, limits: Limits) -> PlanChoice | None:
    """The plan that is first in what the objective minimises, without the 5 % of `cheapest`."""
    if objective == "cheapest":
        return best(problem, Goal(minimise="usd", seconds=limits.seconds))
    return decide(problem, objective, limits)


def _nearly_cheapest(problem: ChoiceProblem, limits: Limits) -> PlanChoice | None:
    cheapest = best(problem, Goal(minimise="usd", seconds=limits.seconds))
    if cheapest is None:
        return None
    near = (NEAR * cheapest.usd[P50], NO_LIMIT)
    quickest = best(problem, Goal(minimise="seconds", seconds=limits.seconds, usd=near), known=[cheapest.ways])
    return quickest or cheapest


def earliest_p90(problem: ChoiceProblem) -> PlanChoice:
    """The plan with the earliest p90 finish, whatever it costs; of equal ones the cheapest."""
    swapped = tuple(replace(ways, seconds=ways.seconds[:, ::-1], waits=ways.waits[:, ::-1]) for ways in problem.ways)
    choice = best(replace(problem, ways=swapped), Goal(minimise="seconds"))
    assert choice is not None, "without limits every problem has an answer"
    return replace(choice, seconds=(choice.seconds[1], choice.seconds[0]))


def lowest_p90(problem: ChoiceProblem) -> PlanChoice:
    """The plan with the lowest p90 cost, whatever it takes."""
    swapped = tuple(replace(ways, usd=ways.usd[:, ::-1]) for ways in problem.ways)
    choice = best(replace(problem, ways=swapped), Goal(minimise="usd"))
    assert choice is not None, "without limits every problem has an answer"
    return replace(choice, usd=(choice.usd[1], choice.usd[0]))
