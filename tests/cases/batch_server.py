"""Providers with a batch interface: the answers of `fault_server`, asked by files, and their side of the bill."""

import itertools
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from aiohttp import web
from fault_server import Behaviour, FaultServer, fault_server, message_of, reply_to, wrong_in_message


class BatchServer(FaultServer):
    """OpenAI's; batches are answered when they are looked at, and not before `is_open`."""

    api = "chat"

    def __init__(self, behaviour: Behaviour) -> None:
        super().__init__(behaviour)
        self.files: dict[str, bytes] = {}
        self.batches: dict[str, dict[str, Any]] = {}
        self.is_open = True
        self.answered_at_most: int | None = None
        """Requests of a file that are reached before it expires."""
        self.statuses: dict[int, int] = {}
        """Of requests of a file, by place, that fail."""
        self.errors: dict[int, dict[str, str]] = {}
        """The same of Anthropic's, which tells errors."""
        self.numbers = itertools.count()
        self.loses_replies = 0
        """Batches that are begun, and whose reply is lost."""
        self.loses_orders = 0
        """Batches that are begun only after the list was read, their reply lost."""
        self.drops_orders = 0
        """Batches that are never begun, their reply lost."""
        self.ends_late = False
        """Whether those have ended when they are first listed."""
        self.busy = 0
        """Orders that are turned away for 17 seconds."""
        self.late: list[dict[str, Any]] = []
        self.cancelled: list[str] = []
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
        app.router.add_post("/v1/batches/{batch}/cancel", self.cancel)
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
        wrong = wrong_in_message(request, order)
        assert wrong is None, wrong
        if self.busy:
            self.busy -= 1
            return web.json_response({"error": {"message": "slowly"}}, status=429, headers={"Retry-After": "17"})
        if self.drops_orders or self.loses_orders:
            if self.drops_orders:
                self.drops_orders -= 1
            else:
                self.loses_orders -= 1
                self.late.append(order)
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        for late in self.late:
            name = f"batch_{next(self.numbers)}"
            self.batches[name] = self.new_batch(name, late)
            if self.ends_late:
                self._carry_out(self.batches[name])
        self.late.clear()
        name = f"batch_{next(self.numbers)}"
        self.batches[name] = self.new_batch(name, order)
        self.begun.set()
        if self.loses_replies:
            self.loses_replies -= 1
            assert request.transport is not None
            request.transport.abort()
        return web.json_response(self.batches[name])

    def new_batch(self, name: str, order: dict[str, Any]) -> dict[str, Any]:
        """What is said of a batch that has begun."""
        return {**order, "id": name, "status": "in_progress", "created_at": int(datetime.now(UTC).timestamp())}

    async def listed(self, request: web.Request) -> web.Response:
        """A page of all batches, the newest first."""
        batches = list(self.batches.values())[::-1]
        last = request.query.get("after") or request.query.get("after_id")
        first = 1 + [batch["id"] for batch in batches].index(last) if last else 0
        end = first + int(request.query["limit"])
        return web.json_response({"data": batches[first:end], "has_more": end < len(batches)})

    async def look(self, request: web.Request) -> web.Response:
        """One batch."""
        batch = self.batches[request.match_info["batch"]]
        self.looked_at.set()
        if self.is_open and self.status_of(batch) == "in_progress":
            self._carry_out(batch)
        return web.json_response(batch)

    async def cancel(self, request: web.Request) -> web.Response:
        """Give one up."""
        self.cancelled.append(request.match_info["batch"])
        return web.json_response({**self.batches[self.cancelled[-1]], "status": "cancelling"})

    async def content(self, request: web.Request) -> web.Response:
        """A file."""
        return web.Response(body=self.files[request.match_info["file"]])

    def status_of(self, batch: dict[str, Any]) -> str:
        """How far a batch is."""
        return str(batch["status"])

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


class MessageBatchServer(BatchServer):
    """Anthropic's: a batch holds its requests, has no name, and tells results in no order."""

    api = "messages"

    def application(self) -> web.Application:
        """Routes of the API, and of its batches."""
        app = FaultServer.application(self)
        app.router.add_post("/v1/messages/batches", self.begin)
        app.router.add_get("/v1/messages/batches", self.listed)
        app.router.add_get("/v1/messages/batches/{batch}", self.look)
        app.router.add_get("/v1/messages/batches/{batch}/results", self.results)
        return app

    def new_batch(self, name: str, order: dict[str, Any]) -> dict[str, Any]:
        """What is said of a batch that has begun, which is nothing of its requests."""
        ids = [item["custom_id"] for item in order["requests"]]
        assert len(set(ids)) == len(ids)
        assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", each) for each in ids)
        self.files[name] = json.dumps(order["requests"]).encode()
        counts = {"processing": len(ids), "succeeded": 0, "errored": 0, "canceled": 0, "expired": 0}
        return {
            "id": name,
            "type": "message_batch",
            "processing_status": "in_progress",
            "request_counts": counts,
            "created_at": datetime.now(UTC).isoformat().replace("+00:00", "Z"),
            "archived_at": None,
            "results_url": None,
        }

    def status_of(self, batch: dict[str, Any]) -> str:
        """How far a batch is."""
        return str(batch["processing_status"])

    async def results(self, request: web.Request) -> web.Response:
        """The results of a batch that has ended."""
        name = request.match_info["batch"]
        if self.batches[name]["processing_status"] != "ended" or self.batches[name]["archived_at"]:
            return web.json_response({"type": "error", "error": {"type": "not_found_error"}}, status=404)
        return web.Response(body=self.files[f"{name}-results"])

    def _carry_out(self, batch: dict[str, Any]) -> None:
        results, counts = [], dict.fromkeys(batch["request_counts"], 0)
        for place, item in enumerate(json.loads(self.files[batch["id"]])):
            result: dict[str, Any] = {"type": "expired"}
            if place in self.errors:
                result = {"type": "errored", "error": {"type": "error", "error": self.errors[place]}}
            elif self.answered_at_most is None or place < self.answered_at_most:
                number, digest = len(self.requests), self.digest_of(item["params"])
                reply = reply_to(item["params"], digest, self.behaviour, True, number)
                result = {"type": "succeeded", "message": message_of(reply)}
                self.requests.append({"id": item["custom_id"], "billed": True, **reply["usage"]})
            counts[result["type"]] += 1
            results.append({"custom_id": item["custom_id"], "result": result})
        self.answered_at_most, self.errors = None, {}
        self.files[f"{batch['id']}-results"] = "\n".join(map(json.dumps, results[::-1])).encode()
        elsewhere = f"https://elsewhere.example/v1/messages/batches/{batch['id']}/results"
        batch |= {"processing_status": "ended", "request_counts": counts, "results_url": elsewhere}


@contextmanager
def batch_server(api: str = "chat") -> Iterator[tuple[str, BatchServer]]:
    """A provider in a thread of this process: its address, and what it sees."""
    with fault_server(kind=MessageBatchServer if api == "messages" else BatchServer) as (url, server):
        assert isinstance(server, BatchServer)
        yield url, server
