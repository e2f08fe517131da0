"""Answers and errors in the layouts of OpenAI's API, https://platform.openai.com/docs/api-reference.

The end token is among `logprobs` and counted in `completion_tokens`, as vLLM has it; its text is no part of the answer.
"""

import itertools
from typing import Any

from charter.inference.serve.completion import Completion, ServedToken
from charter.inference.serve.request import RequestError

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
    found: dict[str, float] = {}
    for text, value in (*token.top, (token.text, token.log_probability)):
        found.setdefault(text, _number(value))
    return found


def _number(value: float) -> float:
    return max(value, LEAST)
