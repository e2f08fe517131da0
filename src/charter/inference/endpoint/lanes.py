"""The servers of a pool: which of them a request goes to, and which are left out for a while.

A request prefers the server that its prefix falls to by rendezvous hashing (Thaler and Ravishankar 1998, "Using
name-based mappings to increase hit rates"), so that a server sees a prefix again; the next one takes over where that
one is full or has far more to do than the others (bounded loads, Mirrokni et al. 2018, arXiv:1608.01350). One that
fails again and again is left out until it answers a free question.
"""

import asyncio
import hashlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from charter.errors import StageError
from charter.inference.endpoint.gate import AtOnce
from charter.inference.endpoint.parsing import one_line
from charter.inference.endpoint.rules import TryAgain
from charter.inference.endpoint.transport import Transport

LOAD_FACTOR = 1.25
"""How much more than the average a server may have: the example of Mirrokni et al."""
FIRST_AWAY_SECONDS = 1.0
MOST_AWAY_SECONDS = 30.0
UNWATCHED_ROUNDS = 2
"""Rounds' worth of answers that a server may give unwatched: one until a round is due, one while it is out."""
REMEMBERED_REPLIES = 4096
"""Ids of replies: a server that repeats an old one repeats one of the last few."""


class Lane:
    """One server: what it has to do, and how it is."""

    def __init__(self, endpoint: str, most_at_once: int, *, look_every: int | None = None) -> None:
        self.endpoint = endpoint.rstrip("/")
        self.at_once = AtOnce(most_at_once)
        self.in_flight = 0
        self.closed_until = float("-inf")
        """Nothing is sent before: the server said so, or is away."""
        self.failed_checks = 0
        """In a row; while there is one, the server is away and only its health is asked for."""
        self.last_trouble = ""
        self.is_known = look_every is None
        """The model behind it is the one that is asked for, as far as was looked."""
        self.unwatched = 0
        """Answers since it was last looked at."""
        self._look_every = look_every
        self._replies: OrderedDict[str, int] | None = OrderedDict()

    @property
    def is_away(self) -> bool:
        """Return True if it could not be reached when last tried."""
        return self.failed_checks > 0

    def has_room(self, now: float) -> bool:
        """Return True if one more request may be sent."""
        if not self.is_known or self.is_away or now < self.closed_until:
            return False
        if self._look_every is not None and self.unwatched >= UNWATCHED_ROUNDS * self._look_every:
            return False  # its round of questions is late, and so would be the news of another model
        return self.in_flight < int(self.at_once.limit)

    def close_for(self, seconds: float, now: float) -> None:
        """Send nothing for a while."""
        self.closed_until = max(self.closed_until, now + seconds)

    def not_reached(self, now: float, why: str) -> None:
        """It cannot be reached: leave it out, longer every time."""
        self.failed_checks += 1
        self.last_trouble = why
        away = min(MOST_AWAY_SECONDS, FIRST_AWAY_SECONDS * 2.0 ** min(self.failed_checks - 1, 20))
        self.closed_until = now + away

    def reached(self) -> None:
        """It answers; it may have been started with other weights meanwhile."""
        self.failed_checks = 0
        self.is_known = self._look_every is None

    def repeats(self, reply_id: str, body: bytes) -> bool:
        """Return True if a reply is an earlier one over again: same id, same bytes.

        A server that gives one id to different replies numbers them by habit; its ids are then not looked at.
        """
        if self._replies is None or not reply_id:
            return False
        size = hash(body)
        before = self._replies.get(reply_id)
        if before is None:
            self._replies[reply_id] = size
            if len(self._replies) > REMEMBERED_REPLIES:
                self._replies.popitem(last=False)
            return False
        if before != size:
            self._replies = None
            return False
        return True


def lane_for(prefix: str, lanes: Sequence[Lane], now: float) -> Lane | None:
    """The server for a request that begins so; None when none has room."""
    if len(lanes) == 1:
        return lanes[0] if lanes[0].has_room(now) else None
    able = [lane for lane in lanes if lane.has_room(now)]
    if not able:
        return None
    bound = LOAD_FACTOR * (1 + sum(lane.in_flight for lane in able)) / len(able)
    ranked = sorted(able, key=lambda lane: _weight(prefix, lane.endpoint), reverse=True)
    return next((lane for lane in ranked if lane.in_flight < bound), ranked[0])


def _weight(prefix: str, endpoint: str) -> bytes:
    text = f"{endpoint}\0{prefix}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=8).digest()


UNWELL_AFTER = 5
"""Failures in a row after which a server's health is asked for; at 20 % failures once in 3,000 requests."""
LONGEST_TROUBLE = 200


class Health:
    """Watches the servers of one model."""

    def __init__(
        self,
        name: str,
        lanes: Sequence[Lane],
        transport: Transport,
        *,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        when_back: Callable[[], None],
        when_lost: Callable[[StageError], None],
        most_checks: int,
    ) -> None:
        self._name, self._lanes, self._transport = name, lanes, transport
        self._spawn, self._when_back, self._when_lost = spawn, when_back, when_lost
        self._most_checks = most_checks
        self._failures: Counter[str] = Counter()

    def answered(self, lane: Lane) -> None:
        """A server gave a valid reply."""
        self._failures[lane.endpoint] = 0

    def failed(self, step: TryAgain, lane: Lane, now: float) -> None:
        """A server failed; one that only has too much to do, or talks nonsense, is there."""
        if step.cause in ("busy", "invalid") or lane.is_away:
            return
        self._failures[lane.endpoint] += 1
        if step.cause == "connect" or self._failures[lane.endpoint] >= UNWELL_AFTER:
            self._failures[lane.endpoint] = 0
            lane.not_reached(now, one_line(step.detail, LONGEST_TROUBLE))
            self._spawn(self._watch(lane))

    async def _watch(self, lane: Lane) -> None:
        """Ask for a server's health until it is back, or all are away for good."""
        loop = asyncio.get_running_loop()
        while lane.is_away:
            await asyncio.sleep(lane.closed_until - loop.time())
            if await self._transport.is_alive(f"{lane.endpoint}/models"):
                lane.reached()
                self._when_back()
                return
            lane.not_reached(loop.time(), lane.last_trouble)
            if all(other.failed_checks >= self._most_checks for other in self._lanes):
                places = "; ".join(f"{other.endpoint} ({other.last_trouble})" for other in self._lanes)
                self._when_lost(
                    StageError(f"no server answers for {self._name}: {places}; run again once one does, or give others")
                )
                return
