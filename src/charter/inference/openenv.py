"""Sessions of an OpenEnv server as a class like the user's own, with a state that is JSON.

A session of a server cannot be stored; what is stored are the actions, and a session that is gone is opened again with
them, if it still answers as it did. Protocol and schema are those of openenv-core 0.3.0.
"""

import asyncio
import contextlib
import hashlib
import json
import threading
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

SCHEMA_SECONDS = 10.0
"""Longest time until a server says what its actions are."""
CAPACITY, WRONG_ACTION = "CAPACITY_REACHED", "VALIDATION_ERROR"
"""Codes of errors in the protocol of OpenEnv."""
SEED_BITS = 31
"""Of the seed of a row: what every environment takes."""


class PlayError(RuntimeError):
    """A session or server that did not do what was asked, which is the failure of an answer."""


class WrongActionError(ValueError):
    """An action that the environment does not take; the policy reads why."""


class _Session:
    """One episode's connection; something reads it all the time, as a server drops those that do not answer pings."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self._replies: asyncio.Queue[str | None] = asyncio.Queue()
        self._reader = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        async for message in self.connection:
            self._replies.put_nowait(str(message.data))
        self._replies.put_nowait(None)

    async def ask(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """The reply to a message; an end of the connection is an error."""
        with contextlib.suppress(ConnectionError):  # a server that is full says so before it closes
            await self.connection.send_json(message)
        text = await self._replies.get()
        if text is None:
            raise PlayError(f"the server closed the session at {message['type']}")
        reply = json.loads(text)
        return reply if isinstance(reply, Mapping) else {}

    @property
    def is_gone(self) -> bool:
        """True once the server has closed it."""
        return bool(self.connection.closed)


class _Server:
    """An OpenEnv server: its schema, and the sessions of this process by the state that each is in."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.action = asyncio.run(_action(self.url))
        self.sessions: dict[str, _Session] = {}
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._client: Any = None

    def _wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def open(self) -> _Session:
        """Open a session."""
        import aiohttp

        async def opened() -> _Session:
            self._client = self._client or aiohttp.ClientSession()
            return _Session(await self._client.ws_connect(f"{self.url}/ws", max_msg_size=0))

        session: _Session = self._wait(opened())
        return session

    def close(self, session: _Session) -> None:
        """Let the server forget a session."""
        self._wait(session.connection.close())

    def exchange(self, session: _Session, kind: str, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """The answer of a session to a message: the observation, the reward, and whether it is done.

        A session that fails is closed; one whose action was wrong goes on.
        """
        try:
            reply = self._wait(session.ask({"type": kind, "data": data}))
            said = reply.get("data")
            if not isinstance(said, Mapping):
                raise PlayError(f"the server answered {kind} with {json.dumps(reply)[:100]}")
            if reply.get("type") == "error":
                code, words = said.get("code"), str(said.get("message", "an error"))
                if kind == "step" and code == WRONG_ACTION:
                    raise WrongActionError(_errors(said.get("errors")) or words)
                hint = "; it needs a session for each answer that is played at once" if code == CAPACITY else ""
                raise PlayError(f"the server says {code}: {words}{hint}")
        except WrongActionError:
            raise
        except Exception:
            self.close(session)
            raise
        return said


async def _action(url: str) -> Mapping[str, Any]:
    """JSON schema of an action; whatever goes wrong names the server."""
    import aiohttp

    try:
        timeout = aiohttp.ClientTimeout(total=SCHEMA_SECONDS)
        async with aiohttp.ClientSession(timeout=timeout) as client, client.get(f"{url}/schema") as response:
            response.raise_for_status()
            schema = (await response.json())["action"]
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError, KeyError, TypeError) as error:
        words = str(error) or type(error).__name__
        raise PlayError(f"{url} does not answer as an OpenEnv server: {words}") from None
    if not isinstance(schema, Mapping):
        raise PlayError(f"{url} does not answer as an OpenEnv server: its action has no schema")
    return schema


_SERVERS: dict[str, _Server] = {}


def _server(url: str) -> _Server:
    """The server of an address, asked once by this process."""
    if url not in _SERVERS:
        _SERVERS[url] = _Server(url)
    return _SERVERS[url]


def server_problem(url: str) -> str | None:
    """Words about a server that does not answer as one of OpenEnv; None where it does."""
    try:
        asyncio.run(_action(url.rstrip("/")))
    except PlayError as error:
        return str(error)
    return None


