"""Every quantity that Charter predicts and can be checked against measurements."""

from charter.calibration.predictions.generation import GENERATION
from charter.calibration.predictions.memory import INFERENCE_MEMORY, TRAINING_MEMORY
from charter.calibration.predictions.rl_step import RL_STEP
from charter.calibration.predictions.run_total import RUN_TOTAL
from charter.calibration.predictions.training_time import TRAINING_TIME
from charter.calibration.quantity import Quantity
from charter.calibration.rows.measurement import Measurement

QUANTITIES: tuple[Quantity, ...] = (TRAINING_TIME, TRAINING_MEMORY, INFERENCE_MEMORY, GENERATION, RL_STEP, RUN_TOTAL)


def quantity_of(row: Measurement) -> Quantity | None:
    """The quantity a row belongs to."""
    return next((quantity for quantity in QUANTITIES if quantity.accepts(row)), None)
