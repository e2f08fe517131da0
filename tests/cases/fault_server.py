"""A real server, of OpenAI's API and of Anthropic's, whose answers hang on the request alone; it fails when told to.

    python tests/cases/fault_server.py --port 0 --log requests.jsonl --faults 0.2 --seed 7

prints its address. Every request is a line of the log, on disk before the reply: the provider's side of the bill.
`--script 429,ok,nan` says what happens to the first requests; after it faults are drawn by `--faults` and `--seed`,
for each question anew every time it is asked, and the same in every run.
"""

import argparse
import asyncio
import hashlib
import json
import math
import os
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from charter.physics.identity_questions import QUESTIONS

MODEL = "fault-judge-1"
FAULTS = (
    *("429", "429-after", "429-date", "500", "502", "503", "504"),
    *("slow-loris", "hang", "half-closed", "reset", "reset-mid-body", "truncated", "nan", "infinite"),
    *("duplicate-key", "duplicate-reply", "two-choices", "no-choice", "empty", "prose", "no-usage", "negative-tokens"),
    *("surrogate", "deep", "html", "compressed", "huge-int", "swollen"),
)
"""After these the same question may be asked again."""
DRAWN = tuple(name for name in FAULTS if name not in ("slow-loris", "hang", "429-date", "duplicate-reply"))
"""Those that are drawn: the others take seconds, or need an earlier reply."""
OTHER_FAULTS = (
    "late-echo",
    "wrong-model",
    "redirect",
    "endless",
    "400",
    "401",
    "404",
    "filtered",
    "refusal",
    "content-filter",
)
STATUSES = tuple(
    f"status-{number}{billed}"
    for number in (408, 409, 423, 500, 501, 502, *range(504, 512), *range(520, 528), 529, 530, 598, 599)
    for billed in ("", "-billed")
)
"""Any of these may come before or after the work was done; nobody but the provider knows."""
STATUSES_OF_ANSWERS = tuple(f"status-{number}-billed" for number in (201, 202, 203, 206, 207))
STATUSES_OF_REFUSAL = ("status-425", "status-429", "status-503")
LAST_STATUSES = tuple(f"status-{number}" for number in (400, 401, 402, 403, 404, 405, 410, 413, 415, 422, 431, 451))
"""After these nothing more is asked."""
UNBILLED = ("429", "429-after", "429-date", "500", "502", "503", "504", "reset", "redirect", "400", "401", "404")
STATUS = {"400": 400, "401": 401, "404": 404, "429": 429, "500": 500, "502": 502, "503": 503, "504": 504}


@dataclass
class Behaviour:
    """What a server does."""

    log: Path | None = None
    faults: float = 0.0
    seed: int = 0
    script: list[str] = field(default_factory=list)
    elsewhere: str = "http://127.0.0.1:9/v1"
    seconds: float = 0.0
    """Before every answer."""
    slow_every: int = 0
    """Every so-many-th request takes `slow_seconds`."""
    slow_seconds: float = 2.0
    model: str = MODEL
    lags: bool = False
    """From its second request on, a connection gets the reply to the request before."""
    limit_name: str = "max_tokens"
    """What the limit of tokens has to be called."""
    secret: str = ""
    """Repeated in every answer."""
    weights: str = ""
    """Which model this is: other weights give other answers under the same name."""
    swap_after: int | None = None
    """Requests after which the weights are others."""
    root: str = ""
    """What the list of models says of the weights' place."""
    gate: Path | None = None
    """A file with a number: requests from that one on wait for their answer until it is raised, or the file is gone."""


