"""What the suites of one eval stage share: models, held-out data, sampled answers; each made when first asked for."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from charter.artifacts.draws import draw_seed
from charter.artifacts.job import Job
from charter.artifacts.stage_dir import StageDir
from charter.errors import DataError
from charter.evaluate import bag_of_words
from charter.evaluate.bag_of_words import BagOfWords
from charter.feedback.constitution import Constitution, Principle
from charter.feedback.inputs import load_role, load_scorer, role_constitution, role_pairs, role_prompts
from charter.feedback.judge import Comparison, Verdict, compare, question_limit
from charter.feedback.records import in_batches
from charter.feedback.sampling import Sampled, check_context, sample
from charter.inference.generate import Answers
from charter.inference.score import score_answers
from charter.models.language_model import LanguageModel
from charter.models.preference import PreferenceModel
from charter.models.runtime import configure
from charter.spec.dataset import Pair, Prompt, Turn
from charter.spec.stage import EvalStage

MAX_LOGITS = 2**26
REWARD_ROLES = ("reward", "also_rewards", "control_reward")


@dataclass(frozen=True, kw_only=True)
class RoleAnswers:
    """What one model answered to the held-out prompts."""

    texts: tuple[str, ...]
    tokens: tuple[tuple[int, ...], ...]
    """Without the end token."""
    batches: tuple[Sampled, ...]


class Bench:
    """The models and data of an eval stage."""

    def __init__(self, stage: StageDir) -> None:
        spec = stage.job.spec
        assert isinstance(spec, EvalStage)
        self.spec: EvalStage = spec
        self.job: Job = stage.job
        self.device = configure(stage.job.frozen)
        self._models: dict[str, LanguageModel] = {}
        self._answers: dict[str, RoleAnswers] = {}

    def seed(self, *parts: str | int) -> int:
        """The seed of one purpose in this stage."""
        return draw_seed(self.job.seed, self.job.stage, *parts)

    def has(self, role: str) -> bool:
        """Whether the stage names something for a role."""
        return bool(self.job.inputs.get(role))

    @cached_property
    def pairs(self) -> tuple[Pair, ...]:
        """Held-out human preference pairs."""
        return role_pairs(self.job, "pairs")

    @cached_property
    def independent_pairs(self) -> tuple[Pair, ...]:
        """Human pairs that no other stage used; a conversation that is also held out is refused."""
        found = role_pairs(self.job, "independent_pairs")
        held_out = {pair.prompt for pair in self.pairs} if self.has("pairs") else set()
        if shared := [pair.id for pair in found if pair.prompt in held_out]:
            raise DataError(
                f"stage {self.job.stage}: {len(shared)} of {len(found)} independent_pairs share their conversation "
                f"with `pairs` (the first: {shared[0]}); the check would be tested on what it learnt from"
            )
        return found

    @cached_property
    def prompts(self) -> tuple[Prompt, ...]:
        """Held-out prompts."""
        return role_prompts(self.job, "prompts", limit=self.spec.num_prompts)

    @cached_property
    def constitution(self) -> Constitution:
        """The project's constitution."""
        return role_constitution(self.job)

    @cached_property
    def proxy(self) -> BagOfWords:
        """The independent check: a bag of words trained on the independent pairs."""
        return bag_of_words.train([(pair.chosen, pair.rejected) for pair in self.independent_pairs])

    def model(self, role: str) -> LanguageModel:
        """The language model of a role."""
        if role not in self._models:
            self._models[role] = load_role(self.job, role, self.device)
        return self._models[role]

    @cached_property
    def scorers(self) -> dict[str, PreferenceModel]:
        """The preference models by name, the reward first."""
        items = [item for role in REWARD_ROLES for item in self.job.inputs.get(role, ())]
        return {item.name: load_scorer(item, self.device) for item in items}

    def answers(self, role: str) -> RoleAnswers:
        """One answer per held-out prompt; the draws of a prompt are the same for every model."""
        if role not in self._answers:
            self._answers[role] = self._sample(role)
        return self._answers[role]

    def _sample(self, role: str) -> RoleAnswers:
        model = self.model(role)
        check_context(model, self.spec, role=role)
        batches = []
        for prompts in in_batches(self.prompts, self.spec.rollout_batch):
            seeds = [self.seed("answer", prompt.id) for prompt in prompts]
            batches.append(sample(model, [prompt.turns for prompt in prompts], seeds=seeds, spec=self.spec))
        rows = [
            tuple(token for token, keep in zip(row, mask, strict=True) if keep and token != model.end_id)
            for batch in batches
            for row, mask in zip(batch.answers.answer_BR.tolist(), batch.answers.answer_mask_BR.tolist(), strict=True)
        ]
        texts = tuple(text for batch in batches for text in batch.texts)
        return RoleAnswers(texts=texts, tokens=tuple(rows), batches=tuple(batches))

    def rewards(self, role: str, *, scorer_role: str = "reward") -> list[float]:
        """A preference model's score of a role's answers, in deviations of that model's training pairs."""
        answered = zip(self.prompts, self.answers(role).texts, strict=True)
        scorer = self.scorers[self.job.only(scorer_role).name]
        return _numbers(score_answers(scorer, [(prompt.turns, text) for prompt, text in answered]))

    @torch.no_grad()
    def divergences(self, role: str, reference: str) -> list[float]:
        """KL(role | reference) over each of a role's own answers, in nats per answer.

        The sum over the answer's tokens of the divergence of the two next-token distributions there: the mean over
        answers has the expectation of the mean log-ratio, with less variance, and is never negative.
        """
        ours, theirs = self.model(role), self.model(reference)
        found: list[float] = []
        for batch in self.answers(role).batches:
            rows = rows_per_forward(batch.answers.answer_BR.shape[1], ours)
            for part in _parts(batch.answers, rows):
                mine_BRV, other_BRV = (self._log_distribution(model, part) for model in (ours, theirs))
                difference_BRV = torch.where(mine_BRV.isneginf(), 0.0, mine_BRV - other_BRV)
                per_token_BR = (mine_BRV.exp() * difference_BRV).sum(-1)
                found += _numbers((per_token_BR * part.answer_mask_BR).sum(1))
        return found

    def _log_distribution(self, model: LanguageModel, answers: Answers) -> torch.Tensor:
        """The next-token distributions that answers are sampled from: temperature and minimum length, not top_p."""
        mask = torch.cat([answers.prompt_mask_BQ, answers.answer_mask_BR.long()], 1)
        width = answers.answer_BR.shape[1]
        logits = (
            model.model(
                input_ids=torch.cat([answers.prompt_BQ, answers.answer_BR], 1),
                attention_mask=mask,
                position_ids=(mask.cumsum(1) - 1).clamp_min(0),
                use_cache=False,
                logits_to_keep=width + 1,
            )
            .logits[:, :-1]
            .float()
        )
        logits[:, : self.spec.min_new_tokens, model.end_id] = float("-inf")
        return torch.log_softmax(logits / (self.spec.temperature or 1.0), -1)

    def ranked(self, scorer: PreferenceModel, pairs: Sequence[tuple[Sequence[Turn], str, str]]) -> list[float]:
        """1 where a preference model scores the better answer higher, 1/2 for a tie."""
        conversations = [(turns, answer) for turns, better, worse in pairs for answer in (better, worse)]
        scores = _numbers(score_answers(scorer, conversations))
        return [bag_of_words.win_of(a, b) for a, b in zip(scores[::2], scores[1::2], strict=True)]

    def verdicts(self, pairs: Sequence[tuple[str, Sequence[Turn], str, str]]) -> list[Verdict]:
        """What the judge says of (id, turns, better, worse), in both orders, under a principle drawn by the id."""
        judge, found = self.model("judge"), list[Verdict]()
        for batch in in_batches(pairs, self.spec.rollout_batch):
            items = [
                Comparison(turns=tuple(turns), first=better, second=worse, principle=self._principle(id))
                for id, turns, better, worse in batch
            ]
            found += compare(
                judge, items, format=self.spec.judge_format, both_orders=True, max_tokens=question_limit(judge)
            )
        return found

    def _principle(self, id: str) -> Principle:
        return self.constitution.draw(self.seed("judge"), id)

    def require(self, suite: str, *roles: str) -> None:
        """Refuse a suite whose inputs are not named."""
        missing = [role for role in roles if not self.has(role)]
        if missing:
            raise DataError(
                f"stage {self.job.stage}: suite {suite} needs {', '.join(missing)}; add it or drop the suite"
            )


def rows_per_forward(width: int, model: LanguageModel) -> int:
    """How many rows may keep `width` distributions over the vocabulary at once: 256 MiB of fp32, at least one row."""
    return max(1, MAX_LOGITS // (width * int(model.model.config.vocab_size)))


def _parts(answers: Answers, rows: int) -> list[Answers]:
    fields = (answers.prompt_BQ, answers.prompt_mask_BQ, answers.answer_BR, answers.answer_mask_BR)
    return [Answers(*part) for part in zip(*(torch.split(field, rows) for field in fields), strict=True)]


def _numbers(values: torch.Tensor) -> list[float]:
    found: list[float] = values.double().tolist()
    return found
