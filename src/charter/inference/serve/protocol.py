"""Requests and replies of OpenAI's API as this server knows them, and the options of the serving process: no torch.

Fields are checked strictly, answers and errors are OpenAI's.
"""

import ipaddress
import itertools
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NoReturn

from charter.data.dataset import Turn
from charter.errors import UsageError

MOST_ALTERNATIVES = 20
"""OpenAI's limit of `top_logprobs`; https://platform.openai.com/docs/api-reference/chat/create."""
MOST_STOPS = 4
"""OpenAI's limit of `stop` sequences."""
HIGHEST_TEMPERATURE = 2.0
"""OpenAI's limit."""
COMPLETION_TOKENS = 16
"""OpenAI's default of `max_tokens` for text completions; a chat goes on to the end of the context."""
MOST_TURNS = 1024
"""Messages of one chat; judgement: far above any real one."""
ROLES = ("system", "developer", "user", "assistant")
NO_EFFECT: Mapping[str, tuple[object, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "stream": (False,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "suffix": ("",),
    "store": (False,),
}
"""Fields that are known with the value that asks for nothing."""
IGNORED = ("user", "metadata")
"""Fields about the client, not about the answer."""


class RequestError(Exception):
    """A request that cannot be answered: the HTTP status, and which field is to blame."""

    def __init__(self, message: str, *, parameter: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.parameter, self.status = parameter, status


@dataclass(frozen=True, kw_only=True)
class AnswerRequest:
    """One answer that is asked for."""

    turns: tuple[Turn, ...] = ()
    """A chat; empty where `prompt` is given."""
    prompt: str = ""
    prefill: str = ""
    """How the answer begins: the last turn of the assistant, to be continued."""
    max_new_tokens: int | None = None
    """None: to the end of the context."""
    min_new_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    top_log_probabilities: int | None = None
    """Alternatives of each token; 0 gives the token's own log-probability alone, None gives none."""

    @property
    def is_chat(self) -> bool:
        """Return True if it is answered in the layout of a chat."""
        return bool(self.turns)


def read_request(body: bytes, *, is_chat: bool, model: str) -> AnswerRequest:
    """The checked request in a body; `model` is the only name that is served."""
    fields = _Fields(_parsed(body))
    requested = fields.take("model", str, None)
    if requested != model:
        raise RequestError(f"the model {requested!r} is not served here; {model!r} is", parameter="model", status=404)
    common = {
        "temperature": fields.number("temperature", 1.0, least=0.0, most=HIGHEST_TEMPERATURE),
        "top_p": fields.number("top_p", 1.0, least=0.0, most=1.0, is_open=True),
        "seed": fields.whole("seed", None, least=-(2**63), most=2**63 - 1),
        "stop": _stops(fields),
        "min_new_tokens": fields.whole("min_tokens", 0, least=0) or 0,
    }
    wanted = _chat(fields, common) if is_chat else _completion(fields, common)
    fields.refuse_others()
    return wanted


def _chat(fields: "_Fields", common: Mapping[str, Any]) -> AnswerRequest:
    turns = _turns(fields.take("messages", list, []))
    limit = fields.whole("max_completion_tokens", None, least=1)
    older = fields.whole("max_tokens", None, least=1)
    continues = fields.take("continue_final_message", bool, False)
    if fields.take("add_generation_prompt", bool, not continues) is continues:
        raise RequestError("is the opposite of continue_final_message", parameter="add_generation_prompt")
    alternatives = fields.whole("top_logprobs", None, least=0, most=MOST_ALTERNATIVES)
    if not fields.take("logprobs", bool, False):
        if alternatives is not None:
            raise RequestError("needs logprobs: true", parameter="top_logprobs")
    elif alternatives is None:
        alternatives = 0
    prefill = ""
    if continues:
        if turns[-1].role != "assistant" or len(turns) == 1:
            raise RequestError("needs a last message of the assistant", parameter="continue_final_message")
        *rest, last = turns
        turns, prefill = tuple(rest), last.content
    limit = older if limit is None else limit
    return AnswerRequest(
        turns=turns, prefill=prefill, max_new_tokens=limit, top_log_probabilities=alternatives, **common
    )


def _completion(fields: "_Fields", common: Mapping[str, Any]) -> AnswerRequest:
    prompt = fields.take("prompt", str, "")
    if not prompt:
        raise RequestError("must be a text of at least one character", parameter="prompt")
    return AnswerRequest(
        prompt=prompt,
        max_new_tokens=fields.whole("max_tokens", COMPLETION_TOKENS, least=1),
        top_log_probabilities=fields.whole("logprobs", None, least=0, most=MOST_ALTERNATIVES),
        **common,
    )


def _parsed(body: bytes) -> dict[str, Any]:
    """Strict JSON: no NaN, no key twice, nothing but an object."""
    try:
        content = json.loads(body, parse_constant=_refuse_constant, object_pairs_hook=_once)
    except (ValueError, RecursionError):
        raise RequestError("the body is not one valid JSON object") from None
    if not isinstance(content, dict):
        raise RequestError("the body is not a JSON object")
    return content


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a key is given twice")
    return members


def _turns(messages: list[Any]) -> tuple[Turn, ...]:
    if not 1 <= len(messages) <= MOST_TURNS:
        raise RequestError(f"must be 1 to {MOST_TURNS} messages; found {len(messages)}", parameter="messages")
    return tuple(_turn(message, f"messages.{index}") for index, message in enumerate(messages))


def _turn(message: Any, where: str) -> Turn:
    if not isinstance(message, dict) or message.get("role") not in ROLES:
        raise RequestError(f"must be an object with a role of {', '.join(ROLES)}", parameter=where)
    if unknown := sorted(set(message) - {"role", "content", "name"}):
        raise RequestError(f"has fields that are not known here: {', '.join(unknown)}", parameter=where)
    content = message.get("content")
    if isinstance(content, list) and all(_is_text(part) for part in content):
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise RequestError("must be text", parameter=f"{where}.content")
    role = "system" if message["role"] == "developer" else message["role"]
    return Turn(role, _clean(content, f"{where}.content"))


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _clean(text: str, where: str) -> str:
    """Text that can be encoded: JSON may carry halves of surrogate pairs."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise RequestError("has a character that is no Unicode scalar value", parameter=where) from None
    return text


def _stops(fields: "_Fields") -> tuple[str, ...]:
    value = fields.take("stop", (str, list), [])
    stops = [value] if isinstance(value, str) else value
    if len(stops) > MOST_STOPS or not all(isinstance(item, str) and item for item in stops):
        raise RequestError(f"must be one text or up to {MOST_STOPS}, none of them empty", parameter="stop")
    return tuple(stops)


class _Fields:
    """The fields of a request, taken one by one; null is the same as not given."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._left = {name: value for name, value in values.items() if value is not None}

    def take(self, name: str, kind: type | tuple[type, ...], default: Any) -> Any:
        """A value of a type."""
        value = self._left.pop(name, default)
        if value is not default and not isinstance(value, kind):
            names = " or ".join(item.__name__ for item in (kind if isinstance(kind, tuple) else (kind,)))
            raise RequestError(f"must be of type {names}; found {type(value).__name__}", parameter=name)
        return _clean(value, name) if isinstance(value, str) else value

    def whole(self, name: str, default: int | None, *, least: int, most: int = 2**31) -> int | None:
        """A whole number in a range."""
        value = self._left.pop(name, default)
        if value is not default and (isinstance(value, bool) or not isinstance(value, int)):
            raise RequestError(f"must be a whole number; found {type(value).__name__}", parameter=name)
        if value is not None and not least <= value <= most:
            raise RequestError(f"must be {least} to {most}; found {value}", parameter=name)
        return None if value is None else int(value)

    def number(self, name: str, default: float, *, least: float, most: float, is_open: bool = False) -> float:
        """A number in a range, without its lower end where that is open."""
        value = self._left.pop(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise RequestError(f"must be a finite number; found {type(value).__name__}", parameter=name)
        if not least <= value <= most or (is_open and value == least):
            raise RequestError(f"must be {'above ' if is_open else ''}{least} to {most}; found {value}", parameter=name)
        return float(value)

    def refuse_others(self) -> None:
        """Refuse what is left, unless it asks for nothing."""
        for name, value in self._left.items():
            if name in IGNORED or (name in NO_EFFECT and value in NO_EFFECT[name]):
                continue
            raise RequestError("is not known here; leave it out", parameter=name)


@dataclass(frozen=True, kw_only=True)
class ServedToken:
    """One generated token, and what else could have stood there."""

    text: str
    log_probability: float
    top: tuple[tuple[str, float], ...]
    """Most likely first."""


@dataclass(frozen=True, kw_only=True)
class Completion:
    """One answer."""

    text: str
    tokens: tuple[ServedToken, ...]
    """Empty where no log-probabilities were asked for."""
    finish_reason: str
    """`stop` at the end token or at a stop sequence, `length` where the limit cut it."""
    prompt_tokens: int
    completion_tokens: int
    """End token included."""


LEAST = -9999.0
"""Stands for log 0, which JSON cannot hold; the number that OpenAI documents for tokens that are not likely at all."""
NO_TIME = 0
"""`created` of every answer: the same request has the same bytes as its answer."""


def chat_reply(completion: Completion, *, model: str, number: str) -> dict[str, Any]:
    """A `chat.completion` object."""
    content = [_chat_token(token) for token in completion.tokens]
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": completion.text, "refusal": None},
        "logprobs": {"content": content, "refusal": None} if completion.tokens else None,
        "finish_reason": completion.finish_reason,
    }
    return _reply(f"chatcmpl-{number}", "chat.completion", choice, completion, model)


def text_reply(completion: Completion, *, model: str, number: str) -> dict[str, Any]:
    """A `text_completion` object."""
    tokens = completion.tokens
    lengths = [len(token.text) for token in tokens]
    logprobs = {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [_number(token.log_probability) for token in tokens],
        "top_logprobs": [_alternatives(token) for token in tokens],
        "text_offset": list(itertools.accumulate(lengths[:-1], initial=0)),
    }
    choice = {
        "index": 0,
        "text": completion.text,
        "logprobs": logprobs if tokens else None,
        "finish_reason": completion.finish_reason,
    }
    return _reply(f"cmpl-{number}", "text_completion", choice, completion, model)


def models_reply(model: str, *, context_tokens: int) -> dict[str, Any]:
    """The list of served models: one."""
    entry = {
        "id": model,
        "object": "model",
        "created": NO_TIME,
        "owned_by": "charter",
        "max_model_len": context_tokens,
    }
    return {"object": "list", "data": [entry]}


def error_reply(error: RequestError) -> dict[str, Any]:
    """An error object; its message names the field."""
    kind = {401: "authentication_error", 429: "rate_limit_error"}.get(error.status, "invalid_request_error")
    message = f"{error.parameter}: {error}" if error.parameter else str(error)
    if error.status >= 500:
        kind = "server_error"
    return {"error": {"message": message, "type": kind, "param": error.parameter, "code": None}}


def _reply(name: str, kind: str, choice: dict[str, Any], completion: Completion, model: str) -> dict[str, Any]:
    read, written = completion.prompt_tokens, completion.completion_tokens
    usage = {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": read + written,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    return {"id": name, "object": kind, "created": NO_TIME, "model": model, "choices": [choice], "usage": usage}


def _chat_token(token: ServedToken) -> dict[str, Any]:
    top = [_entry(text, value) for text, value in token.top]
    return {**_entry(token.text, token.log_probability), "top_logprobs": top}


def _entry(text: str, value: float) -> dict[str, Any]:
    return {"token": text, "logprob": _number(value), "bytes": list(text.encode())}


def _alternatives(token: ServedToken) -> dict[str, float]:
    """By text, the likeliest of those that are written alike; the chosen token always, as OpenAI has it."""
    by_text: dict[str, float] = {}
    for text, value in (*token.top, (token.text, token.log_probability)):
        by_text.setdefault(text, _number(value))
    return by_text


def _number(value: float) -> float:
    return max(value, LEAST)


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """Everything that a server is told."""

    directory: str
    host: str = "127.0.0.1"
    port: int = 0
    """0: any that is free."""
    name: str | None = None
    """How clients call the model; the name of its directory unless given."""
    token: str | None = None
    """Where the token is, `env:NAME` or `file:PATH`; never the token itself."""
    threads: int = 1
    device: str = "cpu"
    batch: int = 16
    """Requests of one batch. With 1 every answer is computed alone: the same request gives the same bits."""
    waiting: int = 1024
    """Requests that wait; further ones are told to come back (429)."""

    def to_json(self) -> str:
        """As one argument of a process."""
        return json.dumps(asdict(self), ensure_ascii=False, allow_nan=False)

    @staticmethod
    def from_json(text: str) -> "ServeOptions":
        """Read the options from the text of `to_json`."""
        return ServeOptions(**json.loads(text))


def check_address(options: ServeOptions) -> None:
    """Refuse an address that others can reach without a token."""
    if options.token is None and not is_loopback(options.host):
        raise UsageError(
            f"--host {options.host} can be reached from other machines, and no token protects the server\n"
            "  give --token env:NAME or --token file:PATH, or serve on 127.0.0.1"
        )


def is_loopback(host: str) -> bool:
    """Return True if an address is reached from this machine only; a name other than `localhost` is not trusted to be.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0"), is_loopback("node7")
    (True, True, False, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