class FaultServer:
    """The handler, and what it has seen."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.seen: Counter[str] = Counter()
        self.requests: list[dict[str, Any]] = []
        self.prompts: list[str] = []
        self.in_flight = self.most_in_flight = 0
        self.last_body = b""
        self.last_of_connection: dict[Any, bytes] = {}
        self.is_sick = False
        self._log = os.open(behaviour.log, os.O_CREAT | os.O_APPEND | os.O_WRONLY) if behaviour.log else None

    def application(self) -> web.Application:
        """Routes of both APIs."""
        app = web.Application(client_max_size=1 << 26)
        for path in ("/v1/chat/completions", "/v1/completions", "/v1/messages"):
            app.router.add_post(path, self.answer)
        app.router.add_get("/v1/models", self.models)
        return app

    async def models(self, _: web.Request) -> web.Response:
        """What is served."""
        self.seen["models"] += 1
        entry = {"id": self.behaviour.model} | ({"root": self.behaviour.root} if self.behaviour.root else {})
        return web.json_response({"data": [entry]}, status=500 if self.is_sick else 200)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """One request."""
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            return await self._answer(request)
        finally:
            self.in_flight -= 1

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if (wrong := wrong_in_message(request, body)) is not None:
            self._write(request, "400", {}, "", "")
            return web.json_response({"type": "error", "error": wrong}, status=400)
        if self.behaviour.limit_name not in body:
            message = f"Unsupported parameter: use {self.behaviour.limit_name!r} instead."
            self._write(request, "400", {}, "", "")
            return web.json_response({"error": {"message": message}}, status=400)
        prompt = body["messages"][0]["content"] if "messages" in body else body["prompt"]
        self.prompts.append(prompt)
        number = len(self.requests)
        digest = self.digest_of(body)
        self.seen[digest] += 1
        fault = self._fault(number, digest)
        value = reply_to(body, digest, self.behaviour, "messages" in body, number)
        self._write(request, fault, value["usage"], digest, prompt)
        while number >= self._let_through():
            await asyncio.sleep(0.01)
        slow = self.behaviour.slow_every and number % self.behaviour.slow_every == self.behaviour.slow_every - 1
        await asyncio.sleep(self.behaviour.slow_seconds if slow else self.behaviour.seconds)
        if fault == "ok":
            is_message = request.path.endswith("/messages")
            self.last_body = body_sent = json.dumps(message_of(value) if is_message else value).encode()
            if self.behaviour.lags:
                body_sent = self.last_of_connection.get(request.transport, self.last_body)
                self.last_of_connection[request.transport] = self.last_body
            return web.Response(body=body_sent, content_type="application/json")
        return await self._fail(request, fault, value)

    def digest_of(self, body: dict[str, Any]) -> str:
        """What the answer to a request is made of: its text, and the weights of this moment."""
        swap = self.behaviour.swap_after
        is_swapped = swap is not None and len(self.requests) >= swap
        weights = f"not {self.behaviour.weights}" if is_swapped else self.behaviour.weights
        return hashlib.sha256((weights + json.dumps(body, sort_keys=True)).encode()).hexdigest()

    def _let_through(self) -> float:
        try:
            return int(self.behaviour.gate.read_text()) if self.behaviour.gate else math.inf
        except FileNotFoundError:
            return math.inf

    def _fault(self, number: int, digest: str) -> str:
        if number < len(self.behaviour.script):
            return self.behaviour.script[number]
        text = f"{self.behaviour.seed}:{digest}:{self.seen[digest]}"
        draw = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64
        if draw >= self.behaviour.faults:
            return "ok"
        return DRAWN[int(draw / self.behaviour.faults * len(DRAWN))]

    def _write(self, request: web.Request, fault: str, usage: dict[str, Any], digest: str, prompt: str) -> None:
        is_billed = fault.endswith("-billed") if fault.startswith("status-") else fault not in UNBILLED
        line = {
            "id": request.headers.get("X-Request-Id"),
            "question": digest,
            "is_identity": prompt in QUESTIONS,
            "fault": fault,
            "billed": is_billed,
            "prompt_tokens": usage["prompt_tokens"] if is_billed else 0,
            "completion_tokens": usage["completion_tokens"] if is_billed else 0,
            "has_key": bool({"Authorization", "x-api-key"} & request.headers.keys()),
        }
        self.requests.append(line)
        if self._log is not None:
            os.write(self._log, json.dumps(line).encode() + b"\n")
            os.fsync(self._log)

    async def _fail(self, request: web.Request, fault: str, value: dict[str, Any]) -> web.StreamResponse:
        if fault in STATUSES_OF_ANSWERS:
            return web.json_response(value, status=int(fault.split("-")[1]))
        if fault.startswith("status-"):
            error = {"error": {"message": f"told to fail: {fault}"}}
            return web.json_response(error, status=int(fault.split("-")[1]))
        if fault[:3] in STATUS:
            return _status(fault)
        if fault == "redirect":
            return web.Response(status=307, headers={"Location": f"{self.behaviour.elsewhere}/chat/completions"})
        if fault == "filtered":
            error = {"code": "content_filter", "message": "The response was filtered"}
            return web.json_response({"error": error}, status=400)
        if fault in ("slow-loris", "hang", "half-closed", "reset", "reset-mid-body", "endless", "late-echo"):
            return await _broken(request, fault, json.dumps(value).encode())
        body = self.last_body if fault == "duplicate-reply" else spoilt(fault, value)
        headers = {"Content-Encoding": "gzip"} if fault == "compressed" else {}
        return web.Response(body=body, content_type="application/json", headers=headers)


CHOICES = {"Rating from 1 to 10": (" 3", " 8"), "Good (Y or N)": (" Y", " N")}
"""Words of a question -> two of its choices, where they are not A and B."""


def reply_to(body: dict[str, Any], digest: str, behaviour: Behaviour, is_chat: bool, number: int) -> dict[str, Any]:
    """The answer to a request: a function of its text."""
    prompt = json.dumps(body["messages"]) if is_chat else body["prompt"]
    share = (1 + int(digest[:4], 16)) / (2 + 0xFFFF)
    first, second = next((pair for words, pair in CHOICES.items() if words in prompt), (" A", " B"))
    letters = sorted([(first, math.log(share)), (second, math.log(1 - share))], key=lambda pair: -pair[1])
    wants = body.get("top_logprobs" if is_chat else "logprobs")
    text = letters[0][0] if wants else f"Answer {digest[:12]} {behaviour.secret}".strip()
    choice: dict[str, Any] = {"index": 0, "finish_reason": "stop"}
    if is_chat:
        choice["message"] = {"role": "assistant", "content": text}
        top = [{"token": token, "logprob": value} for token, value in letters]
        choice["logprobs"] = {"content": [{**top[0], "top_logprobs": top}]} if wants else None
    else:
        choice["text"] = text
        first = letters[0]
        both = {"tokens": [first[0]], "token_logprobs": [first[1]], "top_logprobs": [dict(letters)]}
        choice["logprobs"] = both if wants else None
    usage = {"prompt_tokens": max(1, len(prompt) // 4), "completion_tokens": max(1, len(text) // 4)}
    reply_id = f"cmpl-{digest[:16]}-{number}"
    return {"id": reply_id, "model": behaviour.model, "choices": [choice], "usage": usage}


MESSAGE_FIELDS = {"model", "max_tokens", "messages", "system", "temperature", "top_p", "stop_sequences"}


def wrong_in_message(request: web.Request, body: dict[str, Any]) -> dict[str, str] | None:
    """The error of Anthropic's API where a request is not in its words; None of one in the other API's."""
    if "/messages" not in request.path:
        return None
    words = ""
    if request.headers.get("anthropic-version") != "2023-06-01":
        words = "anthropic-version: header is required"
    elif "Authorization" in request.headers:
        words = "x-api-key: header is required"
    for item in body.get("requests", [{"params": body}]):
        fields = item["params"]
        if strange := sorted(fields.keys() - MESSAGE_FIELDS):
            words = f"{strange[0]}: Extra inputs are not permitted"
        elif "max_tokens" not in fields:
            words = "max_tokens: Field required"
        elif any(turn["role"] not in ("user", "assistant") or not turn["content"] for turn in fields["messages"]):
            words = "messages: a role that is none, or no text"
    return {"type": "invalid_request_error", "message": words} if words else None


def message_of(value: dict[str, Any]) -> dict[str, Any]:
    """The same reply in the words of Anthropic's API, after a thought, with half of the prompt from a cache."""
    choice, usage = value["choices"][0], value["usage"]
    cached = usage["prompt_tokens"] // 2
    return {
        "id": value["id"].replace("cmpl-", "msg_"),
        "type": "message",
        "role": "assistant",
        "model": value["model"],
        "content": [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": choice["message"]["content"]}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": usage["prompt_tokens"] - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": usage["completion_tokens"],
        },
    }


