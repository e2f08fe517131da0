"""Requests to a server, and its replies: plain values, whichever API they go by."""

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property

from charter.data.dataset import Turn

KEY_SCHEMA = "charter.call/3"


@dataclass(frozen=True, kw_only=True)
class CallRequest:
    """One question to one served model. Equal requests have the same stored answer."""

    declared: str
    """Name of the model in charter.yaml: its identity. Two models are two, whatever their servers call them."""
    model: str
    """Name of the model on its server, which may be `default` for every model of a proxy."""
    revision: str = ""
    """Fingerprint of the model: of its weights where they are known here, else of the revision that the file names."""
    turns: tuple[Turn, ...] = ()
    """A chat; empty where `prompt` is given."""
    prompt: str = ""
    """Plain text to continue (`/completions`)."""
    prefill: str = ""
    """How the assistant's turn begins; only for servers that continue a last turn of the assistant."""
    max_new_tokens: int = 512
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    top_log_probabilities: int = 0
    """How many alternatives of each token are wanted with their log-probabilities; servers give at most 20."""
    is_message: bool = False
    """Put by Anthropic's Messages API. Not in the key: like an address, it says how, not what."""

    @cached_property
    def key(self) -> str:
        """Return the name of the answer in the store: SHA-256 of the model, the question and how it is drawn.

        The model is its name in charter.yaml with its revision. Address, port and replica are not in it: a server that
        comes back elsewhere is not asked, or paid, again.
        """
        turns = [(turn.role, turn.content) for turn in self.turns]
        drawn = (self.max_new_tokens, self.temperature, self.top_p, self.seed, self.stop, self.top_log_probabilities)
        named = (KEY_SCHEMA, self.declared, self.revision, self.model)
        text = json.dumps([*named, turns, self.prompt, self.prefill, *drawn], separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class TokenAlternatives:
    """One generated token, and what else could have stood there."""

    token: str
    log_probability: float
    top: tuple[tuple[str, float], ...]
    """Tokens with their log-probabilities, most likely first."""


@dataclass(frozen=True, kw_only=True)
class CallReply:
    """The parsed, checked answer of a server."""

    text: str
    finish_reason: str
    """`stop`, `length`, `content_filter`, or what the server says."""
    model: str
    """What the server says answered."""
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    refusal: str = ""
    log_probabilities: tuple[TokenAlternatives, ...] = ()
    """One per generated token; empty where none were asked for or given."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """Token counts that a server says it will bill."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
