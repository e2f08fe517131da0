"""Desk that asks by files, through the batch interface of a provider: at a share of the price, within a day.

Two interfaces are spoken. OpenAI's (`/files`, `/batches`): https://platform.openai.com/docs/guides/batch (files of at
most 50,000 requests and 200 MB; results stay for 30 days); Groq, Together and others take the same calls. Anthropic's
(`/messages/batches`): https://platform.claude.com/docs/en/build-with-claude/batch-processing (100,000 requests and 256
MB; results stay for 29 days).

What waits is written into one file and handed over; the process may then be killed as often as one likes. Beside the
stage lies a slip for every file: which calls it holds, and the number of the batch once the provider has given one. A
new process takes up the slips it finds, so that no question is put, or paid, twice. A slip without a number is looked
for at the provider: by the name that the batch was given, or by the calls whose results it has.
"""

import asyncio
import json
import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol
from urllib.parse import urlsplit

from charter.artifacts import durable
from charter.errors import DataError, StageError
from charter.inference.endpoint import settling
from charter.inference.endpoint.call import CallRequest, prices_of
from charter.inference.endpoint.desk import Desk
from charter.inference.endpoint.identity import ServerSetting
from charter.inference.endpoint.parsing import batch_reasons, created_at, json_object
from charter.inference.endpoint.rules import is_open_end, retry_after_of, trouble_of, utc_now, wait_seconds
from charter.inference.endpoint.settling import CallJournal
from charter.inference.endpoint.transport import MESSAGES, Received, Transport, TransportFailure, body_of, path_of
from charter.inference.endpoint.wanted import PendingQuestion
from charter.ledger.calls import NewCall, Settlement, new_call_id
from charter.spec.project import BATCHES, MOST_BATCHED

log = logging.getLogger(__name__)
SCHEMA = "charter.api_batch/1"
MOST_FILE_BYTES = 180_000_000
"""Of one file; OpenAI takes 200 MB, Anthropic 256."""
MOST_RESULT_BYTES = 1 << 30
GATHER_SECONDS = 2.0
"""Without a new question, after which a file is closed."""
WINDOW = "24h"
"""The only window that the interface knows."""
LISTED = 100
"""Batches on a page of a provider's list: the most of OpenAI."""
CLOCK_SECONDS = 3600.0
"""By which the clocks of a provider and of this machine may differ."""
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
    may_be_twice: bool = False
    """Whether the provider may have taken it once more."""

    @property
    def since(self) -> float:
        """Return the time before which its batch cannot have begun, by the provider's clock."""
        return min(call.at for call in self.calls) - CLOCK_SECONDS

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


Status = Literal["under way", "ended", "refused", ""]
"""Of a batch; empty where its provider says nothing that is known here."""


class BatchInterface(Protocol):
    """The words of one provider's batch interface; everything here is pure."""

    path: str
    """Of its batches, below the endpoint."""
    after: str
    """Name of the field by which the next page of its list is asked for."""
    names_batches: bool
    """Whether a batch bears the name of its slip, so that it is known before its results are."""

    def line(self, call_id: str, path: str, body: bytes) -> bytes:
        """Return one request of a file."""

    def upload(self, name: str, lines: Sequence[bytes]) -> bytes | None:
        """Return the form that is sent to `/files` before a batch begins; None where the batch holds its requests."""

    def order(self, name: str, path: str, file: str, lines: Sequence[bytes]) -> bytes:
        """Return what begins a batch."""

    def may_be(self, batch: Mapping[str, Any], slip: BatchSlip) -> bool:
        """Return True if a listed batch is a slip's, or may be where batches have no names."""

    def status(self, batch: Mapping[str, Any]) -> Status:
        """Return how far a batch is."""

    def results(self, batch: Mapping[str, Any]) -> list[str]:
        """Return where the results of a batch that has ended lie, below the endpoint."""

    def result(self, line: bytes) -> tuple[str, Received] | None:
        """Return the call and the reply of a line of results; None where it is no such line."""


