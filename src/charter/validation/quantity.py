"""The quantities that Charter predicts and measurements can check, and what one is to the generic parts."""

from collections.abc import Sequence
from typing import Any, Protocol

from charter.physics.columns import Array
from charter.validation.quantities.generation import GENERATION
from charter.validation.quantities.memory import INFERENCE_MEMORY, TRAINING_MEMORY
from charter.validation.quantities.rl_step import RL_STEP
from charter.validation.quantities.run_total import RUN_TOTAL
from charter.validation.quantities.training_time import TRAINING_TIME
from charter.validation.rows.measurement import Measurement


class Quantity(Protocol):
    """One family of predictions (training time, training memory, generation, ...) with its own constants.

    `predict` is called with cases of many sources at once and with constants that are arrays over the cases; it returns
    the prediction of every case in the metric and unit of its row, and must be positive. It must be fast, since a fit
    calls it once per constant and iteration with all rows; what does not depend on the constants belongs in `prepare`.
    """

    @property
    def name(self) -> str:
        """Return what is predicted, in one or two words."""

    @property
    def constants(self) -> type:
        """A frozen dataclass of `charter.physics.constants.constant` fields."""

    def accepts(self, row: Measurement) -> bool:
        """Return True if rows of this kind and metric belong to this quantity."""

    def case(self, row: Measurement) -> Any:
        """The configuration behind a row, every gap filled; raises Refusal with the reason."""

    def stack(self, case: Any) -> str:
        """Name of the software stack whose constants apply (`megatron-core`, `fsdp`, ...)."""

    def prepare(self, cases: Sequence[Any]) -> Any:
        """Cases as arrays, ready for `predict`."""

    def predict(self, prepared: Any, constants: Any) -> Array:
        """Predictions in the metric and unit of the rows."""


QUANTITIES: tuple[Quantity, ...] = (TRAINING_TIME, TRAINING_MEMORY, INFERENCE_MEMORY, GENERATION, RL_STEP, RUN_TOTAL)


def quantity_of(row: Measurement) -> Quantity | None:
    """The quantity a row belongs to."""
    return next((quantity for quantity in QUANTITIES if quantity.accepts(row)), None)
