"""A response that remembers its connection, which aiohttp gives back to its pool as soon as the last byte is there.

A server that sent one reply too many is out of step: every later reply on that connection would be taken for the one
after it. So a connection on which nonsense came is closed.
"""

import asyncio

from aiohttp import ClientResponse
from aiohttp.connector import Connection


class NotingResponse(ClientResponse):
    """As its base class; `line` is the connection it came over."""

    line: asyncio.BaseTransport | None = None

    async def start(self, connection: Connection) -> "NotingResponse":
        """Read the head of the reply."""
        self.line = connection.transport
        await super().start(connection)
        return self
