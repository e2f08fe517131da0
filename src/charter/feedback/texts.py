"""Requests of a stage for text, by its sampling fields, and the facts that its records keep of the texts."""

from collections.abc import Sequence
from typing import Any

from charter.artifacts.job import Job
from charter.data.dataset import Turn
from charter.feedback.asks import Sample, Text
from charter.spec.stage import Sampling


def sample_of(spec: Sampling, role: str, turns: Sequence[Turn], *, seed: int) -> Sample:
    """The question for one answer to a conversation."""
    return Sample(
        role=role,
        turns=tuple(turns),
        seed=seed,
        temperature=spec.temperature,
        top_p=spec.top_p,
        max_new_tokens=spec.max_new_tokens,
        min_new_tokens=spec.min_new_tokens,
        max_prompt_tokens=spec.max_prompt_tokens,
    )


def text_facts(job: Job, role: str, *texts: Text) -> dict[str, Any]:
    """Return the origin of a text: the model's fingerprint, the server's own name, the seed, the tokens generated."""
    return {
        role: job.only(role).fingerprint,
        f"{role}_model": texts[-1].model,
        "finished": texts[-1].is_finished,
        "tokens": sum(text.tokens for text in texts),
        "seed": job.seed,
    }
