"""A provider with OpenAI's batch interface: the answers of `fault_server`, asked by files, and its side of the bill."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web
from fault_server import Behaviour, FaultServer, fault_server, reply_to


class BatchServer(FaultServer):
    """The handler; batches are answered when they are looked at, and not before `is_open`."""

    def __init__(self, behaviour: Behaviour) -> None:
        super().__init__(behaviour)
        self.files: dict[str, bytes] = {}
        self.batches: dict[str, dict[str, Any]] = {}
        self.is_open = True
        self.answered_at_most: int | None = None
        """Requests of a file that are reached before it expires."""
        self.statuses: dict[int, int] = {}
        """Of requests of a file, by place, that fail."""
        self.loses_replies = 0
        """Batches that are begun, and whose reply is lost."""
        self.refuses = ""
        self.begun, self.looked_at = threading.Event(), threading.Event()
        """A batch was taken; its client has asked for it by its number."""

    def application(self) -> web.Application:
        """Routes of both interfaces."""
        app = super().application()
        app.router.add_post("/v1/files", self.upload)
        app.router.add_get("/v1/files/{file}/content", self.content)
        app.router.add_post("/v1/batches", self.begin)
        app.router.add_get("/v1/batches", self.listed)
        app.router.add_get("/v1/batches/{batch}", self.look)
        return app

    async def upload(self, request: web.Request) -> web.Response:
        """Take a file."""
        form = await request.post()
        assert form["purpose"] == "batch"
        name = f"file-{len(self.files)}"
        self.files[name] = form["file"].file.read()
        return web.json_response({"id": name})

    async def begin(self, request: web.Request) -> web.Response:
        """Take a batch."""
        order = await request.json()
        if self.refuses:
            return web.json_response({"error": {"message": self.refuses}}, status=400)
        name = f"batch_{len(self.batches)}"
        self.batches[name] = {**order, "id": name, "status": "in_progress"}
        self.begun.set()
        if self.loses_replies:
            self.loses_replies -= 1
            assert request.transport is not None
            request.transport.abort()
        return web.json_response(self.batches[name])

    async def listed(self, _: web.Request) -> web.Response:
        """All batches, the newest first."""
        return web.json_response({"data": list(self.batches.values())[::-1]})

    async def look(self, request: web.Request) -> web.Response:
        """One batch."""
        batch = self.batches[request.match_info["batch"]]
        self.looked_at.set()
        if self.is_open and batch["status"] == "in_progress":
            self._carry_out(batch)
        return web.json_response(batch)

    async def content(self, request: web.Request) -> web.Response:
        """A file."""
        return web.Response(body=self.files[request.match_info["file"]])

    def _carry_out(self, batch: dict[str, Any]) -> None:
        good, bad = [], []
        lines = [json.loads(line) for line in self.files[batch["input_file_id"]].splitlines()]
        for place, line in enumerate(lines):
            if self.answered_at_most is not None and place >= self.answered_at_most:
                error = {"code": "batch_expired", "message": "the window is over"}
                bad.append({"custom_id": line["custom_id"], "response": None, "error": error})
                continue
            status = self.statuses.get(place, 200)
            number, digest = len(self.requests), self.digest_of(line["body"])
            body = reply_to(line["body"], digest, self.behaviour, line["url"].endswith("chat/completions"), number)
            self.requests.append({"id": line["custom_id"], "billed": status == 200, **body["usage"]})
            if status != 200:
                body = {"error": {"message": "told to fail"}}
            result = {"custom_id": line["custom_id"], "response": {"status_code": status, "body": body}, "error": None}
            (good if status == 200 else bad).append(result)
        batch["status"] = "completed" if self.answered_at_most is None else "expired"
        self.answered_at_most, self.statuses = None, {}
        for key, results in (("output_file_id", good), ("error_file_id", bad)):
            if results:
                batch[key] = f"{batch['id']}-{key}"
                self.files[batch[key]] = "\n".join(map(json.dumps, results)).encode()


@contextmanager
def batch_server() -> Iterator[tuple[str, BatchServer]]:
    """A provider in a thread of this process: its address, and what it sees."""
    with fault_server(kind=BatchServer) as (url, server):
        assert isinstance(server, BatchServer)
        yield url, server
