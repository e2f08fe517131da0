"""Memory of one configuration: the terms of its fullest phase, the other phases, and the interval."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from charter.physics.terms import Breakdown, Interval, Term


@dataclass(frozen=True, kw_only=True)
class MemoryBreakdown(Breakdown):
    """Bytes on one accelerator; `total_bytes` is the sum of the terms of the fullest phase."""

    stage: str = "only"
    """Which pipeline stage the figures are of: the one that needs most."""
    phase: str = ""
    """When it needs most."""
    phases: Mapping[str, tuple[Term, ...]] = field(default_factory=dict)
    """Terms of every phase of that stage."""
    sigma: float = 0.0
    """Standard deviation of the logarithm of measured over predicted."""

    @property
    def total_bytes(self) -> float:
        """Everything."""
        return self.total

    @property
    def interval(self) -> Interval:
        """10th, 50th and 90th percentile."""
        return Interval.around(self.total, sigma=self.sigma)

    @property
    def p10(self) -> float:
        """Return the bytes that it needs at least, 9 times in 10."""
        return self.interval.p10

    @property
    def p50(self) -> float:
        """The estimate."""
        return self.total

    @property
    def p90(self) -> float:
        """Return the bytes that suffice 9 times in 10."""
        return self.interval.p90

    @property
    def phase_bytes(self) -> dict[str, float]:
        """Total of every phase."""
        return {phase: sum(term.value for term in terms) for phase, terms in self.phases.items()}

    @property
    def largest_term(self) -> Term:
        """The biggest single term of the peak: what overflows when it does not fit."""
        return max(self.terms, key=lambda term: term.value)

    @property
    def parameter_bytes(self) -> float:
        """Weights."""
        return self.part("parameters")

    @property
    def gradient_bytes(self) -> float:
        """Gradients."""
        return self.part("gradients")

    @property
    def optimizer_bytes(self) -> float:
        """Optimizer state."""
        return self.part("optimizer")

    @property
    def logits_bytes(self) -> float:
        """Logits and the loss."""
        return self.part("logits")

    def fits(self, capacity_bytes: float) -> bool:
        """Return True if it is within a capacity."""
        return self.total <= capacity_bytes

    def surely_fits(self, capacity_bytes: float) -> bool:
        """Return True if even the 90th percentile is within a capacity: a verdict that errs on the safe side."""
        return self.p90 <= capacity_bytes
