"""What is asked of a search, and what it answers: one stage, the options that fit, and why the others do not."""

from dataclasses import dataclass

from charter.plan.fit import Peak
from charter.plan.knowledge import Knowledge
from charter.plan.option import Option, Rejected
from charter.plan.phase import Phase, Workload
from charter.spec.stage import Sampling, Stage, StageResources


@dataclass(frozen=True, kw_only=True)
class Question:
    """One stage to be placed."""

    stage: Stage
    work: Workload
    dtype: str
    checkpoint_bytes: float
    use_spot: bool | str
    knowledge: Knowledge

    @property
    def fixed(self) -> StageResources | None:
        """What the stage itself prescribes."""
        return self.stage.resources

    @property
    def training(self) -> Phase:
        """The first training phase."""
        return next(phase for phase in self.work.phases if phase.work == "train")

    @property
    def time_sigmas_of(self) -> tuple[bool, bool]:
        """Whether answers are generated, and whether their length is fixed."""
        generates = any(phase.work == "generate" for phase in self.work.phases)
        stage = self.stage
        fixed = isinstance(stage, Sampling) and stage.min_new_tokens >= stage.max_new_tokens
        return generates, fixed


@dataclass(frozen=True, kw_only=True)
class Found:
    """Options that fit, and what did not."""

    options: tuple[Option, ...]
    rejected: tuple[Rejected, ...]
    closest: tuple[Peak, float] | None
    """Of the layouts that do not fit, the one that overflows least, with its capacity."""


@dataclass(frozen=True, kw_only=True)
class Missed:
    """What did not fit at one place and node count."""

    rejected: tuple[Rejected, ...] = ()
    peaks: tuple[tuple[Peak, float], ...] = ()
