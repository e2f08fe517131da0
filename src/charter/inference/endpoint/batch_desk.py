"""Desk that asks by files: OpenAI's batch interface (`/files`, `/batches`), at a share of the price, within a day.

Source: https://platform.openai.com/docs/guides/batch (files of at most 50,000 requests and 200 MB; results stay for 30
days). Groq, Together and others take the same calls.

What waits is written into one file and handed over; the process may then be killed as often as one likes. Beside the
stage lies a slip for every file: which calls it holds, and the number of the batch once the provider has given one. A
new process takes up the slips it finds, so that no question is put, or paid, twice. A slip without a number is looked
for at the provider by the name that the batch was given.
"""

import asyncio
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from charter.artifacts import durable
from charter.errors import DataError, StageError
from charter.inference.endpoint import settling
from charter.inference.endpoint.call import CallRequest
from charter.inference.endpoint.desk import Desk
from charter.inference.endpoint.identity import ServerSetting
from charter.inference.endpoint.money import prices_of
from charter.inference.endpoint.parsing import StrictJsonError, message_in_error, one_line, strict_loads
from charter.inference.endpoint.rules import AGAIN, utc_now, wait_seconds
from charter.inference.endpoint.settling import CallJournal
from charter.inference.endpoint.transport import Received, Transport, TransportFailure, body_of, path_of
from charter.inference.endpoint.wanted import PendingQuestion
from charter.ledger.calls import NewCall
from charter.spec.project import BATCHES, MOST_BATCHED

SCHEMA = "charter.api_batch/1"
MOST_FILE_BYTES = 180_000_000
"""Of one file; OpenAI takes 200 MB."""
MOST_RESULT_BYTES = 1 << 30
GATHER_SECONDS = 2.0
"""Without a new question, after which a file is closed."""
WINDOW = "24h"
"""The only window that the interface knows."""
LISTED = 100
UNDER_WAY = ("validating", "in_progress", "finalizing", "cancelling")
READABLE = ("completed", "expired", "cancelled")
"""Ends with results for as many requests as were reached."""
BOUNDARY = "charter-batch-7f3c1d"


