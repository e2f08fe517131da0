"""Scaling laws: loss from size and tokens, compute-optimal sizes, and a fit to small runs of one's own."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from charter.errors import DataError

PF_DAY_FLOPS = 8.64e19
"""Operations of one petaflop/s for a day."""


@dataclass(frozen=True, kw_only=True)
class ParametricLaw:
    """`L(N, D) = E + A / N^alpha + B / D^beta`, loss in nats per token."""

    irreducible_loss: float
    size_coefficient: float
    size_exponent: float
    data_coefficient: float
    data_exponent: float
    source: str

    def loss(self, num_parameters: float, num_tokens: float) -> float:
        """Predicted loss of a model of `num_parameters` after `num_tokens` (no repeats)."""
        size = self.size_coefficient / num_parameters**self.size_exponent
        return float(self.irreducible_loss + size + self.data_coefficient / num_tokens**self.data_exponent)

    def optimal(self, compute_flops: float) -> tuple[float, float]:
        """Parameters and tokens that minimise the loss at `C = 6 N D`.

        `N = G (C / 6)^(beta / (alpha + beta))`, `G = (alpha A / (beta B))^(1 / (alpha + beta))`, `D = C / (6 N)`.
        Source: Hoffmann et al. 2022 (arXiv:2203.15556), section 3.3, equation 4.

        >>> num_parameters, num_tokens = HOFFMANN_2022.optimal(5.76e23)
        >>> round(num_parameters / 1e9), round(num_tokens / 1e12, 1)
        (32, 3.0)
        """
        a, b = self.size_exponent, self.data_exponent
        g = (a * self.size_coefficient / (b * self.data_coefficient)) ** (1 / (a + b))
        num_parameters = g * (compute_flops / 6) ** (b / (a + b))
        return num_parameters, compute_flops / (6 * num_parameters)


HOFFMANN_2022 = ParametricLaw(
    irreducible_loss=1.69,
    size_coefficient=406.4,
    size_exponent=0.34,
    data_coefficient=410.7,
    data_exponent=0.28,
    source="Hoffmann et al. 2022 (arXiv:2203.15556), approach 3, as printed (rounded exponents)",
)
BESIROGLU_2024 = ParametricLaw(
    irreducible_loss=1.8172,
    size_coefficient=482.01,
    size_exponent=0.3478,
    data_coefficient=2085.43,
    data_exponent=0.3658,
    source="Besiroglu et al. 2024 (arXiv:2404.10102), re-fit of Hoffmann's data",
)
TOKENS_PER_PARAMETER = 20.0
"""Hoffmann et al. 2022, table 3, approaches 1 and 2: about 20 tokens per parameter. Rule of thumb."""


def chinchilla_optimal(compute_flops: float) -> tuple[float, float]:
    """Parameters and tokens by the rule `D = 20 N` at `C = 6 N D`: `N = sqrt(C / 120)`.

    >>> num_parameters, num_tokens = chinchilla_optimal(5.76e23)
    >>> round(num_parameters / 1e9), round(num_tokens / 1e12, 2)
    (69, 1.39)
    """
    num_parameters = math.sqrt(compute_flops / (6 * TOKENS_PER_PARAMETER))
    return num_parameters, TOKENS_PER_PARAMETER * num_parameters


def kaplan_loss(*, non_embedding_parameters: float | None = None, num_tokens: float | None = None) -> float:
    """Loss by Kaplan et al. 2020 (arXiv:2001.08361), equations 1.1, 1.2 and 1.5.

    N alone `(8.8e13 / N)^0.076`; D alone `(5.4e13 / D)^0.095`; both `[(Nc / N)^(aN / aD) + Dc / D]^aD`. Fitted on
    WebText2 with a vocabulary of 50,257 up to 1.5e9 parameters; it underrates tokens (Hoffmann et al. 2022).

    >>> round(kaplan_loss(non_embedding_parameters=1.5e9), 2)
    2.3
    """
    size = (8.8e13 / non_embedding_parameters) if non_embedding_parameters else None
    data = (5.4e13 / num_tokens) if num_tokens else None
    if size is not None and data is not None:
        return float((size ** (0.076 / 0.095) + data) ** 0.095)
    if size is not None:
        return float(size**0.076)
    if data is not None:
        return float(data**0.095)
    raise DataError("kaplan_loss needs a number of parameters, of tokens, or both")


def kaplan_loss_of_compute(compute_flops: float) -> float:
    """Loss at the compute-efficient frontier: `(3.1e8 PF-days / C)^0.050`. Kaplan et al. 2020, equation 1.3."""
    return float((3.1e8 / (compute_flops / PF_DAY_FLOPS)) ** 0.050)


def critical_batch_tokens(loss: float) -> float:
    """Tokens per batch beyond which larger batches stop paying: `2e8 / L^(1 / 0.21)`.

    Source: Kaplan et al. 2020, equation 1.4; McCandlish et al. 2018.
    """
    return float(2e8 / loss ** (1 / 0.21))


EXPONENT_GRID = tuple(round(0.20 + 0.01 * step, 2) for step in range(36))
"""Exponents tried by `fit`."""


@dataclass(frozen=True, kw_only=True)
class Observation:
    """One finished run: its size, its tokens, its final loss."""

    num_parameters: float
    num_tokens: float
    loss: float


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A fitted law and how well it holds where it was fitted."""

    law: ParametricLaw
    root_mean_square_error: float
    """Nats per token, on the fitted runs."""
    num_observations: int


