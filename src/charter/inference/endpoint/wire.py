"""The body of a request. A chat goes to `/chat/completions`, plain text to `/completions`."""

import json
from typing import Any

from charter.inference.endpoint.call import CallRequest

MAX_TOKENS = "max_tokens"
"""The limit of generated tokens, as all servers of one's own call it."""
MAX_COMPLETION_TOKENS = "max_completion_tokens"
"""The same for OpenAI's reasoning models, which refuse the older name."""


def path_of(request: CallRequest) -> str:
    """Return the path of a request below the endpoint's address."""
    return "/chat/completions" if request.turns else "/completions"


def body_of(request: CallRequest, limit_name: str = MAX_TOKENS) -> bytes:
    """The request as JSON.

    `continue_final_message` and `add_generation_prompt` are what vLLM and SGLang need to go on with an answer that has
    begun; other servers refuse or ignore them, so that they are sent with a prefill only.
    """
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


_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))