class OpenEnvSession:
    """One episode on an OpenEnv server; a turn of the policy is an action, an observation is the next turn.

    The action is the turn as a JSON object, or the text of the one field that the server's schema requires. The row's
    `reset` is an object of arguments for the server's reset; `seed` among them is that of the row unless given.
    """

    def __init__(self, url: str) -> None:
        _server(url)
        self.url = url
        self.reset_with: dict[str, Any] = {}
        self.actions: list[dict[str, Any]] = []
        self.seen: list[str] = []
        """Digests of what the server answered, to the reset and to each action."""
        self.total: float | None = None
        self.answer = 0
        """Seed of the answer, by which the sessions of two answers that act alike differ."""

    def reset(self, row: Mapping[str, Any], turns: Sequence[Mapping[str, str]], seed: int) -> list[dict[str, str]]:
        """Begin an episode; what the server shows stands below the prompt."""
        self.answer = seed
        given = row.get("reset") or {}
        if not isinstance(given, Mapping):
            raise PlayError("the row's column `reset` is no object of arguments")
        content = json.dumps(dict(row), sort_keys=True).encode()
        of_the_row = int.from_bytes(hashlib.sha256(content).digest()[:8]) % 2**SEED_BITS
        self.reset_with = {"seed": of_the_row, **given}
        session = _server(self.url).open()
        said = _server(self.url).exchange(session, "reset", self.reset_with)
        self._keep(session, said)
        opening = [dict(turn) for turn in turns]
        shown = _shown(said.get("observation"))
        if shown and opening and opening[-1]["role"] == "user":
            opening[-1]["content"] = f"{opening[-1]['content']}\n\n{shown}"
        elif shown:
            opening.append({"role": "user", "content": shown})
        return opening

    def step(self, answer: str) -> dict[str, Any]:
        """Act; an action that the server does not take leaves the episode as it was, and the policy reads why."""
        server = _server(self.url)
        session, is_again = self._session()
        try:
            action = action_of(answer, server.action)
            said = server.exchange(session, "step", action)
        except WrongActionError as error:
            server.sessions[self._key()] = session
            return {"observation": f"error: {error}", "is_error": True, "done": False, "repeated": is_again}
        self.actions.append(action)
        reward = said.get("reward")
        if reward is not None:
            self.total = (self.total or 0.0) + float(reward)
        self._keep(session, said)
        if said.get("done"):
            server.close(server.sessions.pop(self._key()))
        return {
            "observation": _shown(said.get("observation")),
            "reward": reward,
            "done": bool(said.get("done")),
            "repeated": is_again,
        }

    def reward(self) -> float | None:
        """End the episode; the sum of what its steps gave, None where none gave any."""
        server = _server(self.url)
        if (session := server.sessions.pop(self._key(), None)) is not None:
            server.close(session)
        return self.total

    def _session(self) -> tuple[_Session, bool]:
        """The session in this state, and whether it is a new one in which every action was made again."""
        server = _server(self.url)
        session = server.sessions.pop(self._key(), None)
        if session is not None and not session.is_gone:
            return session, False
        session = server.open()
        said = [server.exchange(session, "reset", self.reset_with)]
        said += [server.exchange(session, "step", action) for action in self.actions]
        if [_digest(item) for item in said] != self.seen:
            server.close(session)
            raise PlayError("a new session with the same seed and actions does not answer as the first did")
        return session, True

    def _keep(self, session: _Session, said: Mapping[str, Any]) -> None:
        self.seen.append(_digest(said))
        _server(self.url).sessions[self._key()] = session

    def _key(self) -> str:
        """The state of the episode."""
        return json.dumps(vars(self), sort_keys=True)


def action_of(answer: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """The action that a turn is, for an environment whose actions have this schema.

    >>> action_of('{"guess": 3}', {}), action_of("crane", {"required": ["word"]})
    ({'guess': 3}, {'word': 'crane'})
    """
    text = answer.strip()
    try:
        action = json.loads(text)
    except ValueError:
        action = text
    if isinstance(action, dict):
        return action
    required = schema.get("required", [])
    if len(required) != 1:
        names = ", ".join(schema.get("properties", {})) or "the fields of an action"
        raise WrongActionError(f"the action is a JSON object with {names}")
    kind = schema.get("properties", {}).get(required[0], {}).get("type")
    return {required[0]: text if kind == "string" else action}


def _errors(errors: Any) -> str:
    """Words of each error of a validation, and the field that has it."""
    items = [item for item in errors if isinstance(item, Mapping)] if isinstance(errors, list) else []
    return "; ".join(f"{'.'.join(map(str, item.get('loc', ())))}: {item.get('msg')}" for item in items)


def _shown(observation: Any) -> str:
    """The text that the policy reads of an observation: its only one, or JSON."""
    if isinstance(observation, Mapping):
        fields = {name: value for name, value in observation.items() if value is not None}
        if not fields:
            return ""
        only = next(iter(fields.values()))
        return only if len(fields) == 1 and isinstance(only, str) else json.dumps(fields)
    return "" if observation is None else observation if isinstance(observation, str) else json.dumps(observation)


def _digest(said: Mapping[str, Any]) -> str:
    """Digest of an environment's answer; times and other figures of its own are no part of it."""
    content = {name: said.get(name) for name in ("observation", "reward", "done")}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
