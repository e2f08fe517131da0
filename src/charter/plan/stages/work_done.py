"""Work of a stage in countable units: model operations here, tokens of models that an endpoint answers for."""

from dataclasses import dataclass

from charter.physics.flops import active_parameters
from charter.plan.work.endpoint_use import endpoint_phases
from charter.plan.work.phase import Phase, Workload

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


def _api(work: Workload, phase: Phase) -> ApiUse:
    read, written = phase.request_tokens
    return ApiUse(
        model=work.model_of(phase.role),
        what=phase.name,
        requests=phase.sequences,
        input_tokens=phase.sequences * read,
        output_tokens=phase.sequences * written,
        is_priced=work.endpoints[phase.role].is_known,
    )