@dataclass(frozen=True, kw_only=True)
class BatchSlip:
    """One file of requests at a provider."""

    name: str
    """Drawn here, and given to the batch as metadata."""
    endpoint: str
    calls: tuple[NewCall, ...]
    batch_id: str = ""
    """Empty until the provider has taken the file."""

    @classmethod
    def read(cls, path: Path) -> "BatchSlip | None":
        """Return a slip; None where the file is none."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            calls = tuple(NewCall(**call) for call in content.pop("calls"))
            return cls(calls=calls, **content) if content.pop("schema") == SCHEMA else None
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None

    def write(self, directory: Path) -> None:
        """Put the slip on disk."""
        directory.mkdir(parents=True, exist_ok=True)
        durable.write_file(directory / f"{self.name}.json", durable.json_text({"schema": SCHEMA, **asdict(self)}))


class BatchDesk(Desk):
    """Answers requests from the store, or by files."""

    def __init__(self, setting: ServerSetting, journal: CallJournal, transport: Transport) -> None:
        assert setting.directory is not None
        super().__init__(setting, journal, transport)
        self._prices = prices_of(setting.serving, share=setting.serving.batch_price)
        self._directory = setting.directory
        self._lane = self.lanes[0]
        self._place = self._lane.endpoint + BATCHES
        self._gathering = False
        self._out: set[str] = set()
        """Questions in a batch that is under way."""
        self._asked: dict[str, PendingQuestion] = {}
        """Those of them that somebody waits for here."""
        self._early: dict[str, tuple[NewCall, Received | TransportFailure, str]] = {}
        """Results of an earlier process's batches that nobody has asked for yet, by question, with their slip."""
        self._unread: dict[str, int] = {}
        """Results of a slip that are not settled yet."""
        for path in sorted(self._directory.glob("*.json")) if self._directory.is_dir() else ():
            slip = BatchSlip.read(path)
            if slip is not None and slip.endpoint == self._place:
                self._take_up(slip)

    def _take_up(self, slip: BatchSlip) -> None:
        self._out.update(call.key for call in slip.calls)
        self._spawn(self._resume(slip))

    def _wait(self, *asked: PendingQuestion) -> None:
        """Join the batch that a question is in already, or else the next file."""
        if self._error is not None:
            return
        new = []
        for wanted in asked:
            key = wanted.request.key
            if key in self._early:
                call, exchange, name = self._early.pop(key)
                self._spawn(self._read_result(call, exchange, wanted, name))
            elif key in self._out:
                self._asked[key] = wanted
            else:
                new.append(wanted)
        super()._wait(*new)

    def _pump(self) -> None:
        """Close a file soon, when the server is known to have the model."""
        if self._watch is not None:
            self._watch.look_where_due(self.lanes)
        if self._queue and self._lane.is_known and not self._lane.is_away and not self._gathering:
            self._gathering = True
            self._spawn(self._gather())

    async def _gather(self) -> None:
        """Wait until no more questions come, and send those that wait."""
        try:
            before = -1
            while before < len(self._queue) < MOST_BATCHED:
                before = len(self._queue)
                await asyncio.sleep(GATHER_SECONDS)
            while self._queue:
                await self._send_file(self._next_file())
        finally:
            self._gathering = False

    def _next_file(self) -> list[tuple[NewCall, PendingQuestion, bytes]]:
        lines: list[tuple[NewCall, PendingQuestion, bytes]] = []
        size = 0
        while self._queue and len(lines) < MOST_BATCHED and size < MOST_FILE_BYTES:
            wanted = self._queue.take()
            if not wanted.is_of_use:
                self._end(wanted)
                continue
            wanted.attempts += 1
            call = settling.new_call(wanted.request, self._place, wanted.attempts, self._prices)
            line = self._line(call, wanted.request)
            size += len(line)
            lines.append((call, wanted, line))
        return lines

    def _line(self, call: NewCall, request: CallRequest) -> bytes:
        path = urlsplit(self._lane.endpoint).path.rstrip("/") + path_of(request)
        body = body_of(request, self._reader.limit_name).decode()
        return f'{{"custom_id":"{call.call_id}","method":"POST","url":"{path}","body":{body}}}\n'.encode()

    async def _send_file(self, lines: Sequence[tuple[NewCall, PendingQuestion, bytes]]) -> None:
        """Hand over as many requests as the budget lets pass; the rest waits for the next file."""
        if not lines:
            return
        count = await self._journal.intend_together([call for call, _, _ in lines])
        for _, wanted, _ in lines[count:]:
            wanted.attempts -= 1
            self._queue.add(wanted.request.key, wanted)
        lines = lines[:count]
        slip = BatchSlip(name=f"charter-{uuid.uuid4().hex}", endpoint=self._place, calls=tuple(c for c, _, _ in lines))
        slip.write(self._directory)
        self.counts.requests += count
        self._out.update(wanted.request.key for _, wanted, _ in lines)
        self._asked |= {wanted.request.key: wanted for _, wanted, _ in lines}
        path = json.loads(lines[0][2])["url"]
        slip = await self._hand_over(slip, b"".join(line for _, _, line in lines), path)
        self._spawn(self._follow_batch(slip))

    async def _hand_over(self, slip: BatchSlip, content: bytes, path: str) -> BatchSlip:
        """Upload a file and begin its batch, once."""
        head = (
            f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--{BOUNDARY}\r\n'
            f'Content-Disposition: form-data; name="file"; filename="{slip.name}.jsonl"\r\n'
            "Content-Type: application/jsonl\r\n\r\n"
        )
        form = head.encode() + content + f"\r\n--{BOUNDARY}--\r\n".encode()
        file = await self._until_taken(
            slip, "/files", form, f"multipart/form-data; boundary={BOUNDARY}", look_first=False
        )
        order = {
            "input_file_id": file["id"], "endpoint": path, "completion_window": WINDOW,
            "metadata": {"charter": slip.name},
        }  # fmt: skip
        begun = await self._until_taken(slip, BATCHES, json.dumps(order).encode(), "application/json", look_first=True)
        slip = replace(slip, batch_id=_identifier(begun))
        slip.write(self._directory)
        return slip

    async def _until_taken(
        self, slip: BatchSlip, path: str, body: bytes, content_type: str, *, look_first: bool
    ) -> Mapping[str, Any]:
        """Post until the provider says yes; what may have been taken without a word is looked for before a repetition.

        DataError, with every call settled as refused, where it never will.
        """
        trouble = ""
        for attempt in range(1, self.setting.serving.max_attempts + 1):
            exchange = await self._transport.post(self._lane.endpoint + path, body, slip.name, content_type)
            if isinstance(exchange, Received) and 200 <= exchange.status < 300:
                answer = _object(exchange.body)
                if answer is not None and isinstance(answer.get("id"), str):
                    return answer
            trouble, is_final = _trouble(exchange)
            if is_final:
                break
            if look_first and (begun := await self._batch_named(slip)) is not None:
                return begun
            await asyncio.sleep(wait_seconds(slip.name, attempt, "", utc_now()))
        await self._drop(slip, f"the provider did not take the file: {trouble}")
        raise DataError(
            f"{self._lane.endpoint}{path}, which takes batches for {self.setting.name}, does not take one ({trouble}); "
            f"see to it, or leave serving.{self.setting.name}.batch out: what was answered is kept"
        )

    async def _batch_named(self, slip: BatchSlip) -> Mapping[str, Any] | None:
        """Return the batch of a slip among the newest of the account; None where it is not there."""
        exchange = await self._transport.fetch(f"{self._place}?limit={LISTED}")
        listed = _object(exchange.body) if isinstance(exchange, Received) and exchange.status == 200 else None
        if listed is None or not isinstance(listed.get("data"), list):
            raise StageError(
                f"{self._place} does not list its batches, one of which may hold questions of {self.setting.name}; run "
                "again when it does: nothing is put twice"
            )
        return next((item for item in listed["data"] if _is_named(item, slip.name)), None)

    async def _resume(self, slip: BatchSlip) -> None:
        """Go on with a batch of an earlier process: with what of it has no stored answer."""
        stored = await self._journal.answers([call.key for call in slip.calls])
        slip = replace(slip, calls=tuple(call for call in slip.calls if call.key not in stored))
        self._out -= stored.keys()
        for call in slip.calls:
            self._journal.adopt(call)
        if not slip.calls:
            return self._forget(slip.name)
        if not slip.batch_id:
            begun = await self._batch_named(slip)
            if begun is None:
                await self._drop(slip, "never handed over")
                waiting = [self._asked.pop(call.key) for call in slip.calls if call.key in self._asked]
                return super()._wait(*waiting)
            slip = replace(slip, batch_id=_identifier(begun))
            slip.write(self._directory)
        return await self._follow_batch(slip)

    async def _follow_batch(self, slip: BatchSlip) -> None:
        """Wait for the end of a batch, and read what there is."""
        began, failures = self._loop.time(), 0
        while True:
            exchange = await self._transport.fetch(f"{self._place}/{slip.batch_id}")
            state = _object(exchange.body) if isinstance(exchange, Received) and exchange.status == 200 else None
            status = "" if state is None else str(state.get("status"))
            if state is not None and status in READABLE:
                break
            if status == "failed":
                await self._drop(slip, "the provider refused the file")
                raise DataError(f"{self._place}: the provider refused a file of questions: {_reasons(state)}")
            failures = 0 if status in UNDER_WAY else failures + 1
            if failures >= self.setting.serving.max_attempts:
                trouble = status or _trouble(exchange)[0]
                raise StageError(
                    f"{self._place}/{slip.batch_id} cannot be followed ({trouble}); run again when it can: nothing is "
                    "put twice"
                )
            self.setting.tell()
            await asyncio.sleep(self.setting.serving.batch_poll)
        results = await self._results(state)
        await self._read_results(slip, results, began)

    async def _results(self, state: Mapping[str, Any]) -> dict[str, Received]:
        """Return the replies of a batch, by call."""
        results: dict[str, Received] = {}
        for name in ("output_file_id", "error_file_id"):
            file = state.get(name)
            if not isinstance(file, str) or not file:
                continue
            url = f"{self._lane.endpoint}/files/{file}/content"
            exchange: Received | TransportFailure | None = None
            for attempt in range(1, self.setting.serving.max_attempts + 1):
                exchange = await self._transport.fetch(url, most_bytes=MOST_RESULT_BYTES)
                if isinstance(exchange, Received) and exchange.status == 200:
                    break
                await asyncio.sleep(wait_seconds(file, attempt, "", utc_now()))
            else:
                assert exchange is not None
                raise StageError(f"{url} cannot be read ({_trouble(exchange)[0]}); run again when it can")
            results |= dict(filter(None, map(_result, exchange.body.splitlines())))
        return results

    async def _read_results(self, slip: BatchSlip, results: Mapping[str, Received], began: float) -> None:
        self._unread[slip.name] = len(slip.calls)
        reading = []
        for call in slip.calls:
            self._out.discard(call.key)
            exchange = results.get(call.call_id, NOT_REACHED)
            wanted = self._asked.pop(call.key, None)
            if wanted is None:
                self._early[call.key] = (call, exchange, slip.name)
            else:
                reading.append(self._read_result(call, exchange, wanted, slip.name, began))
        await asyncio.gather(*reading)
        # One round of fixed questions for a batch: its answers came together.
        self._lane.unwatched = min(1, self._lane.unwatched)

    async def _read_result(
        self,
        call: NewCall,
        exchange: Received | TransportFailure,
        wanted: PendingQuestion,
        name: str,
        began: float | None = None,
    ) -> None:
        wanted.attempts = max(wanted.attempts, call.attempt)
        await self._take(call, exchange, wanted, self._lane, self._loop.time() if began is None else began)
        self._unread[name] -= 1
        if not self._unread[name]:
            self._forget(name)

    async def _drop(self, slip: BatchSlip, why: str) -> None:
        """Settle the calls of a file that was never taken: nothing was asked, and nothing is owed."""
        self._out.difference_update(call.key for call in slip.calls)
        await asyncio.gather(*(self._journal.settle(settling.not_done(call, why)) for call in slip.calls))
        self._forget(slip.name)

    def _forget(self, name: str) -> None:
        (self._directory / f"{name}.json").unlink(missing_ok=True)


