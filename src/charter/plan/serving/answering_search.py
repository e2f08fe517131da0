"""The ways to serve the models of a stage that only answers, on one place and number of nodes."""

from dataclasses import replace

from charter.physics.constants import context_factor
from charter.plan.hardware.place import NODES_OF_A_REPLICA, Place
from charter.plan.options.make_option import make_option
from charter.plan.options.option import Option, Rejected
from charter.plan.options.question import Missed, Question
from charter.plan.options.why_not import does_not_fit
from charter.plan.physics import accelerator_time
from charter.plan.physics.fit import Peak, answering_peak
from charter.plan.serving.endpoint_option import ways_to_serve, with_endpoints
from charter.plan.work.endpoint_use import endpoint_terms
from charter.plan.work.phase import Workload
from charter.spec.execution import shares_accelerators
from charter.spec.layout import Layout
from charter.spec.stage import Stage

LEAST_OF_A_WIDE_NODE = 4
"""Accelerators of a machine, from which on a model that answers may be spread over several."""


def answering_options(question: Question, place: Place, num_nodes: int) -> tuple[tuple[Option, ...], Missed]:
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


def _served(question: Question, place: Place, num_nodes: int) -> tuple[tuple[Option, ...], Missed]:
    """Replicas of every model, each over the fewest accelerators of a node that hold it; then wider if faster.

    Over two nodes only where one cannot hold it: every layer then waits for the network.
    """
    work, knowledge = question.work, question.knowledge
    alone = own_roles(question.stage, work)
    if alone and num_nodes > 1:
        label = f"{num_nodes} x {place.hardware}"
        return (), Missed(rejected=(Rejected(option=label, reason="an evaluation runs on one node"),))
    capacity = knowledge.usable_bytes(place.accelerator)
    best: Option | None = None
    smallest: tuple[Peak, int] | None = None
    tensor = 1
    while tensor <= place.per_node or (best is None and tensor <= _across(question, place, num_nodes)):
        replicas = num_nodes * place.per_node // tensor
        batches = {phase.name: float(phase.batch) for phase in work.phases}
        peak = _peak(question, place, tensor, batches)
        while peak.total_bytes > capacity and max(batches.values()) > 1:
            batches = {name: max(1.0, batch / 2) for name, batch in batches.items()}
            peak = _peak(question, place, tensor, batches)
        asks = len(alone) < len({phase.role for phase in work.phases} - set(work.remote))
        if alone and asks and replicas < 2:
            break  # the judge's servers and the evaluation's own process need accelerators each
        if peak.total_bytes <= capacity:
            terms = accelerator_time.answering_terms(
                work,
                tensor=tensor,
                replicas=replicas - 1 if alone and asks else replicas,
                batches=batches,
                alone=alone,
                accelerator=place.accelerator,
                knowledge=knowledge,
            )
            layout = Layout(data=replicas, tensor=tensor, micro_batch=round(max(batches.values())))
            terms = (*terms, *endpoint_terms(work))
            candidate = make_option(question, place, num_nodes, layout, f"serve tp{tensor} x{replicas}", peak, terms)
            if best is None or candidate.overhead.useful_seconds < best.overhead.useful_seconds * (1 - 1e-9):
                best = candidate
        elif smallest is None or peak.total_bytes < smallest[0].total_bytes:
            smallest = (peak, tensor)
        tensor *= 2
    options = () if best is None else (best,)
    if smallest is None:
        return options, Missed()
    reason = does_not_fit(smallest[0], capacity)
    option = f"{num_nodes} x {place.hardware} tp{smallest[1]}" if num_nodes > 1 else f"{place.hardware} tp{smallest[1]}"
    return options, Missed(rejected=(Rejected(option=option, reason=reason),), peaks=((smallest[0], capacity),))


def own_roles(stage: Stage, work: Workload) -> tuple[str, ...]:
    """Return the roles whose weights the stage's own process needs, so that no server can answer for them."""
    if shares_accelerators(stage):
        return ()
    names = dict.fromkeys(phase.role for phase in work.phases)
    return tuple(role for role in names if role not in work.remote and not role.startswith("judge"))


def _across(question: Question, place: Place, num_nodes: int) -> int:
    """The widest tensor parallelism of a model that no node can hold."""
    if place.per_node < LEAST_OF_A_WIDE_NODE:
        return 0  # between machines of one or two accelerators every layer would wait for a slow network
    heads = [role.architecture.num_heads for role in question.work.roles]
    widths = [nodes for nodes in (2, NODES_OF_A_REPLICA) if num_nodes % nodes == 0]
    return max(
        (place.per_node * nodes for nodes in widths if all(count % (place.per_node * nodes) == 0 for count in heads)),
        default=0,
    )


def _peak(question: Question, place: Place, tensor: int, batches: dict[str, float]) -> Peak:
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
