"""From a project to the candidates of every stage: its work, the places, and everything that fits there."""

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from charter.catalog.price_book import PriceBook
from charter.errors import InfeasibleError
from charter.plan.knowledge import Knowledge
from charter.plan.machine import Machine
from charter.plan.node_needs import checkpoint_bytes
from charter.plan.offers import (
    LOCAL,
    NOTHING_RENTED,
    NodeOffer,
    control_place,
    is_within_hourly_cost,
    may_run_here,
    places,
    quota_of,
    spot_of,
)
from charter.plan.option import Found, Option, Rejected, StageQuestion, loses_to
from charter.plan.phase import Workload
from charter.plan.pipeline_names import Library, Models, bytes_per_token
from charter.plan.purchase import purchases
from charter.plan.search import infeasible, search
from charter.plan.servers import own_roles
from charter.plan.storage import Freight, bucket, freights
from charter.plan.workload import workload
from charter.spec.architecture import Architecture
from charter.spec.graph import execution_order, stage_inputs
from charter.spec.project import Project
from charter.spec.stage_base import Stage

if TYPE_CHECKING:
    from charter.data.dataset import DataFacts

# -------- Candidates of a plan: of every stage, everything that fits.


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """Everything that fits for one stage."""

    name: str
    stage: Stage
    work: Workload
    inputs: tuple[str, ...]
    """Stages that it waits for."""
    found: Found
    options: tuple[Option, ...]
    """What was found, in every way to pay for it."""
    refused: tuple[Rejected, ...]

    @property
    def unpriced(self) -> bool:
        """Return True if some option has no price, so that options are compared by time."""
        return any(option.usd is None for option in self.options)

    def family(self, option: Option) -> tuple[object, ...]:
        """Hardware, provider and market: what makes two options different in kind."""
        place = option.place
        return (place.infra, option.price.region or place.region, place.hardware, option.price.market)


def rejections(item: Candidates, chosen: Option) -> tuple[Rejected, ...]:
    """Return the options that fitted and lost, best first; then those that do not fit; then those not offered.

    Of every number of nodes at a place and market only the best layout is named.
    """
    best: dict[str, Option] = {}
    for option in sorted(item.options, key=_cheapest):
        best.setdefault(option.label, option)
    lost = [
        Rejected(option=f"{option.label} {option.layout_label}", reason=loses_to(option, chosen))
        for label, option in best.items()
        if label != chosen.label
    ]
    return (*lost, *item.found.rejected, *item.refused)


def _cheapest(option: Option) -> tuple[float, float, str]:
    usd = option.usd
    return (usd.p50 if usd is not None else 0.0, option.overhead.wall_seconds, option.label + option.layout_label)


def held(item: Candidates, option: Option) -> dict[str, float]:
    """Return what an option holds while it runs: nodes, its share of a pool, accelerators by type, a local slot."""
    place = option.place
    if place.infra == LOCAL:
        return {SLOTS: 1.0}
    groups = [(place, option.num_nodes), *((group.place, group.num_nodes) for group in option.beside)]
    amounts: dict[str, float] = {}
    for where, nodes in groups:
        names = [NODES, accelerators_of(where.accelerator.name)] + ([where.pool] if where.pool else [])
        for name in names:
            amount = nodes * where.per_node if name not in (NODES, where.pool) else nodes
            amounts[name] = amounts.get(name, 0.0) + amount
    return amounts


NODES = "nodes (resources.max_nodes)"
SLOTS = "stages on this machine (resources.max_parallel_stages)"


def accelerators_of(name: str) -> str:
    """The pool of a quota."""
    return f"{name} (resources.quota)"


# -------- From a project to the candidates of every stage: its work, the places, and everything that fits there.


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Inputs of the planner beside the project."""

    architectures: Mapping[str, Architecture]
    """Of every entry of `models` that has one."""
    stored: Mapping[str, str]
    """Formats of the models' files."""
    data: "Mapping[str, DataFacts]"
    """Of every data set that is there."""
    machine: Machine | None
    """Needed for local plans."""
    knowledge: Knowledge
    prices: PriceBook | None
    """The bundled price book if None."""

    @property
    def book(self) -> PriceBook:
        """The prices of this plan."""
        return self.prices or PriceBook.bundled()


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """The candidates of all stages in execution order, what moves between them, and what was assumed."""

    candidates: tuple[Candidates, ...]
    freights: Mapping[str, Freight]
    library: Library


def gather(project: Project, facts: Facts) -> Gathered:
    """Everything that fits, for every stage; raises `InfeasibleError` for the first that fits nowhere."""
    library = Library(project=project, facts=facts.data, assumptions=[])
    models = Models(project=project, architectures=facts.architectures, stored=facts.stored)
    candidates: list[Candidates] = []
    for name in execution_order(project):
        asked_before = {model for item in candidates for model in item.work.watches}
        candidates.append(_candidates(name, project, models, library, facts, asked_before))
    works = {item.name: item.work for item in candidates}
    data = _data_bytes(project, models, library) if bucket(project) else {}
    return Gathered(candidates=tuple(candidates), freights=freights(project, works, data), library=library)


def _data_bytes(project: Project, models: Models, library: Library) -> dict[str, float]:
    """Bytes of text of every data set, for transfers."""
    vocab_size = models.any_vocabulary()
    per_token, _ = bytes_per_token(vocab_size)
    corpora = {name: library.corpus((name,), vocab_size) for name in project.data}
    return {name: corpus.rows * corpus.row_tokens * per_token for name, corpus in corpora.items()}


