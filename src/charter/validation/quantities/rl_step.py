"""Seconds of measured reinforcement-learning steps and of their phases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from charter.physics.columns import Array, array
from charter.physics.constants import ServingConstants
from charter.physics.generation import Drain, issue_of, rollout_terms
from charter.physics.runs import RlConstants, RlPhases, generate_seconds, rl_step_terms
from charter.physics.serving_devices import ServingDevice
from charter.physics.serving_passes import ServedModel
from charter.validation.quantities.rl_cases import RlCase, rl_case
from charter.validation.rows.measurement import Measurement
from charter.validation.rows.metrics import rl_metric


@dataclass(frozen=True, kw_only=True)
class PreparedSteps:
    """Rows as columns; `part` is which seconds of a step a row measured."""

    phases: RlPhases
    part: Array
    tokens: Array
    """Tokens of a step that a rate counts, else 0."""
    scale: Array
    """From seconds to the unit of a time."""


PARTS = ("step", "generate", "update", "other", "score", "weight sync")


class RlStep:
    """Whole steps and phases; see `charter.validation.quantity.Quantity`."""

    name = "rl step"
    row_noise = 0.1
    """Scatter of rows of one source around a calibrated model, in logarithms (judgement)."""
    constants = RlConstants

    def accepts(self, row: Measurement) -> bool:
        """Rows of kind ppo with a time or a rate of one step."""
        return row.kind == "ppo" and rl_metric(row) is not None

    def case(self, row: Measurement) -> RlCase:
        """The phases behind a row."""
        return rl_case(row)

    def stack(self, case: RlCase) -> str:
        """The framework."""
        return case.stack.label

    def prepare(self, cases: Sequence[RlCase]) -> PreparedSteps:
        """Cases as columns, with the rollout of each computed once."""
        return PreparedSteps(
            phases=phases_of(cases),
            part=array([PARTS.index(case.metric if case.metric in PARTS else "step") for case in cases]),
            scale=array([case.scale for case in cases]),
            tokens=array([0.0 if case.metric in PARTS else case.tokens_counted for case in cases]),
        )

    def predict(self, prepared: PreparedSteps, constants: RlConstants) -> Array:
        """Seconds, or tokens per second."""
        steps = rl_step_terms(prepared.phases, constants)
        generate = generate_seconds(prepared.phases, constants)
        other = steps.part("score", "weight sync", "other")
        parts = (
            steps.total,
            generate,
            steps.part("update"),
            other,
            steps.part("score"),
            steps.part("weight sync"),
        )
        seconds = np.choose(prepared.part.astype(int), parts)
        rate = prepared.tokens / np.maximum(seconds, 1e-12)
        return array(np.where(prepared.tokens > 0, rate, prepared.scale * seconds))


def phases_of(cases: Sequence[RlCase]) -> RlPhases:
    """Plain phases of cases: rollouts by the serving model, the rest as read."""
    rollout = rollout_terms(
        ServedModel.stacked([case.model for case in cases]),
        ServingDevice.stacked([case.group for case in cases]),
        issue_of([case.engine for case in cases]),
        _columns(len(cases)),
        sequences=array([case.sequences for case in cases]),
        limit=array([case.limit for case in cases]),
        prompt=array([case.prompt for case in cases]),
        mean_tokens=array([case.lengths.mean for case in cases]),
        drain=Drain.of([case.lengths for case in cases], [min(case.sequences, case.limit) for case in cases]),
    ).total
    generates = array([case.algorithm.generates for case in cases])
    return RlPhases(
        generate=array(rollout * generates),
        score=array([case.score_seconds for case in cases]),
        update=array([case.update_seconds for case in cases]),
        refit_bytes=array([case.refit_bytes for case in cases]),
        resamples=array([case.algorithm.resamples for case in cases]),
        side_by_side=array([case.side_by_side for case in cases]),
        colocated=array([case.colocated for case in cases]),
        overhead=array([case.stack.overhead for case in cases]),
    )


def _columns(count: int) -> ServingConstants:
    """Default constants with one value per case, so that they take the axis of a drain like everything else."""
    plain = ServingConstants()
    return ServingConstants(
        **{name: np.full(count, float(getattr(plain, name))) for name in plain.__dataclass_fields__}
    )


RL_STEP = RlStep()
