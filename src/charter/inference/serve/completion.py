"""A served answer, apart from how it is computed and how it is written to the client."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ServedToken:
    """One generated token, and what else could have stood there."""

    text: str
    log_probability: float
    top: tuple[tuple[str, float], ...]
    """Most likely first."""


@dataclass(frozen=True, kw_only=True)
class Completion:
    """One answer."""

    text: str
    tokens: tuple[ServedToken, ...]
    """Empty where no log-probabilities were asked for."""
    finish_reason: str
    """`stop` at the end token or at a stop sequence, `length` where the limit cut it."""
    prompt_tokens: int
    completion_tokens: int
    """End token included."""
