"""Answers of the model in training to the same prompts at every checkpoint, for people to read.

Draws depend on the run's seed and the prompt alone, so that two steps differ by their weights. The random numbers and
the state of training are not touched: a run with samples and one without end in the same bits.
"""

import contextlib
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic

from torch import Tensor

from charter.artifacts.draws import draw_seed
from charter.artifacts.sample_prompts import (
    SamplePrompts,
    affordable,
    append_rollout_sample,
    append_sample_begin,
    append_sample_time,
    append_samples,
    has_samples_of,
    read_sample_prompts,
)
from charter.data.dataset import Prompt, Turn
from charter.inference.generate import SamplingSettings, answer_texts, generate
from charter.models.chat import encode_prompt
from charter.models.language_model import LanguageModel
from charter.models.parallel import Parallel
from charter.spec.sections import why_no_samples
from charter.train.setup import Setup

TEMPERATURE = 0.7
"""Between the likeliest answer, which small models repeat, and what PPO samples (judgement)."""
FIRST_IS_WORTH = 4
"""The first answer warms up, and a batch takes less than its answers one by one: its time is held to be that of so many
(judgement; what follows is measured)."""
LONGEST_PROMPT = 1024
"""Tokens of a prompt; a longer one is cut at the left."""


ROLLOUT_SAMPLES = 4
"""Answers of a rollout that are kept with their rewards, at the steps of checkpoints (judgement: a screen of them)."""


def keep_rollout_samples(
    setup: Setup,
    step: int,
    prompts: Sequence[Prompt],
    texts: Sequence[str],
    scores: Sequence[float],
    rewards: Mapping[str, Sequence[float]],
) -> None:
    """Write down a few of this process's answers, drawn by the step alone, with what each reward gave."""
    order = sorted(range(len(texts)), key=lambda number: setup.seed("rollout samples", step, number))
    for number in order[:ROLLOUT_SAMPLES]:
        given = {name: values[number] for name, values in rewards.items()}
        append_rollout_sample(
            setup.stage.path,
            f"{prompts[number].id}@{step}.{number}",
            step,
            [{"role": turn.role, "content": turn.content} for turn in prompts[number].turns],
            texts[number],
            score=scores[number],
            rewards={name: value if math.isfinite(value) else None for name, value in given.items()},
        )


class _OverTimeError(Exception):
    """The answers take longer than they may."""


_Answered = list[tuple[str, Sequence[Mapping[str, str]], str]]


