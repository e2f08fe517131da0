"""The ways to serve the models of a stage that only answers, on one place and number of nodes."""

from charter.plan import accelerator_time
from charter.plan.fit import Peak, answering_peak
from charter.plan.make_option import make_option
from charter.plan.option import Option, Rejected
from charter.plan.place import Place
from charter.plan.question import Missed, Question
from charter.plan.why_not import does_not_fit
from charter.spec.layout import Layout


def answering_options(question: Question, place: Place, num_nodes: int) -> tuple[tuple[Option, ...], Missed]:
    """Replicas of every model, each over the fewest accelerators of a node that hold it; then wider if faster."""
    work, known = question.work, question.knowledge
    capacity = known.usable_bytes(place.accelerator)
    best: Option | None = None
    smallest: tuple[Peak, int] | None = None
    tensor = 1
    while tensor <= place.per_node:
        replicas = num_nodes * place.per_node // tensor
        batches = {phase.name: float(phase.batch) for phase in work.phases}
        peak = answering_peak(work, tensor=tensor, batches=batches, accelerator=place.accelerator, knowledge=known)
        while peak.total_bytes > capacity and max(batches.values()) > 1:
            batches = {name: max(1.0, batch / 2) for name, batch in batches.items()}
            peak = answering_peak(work, tensor=tensor, batches=batches, accelerator=place.accelerator, knowledge=known)
        if peak.total_bytes <= capacity:
            terms = accelerator_time.answering_terms(
                work,
                tensor=tensor,
                replicas=replicas,
                batches=batches,
                accelerator=place.accelerator,
                knowledge=known,
            )
            layout = Layout(data=replicas, tensor=tensor, micro_batch=round(max(batches.values())))
            made = make_option(question, place, num_nodes, layout, f"serve tp{tensor} x{replicas}", peak, terms)
            if best is None or made.overhead.useful_seconds < best.overhead.useful_seconds * (1 - 1e-9):
                best = made
        elif smallest is None or peak.total_bytes < smallest[0].total_bytes:
            smallest = (peak, tensor)
        tensor *= 2
    found = () if best is None else (best,)
    if smallest is None:
        return found, Missed()
    reason = does_not_fit(smallest[0], capacity)
    option = f"{num_nodes} x {place.hardware} tp{smallest[1]}" if num_nodes > 1 else f"{place.hardware} tp{smallest[1]}"
    return found, Missed(rejected=(Rejected(option=option, reason=reason),), peaks=((smallest[0], capacity),))
