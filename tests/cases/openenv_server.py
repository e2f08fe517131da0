"""A server that speaks OpenEnv's protocol, in a thread of the test: guess the number of the reset, higher or lower.

Messages and schema are those of openenv-core 0.3.0, which `tests/handover/openenv` runs.
"""

import asyncio
import json
import threading
from contextlib import contextmanager

from aiohttp import WSMsgType, web

SCHEMA = {"action": {"title": "GuessAction", "properties": {"guess": {"type": "integer"}}, "required": ["guess"]}}


class GuessServer:
    """Counts sessions and remembers every message; `forgetful` answers later sessions otherwise."""

    def __init__(self):
        self.messages, self.opened, self.open_now, self.forgetful, self.broken = [], 0, 0, False, False
        self.url = ""

    async def schema(self, _):
        return web.json_response(SCHEMA)

    async def session(self, request):
        connection = web.WebSocketResponse()
        await connection.prepare(request)
        self.opened += 1
        self.open_now += 1
        number, tries = 0, 0
        async for message in connection:
            if message.type is not WSMsgType.TEXT:
                break
            asked = json.loads(message.data)
            self.messages.append(asked)
            if self.broken:
                await connection.send_json(
                    {"type": "error", "data": {"code": "EXECUTION_ERROR", "message": "it broke"}}
                )
            elif asked["type"] == "reset":
                number, tries = asked["data"].get("number", 7), 0
                await self._say(connection, f"guess up to 9, seed {asked['data']['seed'] > 0}", None, False)
            elif not isinstance(asked["data"].get("guess"), int):
                errors = [{"loc": ["guess"], "msg": "must be an integer"}]
                error = {"code": "VALIDATION_ERROR", "message": "Invalid message", "errors": errors}
                await connection.send_json({"type": "error", "data": error})
            else:
                tries += 1
                guess = asked["data"]["guess"]
                hint = "right" if guess == number else "higher" if guess < number else "lower"
                late = f" session {self.opened}" if self.forgetful else ""
                await self._say(connection, f"{hint}, try {tries}{late}", float(guess == number), guess == number)
        self.open_now -= 1
        return connection

    async def _say(self, connection, text, reward, done):
        data = {"observation": {"text": text}, "reward": reward, "done": done}
        await connection.send_json({"type": "observation", "data": data})


@contextmanager
def guess_server():
    """A server at an address of this machine; ended, and its thread with it, at the end."""
    server, loop, ready = GuessServer(), asyncio.new_event_loop(), threading.Event()
    application = web.Application()
    application.add_routes([web.get("/schema", server.schema), web.get("/ws", server.session)])
    runner = web.AppRunner(application, shutdown_timeout=1)

    async def start():
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        ready.set()

    def serve():
        loop.run_until_complete(start())
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())

    thread = threading.Thread(target=serve)
    thread.start()
    ready.wait()
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