@dataclass
class SampleDrawer:
    """Answers prompts at checkpoints, within a share of the time since it began.

    Every process of a stage answers the same prompts, and the first one writes. Where a pass gathers the weights of
    each layer for itself, all make the same passes, and what the first has drawn is what all go on with.
    """

    setup: Setup
    model: LanguageModel
    parallel: Parallel
    prompts: SamplePrompts
    dtype: str
    by_pass: bool = False
    """Whether every pass gathers the weights: a round of one prompt then takes as long as one of all."""
    _began: float = field(default_factory=lambda: monotonic())
    _spent: float = 0.0
    _each: float | None = None
    """Seconds of one answer."""
    _has_failed: bool = False

    def draw(self, step: int) -> None:
        """Answer as many of the prompts as may be.

        A failure ends it for this attempt, and never the stage. Where passes gather weights it ends the attempt, which
        is started again without prompts: other processes wait for this one's part of a pass.
        """
        is_new, count = self._each is None, self._count()
        answered = self._answer(step, count)
        if is_new and 0 < count < len(self.prompts.prompts):
            answered = self._answer(step, self._count()) or answered
        if answered and self.setup.ranks.is_first:
            append_samples(self.setup.stage.path, step, answered)

    def make_up(self, step: int) -> None:
        """Answer at the step where the stage goes on, if an earlier attempt was ended before it could."""
        if not self.setup.ranks.from_first(has_samples_of(self.setup.stage.path, step)):
            self.draw(step)

    def _count(self) -> int:
        """Return how many prompts come now, by the clock of the first process."""
        mine = affordable(
            share=self.prompts.share,
            elapsed_seconds=monotonic() - self._began,
            spent_seconds=self._spent,
            seconds_each=self._each,
            prompts=0 if self._has_failed else len(self.prompts.prompts),
            together=self.by_pass,
        )
        return int(self.setup.ranks.gather(mine)[0])

    def _end(self) -> float:
        """Return when the allowance is used up; the first answer, which shows what one takes, may finish."""
        if self._each is None:
            return float("inf")
        now = monotonic()
        return now + self.prompts.share * (now - self._began) - self._spent

    def _room(self) -> int:
        """Return the tokens of a prompt that leave the model room for an answer."""
        context = getattr(self.model.model.config, "max_position_embeddings", None) or LONGEST_PROMPT
        return max(1, min(LONGEST_PROMPT, context - self.prompts.max_new_tokens))

    def _answer(self, step: int, count: int) -> _Answered:
        """Answer the first prompts; nothing where that took too long or failed."""
        if not count:
            return []
        if self.setup.ranks.is_first:
            append_sample_begin(self.setup.stage.path, step)
        start, end = monotonic(), self._end()
        chosen = self.prompts.prompts[:count]
        turns = [[Turn(turn["role"], turn["content"]) for turn in rows] for _, rows in chosen]
        room = self._room()
        ids = [encode_prompt(self.model.tokenizer, rows, max_tokens=room) for rows in turns]
        seeds = [draw_seed(self.prompts.seed, "samples", name) for name, _ in chosen]
        settings = SamplingSettings(self.prompts.max_new_tokens, temperature=TEMPERATURE, dtype=self.dtype)
        answered: _Answered = []

        def tell() -> None:
            self.setup.stage.alive()
            if monotonic() > end and self.setup.ranks.world_size == 1:
                raise _OverTimeError

        def agree(token_L: Tensor) -> Tensor:
            if not self.by_pass:
                return token_L
            tokens = self.setup.ranks.from_first(None if monotonic() > end else token_L.tolist())
            if tokens is None:
                raise _OverTimeError
            return token_L.new_tensor(tokens)

        is_training = self.model.model.training
        try:
            with contextlib.nullcontext() if self.by_pass else self.parallel.gathered():
                on = self.setup.device  # weights that are gathered may be kept on the host
                answers = generate(self.model, ids, seeds=seeds, settings=settings, tell=tell, agree=agree, on=on)
            texts = answer_texts(self.model, answers)
            answered = [(name, rows, text) for (name, rows), text in zip(chosen, texts, strict=True)]
        except _OverTimeError:
            pass
        except (RuntimeError, ValueError, IndexError) as error:  # no memory left for it, a context that is too short
            if self.by_pass:
                raise
            print(f"no samples from here on: {str(error).splitlines()[0]}", file=sys.stderr)
            self._has_failed = True
        finally:
            self.model.model.train(is_training)
        taken = monotonic() - start
        if self.setup.ranks.is_first:
            append_sample_time(self.setup.stage.path, step, taken)
        self._spent += taken
        warms_up = self._each is None and not self.by_pass
        self._each = taken / (FIRST_IS_WORTH if warms_up else count)
        return answered


def sample_drawer(
    setup: Setup, model: LanguageModel, parallel: Parallel, *, dtype: str, generates: bool = False
) -> SampleDrawer | None:
    """Return what answers the prompts of a stage; None where it has none, or cannot answer without a risk.

    A stage that generates is planned with all weights in one place, as answers are quickest.
    """
    prompts = setup.ranks.from_first(read_sample_prompts(setup.stage.path))
    if prompts is None or not prompts.prompts or why_no_samples(is_compiled=setup.layout.compile):
        return None
    return SampleDrawer(setup, model, parallel, prompts, dtype, by_pass=parallel.frees and not generates)
