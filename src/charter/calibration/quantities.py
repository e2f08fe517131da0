"""Every quantity that Charter predicts and can be checked against measurements."""

from charter.calibration.generation import GENERATION
from charter.calibration.measurement import Measurement
from charter.calibration.memory import INFERENCE_MEMORY, TRAINING_MEMORY
from charter.calibration.quantity import Quantity
from charter.calibration.rl_step import RL_STEP
from charter.calibration.run_total import RUN_TOTAL
from charter.calibration.training_time import QUANTITY as TRAINING_TIME

QUANTITIES: tuple[Quantity, ...] = (TRAINING_TIME, TRAINING_MEMORY, INFERENCE_MEMORY, GENERATION, RL_STEP, RUN_TOTAL)


def quantity_of(row: Measurement) -> Quantity | None:
    """The quantity a row belongs to."""
    return next((quantity for quantity in QUANTITIES if quantity.accepts(row)), None)
