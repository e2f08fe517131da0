"""Ties: when two layouts of one model on one kind of machine count as equally fast, and which is taken."""

from math import exp

from charter.plan.options.question import Question
from charter.plan.physics.engine_knowledge import EngineKnowledge
from charter.plan.physics.knowledge import time_group
from charter.spec.layout import Layout

ALIKE = 1.05
"""Among layouts within 5 % of the fastest the one that splits the model least is taken: it is the easiest to run, and
no prediction tells 5 % apart."""
RATIO_SHARE = 1.08
"""Width of the ratio of two layouts' times against the width of either. Independent errors would give 1.41, errors that
go together wholly 0; 1.08 is a correlation of 0.42. Measured on pairs of layouts of the same model on the same machines
whose predictions lie within 25 % (vTrain's runs, 385 pairs, constants fitted without: benchmarks/plan_regret.py)."""


def splits(layout: Layout) -> tuple[int, ...]:
    """Return how much a layout divides a model, the least first; ties are broken in this order."""
    offload = layout.offload_optimizer + layout.offload_parameters
    parts = (layout.pipeline, layout.tensor, layout.context, layout.expert)
    return (*parts, offload, layout.interleave, layout.replicas, int(layout.zero), int(layout.sequence_parallel))


def tied_limit(question: Question, engine: EngineKnowledge) -> float:
    """Return how much slower than the fastest a tied layout may be estimated: `exp(share x half-width)`."""
    moe = any(role.architecture.mixture is not None for role in question.work.roles)
    quantity, group = time_group(question.stage, moe=moe)
    return exp(RATIO_SHARE * question.knowledge.half_width(quantity, group))
