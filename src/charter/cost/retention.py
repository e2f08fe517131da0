"""Which checkpoints of a stage are kept, and what that costs over time."""

from dataclasses import dataclass

from charter.cost.storage import StorageTier, StoredBytes, storage_usd
from charter.units import SECONDS_PER_DAY


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What one stage keeps: full checkpoints while it runs, weights and records also afterwards."""

    full_bytes: float
    """Of the full checkpoints that exist together; gone when the stage is done."""
    weights_only_bytes: float
    """Of all the weights-only checkpoints at the end; they arrive evenly over the stage."""
    result_bytes: float
    """Final weights, records and logs."""
    days: float
    """That weights and results stay afterwards."""

    def usd(self, seconds: float, *, while_running: StorageTier, afterwards: StorageTier) -> float:
        """Cost of a stage of `seconds`: `price x sum GB x months`, tier by tier.

        Weights-only checkpoints grow linearly, so they count half of the stage. The class that results rest in bills
        its minimum duration. Requests and reading back are not in it.
        """
        stay = self.days * SECONDS_PER_DAY
        running = [
            StoredBytes(num_bytes=self.full_bytes, seconds=seconds),
            StoredBytes(num_bytes=self.weights_only_bytes / 2, seconds=seconds),
        ]
        if afterwards == while_running:
            through = StoredBytes(num_bytes=self.result_bytes, seconds=seconds + stay)
            return storage_usd([*running, through], while_running) + self._rest(self.weights_only_bytes, afterwards)
        written = StoredBytes(num_bytes=self.result_bytes, seconds=seconds)
        resting = self._rest(self.weights_only_bytes + self.result_bytes, afterwards)
        return storage_usd([*running, written], while_running) + resting

    def _rest(self, num_bytes: float, tier: StorageTier) -> float:
        seconds = self.days * SECONDS_PER_DAY
        return storage_usd([StoredBytes(num_bytes=num_bytes, seconds=seconds)], tier) if seconds else 0.0


def weights_only_count(num_checkpoints: float, *, every: int) -> int:
    """How many weights-only checkpoints stay when every `every`-th is kept; none with 0.

    >>> weights_only_count(28, every=4), weights_only_count(28, every=0)
    (7, 0)
    """
    return int(num_checkpoints // every) if every else 0
