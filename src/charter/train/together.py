"""What the processes of a stage do together: where one fails, all fail, so that none waits for another for ever."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from charter.errors import CharterError
from charter.models.ranks import Ranks

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Together:
    """Every process calls the same methods in the same order."""

    ranks: Ranks

    def each(self, work: Callable[[], _Result]) -> list[_Result]:
        """Every process's result of its own work, by rank."""
        if self.ranks.world_size == 1:
            return [work()]
        try:
            outcome: tuple[Any, Exception | None] = (work(), None)
        except Exception as error:
            outcome = (None, error)
        outcomes = self.ranks.gather(outcome)
        errors = [error for _, error in outcomes if error is not None]
        if errors:
            raise next((error for error in errors if isinstance(error, CharterError)), errors[0])
        return [value for value, _ in outcomes]

    def first(self, work: Callable[[], _Result]) -> _Result:
        """What rank 0 alone does, and its result in every process."""
        return self.each(lambda: work() if self.ranks.is_first else None)[0]  # type: ignore[return-value]
