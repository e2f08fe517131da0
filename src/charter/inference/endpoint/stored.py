"""A reply as the text that the store of answers keeps, and back."""

import json

from charter.errors import DataError
from charter.inference.endpoint.call import CallReply, TokenAlternatives


def to_stored(reply: CallReply) -> str:
    """One line of JSON; what is empty is left out.

    >>> to_stored(CallReply(text="A", finish_reason="stop", model="m", prompt_tokens=3, cached_tokens=0,
    ...                     completion_tokens=1))
    '{"text":"A","finish_reason":"stop","model":"m","prompt_tokens":3,"cached_tokens":0,"completion_tokens":1}'
    """
    fields: dict[str, object] = {
        "text": reply.text,
        "finish_reason": reply.finish_reason,
        "model": reply.model,
        "prompt_tokens": reply.prompt_tokens,
        "cached_tokens": reply.cached_tokens,
        "completion_tokens": reply.completion_tokens,
    }
    if reply.refusal:
        fields["refusal"] = reply.refusal
    if reply.log_probabilities:
        fields["log_probabilities"] = [(item.token, item.log_probability, item.top) for item in reply.log_probabilities]
    return _ENCODER.encode(fields)


def from_stored(text: str) -> CallReply:
    """The reply that `to_stored` wrote; a DataError when it is damaged."""
    try:
        fields = json.loads(text)
        tokens = tuple(
            TokenAlternatives(token=token, log_probability=value, top=tuple((word, each) for word, each in top))
            for token, value, top in fields.pop("log_probabilities", ())
        )
        return CallReply(log_probabilities=tokens, **fields)
    except (ValueError, TypeError, AttributeError) as error:
        raise DataError(f"a stored answer cannot be read ({type(error).__name__}); restore the file of calls") from None


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
