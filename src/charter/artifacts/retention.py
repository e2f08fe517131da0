"""Which checkpoints may go: pure, from what is there."""

from collections.abc import Iterable
from dataclasses import dataclass

from charter.artifacts.position import Position


@dataclass(frozen=True, kw_only=True)
class Held:
    """A checkpoint as retention sees it."""

    position: Position
    verified: bool
    """Written or checked by this very process."""
    metric: float | None = None
    """How good the model was, higher is better."""
    pinned: bool = False


@dataclass(frozen=True, kw_only=True)
class Retention:
    """What is kept: the newest `keep_last`, every `keep_every`-th step, the best, what is pinned or gone back to."""

    keep_last: int
    keep_every: int | None = None
    keep_best: bool = False
    go_back_steps: int | None = None
    """How far training may have to go back from the newest one (`guard: on_divergence: roll_back`)."""

    def removable(self, held: Iterable[Held]) -> list[Position]:
        """The positions that may be removed, oldest first.

        Only what is older than `keep_last` verified checkpoints ever goes, and nothing while the newest is not
        verified: so at least one verified checkpoint is left by any sequence of saves and removals.
        """
        newest_first = sorted(held, key=lambda item: item.position, reverse=True)
        if not newest_first or not newest_first[0].verified:
            return []
        kept = {item.position for item in newest_first if item.pinned or self._is_on_the_grid(item.position)}
        if self.keep_best and (best := _best(newest_first)) is not None:
            kept.add(best)
        kept |= self._to_go_back_to([item.position for item in reversed(newest_first)])
        verified, removable = 0, []
        for item in newest_first:
            if verified >= max(1, self.keep_last) and item.position not in kept:
                removable.append(item.position)
            verified += item.verified
        return removable[::-1]

    def _to_go_back_to(self, oldest_first: list[Position]) -> set[Position]:
        """The newest one that lies far enough back, and the one after it, which will lie far enough back next."""
        if self.go_back_steps is None:
            return set()
        limit = Position(max(0, oldest_first[-1].step - self.go_back_steps))
        early = [item for item in oldest_first if item <= limit]
        return {*early[-1:], *oldest_first[len(early) : len(early) + 1]}

    def _is_on_the_grid(self, position: Position) -> bool:
        return self.keep_every is not None and position.part == 0 and position.step % self.keep_every == 0


def _best(newest_first: Iterable[Held]) -> Position | None:
    """The newest of those with the highest metric."""
    best: Held | None = None
    for item in newest_first:
        if item.metric is not None and (best is None or best.metric is None or item.metric > best.metric):
            best = item
    return None if best is None else best.position
