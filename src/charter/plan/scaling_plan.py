"""Plan of a budget, a compute or a wish: size, tokens, loss, settings by published rules, and its finish."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from charter.cost.monte_carlo import exactly
from charter.errors import InfeasibleError, UsageError
from charter.physics.scaling.laws import (
    FLOPS_PER_PARAMETER_AND_TOKEN,
    FittedLaw,
    Prediction,
    ServingAware,
    effective_tokens,
    minimised,
    serving_aware,
)
from charter.physics.terms import Interval
from charter.plan.search import divisibility
from charter.plan.training_run import (
    ENGINE,
    RunCluster,
    Schedule,
    TrainingRun,
    affordable_flops,
    at_utilisation,
    by_the_planner,
)
from charter.spec.architecture import Architecture

# -------- Learning rate and batch size by scale: published rules, and what published runs used.

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


DEFAULT_BATCH_TOKENS = 4e6
"""Llama-2 (arXiv:2307.09288, section 2.2): what the step is planned with unless told otherwise."""
BUDGET_ROUNDS, BUDGET_HALVINGS, BUDGET_REACH = 4, 10, 1.5
"""A budget is met by planning again at the size that the last efficiency affords, then by halving the distance within
this factor of it: another size takes another layout, so the cost has small jumps."""


@dataclass(frozen=True, kw_only=True)
class ScaleQuestion:
    """Given amounts, and what they run on; at least one of budget, compute, parameters and tokens."""

    law: FittedLaw
    clusters: tuple[RunCluster, ...]
    budget_usd: float | None = None
    compute_flops: float | None = None
    num_parameters: float | None = None
    num_tokens: float | None = None
    unique_tokens: float | None = None
    generated_tokens: float | None = None
    """Tokens that the model will answer in its life; for the size that is cheapest in all."""
    utilisation: tuple[float, str] | None = None
    """A stated share of the peak and its source; the planner's own step time when None."""
    batch_tokens: float = DEFAULT_BATCH_TOKENS
    architecture: Architecture | None = None


@dataclass(frozen=True, kw_only=True)
class Unfit:
    """A cluster on which the run has no schedule."""

    cluster: RunCluster
    reason: str

    @property
    def name(self) -> str:
        """The accelerator."""
        return self.cluster.accelerator.name


@dataclass(frozen=True, kw_only=True)
class ScalePlan:
    """The answer."""

    num_parameters: Interval
    num_tokens: Interval
    """The bands are those of the law: how far the best size and its tokens may lie for this compute."""
    optimal: bool
    """Whether the law chose the size; else it was given."""
    best_parameters: float
    best_tokens: float
    """The law's own choice for the same compute."""
    prediction: Prediction
    schedules: tuple[Schedule, ...]
    unfit: tuple[Unfit, ...]
    rules: tuple[Rule, ...]
    nearest: tuple[PublishedRun, ...]
    serving: ServingAware | None

    @property
    def compute_flops(self) -> float:
        """`6 N D`."""
        return FLOPS_PER_PARAMETER_AND_TOKEN * self.num_parameters.p50 * self.num_tokens.p50

    @property
    def tokens_per_parameter(self) -> float:
        """D over N."""
        return self.num_tokens.p50 / self.num_parameters.p50


def scale_plan(question: ScaleQuestion) -> ScalePlan:
    """Size and tokens, their loss, their schedule on every cluster, and the settings that go with them."""
    size, tokens = _sized(question)
    parameters, num_tokens = size.p50, tokens.p50
    compute = FLOPS_PER_PARAMETER_AND_TOKEN * parameters * num_tokens
    prediction = question.law.predict(parameters, num_tokens, question.unique_tokens)
    schedules, unfit = _schedules(question, parameters, num_tokens)
    best = _best(question.law, compute, question.unique_tokens)
    serving = None
    if question.generated_tokens:
        serving = serving_aware(
            question.law.law,
            num_parameters=parameters,
            num_tokens=num_tokens,
            generated_tokens=question.generated_tokens,
            training_utilisation=schedules[0].utilisation if schedules else 0.4,
        )
    return ScalePlan(
        num_parameters=size,
        num_tokens=tokens,
        optimal=question.num_parameters is None or question.num_tokens is None,
        best_parameters=best[0],
        best_tokens=best[1],
        prediction=prediction,
        schedules=schedules,
        unfit=unfit,
        rules=rules(
            parameters,
            num_tokens,
            loss=prediction.loss.p50,
            own_learning_rate=question.law.learning_rate,
            own_batch_tokens=question.law.batch_tokens,
        ),
        nearest=nearest_runs(compute),
        serving=serving,
    )


def _schedules(
    question: ScaleQuestion, parameters: float, tokens: float
) -> tuple[tuple[Schedule, ...], tuple[Unfit, ...]]:
    """The schedule on every cluster that has one; where none has, the first refusal is raised."""
    schedules: list[Schedule] = []
    unfit: list[Unfit] = []
    for cluster in question.clusters:
        try:
            schedules.append(_schedule(question, cluster, parameters, tokens))
        except InfeasibleError as error:
            unfit.append(Unfit(cluster=cluster, reason=_cause(question, cluster, parameters, tokens) or str(error)))
    if unfit and not schedules:
        raise InfeasibleError("\n".join(f"{item.cluster.count:,} x {item.name}: {item.reason}" for item in unfit))
    return tuple(schedules), tuple(unfit)


