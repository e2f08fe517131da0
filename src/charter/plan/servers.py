"""The ways to serve the models of a stage that only answers: on accelerators, or behind an endpoint."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import hypot

from charter.cost.monte_carlo import lognormal
from charter.physics.constants import context_factor
from charter.plan import stage_time as accelerator_time
from charter.plan.endpoint_use import endpoint_terms, endpoint_usd
from charter.plan.knowledge import ENDPOINT_SIGMA
from charter.plan.offers import NODES_OF_A_REPLICA, NodeOffer, control_place
from charter.plan.option import Missed, Option, Rejected, StageQuestion, does_not_fit, make_option
from charter.plan.phase import Workload, text_term
from charter.plan.risk import LENGTH_SIGMA
from charter.plan.stage_memory import NOTHING_LOADED, Peak, answering_peak
from charter.spec.execution import shares_accelerators
from charter.spec.layout import Layout
from charter.spec.stage_base import ServerPool, Stage
from charter.units import format_seconds, format_usd

# -------- Models of an answering stage behind an endpoint: seconds under its limits, its bill, and why it or own GPUs.


def ways_to_serve(work: Workload) -> Iterator[Workload]:
    """The workload as it is, and with every role behind its endpoint that may be there."""
    yield work
    if work.either:
        yield work.answered_by_endpoints((*work.remote, *work.either))


def with_endpoints(option: Option, question: StageQuestion) -> Option:
    """The option with the bill of its remote roles, and the width of their time; the seconds are in its terms already.

    The logarithm of the time has the variance of both parts, each by its share: `(own sigma x (1 - share))^2 +
    (ENDPOINT_SIGMA x share)^2`.
    """
    work = question.asked or question.work
    if not work.remote:
        return option
    usd, useful = endpoint_usd(work), option.overhead.useful_seconds
    generates, fixed_length = question.time_sigmas_of
    sigma = LENGTH_SIGMA if generates and not fixed_length else 0.0
    share = sum(term.value for term in endpoint_terms(work)) / useful if useful else 0.0
    own, *others = option.time_sigmas
    return replace(
        option,
        layout_label=f"{option.layout_label}, endpoint for {', '.join(work.remote)}",
        remote=work.remote,
        endpoint_usd=lognormal(usd, sigma) if usd else None,
        time_sigmas=(hypot(own * (1 - share), ENDPOINT_SIGMA * share), *others),
    )


def endpoint_only(question: StageQuestion, place: NodeOffer) -> Option:
    """A stage that no model runs for here: text work, and what endpoints answer."""
    terms = (text_term(question.work), *endpoint_terms(question.work))
    option = make_option(question, place, 1, Layout(), "no model", NOTHING_LOADED, terms)
    if not question.work.remote:
        return option
    return with_endpoints(replace(option, layout_label="no accelerator"), question)


def without_accelerators(question: StageQuestion) -> tuple[Option, ...]:
    """Return the stage on the machine that runs Charter, where every model may be behind an endpoint."""
    works = [work for work in ways_to_serve(question.work) if work is not question.work and not work.needs_accelerator]
    return tuple(endpoint_only(replace(question, work=work), control_place(None)) for work in works)


def own_or_endpoint(chosen: Option, options: tuple[Option, ...]) -> str:
    """Return why a stage with both ways takes the one it does, with both figures; empty where there is one way.

    The other way is shown at its cheapest.
    """
    others = [option for option in options if option.remote != chosen.remote and option.usd is not None]
    if not others or chosen.usd is None:
        return ""
    best = min(others, key=lambda option: option.usd.p50 if option.usd else 0.0)
    mine, other = (
        f"{_way(option)} {format_usd(option.usd.p50 if option.usd else 0.0)} in {format_seconds(option.seconds.p50)}"
        for option in (chosen, best)
    )
    return f"{mine}; {other}"


def _way(option: Option) -> str:
    return f"endpoint for {', '.join(option.remote)}" if option.remote else f"own {option.label}"


# -------- The ways to serve the models of a stage that only answers, on one place and number of nodes.

LEAST_OF_A_WIDE_NODE = 4
"""Accelerators of a machine, from which on a model that answers may be spread over several."""


def answering_options(question: StageQuestion, place: NodeOffer, num_nodes: int) -> tuple[tuple[Option, ...], Missed]:
    """Every model served here; and where some may be behind an endpoint, the rest served here beside it."""
    options: list[Option] = []
    missed = Missed()
    for number, work in enumerate(ways_to_serve(question.work)):
        if not work.needs_accelerator:
            continue
        inquiry = replace(question, work=work)
        served, reasons = _served(inquiry, place, num_nodes)
        options += [with_endpoints(option, inquiry) for option in served]
        missed = missed if number else reasons
    return tuple(options), missed


ONE_EACH = "the judge's servers and the evaluation's own process need an accelerator each; give it 2 or more"


def _served(question: StageQuestion, place: NodeOffer, num_nodes: int) -> tuple[tuple[Option, ...], Missed]:
    """Replicas of every model, each over the fewest accelerators of a node that hold it; then wider if faster.

    Over two nodes only where one cannot hold it: every layer then waits for the network. Where the file describes the
    servers of a model, all of the stage are as wide, and as many.
    """
    work, label = question.work, place.machines(num_nodes)
    alone = own_roles(question.stage, work)
    if alone and num_nodes > 1:
        return (), Missed(rejected=(Rejected(option=label, reason="an evaluation runs on one node"),))
    capacity = question.knowledge.usable_bytes(place.accelerator)
    pools = tuple(described_servers(question).values())
    if reason := _not_planned(question, pools, num_nodes * place.per_node):
        return (), Missed(rejected=(Rejected(option=label, reason=reason),))
    best: Option | None = None
    smallest: tuple[Peak, int] | None = None
    tensor, is_crowded = pools[0].tensor if pools else 1, False
    while tensor <= place.per_node or (best is None and tensor <= _across(question, place, num_nodes)):
        if not _divides(work, alone, tensor):
            tensor *= 2
            continue
        replicas = pools[0].replicas + bool(alone) if pools else num_nodes * place.per_node // tensor
        asks = len(alone) < len({phase.role for phase in work.phases} - set(work.remote))
        is_crowded = bool(alone) and asks and replicas < 2
        if is_crowded:
            break
        peak, batches = _together(question, place, tensor)
        if peak.total_bytes <= capacity:
            terms = accelerator_time.answering_terms(
                work,
                tensor=tensor,
                replicas=replicas - 1 if alone and asks else replicas,
                batches=batches,
                alone=alone,
                accelerator=place.accelerator,
                knowledge=question.knowledge,
            )
            layout = Layout(data=replicas, tensor=tensor, micro_batch=round(max(batches.values())))
            terms = (*terms, *endpoint_terms(work))
            candidate = make_option(question, place, num_nodes, layout, f"serve tp{tensor} x{replicas}", peak, terms)
            if best is None or candidate.overhead.useful_seconds < best.overhead.useful_seconds * (1 - 1e-9):
                best = candidate
        elif smallest is None or peak.total_bytes < smallest[0].total_bytes:
            smallest = (peak, tensor)
        if pools:
            break
        tensor *= 2
    options = () if best is None else (best,)
    if best is None and smallest is None and is_crowded:
        return (), Missed(rejected=(Rejected(option=label, reason=ONE_EACH),))
    if smallest is None:
        return options, Missed()
    reason = does_not_fit(smallest[0], capacity, place.accelerator, question.knowledge.memory_risk)
    overflow = (smallest[0], capacity, place.accelerator)
    return options, Missed(rejected=(Rejected(option=f"{label} tp{smallest[1]}", reason=reason),), peaks=(overflow,))


def _together(question: StageQuestion, place: NodeOffer, tensor: int) -> tuple[Peak, dict[str, float]]:
    """Return the sequences that a replica has at once in each phase, as many as fit, and its peak with them."""
    capacity = question.knowledge.usable_bytes(place.accelerator)
    pools = described_servers(question).values()
    most = min((pool.max_num_seqs for pool in pools if pool.max_num_seqs), default=None)
    batches = {phase.name: float(min(phase.batch, most or phase.batch)) for phase in question.work.phases}
    peak = _peak(question, place, tensor, batches)
    while peak.total_bytes > capacity and max(batches.values()) > 1:
        batches = {name: max(1.0, batch / 2) for name, batch in batches.items()}
        peak = _peak(question, place, tensor, batches)
    return peak, batches


def described_servers(question: StageQuestion) -> dict[str, ServerPool]:
    """Return the servers that the file describes of the models that a stage asks here, by model."""
    work, alone = question.work, own_roles(question.stage, question.work)
    served = {phase.role for phase in work.phases}.difference(work.remote, alone)
    models = dict.fromkeys(role.model for role in work.roles if role.name in served)
    return {model: question.pools[model] for model in models if model in question.pools}


def _not_planned(question: StageQuestion, pools: Sequence[ServerPool], accelerators: int) -> str:
    """Return why servers as the file describes them are not planned on so many accelerators; empty where they are."""
    alone = own_roles(question.stage, question.work)
    sizes = sorted({(pool.replicas, pool.tensor) for pool in pools})
    if len(sizes) > 1:
        of_sizes = " and ".join(f"{replicas} of {tensor}" for replicas, tensor in sizes)
        return f"servers of one stage are planned in one size; the file has {of_sizes} accelerators"
    for replicas, tensor in sizes:
        if not _divides(question.work, alone, tensor):
            return f"{tensor} accelerators of a server, as the file says, do not divide the heads of its model"
        if (needed := (replicas + bool(alone)) * tensor) > accelerators:
            if not alone:
                return f"the servers that the file describes need {needed} accelerators"
            servers = f"the servers that the file describes and the stage's own models need {needed} accelerators"
            return f"{servers} of one node, where an evaluation runs; its resources.pools can describe fewer servers"
    return ""


def own_roles(stage: Stage, work: Workload) -> tuple[str, ...]:
    """Return the roles whose weights the stage's own process needs, so that no server can answer for them."""
    if shares_accelerators(stage):
        return ()
    names = dict.fromkeys(phase.role for phase in work.phases)
    return tuple(role for role in names if role not in work.remote and not role.startswith("judge"))


