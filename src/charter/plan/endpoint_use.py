"""Use of endpoints by a stage, and its work in countable units: seconds under limits, bill, tokens, operations."""

from dataclasses import dataclass, replace

from charter.physics.flops import active_parameters
from charter.physics.identity_questions import QUESTION_TOKENS, QUESTIONS
from charter.physics.terms import Term
from charter.plan.api_judge import ApiJudgement, api_judgement
from charter.plan.phase import RolePhase, Workload

# -------- Use of endpoints by a stage: seconds of what they answer under their limits, and their bill.

ENDPOINT_SOURCE = "serving in charter.yaml; answers stream at 60 tokens per second, judgement (plan/api_judge.py)"


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
            source=ENDPOINT_SOURCE,
        )
        for phase, usage in _judged(work)
        for read, written in [_request_tokens(work, phase)]
    )


def endpoint_usd(work: Workload) -> float:
    """Return the charges of a stage's endpoints, in usd, of those that have a price."""
    return sum(usage.usd or 0.0 for _, usage in _judged(work))


def endpoint_phases(work: Workload) -> tuple[RolePhase, ...]:
    """Return what endpoints are asked: the phases of remote roles, and fixed questions to the models behind them."""
    remote = tuple(phase for phase in work.phases if phase.role in work.remote)
    return remote + tuple(identity for model in work.watches for identity in _identity(work, remote, model))


def _identity(work: Workload, remote: tuple[RolePhase, ...], model: str) -> tuple[RolePhase, ...]:
    """Return the fixed questions to one model; a stage that trains confirms every step, another one its end."""
    phases = [phase for phase in remote if work.model_of(phase.role) == model]
    watch = work.watches[model]
    parts = max((phase.steps for phase in phases), default=1.0) if work.trained else 1.0
    rounds = watch.rounds(sum(phase.sequences for phase in phases), confirmations=parts)
    if not rounds:
        return ()
    identity = RolePhase(
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


def _judged(work: Workload) -> list[tuple[RolePhase, ApiJudgement]]:
    return [(phase, _judgement(work, phase)) for phase in endpoint_phases(work)]


def _judgement(work: Workload, phase: RolePhase) -> ApiJudgement:
    price = work.endpoints[phase.role]
    if _is_identity(work, phase):
        price = replace(price, by_batch=False, batch_discount=0.0)
    read, written = _request_tokens(work, phase)
    return api_judgement(price, requests=phase.sequences, input_tokens=read, output_tokens=written)


def _is_identity(work: Workload, phase: RolePhase) -> bool:
    """Return True of the fixed questions: each is a request of its own, whatever the others are, and has its limit."""
    return phase not in work.phases


def _request_tokens(work: Workload, phase: RolePhase) -> tuple[float, float]:
    """Tokens read and written for one request, with what is thought before."""
    read, written = phase.request_tokens
    return read, written + (0.0 if _is_identity(work, phase) else work.endpoints[phase.role].thinking_tokens)


# -------- Work of a stage in countable units: model operations here, tokens of models that an endpoint answers for.

FLOPS_PER_PARAMETER = {"train": 6.0, "score": 2.0, "generate": 2.0}
"""Per token: a forward pass is 2 N, its backward pass 4 N (Kaplan et al. 2020, section 2.1)."""


@dataclass(frozen=True, kw_only=True)
class ApiUse:
    """Tokens that a stage sends to an endpoint and gets back."""

    model: str
    """Its name in charter.yaml."""
    what: str
    """What the stage wants of it: the name of a phase, or the identity of the model."""
    requests: float
    input_tokens: float
    output_tokens: float
    is_priced: bool
    """Whether charter.yaml says what its tokens cost."""

    def to_json(self) -> dict[str, object]:
        """All fields, as `charter plan --json` prints them."""
        return {
            "model": self.model,
            "for": self.what,
            "requests": round(self.requests),
            "input_tokens": round(self.input_tokens),
            "output_tokens": round(self.output_tokens),
            "priced": self.is_priced,
        }


@dataclass(frozen=True, kw_only=True)
class WorkDone:
    """Useful work of one stage."""

    useful_flops: float = 0.0
    """6 N per trained token, 2 N per token that is read or generated; attention scores are left out."""
    api: tuple[ApiUse, ...] = ()


NOTHING_DONE = WorkDone()


def work_done(work: Workload) -> WorkDone:
    """Operations of the phases that run here, tokens of those that do not."""
    here = [phase for phase in work.phases if phase.role not in work.remote]
    flops = sum(
        FLOPS_PER_PARAMETER[phase.work] * active_parameters(work.role(phase.role).architecture) * phase.tokens
        for phase in here
    )
    return WorkDone(useful_flops=flops, api=tuple(_api(work, phase) for phase in endpoint_phases(work)))


def _api(work: Workload, phase: RolePhase) -> ApiUse:
    read, written = _request_tokens(work, phase)
    return ApiUse(
        model=work.model_of(phase.role),
        what=phase.name,
        requests=phase.sequences,
        input_tokens=phase.sequences * read,
        output_tokens=phase.sequences * written,
        is_priced=work.endpoints[phase.role].is_known,
    )