def _cause(question: ScaleQuestion, cluster: RunCluster, parameters: float, tokens: float) -> str:
    """Name numbers of nodes nearby that have a schedule, each with the batch that goes with it."""
    per_node = cluster.accelerator.devices_per_node

    def fits(nodes: int) -> bool:
        try:
            _schedule(question, replace(cluster, count=nodes * per_node), parameters, tokens)
        except InfeasibleError:
            return False
        return True

    return divisibility(cluster.num_nodes, per_node, ENGINE, fits)


def _schedule(question: ScaleQuestion, cluster: RunCluster, parameters: float, tokens: float) -> Schedule:
    run = TrainingRun(
        num_parameters=parameters,
        num_tokens=tokens,
        batch_tokens=question.batch_tokens,
        architecture=question.architecture,
    )
    if question.utilisation is not None:
        return at_utilisation(run, cluster, *question.utilisation)
    return by_the_planner(run, cluster)


def _sized(question: ScaleQuestion) -> tuple[Interval, Interval]:
    """Parameters and tokens: as given, or for a compute, or for what a budget affords."""
    size, tokens = question.num_parameters, question.num_tokens
    if size is not None and tokens is not None:
        if question.budget_usd is not None or question.compute_flops is not None:
            raise UsageError("size and tokens fix the compute: leave --budget and --compute out, or one of the two")
        return exactly(size), exactly(tokens)
    if question.compute_flops is not None and question.budget_usd is not None:
        raise UsageError("give --budget or --compute, not both")
    if question.compute_flops is not None:
        return _split(question, question.compute_flops)
    if question.budget_usd is None:
        return _split(question, _compute_of(question.law, size=size, tokens=tokens))
    if not question.clusters:
        raise UsageError("a budget is spent on accelerators: give --accelerator")
    return _split(question, _affordable(question, question.budget_usd))


def _affordable(question: ScaleQuestion, budget_usd: float) -> float:
    """The largest compute whose median cost on the first cluster is within the budget."""

    def made(compute: float) -> Schedule:
        size, tokens = _split(question, compute)
        return _schedule(question, question.clusters[0], size.p50, tokens.p50)

    compute = 1e22
    for _ in range(BUDGET_ROUNDS):
        compute = affordable_flops(budget_usd, made(compute), compute)
    low, high = compute / BUDGET_REACH, compute * BUDGET_REACH
    for _ in range(BUDGET_HALVINGS):
        middle = math.sqrt(low * high)
        within = affordable_flops(budget_usd, made(middle), middle) >= middle
        low, high = (middle, high) if within else (low, middle)
    return low


def _split(question: ScaleQuestion, compute: float) -> tuple[Interval, Interval]:
    """Parameters and tokens that spend a compute: one given, or the best pair."""
    if question.num_parameters is not None:
        tokens = compute / (FLOPS_PER_PARAMETER_AND_TOKEN * question.num_parameters)
        return exactly(question.num_parameters), exactly(tokens)
    if question.num_tokens is not None:
        return exactly(compute / (FLOPS_PER_PARAMETER_AND_TOKEN * question.num_tokens)), exactly(question.num_tokens)
    size, tokens_ = question.law.optimal(compute)
    if question.unique_tokens is None or tokens_.p50 <= question.unique_tokens:
        return size, tokens_
    best = _best(question.law, compute, question.unique_tokens)
    return _around(best[0], size), _around(best[1], tokens_)


def _best(law: FittedLaw, compute: float, unique_tokens: float | None) -> tuple[float, float]:
    """The law's best size and tokens for a compute; with limited data, repeats counted for what they are worth."""
    size, tokens = law.law.optimal(compute)
    if unique_tokens is None or tokens <= unique_tokens:
        return size, tokens

    def loss(log_size: float) -> float:
        seen = compute / (FLOPS_PER_PARAMETER_AND_TOKEN * math.exp(log_size))
        return law.law.loss(math.exp(log_size), effective_tokens(seen, unique_tokens))

    best = math.exp(minimised(loss, math.log(size) - 1.0, math.log(size) + 8.0))
    return best, compute / (FLOPS_PER_PARAMETER_AND_TOKEN * best)


def _compute_of(law: FittedLaw, *, size: float | None, tokens: float | None) -> float:
    """The compute for which the law would choose this size, or these tokens."""
    if size is None and tokens is None:
        raise UsageError("give --budget, --compute, --parameters, --tokens, or a pair of the last two")
    low, high = math.log(1e12), math.log(1e34)
    for _ in range(200):
        middle = (low + high) / 2
        parameters, num_tokens = law.law.optimal(math.exp(middle))
        below = parameters < size if size is not None else num_tokens < (tokens or 0.0)
        low, high = (middle, high) if below else (low, middle)
    parameters, num_tokens = law.law.optimal(math.exp(high))
    return FLOPS_PER_PARAMETER_AND_TOKEN * parameters * num_tokens


def _around(value: float, like: Interval) -> Interval:
    """A value with the relative band of another."""
    return Interval(p10=value * like.p10 / like.p50, p50=value, p90=value * like.p90 / like.p50)