class OpenAiBatches:
    """A file is uploaded, and named in the order of a batch."""

    path, after, names_batches = BATCHES, "after", True
    under_way = ("validating", "in_progress", "finalizing", "cancelling")
    readable = ("completed", "expired", "cancelled")
    """Ends with results for as many requests as were reached."""

    def line(self, call_id: str, path: str, body: bytes) -> bytes:
        """Return one request of a file."""
        return f'{{"custom_id":"{call_id}","method":"POST","url":"{path}","body":{body.decode()}}}\n'.encode()

    def upload(self, name: str, lines: Sequence[bytes]) -> bytes:
        """Return the form of a file."""
        head = (
            f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--{BOUNDARY}\r\n'
            f'Content-Disposition: form-data; name="file"; filename="{name}.jsonl"\r\n'
            "Content-Type: application/jsonl\r\n\r\n"
        )
        return head.encode() + b"".join(lines) + f"\r\n--{BOUNDARY}--\r\n".encode()

    def order(self, name: str, path: str, file: str, lines: Sequence[bytes]) -> bytes:
        """Return what begins a batch."""
        order = {
            "input_file_id": file, "endpoint": path, "completion_window": WINDOW, "metadata": {"charter": name},
        }  # fmt: skip
        return json.dumps(order).encode()

    def may_be(self, batch: Mapping[str, Any], slip: BatchSlip) -> bool:
        """Return True if a listed batch is a slip's: its metadata say so."""
        metadata = batch.get("metadata")
        return isinstance(metadata, dict) and metadata.get("charter") == slip.name

    def status(self, batch: Mapping[str, Any]) -> Status:
        """Return how far a batch is."""
        said = batch.get("status")
        if said == "failed":
            return "refused"
        return "under way" if said in self.under_way else "ended" if said in self.readable else ""

    def results(self, batch: Mapping[str, Any]) -> list[str]:
        """Return the files of answers and of errors."""
        files = (batch.get(name) for name in ("output_file_id", "error_file_id"))
        return [f"/files/{file}/content" for file in files if isinstance(file, str) and file]

    def result(self, line: bytes) -> tuple[str, Received] | None:
        """Return the call and the reply of a line of results; None where it is no such line.

        >>> OpenAiBatches().result(b'{"custom_id": "c1", "response": {"status_code": 200, "body": {"id": "r"}}}')
        ('c1', Received(status=200, body=b'{"id": "r"}', retry_after='', location=''))
        """
        content = json_object(line)
        name = None if content is None else content.get("custom_id")
        if content is None or not isinstance(name, str):
            return None
        response = content.get("response")
        if isinstance(response, dict) and isinstance(response.get("status_code"), int):
            return name, Received(response["status_code"], json.dumps(response.get("body")).encode())
        # The request was not carried out: `batch_expired`, `batch_cancelled`.
        return name, Received(503, json.dumps({"error": content.get("error") or {}}).encode())


FINAL_ERRORS = {
    "invalid_request_error": 400, "authentication_error": 401, "billing_error": 402, "permission_error": 403,
    "not_found_error": 404, "request_too_large": 413,
}  # fmt: skip
"""Of Anthropic's API, those that come again, with the status of a single request that meets them; after all others one
asks again. Source: https://platform.claude.com/docs/en/api/errors"""


