"""Connection to a PostgreSQL server that breaks when the server is silent for too long.

Imports psycopg, which only the extra `postgres` brings: import it lazily.
"""

import time
from collections.abc import Generator
from typing import Any

import psycopg

LOOK_SECONDS = 0.1
"""Between two looks at the clock while nothing is heard."""
PQGen = Generator[int, int, Any]
"""How psycopg asks to be told when a socket can be read or written: it yields what it waits for."""


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