def _candidates(
    name: str, project: Project, models: Models, library: Library, facts: Facts, asked_before: Set[str]
) -> Candidates:
    stage = project.pipeline[name]
    work = workload(stage, models, library)
    _check_positions(name, work, library)
    watches = {model: replace(watch, has_baseline=model in asked_before) for model, watch in work.watches.items()}
    work = replace(work, watches=watches)
    for role in work.asked:
        price = "price and limits" if work.endpoints[role.name].is_known else "unpriced; limits"
        endpoint = project.serving[role.model].endpoint
        library.assume(f"{name}.{role.name}", "endpoint", f"answered by {endpoint}; {price} of serving.{role.model}")
    rented = work.needs_accelerator or may_run_here(project)
    machine = _beside_other_stages(facts.machine, project, name)
    where, refused = places(project, stage, machine, facts.prices) if rented else ((control_place(machine),), ())
    if not work.needs_accelerator:
        where = tuple(_at_no_cost(place) for place in where)
    meanwhile = bool(work.trained and work.asked)
    own = own_roles(stage, work)
    work = replace(work, roles=tuple(replace(role, stored="bf16") if role.name in own else role for role in work.roles))
    if own and (stage.resources is None or stage.resources.num_nodes is None):
        # An evaluation is one process with a judge beside it.
        where = tuple(replace(place, nodes=(1,)) for place in where)
    question = StageQuestion(
        stage=stage,
        work=work.computed_here if meanwhile else work,
        asked=work if meanwhile else None,
        dtype=getattr(stage, "dtype", "bf16"),
        checkpoint_bytes=checkpoint_bytes(work),
        use_spot=spot_of(project, stage),
        knowledge=facts.knowledge,
        engine=stage.engine,
        pools=project.pools_of(stage),
        is_first=name == execution_order(project)[0],
        risk=project.risk,
    )
    answers = search(question, where)
    options = tuple(sorted(_paid(answers.options, project), key=_name))
    if not answers.options:
        raise infeasible(name, question, where, answers)
    if not options:
        raise InfeasibleError(_not_for_sale(name, answers.options))
    return Candidates(
        name=name,
        stage=stage,
        work=work,
        inputs=stage_inputs(project, name),
        found=answers,
        options=options,
        refused=tuple(Rejected(option=item.option, reason=item.reason) for item in refused),
    )


def _check_positions(name: str, work: Workload, library: Library) -> None:
    """Refuse rows that fill more positions than a trained model has, and note limits that lie above them."""
    for phase in (phase for phase in work.phases if phase.work == "train"):
        shape, longest = work.role(phase.role).architecture, round(phase.longest_tokens)
        limit = shape.max_position_embeddings
        if longest <= limit:
            continue
        if shape.learned_positions and not phase.ragged:
            raise InfeasibleError(
                f"stage {name!r} trains {phase.role} on rows of up to {longest:,} tokens, and its model has {limit:,} "
                "positions, which are learned\n  make rows shorter: seq_len, or max_prompt_tokens and max_new_tokens"
            )
        source = f"the model was built for {limit:,} positions, and may need another rope_theta or rope_scaling"
        if shape.learned_positions:
            source = f"the model has {limit:,} positions, which are learned: a longer row would end the stage"
        library.assume(f"{name}.{phase.role}: tokens of the longest row", longest, source)


def _beside_other_stages(machine: Machine | None, project: Project, name: str) -> Machine | None:
    """The machine with what stages that neither read a stage nor are read by it take of its processors meanwhile.

    As many as there are places run beside it, each on its share of the cores; on a quiet machine they take free ones.
    """
    if machine is None or project.resources.max_parallel_stages < 2:
        return machine
    above: dict[str, set[str]] = {}
    for other in execution_order(project):
        inputs = stage_inputs(project, other)
        above[other] = set(inputs).union(*(above[source] for source in inputs))
    free = [other for other in above if other != name and other not in above[name] and name not in above[other]]
    beside = min(len(free), project.resources.max_parallel_stages - 1)
    share = machine.cores // project.resources.max_parallel_stages
    return replace(machine, busy_cores=machine.busy_cores + beside * share)


def _at_no_cost(place: NodeOffer) -> NodeOffer:
    """A machine without a price, for a stage that computes with no model: what it asks for is then all of its money."""
    return place if place.price.usd_per_hour is not None else replace(place, price=NOTHING_RENTED)


def _paid(options: tuple[Option, ...], project: Project) -> list[Option]:
    """Every way to pay for every option that can be held at once; where one has a price, those without are left out."""
    ways = [way for option in options for way in purchases(option, project.resources)]
    purchasable = [way for way in ways if is_within_hourly_cost(way.place, way.price, project.resources)]
    available = [option for option in purchasable if not project.resources.quota or _within_quota(option, project)]
    priced = [option for option in available if option.usd is not None]
    return priced or available


def _not_for_sale(name: str, options: tuple[Option, ...]) -> str:
    """Return the reason why nothing of what fits can be bought or held."""
    labels = ", ".join(sorted({option.label for option in options}))
    return (
        f"stage {name!r} fits on {labels}, but none of it can be had\n"
        "  a quota is smaller than the accelerators that it holds together, or no capacity block is long enough or of "
        "its number of machines\n"
        "  raise resources.quota, or add a place of another market to resources.any_of"
    )


def _within_quota(option: Option, project: Project) -> bool:
    count: dict[str, int] = {option.place.accelerator.name: option.num_nodes * option.place.per_node}
    for group in option.beside:
        name = group.place.accelerator.name
        count[name] = count.get(name, 0) + group.num_accelerators
    return all(count.get(name, 0) <= most for name, most in quota_of(project.resources).items())


def _name(option: Option) -> tuple[str, str, str]:
    """A stable order that no price or time changes, so that ties fall the same way each time."""
    return (option.label, option.layout_label, option.engine)
