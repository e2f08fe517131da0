"""Use of endpoints by a stage: seconds of what they answer under their limits, and their bill."""

from charter.physics.serving.api_judge import ApiJudgement, ApiPrice, api_judgement
from charter.physics.serving.identity_questions import QUESTION_TOKENS, QUESTIONS
from charter.physics.terms import Term
from charter.plan.work.phase import Phase, Workload

SOURCE = "serving in charter.yaml; answers stream at 60 tokens per second, judgement (serving/api_judge.py)"


def endpoint_terms(work: Workload) -> tuple[Term, ...]:
    """Seconds of every phase that an endpoint answers, under its limits."""
    return tuple(
        Term(
            name=f"{phase.name}: endpoint",
            part=phase.name,
            value=usage.seconds,
            unit="seconds",
            formula=f"{phase.sequences:,.0f} requests of {read:,.0f} + {written:,.0f} tokens, "
            f"bound by {usage.bound_by}",
            source=SOURCE,
        )
        for phase, usage in _judged(work)
        for read, written in [phase.request_tokens]
    )


def endpoint_usd(work: Workload) -> float:
    """Return the charges of a stage's endpoints, in usd, of those that have a price."""
    return sum(usage.usd or 0.0 for _, usage in _judged(work))


def endpoint_phases(work: Workload) -> tuple[Phase, ...]:
    """Return what endpoints are asked: the phases of remote roles, and fixed questions to the models behind them."""
    remote = tuple(phase for phase in work.phases if phase.role in work.remote)
    return remote + tuple(identity for model in work.watches for identity in _identity(work, remote, model))


def _identity(work: Workload, remote: tuple[Phase, ...], model: str) -> tuple[Phase, ...]:
    """Return the fixed questions to one model; a stage that trains confirms every step, another one its end."""
    phases = [phase for phase in remote if work.model_of(phase.role) == model]
    watch = work.watches[model]
    parts = max((phase.steps for phase in phases), default=1.0) if work.trained else 1.0
    rounds = watch.rounds(sum(phase.sequences for phase in phases), confirmations=parts)
    if not rounds:
        return ()
    identity = Phase(
        name=f"identity of {model}",
        work="generate",
        role=phases[0].role,
        steps=rounds,
        batch=len(QUESTIONS),
        prompt_tokens=QUESTION_TOKENS,
        new_tokens=float(watch.answer_tokens),
        longest_tokens=QUESTION_TOKENS + watch.answer_tokens,
    )
    return (identity,)


def _judged(work: Workload) -> list[tuple[Phase, ApiJudgement]]:
    return [(phase, _judgement(work.endpoints[phase.role], phase)) for phase in endpoint_phases(work)]


def _judgement(price: ApiPrice, phase: Phase) -> ApiJudgement:
    read, written = phase.request_tokens
    return api_judgement(price, requests=phase.sequences, input_tokens=read, output_tokens=written)