def fit(
    observations: Sequence[Observation],
    *,
    size_exponents: Sequence[float] = EXPONENT_GRID,
    data_exponents: Sequence[float] = EXPONENT_GRID,
) -> Fit:
    """Least-squares fit of a `ParametricLaw`: linear in E, A, B for each pair of exponents of a grid.

    Source: form of Hoffmann et al. 2022, section 3.3 (they minimise a Huber loss of the logarithm; a plain least
    square is more easily led by an outlier). Refused when the runs cannot tell the terms apart.
    """
    import numpy as np

    _check(observations)
    sizes = np.array([run.num_parameters for run in observations])
    tokens = np.array([run.num_tokens for run in observations])
    losses = np.array([run.loss for run in observations])
    best: tuple[float, float, float, tuple[float, float, float]] | None = None
    for alpha in size_exponents:
        for beta in data_exponents:
            columns = np.stack([np.ones_like(losses), sizes**-alpha, tokens**-beta], axis=1)
            scale = columns.max(axis=0)
            scaled, _, rank, _ = np.linalg.lstsq(columns / scale, losses, rcond=None)
            error = float(np.mean((columns / scale @ scaled - losses) ** 2))
            if rank == 3 and (scaled > 0).all() and (best is None or error < best[0]):
                e, a, b = (float(value) for value in scaled / scale)
                best = (error, alpha, beta, (e, a, b))
    if best is None:
        raise DataError("no law with positive terms fits these runs: losses must fall with size and with tokens")
    error, alpha, beta, (e, a, b) = best
    law = ParametricLaw(
        irreducible_loss=e,
        size_coefficient=a,
        size_exponent=alpha,
        data_coefficient=b,
        data_exponent=beta,
        source=f"fit to {len(observations)} runs",
    )
    return Fit(law=law, root_mean_square_error=math.sqrt(error), num_observations=len(observations))


def _check(observations: Sequence[Observation]) -> None:
    if len(observations) < 6:
        raise DataError(f"{len(observations)} runs cannot fit five constants; give at least 6")
    for run in observations:
        if not (run.num_parameters > 0 and run.num_tokens > 0 and 0 < run.loss < math.inf):
            raise DataError(f"{run} is not a run: parameters, tokens and loss must be above zero")
    if len({run.num_parameters for run in observations}) < 3 or len({run.num_tokens for run in observations}) < 3:
        raise DataError("the runs need at least 3 sizes and 3 numbers of tokens, else the two terms are one")
    ratios = {round(run.num_tokens / run.num_parameters, 6) for run in observations}
    if len(ratios) == 1:
        raise DataError("all runs have the same tokens per parameter: size and tokens cannot be told apart")
