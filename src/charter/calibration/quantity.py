"""Protocol of a predicted quantity for the generic parts (fit, score, interval)."""

from collections.abc import Sequence
from typing import Any, Protocol

from charter.calibration.rows.measurement import Measurement
from charter.physics.arrays import Array


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
