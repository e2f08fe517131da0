"""Question to a search, and its answer: one stage, the options that fit, and why the others do not."""

from collections.abc import Callable
from dataclasses import dataclass, field

from charter.physics.terms import Term
from charter.plan.options.option import Option, Rejected
from charter.plan.physics.fit import Peak
from charter.plan.physics.knowledge import Knowledge
from charter.plan.work.endpoint_use import endpoint_terms
from charter.plan.work.phase import Phase, Workload
from charter.spec.sections import RiskSettings
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

    engine: str = "native"
    """Whose layouts a training stage may take."""
    risk: RiskSettings = field(default_factory=RiskSettings)
    """What the project knows about failures."""
    asked: Workload | None = None
    """The whole work of a stage that trains and meanwhile asks models at an address; `work` is then what runs here."""
    peaks: dict[tuple[object, ...], Peak] = field(default_factory=dict, compare=False, repr=False)
    """Peaks that were written out already, by what they depend on; many places ask for the same one."""

    def peak_once(self, key: tuple[object, ...], make: Callable[[], Peak]) -> Peak:
        """The peak of a key, made on the first call."""
        if key not in self.peaks:
            self.peaks[key] = make()
        return self.peaks[key]

    @property
    def trained_dtype(self) -> str:
        """Number format of the matrix products that are trained with; empty where nothing is trained."""
        return self.dtype if self.work.trained else ""

    @property
    def waits(self) -> tuple[Term, ...]:
        """Seconds in which accelerators that train wait for what is asked at an address: no layout changes them."""
        return () if self.asked is None else endpoint_terms(self.asked)

    @property
    def fixed(self) -> StageResources | None:
        """Return the resources that the stage itself prescribes."""
        return self.stage.resources

    @property
    def training(self) -> Phase:
        """The first training phase."""
        return next(phase for phase in self.work.phases if phase.work == "train")

    @property
    def units(self) -> float | None:
        """Steps, or batches, after which a checkpoint may be written."""
        return max((phase.steps for phase in self.work.phases), default=None)

    @property
    def time_sigmas_of(self) -> tuple[bool, bool]:
        """Return whether answers are generated, and whether their length is fixed."""
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
    evaluated: int = 0
    """Layouts whose peak, and where they fit whose time, were computed."""
    pruned: int = 0
    """Layouts that a bound ruled out: their model state alone does not fit."""
    question: Question | None = None
    """What was asked."""

    @property
    def counts(self) -> dict[str, int]:
        """Layouts that were evaluated in full, and those that a bound ruled out."""
        return {"evaluated": self.evaluated, "pruned": self.pruned}


@dataclass(frozen=True, kw_only=True)
class Missed:
    """Options that did not fit at one place and node count."""

    rejected: tuple[Rejected, ...] = ()
    peaks: tuple[tuple[Peak, float], ...] = ()
    evaluated: int = 0
    pruned: int = 0


@dataclass(frozen=True, kw_only=True)
class EngineLayout:
    """The best layout of one engine."""

    engine: str
    layout: str
    seconds: float
    """Of work, without failures and waits."""
    ratio: float
    """Against the work of the chosen option."""
    peak_bytes: float

    def to_json(self) -> dict[str, object]:
        """All fields."""
        return {
            "engine": self.engine,
            "layout": self.layout,
            "seconds": self.seconds,
            "ratio": round(self.ratio, 4),
            "peak_bytes": round(self.peak_bytes),
        }
