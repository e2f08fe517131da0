"""Settings that several kinds of stage have in common: how weights are updated, and how text is drawn."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from charter.spec.layout import Adapter
from charter.spec.quantity import Count, added, execution

Schedule = Literal["constant", "linear", "cosine"]
Dtype = Literal["fp32", "bf16", "fp16", "fp8"]
OptimizerName = Literal["adamw", "adamw_8bit"]
OnDivergence = Literal["stop", "skip", "roll_back"]
LossAggregation = Literal["token", "sequence"]


@dataclass(frozen=True, kw_only=True)
class Guard:
    """What happens when a loss is not finite or jumps: stop, leave the update out, or go back and around it."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    on_divergence: OnDivergence = "stop"
    spike_ratio: float | None = None
    """A loss of so many times its running mean counts as divergence; only what is not finite does without it."""
    roll_back_steps: Count = 100
    """`roll_back`: how far before the divergence training goes on from (PaLM, arXiv:2204.02311, section 5.1)."""
    skip_steps: Count = 200
    """`roll_back`: how many steps' data are left out from there."""
    most: Count = 3
    """Divergences in all, after which the stage fails."""


@dataclass(frozen=True, kw_only=True)
class Optimization:
    """How weights are updated; shared by every stage that trains."""

    learning_rate: float = 1e-5
    epochs: float | None = None
    steps: Count | None = None
    """Optimizer steps; give either epochs or steps."""
    global_batch: Count = 64
    """Sequences (or pairs) per optimizer step."""
    seq_len: Count = 1024
    warmup_steps: Count = 0
    schedule: Schedule = "cosine"
    min_learning_rate_ratio: float = 0.1
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.95
    gradient_clip: float = 1.0
    dropout: float = 0.0
    """Share of token embeddings and attention weights dropped; in a preference model, of the head's input."""
    dtype: Dtype = "bf16"
    """Precision of the forward and backward pass; weights and optimizer are kept in fp32. `fp8`: matrix products of the
    layers in 8 bits, all else in bf16; engine megatron."""
    adapter: Adapter | None = None
    optimizer: OptimizerName = added("adamw")
    """`adamw_8bit` keeps Adam's moments in 8 bits (Dettmers et al. 2022, arXiv:2110.02861)."""
    guard: Guard | None = None
    """What happens when the loss is not finite or jumps; the stage stops unless given."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How text is drawn from a model."""

    temperature: float = 1.0
    top_p: float = 1.0
    max_new_tokens: Count = 512
    min_new_tokens: Count = 0
    """The end-of-text token is banned before this many tokens."""
    max_prompt_tokens: Count = 512
    """Longer prompts are cut at the left."""
    rollout_batch: Count = 64
    """Sequences generated together: the fixed unit that is replayed whole after a crash."""
    mean_new_tokens: Count | None = execution(None)
    """Mean tokens of an answer where it is known, for the plan alone; `max_new_tokens` unless given."""

    @property
    def expected_new_tokens(self) -> int:
        """Tokens of an answer that a plan counts."""
        return min(self.mean_new_tokens or self.max_new_tokens, self.max_new_tokens)