NOT_REACHED = Received(503, b'{"error": {"message": "the batch ended before this request was reached"}}')


def _object(body: bytes) -> Mapping[str, Any] | None:
    try:
        value = strict_loads(body)
    except StrictJsonError:
        return None
    return value if isinstance(value, dict) else None


def _identifier(batch: Mapping[str, Any]) -> str:
    return str(batch["id"])


def _is_named(item: object, name: str) -> bool:
    metadata = item.get("metadata") if isinstance(item, dict) else None
    return isinstance(metadata, dict) and metadata.get("charter") == name


def _reasons(state: Mapping[str, Any] | None) -> str:
    errors = (state or {}).get("errors")
    data = errors.get("data") if isinstance(errors, dict) else None
    said = [str(item.get("message")) for item in data or () if isinstance(item, dict)]
    return one_line("; ".join(said), 300) or "it does not say why"


def _trouble(exchange: Received | TransportFailure) -> tuple[str, bool]:
    """Return what went wrong, and whether asking again cannot help."""
    if isinstance(exchange, TransportFailure):
        return f"{exchange.cause}: {exchange.detail}", False
    text = f"status {exchange.status}: {message_in_error(exchange.body)}"
    return text, 300 <= exchange.status < 500 and exchange.status not in AGAIN


def _result(line: bytes) -> tuple[str, Received] | None:
    """Return the call and the reply of a line of results; None where it is no such line.

    >>> _result(b'{"custom_id": "c1", "response": {"status_code": 200, "body": {"id": "r"}}, "error": null}')
    ('c1', Received(status=200, body=b'{"id": "r"}', retry_after='', location=''))
    """
    content = _object(line)
    name = None if content is None else content.get("custom_id")
    if content is None or not isinstance(name, str):
        return None
    response = content.get("response")
    if isinstance(response, dict) and isinstance(response.get("status_code"), int):
        return name, Received(response["status_code"], json.dumps(response.get("body")).encode())
    # The request was not carried out: `batch_expired`, `batch_cancelled`.
    return name, Received(503, json.dumps({"error": content.get("error") or {}}).encode())
