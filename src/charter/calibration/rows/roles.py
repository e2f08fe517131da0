"""The other models of a PPO row: critic and reward model."""

from charter.calibration.rows.architecture import architecture_of
from charter.calibration.rows.measurement import Measurement
from charter.calibration.rows.model_names import family_of, model_named
from charter.calibration.rows.shapes import architecture_of_size
from charter.estimate.shapes.parameters import count_parameters
from charter.spec.architecture import Architecture

SAME = 0.05
"""Relative difference in size up to which two models are taken for one."""


def critic_architecture(row: Measurement) -> Architecture | None:
    """The value model of a row; None where there is none (group baseline) or the row does not say."""
    return _of_size(row, row.critic_params_b)


def reward_architecture(row: Measurement) -> Architecture | None:
    """The reward model of a row; None where there is none (rule reward) or the row does not say."""
    return _of_size(row, row.reward_params_b)


def _of_size(row: Measurement, params_b: float | None) -> Architecture | None:
    """A model of a size: the one named after the plus sign, the actor's own, or one of its family."""
    if not params_b:
        return None
    second = row.model.partition("+")[2]
    named = model_named(second) if second else None
    for shape in (named.architecture if named else None, architecture_of(row)):
        if shape is not None and abs(count_parameters(shape).total / (params_b * 1e9) - 1) < SAME:
            return shape
    return architecture_of_size(params_b, family_of(row.model))