class MessageBatches:
    """A batch holds its requests. It has no name, and its list tells their number alone: its results say whose it is.

    Of what did not succeed nothing is billed, so that the same errors cost nothing here that may cost something asked
    one by one.
    """

    path, after, names_batches = MESSAGES + BATCHES, "after_id", False

    def line(self, call_id: str, path: str, body: bytes) -> bytes:
        """Return one request of a batch."""
        return f'{{"custom_id":"{call_id}","params":{body.decode()}}}'.encode()

    def upload(self, name: str, lines: Sequence[bytes]) -> None:
        """Return None: no file is sent before."""

    def order(self, name: str, path: str, file: str, lines: Sequence[bytes]) -> bytes:
        """Return what begins a batch."""
        return b'{"requests":[' + b",".join(lines) + b"]}"

    def may_be(self, batch: Mapping[str, Any], slip: BatchSlip) -> bool:
        """Return True if a listed batch has as many requests as a slip, and is not older."""
        counts = batch.get("request_counts")
        numbers = counts.values() if isinstance(counts, dict) else ()
        total = sum(number for number in numbers if isinstance(number, int))
        return total == len(slip.calls) and created_at(batch) >= slip.since

    def status(self, batch: Mapping[str, Any]) -> Status:
        """Return how far a batch is; one that was cancelled or ran out of time has ended too."""
        said = batch.get("processing_status")
        return "under way" if said in ("in_progress", "canceling") else "ended" if said == "ended" else ""

    def results(self, batch: Mapping[str, Any]) -> list[str]:
        """Return the one list of results; its address in the batch may name another host, which gets no key."""
        return [f"{self.path}/{_identifier(batch)}/results"]

    def result(self, line: bytes) -> tuple[str, Received] | None:
        """Return the call and the reply of a line of results; None where it is no such line.

        >>> MessageBatches().result(b'{"custom_id": "c1", "result": {"type": "expired"}}')
        ('c1', Received(status=503, body=b'{"error": {"message": "expired"}}', retry_after='', location=''))
        """
        content = json_object(line)
        name, result = (None, None) if content is None else (content.get("custom_id"), content.get("result"))
        if not isinstance(name, str) or not isinstance(result, dict):
            return None
        if result.get("type") == "succeeded":
            return name, Received(200, json.dumps(result.get("message")).encode())
        fault: object = result.get("error")
        if isinstance(fault, dict) and isinstance(fault.get("error"), dict):
            fault = fault["error"]
        if not isinstance(fault, dict):
            fault = {"message": str(result.get("type"))}
        status = FINAL_ERRORS.get(str(fault.get("type")), 503)
        return name, Received(status, json.dumps({"error": fault}).encode(), is_free=True)