def spoilt(fault: str, value: dict[str, Any]) -> bytes:
    """A reply that is none, or another one."""
    text = json.dumps(value)
    choice = value["choices"][0]
    texts = {
        "truncated": text[: len(text) // 2],
        "nan": text.replace('"index": 0', '"index": 0, "score": NaN'),
        "infinite": text.replace('"index": 0', '"index": 0, "score": 1e400'),
        "duplicate-key": text.replace('"index": 0', '"index": 0, "index": 0'),
        "two-choices": json.dumps({**value, "choices": [choice, choice]}),
        "no-choice": json.dumps({**value, "choices": []}),
        "empty": "",
        "prose": f"Sure! Here is the JSON you asked for:\n```json\n{text}\n```",
        "no-usage": json.dumps({key: item for key, item in value.items() if key != "usage"}),
        "negative-tokens": json.dumps({**value, "usage": {"prompt_tokens": -5, "completion_tokens": 1}}),
        "surrogate": text.replace('"stop"', '"\\ud800"'),
        "deep": "[" * 100_000,
        "html": "<html><body>502 Bad Gateway</body></html>",
        "compressed": "no gzip at all",
        "huge-int": text.replace('"index": 0', '"index": ' + "9" * 5000),
        "wrong-model": json.dumps({**value, "model": "another-model"}),
        "swollen": text.replace('"index": 0', f'"index": 0, "seen": {[0] * 100_000}'),
    }
    if fault in texts:
        return texts[fault].encode()
    if fault == "refusal":
        choice["message"] = {"role": "assistant", "content": None, "refusal": "I cannot help with that."}
    elif fault == "content-filter":
        choice |= {"finish_reason": "content_filter", "message": {"role": "assistant", "content": None}}
    else:
        raise ValueError(f"no fault is called {fault!r}")
    return json.dumps(value).encode()


def _status(fault: str) -> web.Response:
    headers = {"429-after": {"Retry-After": "0.05"}, "429-date": {"Retry-After": "Thu, 01 Jan 1970 00:00:00 GMT"}}
    error = {"error": {"message": f"told to fail: {fault}"}}
    return web.json_response(error, status=STATUS[fault[:3]], headers=headers.get(fault, {}))


async def _broken(request: web.Request, fault: str, body: bytes) -> web.StreamResponse:
    """Write half of an HTTP message, or none, and leave."""
    line = request.transport
    assert line is not None
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    if fault == "hang":
        await asyncio.Event().wait()
    elif fault == "slow-loris":
        line.write(head)
        for place in range(len(body)):
            line.write(body[place : place + 1])
            await asyncio.sleep(0.05)
    elif fault == "half-closed":
        line.write(head + body[: len(body) // 2])
        line.write_eof()
    elif fault == "reset-mid-body":
        line.write(head + body[: len(body) // 2])
        await asyncio.sleep(0.01)
    elif fault == "late-echo":
        # The whole reply, and once more when the next request of this connection waits for its own.
        line.write(head + body)
        await asyncio.sleep(0.1)
        line.write(head + body)
        # From here on this connection is one reply behind.
        return web.Response(body=body, content_type="application/json")
    elif fault == "endless":
        line.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        while not line.is_closing():
            line.write(b"10000\r\n" + b" " * 65536 + b"\r\n")
            await asyncio.sleep(0)
    line.abort()
    return web.Response()


def set_gate(path: Path, number: int) -> None:
    """Let so many requests through, of those since the server began; at once for whoever reads."""
    path.with_suffix(".new").write_text(str(number))
    path.with_suffix(".new").replace(path)


@contextmanager
def fault_server(
    behaviour: Behaviour | None = None, *, port: int = 0, kind: type[FaultServer] = FaultServer
) -> Iterator[tuple[str, FaultServer]]:
    """A server in a thread of this process: its address, and what it sees."""
    server = kind(behaviour or Behaviour())
    loop = asyncio.new_event_loop()
    ready = threading.Event()
    found: list[int] = []

    async def serve() -> web.AppRunner:
        runner = web.AppRunner(server.application(), access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", port)
        await site.start()
        found.append(site._server.sockets[0].getsockname()[1])  # type: ignore[union-attr]
        return runner

    def run() -> None:
        asyncio.set_event_loop(loop)
        runner = loop.run_until_complete(serve())
        ready.set()
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(60), "the server did not start"
    try:
        yield f"http://127.0.0.1:{found[0]}/v1", server
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    parser.add_argument("--log", type=Path, help="JSONL file of all requests")
    parser.add_argument("--faults", type=float, default=0.0, help="share of requests that fail")
    parser.add_argument("--seed", type=int, default=0, help="which of them")
    parser.add_argument("--script", default="", help="faults of the first requests, with commas; ok for none")
    parser.add_argument("--seconds", type=float, default=0.0, help="that an answer takes")
    parser.add_argument("--gate", type=Path, help="file with the number of the first request that has to wait")
    parser.add_argument("--model", default=MODEL, help="what it says it is")
    options = parser.parse_args(arguments)
    behaviour = Behaviour(
        log=options.log,
        faults=options.faults,
        seed=options.seed,
        script=[name for name in options.script.split(",") if name],
        seconds=options.seconds,
        gate=options.gate,
        model=options.model,
    )
    with fault_server(behaviour, port=options.port) as (url, _):
        print(url, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
