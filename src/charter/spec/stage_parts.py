"""Settings that several kinds of stage have in common: how weights are updated, and how text is drawn."""

from dataclasses import dataclass
from typing import Literal

from charter.spec.layout import Adapter
from charter.spec.quantity import Count, execution

Schedule = Literal["constant", "linear", "cosine"]
Dtype = Literal["fp32", "bf16"]


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
    """Precision of the forward and backward pass; weights and optimizer are kept in fp32."""
    adapter: Adapter | None = None


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
