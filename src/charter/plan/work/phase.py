"""What a stage does, as a short list of phases: train, score or generate with one model.

Every kind of stage comes down to these three, so that memory and time are computed in one place. A role is a model
as a stage holds it; a phase is work for one role.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import log
from typing import Literal

from charter.estimate.serving.api_judge import ApiPrice
from charter.spec.architecture import Architecture
from charter.spec.layout import Adapter

Work = Literal["train", "score", "generate"]


@dataclass(frozen=True, kw_only=True)
class Role:
    """One model in a stage: policy, value, reference, reward, judge or model."""

    name: str
    architecture: Architecture
    model: str
    """The name it has in charter.yaml."""
    trained: bool = False
    scalar_head: bool = False
    """One number per token instead of a distribution over the vocabulary."""
    adapter: Adapter | None = None


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Work for one role: `steps` batches of `batch` sequences."""

    name: str
    work: Work
    role: str
    steps: float
    """Batches in all; optimizer steps for training."""
    batch: int
    """Sequences of one batch, over all accelerators."""
    prompt_tokens: float
    """Mean tokens of a sequence that are read: all of it for training and scoring, the prompt for generation."""
    unpadded_tokens: float = 0.0
    """Mean tokens that are read where no prompt is padded, if that differs from `prompt_tokens`; else 0."""
    new_tokens: float = 0.0
    """Tokens generated per sequence."""
    mean_new_tokens: float = 0.0
    """Mean tokens of an answer where the stage says it, else 0; `new_tokens` is then the longest of a batch."""
    longest_tokens: float = 0.0
    """Tokens of the longest sequence, for memory."""
    unit: int = 1
    """Sequences that must share a micro-batch: 2 where answers of a pair are compared."""
    ragged: bool = False
    """Sequences differ in length and are padded to the longest of their batch."""
    logit_share: float = 1.0
    """Share of the positions whose logits, or scores of a scalar head, are asked for."""

    @property
    def sequences(self) -> float:
        """Sequences in all."""
        return self.steps * self.batch

    def padded_tokens(self, together: float) -> float:
        """Tokens that are read per sequence when `together` sequences share a batch."""
        return padded(self.prompt_tokens, together, longest=self.longest_tokens) if self.ragged else self.prompt_tokens

    @property
    def tokens(self) -> float:
        """Tokens read and generated in all, without padding."""
        return self.sequences * (self.prompt_tokens + self.new_tokens)


PADDING_GROWTH = 0.8
PADDING_SOURCE = "measured on the shipped dialogues: longest of b rows over the mean is 2.5, 3.1, 4.0 for b = 8, 16, 32"


def padded(mean_tokens: float, together: float, *, longest: float) -> float:
    """Mean length after padding `together` sequences drawn at random to the longest of them.

    `mean (1 + 0.8 ln b)`, at most the cut-off. Holds for skewed lengths like those of dialogues; a loader that
    groups sequences by length, or packs them, does better.

    >>> round(padded(100, 8, longest=1000)), round(padded(100, 8, longest=128)), round(padded(100, 1, longest=128))
    (266, 128, 100)
    """
    return max(mean_tokens, min(longest, mean_tokens * (1 + PADDING_GROWTH * log(max(1.0, together)))))


@dataclass(frozen=True, kw_only=True)
class Counters:
    """What a stage produces, in the units of the ledger."""

    tokens: float = 0.0
    """Tokens trained on (or scored)."""
    generated_tokens: float = 0.0
    pairs: float = 0.0
    episodes: float = 0.0
    records: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The roles and phases of one stage."""

    roles: tuple[Role, ...]
    phases: tuple[Phase, ...]
    counters: Counters
    together: bool = False
    """All roles stay in memory at once (PPO, DPO); else they are loaded one after another."""
    data_bytes: float = 0.0
    """Bytes of what the stage writes beside checkpoints."""
    remote: tuple[str, ...] = ()
    """Roles that an endpoint answers for; their time and price are in the plan where `endpoints` has them."""
    either: tuple[str, ...] = ()
    """Roles that may be served here or by their endpoint, whichever is better."""
    endpoints: Mapping[str, ApiPrice] = field(default_factory=dict)
    """What endpoints charge and allow, by role."""

    def role(self, name: str) -> Role:
        """The role of that name."""
        return next(role for role in self.roles if role.name == name)

    @property
    def needs_accelerator(self) -> bool:
        """False where no model runs here: text work only, or every model answers from an endpoint."""
        return any(phase.role not in self.remote for phase in self.phases)

    def answered_by_endpoints(self, roles: tuple[str, ...]) -> "Workload":
        """The same with these roles answered remotely."""
        return replace(self, remote=roles)

    @property
    def trained(self) -> tuple[Role, ...]:
        """Roles that are trained."""
        return tuple(role for role in self.roles if role.trained)
