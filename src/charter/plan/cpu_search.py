"""The one way to run a stage on the processors of this machine: one process, one copy of everything."""

from charter.plan.hardware.place import Place
from charter.plan.options.make_option import make_option
from charter.plan.options.option import Option, Rejected
from charter.plan.options.question import Missed, Question
from charter.plan.options.why_not import does_not_fit
from charter.plan.physics.cpu_memory import training_peak
from charter.plan.physics.cpu_time import cpu_phase_terms
from charter.plan.physics.fit import answering_peak
from charter.spec.layout import Layout, Recompute


def on_processors(question: Question, place: Place) -> tuple[tuple[Option, ...], Missed]:
    """One process, one copy of everything."""
    work, machine, fixed = question.work, place.accelerator, question.fixed
    if work.trained:
        batch = question.training.batch
        micro = min(batch, fixed.micro_batch) if fixed and fixed.micro_batch else batch
        again = Recompute(fixed.recompute) if fixed and fixed.recompute else Recompute.NONE
        layout = Layout(micro_batch=micro, accumulation=-(-batch // micro), recompute=again)
        peak = training_peak(work, layout)
        label = layout.label.removeprefix("dp1 ")
    else:
        batches = {phase.name: float(phase.batch) for phase in work.phases}
        layout, label = Layout(micro_batch=max(phase.batch for phase in work.phases)), "one process"
        peak = answering_peak(
            work, tensor=1, batches=batches, accelerator=machine, knowledge=question.knowledge, weights="fp32"
        )
    capacity = question.knowledge.usable_bytes(machine)
    if peak.total_bytes > capacity:
        return (), Missed(
            rejected=(Rejected(option=place.label, reason=does_not_fit(peak, capacity)),), peaks=((peak, capacity),)
        )
    terms = tuple(
        term
        for phase in work.phases
        if phase.role not in work.remote
        for term in cpu_phase_terms(
            work.role(phase.role),
            phase,
            processor=machine,
            dtype=question.dtype,
            micro_batches=layout.accumulation if phase.work == "train" else 1,
        )
    )
    return (make_option(question, place, 1, layout, label, peak, terms),), Missed()
