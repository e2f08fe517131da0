"""One HTTP exchange with a server, under a deadline and a limit of bytes; whatever happens is a value.

A chat goes to `/chat/completions`, plain text to `/completions`, and what is asked of Anthropic's API to `/messages`.
Keys go by reference: a project names where a key is, and only the requests that need it hold its value.
"""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from charter.errors import UsageError
from charter.inference.endpoint.call import CallRequest
from charter.inference.endpoint.parsing import one_line
from charter.redaction import without_values

if TYPE_CHECKING:
    import aiohttp
    from aiohttp.connector import Connection

T = TypeVar("T")
SHORTEST = 8
"""Characters; a shorter value could not be blotted out of texts without blotting out words."""


class ApiKey:
    """The key that a reference names. Printing, logging or comparing it never shows its value."""

    __slots__ = ("_value", "reference")

    def __init__(self, reference: str, value: str) -> None:
        self.reference = reference
        self._value = value

    def __repr__(self) -> str:
        return f"ApiKey({self.reference!r})"

    def __reduce__(self) -> str:
        raise TypeError("a key is never written anywhere")

    def header(self, *, bare: str | None = None) -> dict[str, str]:
        """The request header that carries it: the bearer's, or one that holds nothing else."""
        return {"Authorization": f"Bearer {self._value}"} if bare is None else {bare: self._value}

    def blotted(self, text: str) -> str:
        """A text without the key."""
        return without_values(text, [self._value])

    def blotted_bytes(self, body: bytes) -> bytes:
        """A reply's body without the key, should a server repeat it."""
        return without_values(body.decode("latin-1"), [self._value]).encode("latin-1")


def read_key(reference: str, *, of: str) -> ApiKey:
    """Look a key up: `env:NAME` in the environment, `file:PATH` in a file. `of` is the model's name, for messages."""
    kind, _, where = reference.partition(":")
    if kind == "env":
        value = os.environ.get(where, "").strip()
        problem = f"the environment variable {where} is not set"
    elif kind == "file":
        path = Path(where).expanduser()
        value = path.read_text(encoding="utf-8", errors="replace").strip() if path.is_file() else ""
        problem = f"the file {where} is not there, or empty"
    else:
        raise UsageError(f"the key of {of} is not given as env:NAME or file:PATH")
    if not value:
        raise UsageError(f"the key of {of} is to be found at {reference}, but {problem}")
    if not (value.isascii() and value.isprintable() and " " not in value):
        raise UsageError(f"what is at {reference} cannot be a key: it has blanks, line ends or letters beyond ASCII")
    if len(value) < SHORTEST:
        raise UsageError(f"what is at {reference} cannot be a key: it has fewer than {SHORTEST} characters")
    return ApiKey(reference, value)


MAX_TOKENS = "max_tokens"
"""The limit of generated tokens, as all servers of one's own call it."""
MAX_COMPLETION_TOKENS = "max_completion_tokens"
"""The same for OpenAI's reasoning models, which refuse the older name."""
MESSAGES = "/messages"
VERSION_OF_MESSAGES = "2023-06-01"
"""`anthropic-version`, which every request names (https://platform.claude.com/docs/en/api/versioning). The next one,
2026-10-21, takes no temperature for any model."""


def path_of(request: CallRequest) -> str:
    """Return the path of a request below the endpoint's address."""
    if request.is_message:
        return MESSAGES
    return "/chat/completions" if request.turns else "/completions"


def body_of(request: CallRequest, limit_name: str = MAX_TOKENS) -> bytes:
    """The request as JSON.

    `continue_final_message` and `add_generation_prompt` are what vLLM and SGLang need to go on with an answer that has
    begun; other servers refuse or ignore them, so that they are sent with a prefill only.
    """
    if request.is_message:
        return _ENCODER.encode(_message_of(request)).encode()
    body: dict[str, Any] = {
        "model": request.model,
        limit_name: request.max_new_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
    }
    if request.seed is not None:
        body["seed"] = request.seed
    if request.stop:
        body["stop"] = request.stop
    if not request.turns:
        body["prompt"] = request.prompt + request.prefill
        if request.top_log_probabilities:
            body["logprobs"] = request.top_log_probabilities
        return _ENCODER.encode(body).encode()
    body["messages"] = [{"role": turn.role, "content": turn.content} for turn in request.turns]
    if request.prefill:
        body["messages"].append({"role": "assistant", "content": request.prefill})
        body |= {"continue_final_message": True, "add_generation_prompt": False}
    if request.top_log_probabilities:
        body |= {"logprobs": True, "top_logprobs": request.top_log_probabilities}
    return _ENCODER.encode(body).encode()


