"""The one way to run a stage on the processors of this machine: every process has one copy of everything."""

from collections.abc import Iterable
from dataclasses import replace

from charter.physics.terms import Term
from charter.plan.hardware.place import Place
from charter.plan.options.make_option import make_option
from charter.plan.options.option import Option, Rejected
from charter.plan.options.question import Missed, Question
from charter.plan.options.why_not import does_not_fit
from charter.plan.physics.cpu_memory import of_processes, training_peak
from charter.plan.physics.cpu_time import cpu_phase_terms, gradient_sum_term, reward_text_term, tools_term
from charter.plan.physics.fit import Peak, answering_peak
from charter.plan.work.phase import Phase, Workload
from charter.spec.layout import Layout, Recompute


def on_processors(question: Question, place: Place) -> tuple[tuple[Option, ...], Missed]:
    """Every process has one copy of everything, and its share of the batch."""
    work = _share(question.work, place.processes)
    if work.trained:
        layout, label, peak = _training(question, work, place)
    else:
        layout, label, peak = _answering(question, place)
    capacity = question.knowledge.usable_bytes(place.accelerator)
    if peak.total_bytes > capacity:
        return (), Missed(
            rejected=(Rejected(option=place.label, reason=does_not_fit(peak, capacity)),), peaks=((peak, capacity),)
        )
    terms = tuple(_seconds(question, work, place, layout))
    return (make_option(question, place, 1, layout, label, peak, terms),), Missed()


def _training(question: Question, work: Workload, place: Place) -> tuple[Layout, str, Peak]:
    fixed = question.fixed
    share = next(phase for phase in work.phases if phase.work == "train").batch
    micro = min(share, fixed.micro_batch) if fixed and fixed.micro_batch else share
    again = Recompute(fixed.recompute) if fixed and fixed.recompute else Recompute.NONE
    layout = Layout(data=place.processes, micro_batch=micro, accumulation=-(-share // micro), recompute=again)
    peak = of_processes(training_peak(work, layout), place.processes)
    return layout, layout.label.removeprefix("dp1 "), peak


def _answering(question: Question, place: Place) -> tuple[Layout, str, Peak]:
    phases = question.work.phases
    peak = answering_peak(
        question.work,
        tensor=1,
        batches={phase.name: float(phase.batch) for phase in phases},
        accelerator=place.accelerator,
        knowledge=question.knowledge,
        weights="fp32",
    )
    return Layout(micro_batch=max(phase.batch for phase in phases)), "one process", peak


def _share(work: Workload, processes: int) -> Workload:
    """Return the work of one of several processes: its rows of every batch, in as many steps."""
    if processes == 1 or not work.trained:
        return work
    return replace(work, phases=tuple(replace(phase, batch=-(-phase.batch // processes)) for phase in work.phases))


def _seconds(question: Question, work: Workload, place: Place, layout: Layout) -> Iterable[Term]:
    for phase in work.phases:
        if phase.role in work.remote:
            continue
        role = work.role(phase.role)
        yield from cpu_phase_terms(
            role,
            phase,
            processor=place.accelerator,
            dtype=question.dtype,
            micro_batches=_passes(work, phase, layout),
            again=layout.recompute is Recompute.FULL,
        )
        if phase.call_seconds:
            yield tools_term(phase)
        if _is_reward(work, phase):
            yield reward_text_term(phase)
        if phase.work == "train" and place.processes > 1:
            yield gradient_sum_term(role, phase, place.processes)


def _passes(work: Workload, phase: Phase, layout: Layout) -> int:
    """In how many passes a batch is read: by micro-batches where one is trained on it, but for rewards, at once."""
    if not work.trained or phase.work == "generate" or _is_reward(work, phase):
        return 1
    return -(-phase.batch // layout.micro_batch)


def _is_reward(work: Workload, phase: Phase) -> bool:
    """Return True if a preference model scores what is being trained on."""
    role = work.role(phase.role)
    return bool(work.trained) and phase.work == "score" and role.scalar_head and not role.trained