class BatchDesk(Desk):
    """Answers requests from the store, or by files."""

    def __init__(self, setting: ServerSetting, journal: CallJournal, transport: Transport) -> None:
        assert setting.directory is not None
        super().__init__(setting, journal, transport)
        self._prices = prices_of(setting.serving, share=setting.serving.batch_price)
        self._directory = setting.directory
        self._lane = self.lanes[0]
        self._interface: BatchInterface = MessageBatches() if setting.serving.api == "messages" else OpenAiBatches()
        self._place = self._lane.endpoint + BATCHES
        """Under which calls are booked."""
        self._address = self._lane.endpoint + self._interface.path
        self._numbers: set[str] = set()
        """Batches that are known to be a slip's."""
        self._open_ended: set[str] = set()
        """Slips whose file may be taken although no reply said so."""
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
        self._numbers.add(slip.batch_id)
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
        return self._interface.line(call.call_id, self._path(request), body_of(request, self._reader.limit_name))

    def _path(self, request: CallRequest) -> str:
        return urlsplit(self._lane.endpoint).path.rstrip("/") + path_of(request)

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
        path = self._path(lines[0][1].request)
        begun = await self._hand_over(slip, path, [line for _, _, line in lines])
        if begun is None:
            self._spawn(self._look_for(slip, slip))
        else:
            self._spawn(self._follow_batch(self._numbered(slip, begun)))

    def _numbered(self, slip: BatchSlip, batch: Mapping[str, Any]) -> BatchSlip:
        """Note which batch is a slip's, before anything is waited for."""
        slip = replace(slip, batch_id=_identifier(batch), may_be_twice=slip.name in self._open_ended)
        slip.write(self._directory)
        self._numbers.add(slip.batch_id)
        return slip

    async def _hand_over(self, slip: BatchSlip, path: str, lines: Sequence[bytes]) -> Mapping[str, Any] | None:
        """Begin the batch of a slip, once; None where it may have begun, and only the provider's list can tell."""
        file = ""
        if (form := self._interface.upload(slip.name, lines)) is not None:
            taken = await self._until_taken(
                slip, "/files", form, f"multipart/form-data; boundary={BOUNDARY}", look_first=False
            )
            assert taken is not None, "a list was asked for"
            file = _identifier(taken)
        order = self._interface.order(slip.name, path, file, lines)
        return await self._until_taken(slip, self._interface.path, order, "application/json", look_first=True)

    async def _until_taken(
        self, slip: BatchSlip, path: str, body: bytes, content_type: str, *, look_first: bool
    ) -> Mapping[str, Any] | None:
        """Post until the provider says yes; before a repetition it is asked for its list.

        None where something there may be what was posted. DataError, with every call settled as refused, where the
        provider never says yes.
        """
        trouble = ""
        for attempt in range(1, self.setting.serving.max_attempts + 1):
            exchange = await self._transport.post(self._lane.endpoint + path, body, slip.name, content_type)
            if isinstance(exchange, Received) and 200 <= exchange.status < 300:
                answer = json_object(exchange.body)
                if answer is not None and isinstance(answer.get("id"), str):
                    return answer
            trouble, is_final = trouble_of(exchange)
            if is_final:
                break
            await asyncio.sleep(wait_seconds(slip.name, attempt, retry_after_of(exchange), utc_now()))
            if look_first and is_open_end(exchange):
                self._open_ended.add(slip.name)
            if look_first and await self._listed(slip):
                return None
        await self._drop(slip, f"the provider did not take the file: {trouble}")
        raise DataError(
            f"{self._lane.endpoint}{path}, which takes batches for {self.setting.name}, does not take one ({trouble}); "
            f"see to it, or leave serving.{self.setting.name}.batch out: what was answered is kept"
        )

    async def _listed(self, slip: BatchSlip) -> list[Mapping[str, Any]]:
        """Return the batches of the account that are a slip's, or may be: the newest first."""
        there: list[Mapping[str, Any]] = []
        query = f"?limit={LISTED}"
        while query:
            exchange = await self._transport.fetch(self._address + query)
            page = json_object(exchange.body) if isinstance(exchange, Received) and exchange.status == 200 else None
            if page is None or not isinstance(page.get("data"), list):
                raise StageError(
                    f"{self._address} does not list its batches, one of which may hold questions of "
                    f"{self.setting.name}; run again when it does: nothing is put twice"
                )
            batches = [item for item in page["data"] if isinstance(item, dict)]
            new = [item for item in batches if _identifier(item) not in self._numbers]
            there += [item for item in new if self._interface.may_be(item, slip)]
            goes_on = page.get("has_more") and batches and created_at(batches[-1]) >= slip.since
            query = f"?limit={LISTED}&{self._interface.after}={_identifier(batches[-1])}" if goes_on else ""
        return there

    async def _resume(self, slip: BatchSlip) -> None:
        """Go on with a batch of an earlier process: with what of it has no stored answer."""
        stored = await self._journal.answers([call.key for call in slip.calls])
        rest = replace(slip, calls=tuple(call for call in slip.calls if call.key not in stored))
        self._out -= stored.keys()
        for call in rest.calls:
            self._journal.adopt(call)
        if not rest.calls:
            return self._forget(slip.name)
        return await (self._follow_batch(rest) if slip.batch_id else self._look_for(slip, rest))

    async def _look_for(self, slip: BatchSlip, rest: BatchSlip) -> None:
        """Go on with the batch of a slip without a number, if there is one, or else with a new one.

        Where batches have no names, one that may be the slip's is waited for until its results say whose it is.
        """
        began, doubtful = self._loop.time(), ""
        for batch in await self._listed(slip):
            if self._interface.names_batches:
                await self._follow_batch(self._numbered(rest, batch))
                return
            if batch.get("archived_at"):
                doubtful = doubtful or _identifier(batch)
                continue
            results = await self._results(await self._end_of(rest, _identifier(batch)))
            if not results.keys().isdisjoint(call.call_id for call in slip.calls):
                await self._read_results(rest, results, began)
                return
        await self._put_anew(rest, doubtful and f"it may have been batch {doubtful}")

    async def _follow_batch(self, slip: BatchSlip) -> None:
        """Wait for the end of a batch, and read what there is."""
        began, state = self._loop.time(), await self._end_of(slip, slip.batch_id)
        if slip.may_be_twice:
            await self._own_up_to(slip)
        if state.get("archived_at"):
            await self._put_anew(slip, f"it was batch {slip.batch_id}")
        else:
            await self._read_results(slip, await self._results(state), began)

    async def _own_up_to(self, slip: BatchSlip) -> None:
        """Book what a provider began of a file beside the batch that is followed; cancel it where its name says so.

        Where batches have no names, results of one that has ended say whose it is, and what it cost. One that has not
        is booked at the most that it may cost, and left alone: it may be somebody else's.
        """
        for batch in await self._listed(slip):
            number, results = _identifier(batch), None
            if self._interface.names_batches:
                self._numbers.add(number)
                await self._transport.post(f"{self._address}/{number}/cancel", b"", slip.name)
                why = f"the provider began the file twice; batch {number} is given up"
            elif self._interface.status(batch) == "ended" and not batch.get("archived_at"):
                results = await self._results(batch)
                if results.keys().isdisjoint(call.call_id for call in slip.calls):
                    continue
                why = f"the provider began the file twice; batch {number} was not needed"
            else:
                why = f"the provider may have begun the file twice: batch {number}, of as many requests, has no results"
            log.warning("%s: %s, and its %d requests are booked too", self.setting.name, why, len(slip.calls))
            twins = [replace(call, call_id=new_call_id(), at=time.time()) for call in slip.calls]
            exchanges = [None if results is None else results.get(call.call_id, NOT_REACHED) for call in slip.calls]
            await self._journal.owe(
                twins, [settling.of_no_use(*each, self._prices, why) for each in zip(twins, exchanges, strict=True)]
            )

    async def _put_anew(self, slip: BatchSlip, taken: str) -> None:
        """Give a slip up, and ask for what is still waited for; `taken` says which batch it was, if it was one."""
        if taken:
            why = f"{taken}, whose results the provider keeps no longer"
        elif slip.name in self._open_ended:
            why = "no reply said whether the provider took it, and its list does not have it"
        else:
            why = ""
        if why:
            log.warning("%s: a file of %d questions is asked again; %s", self.setting.name, len(slip.calls), why)
        await self._drop(slip, why or "never handed over", settling.not_known if why else settling.not_done)
        super()._wait(*(self._asked.pop(call.key) for call in slip.calls if call.key in self._asked))

    async def _end_of(self, slip: BatchSlip, batch_id: str) -> Mapping[str, Any]:
        """Wait for the end of a batch, and return what is then said of it."""
        failures = 0
        while True:
            exchange = await self._transport.fetch(f"{self._address}/{batch_id}")
            state = json_object(exchange.body) if isinstance(exchange, Received) and exchange.status == 200 else None
            status = "" if state is None else self._interface.status(state)
            if state is not None and status == "ended":
                return state
            if status == "refused":
                await self._drop(slip, "the provider refused the file")
                raise DataError(f"{self._place}: the provider refused a file of questions: {batch_reasons(state)}")
            failures = 0 if status == "under way" else failures + 1
            if failures >= self.setting.serving.max_attempts:
                raise StageError(
                    f"{self._address}/{batch_id} cannot be followed ({trouble_of(exchange)[0]}); run again when it "
                    "can: nothing is put twice"
                )
            self.setting.tell()
            await asyncio.sleep(self.setting.serving.batch_poll)

    async def _results(self, state: Mapping[str, Any]) -> dict[str, Received]:
        """Return the replies of a batch, by call."""
        results: dict[str, Received] = {}
        for path in self._interface.results(state):
            url = self._lane.endpoint + path
            exchange: Received | TransportFailure | None = None
            for attempt in range(1, self.setting.serving.max_attempts + 1):
                exchange = await self._transport.fetch(url, most_bytes=MOST_RESULT_BYTES)
                if isinstance(exchange, Received) and exchange.status == 200:
                    break
                await asyncio.sleep(wait_seconds(path, attempt, retry_after_of(exchange), utc_now()))
            else:
                assert exchange is not None
                raise StageError(f"{url} cannot be read ({trouble_of(exchange)[0]}); run again when it can")
            results |= dict(filter(None, map(self._interface.result, exchange.body.splitlines())))
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

    async def _drop(
        self, slip: BatchSlip, why: str, outcome: Callable[[NewCall, str], Settlement] = settling.not_done
    ) -> None:
        """Settle the calls of a file that was never taken: nothing was asked, and nothing is owed as a rule."""
        self._out.difference_update(call.key for call in slip.calls)
        await asyncio.gather(*(self._journal.settle(outcome(call, why)) for call in slip.calls))
        self._forget(slip.name)

    def _forget(self, name: str) -> None:
        (self._directory / f"{name}.json").unlink(missing_ok=True)


NOT_REACHED = Received(503, b'{"error": {"message": "the batch ended before this request was reached"}}')


def _identifier(batch: Mapping[str, Any]) -> str:
    return str(batch.get("id"))