def _message_of(request: CallRequest) -> dict[str, Any]:
    """Return the body of Anthropic's Messages API (https://platform.claude.com/docs/en/api/messages/create).

    It knows no seed. A temperature or a `top_p` of 1 is not sent: it is the default, and models since Claude Opus 4.7
    refuse both fields. A last turn of the assistant is continued; it must not end with a blank.
    """
    messages = [{"role": turn.role, "content": turn.content} for turn in request.turns if turn.role != "system"]
    if request.prefill:
        messages.append({"role": "assistant", "content": request.prefill.rstrip()})
    body: dict[str, Any] = {"model": request.model, MAX_TOKENS: request.max_new_tokens, "messages": messages}
    if system := [turn.content for turn in request.turns if turn.role == "system"]:
        body["system"] = "\n\n".join(system)
    body |= {name: getattr(request, name) for name in ("temperature", "top_p") if getattr(request, name) != 1.0}
    if request.stop:
        body["stop_sequences"] = request.stop
    return body


_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))


MOST_BYTES = 16 << 20
"""Of a reply: 32k tokens with 20 alternatives each have about 40 bytes per alternative, 25 MB at the worst; a label
has 2 kB."""
BASE_BYTES, TOKEN_BYTES = 256 << 10, 1 << 10
"""Of a reply without its tokens, and of a token or alternative: 128 characters, spelled again as a list of bytes, have
900."""


def most_bytes_of(request: CallRequest) -> int:
    """Return the bytes that a reply may have: one with more than was asked for is read by nobody.

    Reading a long one holds up all other requests, whose servers then seem late.

    >>> label = CallRequest(declared="judge", model="m", max_new_tokens=1, top_log_probabilities=20)
    >>> most_bytes_of(label), most_bytes_of(CallRequest(declared="judge", model="m", max_new_tokens=100_000))
    (283648, 16777216)
    """
    return min(MOST_BYTES, BASE_BYTES + TOKEN_BYTES * request.max_new_tokens * (1 + request.top_log_probabilities))


CONNECT_SECONDS = 10.0
"""TCP gives up a lost SYN after 1, 3 and 7 s; a server that has not taken a connection by then is away."""
HEALTH_SECONDS = 5.0
"""A list of models is static; a server that needs longer cannot serve either."""
KEEP_SECONDS = 30.0
"""How long an idle connection is kept: below the 60 s after which common proxies close theirs."""


@dataclass(frozen=True, slots=True)
class Received:
    """A whole reply."""

    status: int
    body: bytes
    retry_after: str = ""
    location: str = ""
    line: asyncio.BaseTransport | None = field(default=None, compare=False, repr=False)
    is_free: bool = field(default=False, repr=False)
    """Whether the provider's documentation says that it bills nothing for this reply."""

    def hang_up(self) -> None:
        """Close the connection that the reply came over, so that no other request gets what is left on it."""
        if self.line is not None:
            self.line.close()


@dataclass(frozen=True, slots=True)
class TransportFailure:
    """No whole reply."""

    cause: str
    """`timeout`, `connect`, `broken` or `oversize`."""
    detail: str
    was_sent: bool
    """Whether the server may have done the work, and bill it."""


