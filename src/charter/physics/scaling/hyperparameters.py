"""Learning rate and batch size by scale: published rules, and what published runs used."""

from __future__ import annotations

from dataclasses import dataclass

from charter.physics.terms import Interval

NEAR_OPTIMUM = 2.0
"""Half or twice the rule's value. Judgement: DeepSeek LLM, figure 3, draws a band about so wide of runs within 0.25 %
of the least loss; Bjorck et al. and Li et al. 2025 likewise call the optimum broad."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One rule's learning rate and batch, each with its band; a rule may know only one of them."""

    name: str
    source: str
    learning_rate: Interval | None
    batch_tokens: Interval | None


@dataclass(frozen=True, kw_only=True)
class PublishedRun:
    """Settings of a published large run."""

    name: str
    num_parameters: float
    num_tokens: float
    learning_rate: float
    batch_tokens: float
    source: str

    @property
    def compute_flops(self) -> float:
        """`6 N D`."""
        return 6 * self.num_parameters * self.num_tokens


PUBLISHED_RUNS = (
    PublishedRun(
        name="GPT-3 175B",
        num_parameters=175e9,
        num_tokens=300e9,
        learning_rate=0.6e-4,
        batch_tokens=3.2e6,
        source="Brown et al. 2020 (arXiv:2005.14165), table 2.1",
    ),
    PublishedRun(
        name="Chinchilla 70B",
        num_parameters=70e9,
        num_tokens=1.4e12,
        learning_rate=1e-4,
        batch_tokens=3e6,
        source="Hoffmann et al. 2022, table 4 (the batch doubles from 1.5e6)",
    ),
    PublishedRun(
        name="Llama-2 7B",
        num_parameters=6.74e9,
        num_tokens=2e12,
        learning_rate=3e-4,
        batch_tokens=4e6,
        source="Touvron et al. 2023 (arXiv:2307.09288), section 2.2 and table 1",
    ),
    PublishedRun(
        name="Llama-2 70B",
        num_parameters=69e9,
        num_tokens=2e12,
        learning_rate=1.5e-4,
        batch_tokens=4e6,
        source="Touvron et al. 2023 (arXiv:2307.09288), section 2.2 and table 1",
    ),
    PublishedRun(
        name="DeepSeek LLM 67B",
        num_parameters=67e9,
        num_tokens=2e12,
        learning_rate=3.2e-4,
        batch_tokens=18.9e6,
        source="Bi et al. 2024 (arXiv:2401.02954), table 2: 4,608 sequences of 4,096",
    ),
    PublishedRun(
        name="Llama 3 405B",
        num_parameters=405e9,
        num_tokens=15.6e12,
        learning_rate=8e-5,
        batch_tokens=16e6,
        source="Llama 3 (arXiv:2407.21783), section 3.4.1 (the batch grows from 4e6)",
    ),
)


def critical_batch_tokens(loss: float) -> float:
    """Tokens per batch beyond which larger batches stop paying: `2e8 / L^(1 / 0.21)`.

    Source: Kaplan et al. 2020, equation 1.4; McCandlish et al. 2018.
    """
    return float(2e8 / loss ** (1 / 0.21))


def deepseek_learning_rate(compute_flops: float) -> float:
    """`0.3118 C^-0.1250`, C without embeddings; fitted at 1e17 to 2e19.

    Source: Bi et al. 2024 (DeepSeek LLM, arXiv:2401.02954), equation 1. Theirs of the 7B and 67B runs:

    >>> [round(deepseek_learning_rate(c) * 1e4, 1) for c in (1e23, 1e24)]
    [4.2, 3.1]
    """
    return float(0.3118 * compute_flops**-0.1250)


def deepseek_batch_tokens(compute_flops: float) -> float:
    """`0.2920 C^0.3271` tokens, C without embeddings. Source: as `deepseek_learning_rate`.

    >>> round(deepseek_batch_tokens(8.4e23) / 1e6, 1)
    19.5
    """
    return float(0.2920 * compute_flops**0.3271)


def step_learning_rate(num_parameters: float, num_tokens: float) -> float:
    """`1.79 N^-0.713 D^0.307`, N without embeddings.

    Source: Li et al. 2025 (Step Law, arXiv:2503.04715); fitted to 60e6 to 1e9 parameters and 2e9 to 1e11 tokens.
    """
    return float(1.79 * num_parameters**-0.713 * num_tokens**0.307)


def step_batch_tokens(num_tokens: float) -> float:
    """`0.58 D^0.571` tokens. Source: as `step_learning_rate`."""
    return float(0.58 * num_tokens**0.571)


def rules(
    num_parameters: float,
    num_tokens: float,
    *,
    loss: float,
    own_learning_rate: tuple[float, float] | None = None,
    own_batch_tokens: tuple[float, float] | None = None,
) -> tuple[Rule, ...]:
    """Every rule's answer for one run, the user's own first where the runs of a fit told one.

    >>> [rule.name for rule in rules(70e9, 2e12, loss=1.9)]
    ['DeepSeek LLM', 'Step Law', 'Kaplan critical batch']
    """
    compute = 6 * num_parameters * num_tokens
    answers = []
    if own_learning_rate or own_batch_tokens:
        answers.append(
            Rule(
                name="your runs",
                source="power law through the learning rates and batches of the fitted runs",
                learning_rate=_own(own_learning_rate, compute),
                batch_tokens=_own(own_batch_tokens, compute),
            )
        )
    answers += [
        Rule(
            name="DeepSeek LLM",
            source="Bi et al. 2024 (arXiv:2401.02954), equation 1",
            learning_rate=_banded(deepseek_learning_rate(compute)),
            batch_tokens=_banded(deepseek_batch_tokens(compute)),
        ),
        Rule(
            name="Step Law",
            source="Li et al. 2025 (arXiv:2503.04715)",
            learning_rate=_banded(step_learning_rate(num_parameters, num_tokens)),
            batch_tokens=_banded(step_batch_tokens(num_tokens)),
        ),
        Rule(
            name="Kaplan critical batch",
            source="Kaplan et al. 2020 (arXiv:2001.08361), equation 1.4, at the predicted loss",
            learning_rate=None,
            batch_tokens=_banded(critical_batch_tokens(loss)),
        ),
    ]
    return tuple(answers)


def nearest_runs(compute_flops: float) -> tuple[PublishedRun, ...]:
    """The two published runs whose compute is nearest, as a check on the rules.

    >>> [run.name for run in nearest_runs(8.4e23)]
    ['Llama-2 70B', 'DeepSeek LLM 67B']
    """

    def distance(run: PublishedRun) -> float:
        return max(run.compute_flops / compute_flops, compute_flops / run.compute_flops)

    return tuple(sorted(PUBLISHED_RUNS, key=distance)[:2])


def _banded(value: float) -> Interval:
    return Interval(p10=value / NEAR_OPTIMUM, p50=value, p90=value * NEAR_OPTIMUM)


def _own(law: tuple[float, float] | None, compute_flops: float) -> Interval | None:
    return None if law is None else _banded(law[0] * compute_flops ** law[1])
