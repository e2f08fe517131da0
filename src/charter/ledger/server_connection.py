"""Connections to a PostgreSQL server that do not wait for ever: neither for an answer nor for a network that is gone.

Imports psycopg: import it lazily.
"""

import time
from collections.abc import Generator
from typing import Any

import psycopg

STATEMENT_SECONDS = 60.0
"""After so long the server ends a statement itself (`statement_timeout`), whether it computes or waits for a lock: what
the ledger asks of it takes milliseconds, and seconds at a million rows. Opening, which may migrate, is not bound."""
SILENCE_SECONDS = 75.0
"""After so long without a byte the connection is given up here: a server that is frozen, not gone, keeps its TCP
connection alive and ends no statement. More than `STATEMENT_SECONDS`, so that one that works has said so before."""
LOOK_SECONDS = 0.1
"""Between two looks at the clock while nothing is heard."""
PQGen = Generator[int, int, Any]
"""How psycopg asks to be told when a socket can be read or written: it yields what it waits for."""
TCP_SETTINGS = {
    "keepalives": 1,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""Seconds, and milliseconds for the last: a machine that is gone is noticed after half a minute. The kernel's own
settings take two hours for it, and a quarter of one for data that nobody acknowledges."""


class BoundConnection(psycopg.Connection[Any]):  # type: ignore[misc]  # psycopg is not checked
    """A connection that breaks when its server has been silent for too long while it owed an answer."""

    longest_silence_seconds: float | None = None
    """None waits for ever."""

    def wait(self, gen: PQGen, interval: float = LOOK_SECONDS, **more: Any) -> Any:
        """Wait for an answer; psycopg does so here for every statement, commit and rollback."""
        limit = self.longest_silence_seconds
        return super().wait(gen if limit is None else self._impatient(gen, limit), interval, **more)

    def _impatient(self, gen: PQGen, limit: float) -> PQGen:
        """The same waits, of which one that is too long ends the connection."""
        heard = time.monotonic()
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if ready:
                    heard = time.monotonic()
                elif time.monotonic() - heard > limit:
                    self.close()
                    raise psycopg.OperationalError(f"the server owed an answer and was silent for {limit:g} s")
                wanted = gen.send(ready)
        except StopIteration as done:
            return done.value