def _across(question: StageQuestion, place: NodeOffer, num_nodes: int) -> int:
    """The widest tensor parallelism of a model that no node can hold."""
    if place.per_node < LEAST_OF_A_WIDE_NODE:
        return 0  # between machines of one or two accelerators every layer would wait for a slow network
    widths = [place.per_node * nodes for nodes in (2, NODES_OF_A_REPLICA) if num_nodes % nodes == 0]
    return max((width for width in widths if _divides(question.work, (), width)), default=0)


def _divides(work: Workload, alone: tuple[str, ...], tensor: int) -> bool:
    """Return True if vLLM can spread every model that it serves over so many accelerators: each gets whole heads."""
    served = [role for role in work.roles if role.name not in (*alone, *work.remote)]
    return all(role.architecture.divides_heads(tensor, copies=True) for role in served)


def _peak(question: StageQuestion, place: NodeOffer, tensor: int, batches: dict[str, float]) -> Peak:
    """The same on every accelerator, but for the size of its context."""
    factor = context_factor(place.accelerator.name)
    return question.peak_once(
        (tensor, question.work.remote, *batches.items(), factor),
        lambda: answering_peak(
            question.work,
            tensor=tensor,
            batches=batches,
            accelerator=place.accelerator,
            knowledge=question.knowledge,
            together=shares_accelerators(question.stage),
        ),
    )
