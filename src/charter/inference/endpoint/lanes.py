"""The servers of a pool: which of them a request goes to, and which are left out for a while.

A request prefers the server that its prefix falls to by rendezvous hashing (Thaler and Ravishankar 1998, "Using
name-based mappings to increase hit rates"), so that a server sees a prefix again; the next one takes over where that
one is full or has far more to do than the others (bounded loads, Mirrokni et al. 2018, arXiv:1608.01350).
"""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence

from charter.inference.endpoint.pacing import AtOnce

LOAD_FACTOR = 1.25
"""How much more than the average a server may have: the example of Mirrokni et al."""
FIRST_AWAY_SECONDS = 1.0
MOST_AWAY_SECONDS = 30.0
REMEMBERED_REPLIES = 4096
"""Ids of replies: a server that repeats an old one repeats one of the last few."""


class Lane:
    """One server: what it has to do, and how it is."""

    def __init__(self, endpoint: str, most_at_once: int, *, is_watched: bool = False) -> None:
        self.endpoint = endpoint.rstrip("/")
        self.at_once = AtOnce(most_at_once)
        self.in_flight = 0
        self.closed_until = float("-inf")
        """Nothing is sent before: the server said so, or is away."""
        self.failed_checks = 0
        """In a row; while there is one, the server is away and only its health is asked for."""
        self.last_trouble = ""
        self.is_known = not is_watched
        """The model behind it is the one that is asked for, as far as was looked."""
        self.unwatched = 0
        """Answers since it was last looked at."""
        self._is_watched = is_watched
        self._replies: OrderedDict[str, int] | None = OrderedDict()

    @property
    def is_away(self) -> bool:
        """Return True if it could not be reached when last tried."""
        return self.failed_checks > 0

    def has_room(self, now: float) -> bool:
        """Return True if one more request may be sent."""
        return (
            self.is_known and not self.is_away and now >= self.closed_until and self.in_flight < int(self.at_once.limit)
        )

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
        self.is_known = not self._is_watched

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
