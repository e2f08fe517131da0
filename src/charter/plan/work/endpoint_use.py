"""Use of endpoints by a stage: seconds of what they answer under their limits, and their bill."""

from charter.physics.serving.api_judge import ApiJudgement, ApiPrice, api_judgement
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


def _judged(work: Workload) -> list[tuple[Phase, ApiJudgement]]:
    return [
        (phase, _judgement(work.endpoints[phase.role], phase))
        for phase in work.phases
        if phase.role in work.remote and phase.role in work.endpoints
    ]


def _judgement(price: ApiPrice, phase: Phase) -> ApiJudgement:
    read, written = phase.request_tokens
    return api_judgement(price, requests=phase.sequences, input_tokens=read, output_tokens=written)