class Transport:
    """The connections to all servers of a pool; made and closed inside its event loop."""

    def __init__(self, key: ApiKey | None, *, timeout_seconds: float, is_message: bool = False) -> None:
        import aiohttp

        self._key = key
        self._proxies = getproxies()
        deadline = aiohttp.ClientTimeout(total=timeout_seconds, sock_connect=min(CONNECT_SECONDS, timeout_seconds))
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity", "User-Agent": "charter"}
        self._session = aiohttp.ClientSession(
            # How many are open is decided by whoever asks; no answer is unpacked, so none can swell.
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_SECONDS, ttl_dns_cache=300),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=deadline,
            headers=headers
            | (key.header(bare="x-api-key" if is_message else None) if key else {})
            | ({"anthropic-version": VERSION_OF_MESSAGES} if is_message else {}),
            auto_decompress=False,
            response_class=_noting_response(),
        )

    async def post(
        self,
        url: str,
        body: bytes,
        call_id: str,
        content_type: str = "application/json",
        *,
        most_bytes: int = MOST_BYTES,
    ) -> Received | TransportFailure:
        """Send one request and read the whole reply. Redirects are not followed: the key is for this host only."""
        headers = {"X-Request-Id": call_id, "Content-Type": content_type}
        return await self._exchange("POST", url, headers, body, most_bytes)

    async def fetch(self, url: str, *, most_bytes: int = MOST_BYTES) -> Received | TransportFailure:
        """Read what lies at an address."""
        return await self._exchange("GET", url, {}, None, most_bytes)

    async def _exchange(
        self, method: str, url: str, headers: dict[str, str], body: bytes | None, most_bytes: int = MOST_BYTES
    ) -> Received | TransportFailure:
        import aiohttp

        try:
            async with self._session.request(
                method, url, data=body, headers=headers, allow_redirects=False, proxy=self._proxy(url)
            ) as response:
                content = await _read(response, most_bytes)
                if content is None:
                    response.close()
                    return TransportFailure("oversize", f"the reply is longer than {most_bytes} bytes", was_sent=True)
                if response.headers.get("Content-Encoding", "identity") != "identity":
                    response.close()
                    return TransportFailure("broken", "the reply is compressed, which was not asked for", was_sent=True)
                response_headers = response.headers
                location = response_headers.get("Location", "")
                if self._key:
                    content, location = self._key.blotted_bytes(content), self._key.blotted(location)
                line = getattr(response, "line", None)
                return Received(
                    response.status,
                    content,
                    response_headers.get("Retry-After", ""),
                    location,
                    line,
                )
        except (aiohttp.ConnectionTimeoutError, aiohttp.ClientConnectorError) as error:
            return TransportFailure("connect", self._said(error), was_sent=False)
        except TimeoutError:
            return TransportFailure("timeout", "no whole reply in time", was_sent=True)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return TransportFailure("broken", self._said(error), was_sent=True)

    async def is_alive(self, url: str) -> bool:
        """Return True if a server answers a request that costs nothing: anything but an error of its own will do."""

        async def status_of(response: "aiohttp.ClientResponse") -> int:
            return response.status

        status = await self._free_request(url, status_of)
        return status is not None and status < 500

    async def get(self, url: str) -> bytes | None:
        """The body of a request that costs nothing; None where there is none to be had."""

        async def body_of(response: "aiohttp.ClientResponse") -> bytes | None:
            return await _read(response) if response.status == 200 else None

        return await self._free_request(url, body_of)

    async def _free_request(self, url: str, read: "Callable[[aiohttp.ClientResponse], Awaitable[T]]") -> T | None:
        """Return what is read of the reply to a request that costs nothing; None where there is no reply."""
        import aiohttp

        try:
            async with self._session.get(
                url,
                allow_redirects=False,
                proxy=self._proxy(url),
                timeout=aiohttp.ClientTimeout(total=HEALTH_SECONDS),
            ) as response:
                content = await read(response)
                response.close()
                return content
        except (aiohttp.ClientError, OSError, ValueError):
            return None

    async def close(self) -> None:
        """Close every connection."""
        await self._session.close()

    def _proxy(self, url: str) -> str | None:
        """The proxy that the environment names for an address."""
        if not self._proxies:
            return None
        parts = urlsplit(url)
        return None if proxy_bypass(parts.netloc) else self._proxies.get(parts.scheme)

    def _said(self, error: Exception) -> str:
        text = one_line(f"{type(error).__name__}: {error}", 200)
        return self._key.blotted(text) if self._key else text


async def _read(response: "aiohttp.ClientResponse", most_bytes: int = MOST_BYTES) -> bytes | None:
    """The body; None when it is too long, at the latest when that much has come."""
    length = response.content_length
    if length is not None:
        return None if length > most_bytes else await response.read()
    parts: list[bytes] = []
    size = 0
    async for part in response.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > most_bytes:
            return None
    return b"".join(parts)


def _noting_response() -> "type[aiohttp.ClientResponse]":
    """Return the class of responses that remember their connection as `line`.

    aiohttp gives a connection back to its pool as soon as the last byte is there. A server that sent one reply too many
    is out of step: every later reply on it would be taken for the one after. So where nonsense came, it is closed.
    """
    import aiohttp

    class NotingResponse(aiohttp.ClientResponse):
        line: asyncio.BaseTransport | None = None

        async def start(self, connection: "Connection") -> aiohttp.ClientResponse:
            """Remember the connection, then read the reply."""
            self.line = connection.transport
            return await super().start(connection)

    return NotingResponse
