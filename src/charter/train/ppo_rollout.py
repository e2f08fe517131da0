"""A rollout of PPO: sample answers, score them, and give their tokens advantages."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import torch
from torch import Tensor

from charter.artifacts.draws import keyed_permutation
from charter.data.dataset import Prompt, Turn
from charter.inference.generate import Answers, SamplingSettings, answer_texts
from charter.inference.generator import Generator
from charter.inference.score import score_answers
from charter.inference.turns import TURN_FIGURES, TURNS_DIRECTORY, ReplyStore, Start, Trajectory, TurnTaking
from charter.models.adapters import published_weights
from charter.models.chat import encode_prompt
from charter.models.parallel import Parallel
from charter.models.ranks import Ranks
from charter.models.runtime import is_queued, on_device
from charter.spec.ppo_stage import PpoStage
from charter.spec.rewards import KlEstimator
from charter.train.distillation import distillation_advantages
from charter.train.judge_reward import JudgeReward
from charter.train.ppo_answers import Flight, Scored, gathered, read_record, record_path
from charter.train.ppo_math import (
    answer_scores,
    degenerate_groups,
    generalised_advantages,
    grpo_advantages,
    kl_penalty,
    mismatch_kl,
    mismatch_weights,
    normalised_advantages,
    reinforce_advantages,
    rloo_advantages,
    shaped_rewards,
    whiten,
)
from charter.train.ppo_sequences import (
    PpoModels,
    Sequences,
    answer_lengths,
    answer_log_probabilities,
    answer_values,
    as_sequences,
)
from charter.train.rewards.mixture import Answer, RewardList, after_turns, sound_answers, weighted_sum
from charter.train.samples import keep_rollout_samples
from charter.train.schedule import batch_rows
from charter.train.setup import Setup

_SEQUENCES = "sequences."


@dataclass(frozen=True)
class Rollout:
    """Everything that the epochs over a rollout need; what an estimator has no use for is None."""

    sequences: Sequences
    log_probability_BR: Tensor
    """By the policy that sampled; NaN where its first update says it (`PpoStage.old_from_update`)."""
    advantage_BR: Tensor
    score_B: Tensor
    ended_B: Tensor
    """Whether the answer has its end token."""
    reference_BR: Tensor | None = None
    """None where nothing reads the reference's log-probabilities."""
    teacher_BR: Tensor | None = None
    """Log-probabilities of a teacher."""
    value_BR: Tensor | None = None
    return_BR: Tensor | None = None
    weight_BR: Tensor | None = None
    """Importance weights where generator and trainer are different programs."""
    generator_BR: Tensor | None = None
    """Log-probabilities of such a generator."""
    counted_B: Tensor | None = None
    """Answers that are learnt from, where some are not: their group has failed, or all its scores are equal."""
    reward_BK: Tensor | None = None
    """Each reward of a list; NaN where it failed or does not apply."""
    failed_BK: Tensor | None = None
    seconds_BK: Tensor | None = None
    """Seconds of each reward, divided by the answers."""
    usd_BK: Tensor | None = None
    """Known cost of each reward, likewise."""
    turns_BF: Tensor | None = None
    """Figures of answers of several turns (`Trajectory.figures`)."""
    version_BR: Tensor | None = None
    """Updates behind the weights that drew each token, where several versions have drawn an answer."""

    @property
    def loss_mask_BR(self) -> Tensor:
        """Mask of the answer tokens that are learnt from."""
        return self.mask_BR if self.counted_B is None else self.mask_BR & self.counted_B[:, None]

    @property
    def mask_BR(self) -> Tensor:
        """Mask of the real answer tokens."""
        return self.sequences.answer_mask_BR

    def sound_B(self, weights: Sequence[float], *, samples: int) -> Tensor:
        """Return True for answers whose group has all its scores, by the weights of the list of rewards."""
        if self.failed_BK is None:
            return torch.ones_like(self.ended_B)
        return sound_answers(self.failed_BK, torch.tensor(weights, device=self.score_B.device), samples=samples)

    def sums(self, *, kl_estimator: KlEstimator, weights: Sequence[float], samples: int) -> dict[str, float]:
        """Sums over the answers, fetched from the device at once; of `equal_groups` over their groups.

        `reward_mean` is over the `rated` answers, whose group has all its scores. `kl` is the log-ratio to the
        reference, the k1 estimate of KL(policy | reference); `kl_penalty` the estimate that the reward is charged for;
        `answer_entropy` is -log p, whose mean estimates the entropy of whole answers.
        """
        mask, old, reference = self.mask_BR, self.log_probability_BR, self.reference_BR
        sums = {}
        if reference is not None:
            sums["kl"] = ((old - reference) * mask).double().sum()
            sums["kl_penalty"] = (kl_penalty(old, reference, estimator=kl_estimator) * mask).double().sum()
        if self.teacher_BR is not None:
            sums["teacher_kl"] = ((old - self.teacher_BR) * mask).double().sum()
        if self.generator_BR is not None:
            sums["mismatch_kl"] = mismatch_kl(old, self.generator_BR, mask).total.double()
        if self.version_BR is not None:
            sums["versions"] = (self.version_BR * mask).double().sum()
        if self.counted_B is not None:
            sums["counted_share"] = self.counted_B.double().sum()
        if self.turns_BF is not None:
            sums |= dict(zip(TURN_FIGURES, self.turns_BF.double().sum(0), strict=True))
        if samples > 1:
            sums["equal_groups"] = degenerate_groups(self.score_B, samples=samples).total.double()
        rated_B = self.sound_B(weights, samples=samples)
        sums |= {
            "answer_entropy": -(old * mask).double().sum(),
            "rated": rated_B.double().sum(),
            "reward_mean": (self.score_B.double() * rated_B).sum(),
            "response_tokens": mask.sum().double(),
            "ended_share": self.ended_B.sum().double(),
            "tokens": self.sequences.mask_BT.sum().double(),
        }
        return dict(zip(sums, torch.stack(list(sums.values())).tolist(), strict=True))

    def reward_sums(self, names: Sequence[str]) -> dict[str, float]:
        """Sums over the answers of each reward of a list: how often it applied, its values, squares, failures, time."""
        if self.reward_BK is None or self.failed_BK is None or self.seconds_BK is None or self.usd_BK is None:
            return {}
        value_BK = torch.where(self.reward_BK.isnan(), 0.0, self.reward_BK).double()
        columns = {
            "applied": (~self.reward_BK.isnan()).double(),
            "sum": value_BK,
            "square": value_BK**2,
            "failed": self.failed_BK.double(),
            "seconds": self.seconds_BK.double(),
            "usd": self.usd_BK.double(),
        }
        totals = {name: column.sum(0).tolist() for name, column in columns.items()}
        return {f"{reward}/{name}": totals[name][k] for name in totals for k, reward in enumerate(names)}

    def to_buffers(self, ranks: Ranks) -> dict[str, Tensor]:
        """All processes' rollouts as one, rank after rank: what a checkpoint holds. The answers' width is the same."""
        own = self._tensors()
        width = max(ranks.gather(self.sequences.ids_BT.shape[1]))
        for name in ("ids_BT", "mask_BT"):
            value = own[_SEQUENCES + name]
            own[_SEQUENCES + name] = torch.nn.functional.pad(value, (0, width - value.shape[1]))
        return {name: gathered(value, ranks) for name, value in own.items()}

    @classmethod
    def from_buffers(cls, buffers: Mapping[str, Tensor], ranks: Ranks) -> "Rollout":
        """This process's part of what `to_buffers` gave."""
        own = {name: value.to(ranks.device).chunk(ranks.data_size)[ranks.data_rank] for name, value in buffers.items()}
        sequences = Sequences(**{item.name: own.pop(_SEQUENCES + item.name) for item in fields(Sequences)})
        return cls(sequences=sequences, **own)

    def _tensors(self) -> dict[str, Tensor]:
        named = {_SEQUENCES + item.name: getattr(self.sequences, item.name) for item in fields(Sequences)}
        named |= {item.name: getattr(self, item.name) for item in fields(self) if item.name != "sequences"}
        return {name: value for name, value in named.items() if value is not None}


@dataclass(frozen=True)
class Sampler:
    """Makes rollouts; the same one again for the same step and weights."""

    setup: Setup
    spec: PpoStage
    models: PpoModels
    generator: Generator | None
    """None where rank 0 samples for this process."""
    prompts: tuple[Prompt, ...]
    judge: JudgeReward | None = None
    rewards: RewardList | None = None
    """The list of rewards, where there is one."""
    turns: TurnTaking | None = None
    """What replies to the policy, where an answer has several turns."""
    shows_samples: bool = False
    """Whether a few answers are kept for people to read."""

    @property
    def is_exact(self) -> bool:
        """Return True if a rollout can be sampled again bit for bit; if not, it is stored as soon as it is there."""
        rates_exactly = self.judge is None or self.judge.is_exact or self.rewards is not None
        return self.generator is not None and self.generator.is_exact and rates_exactly

    def sample(self, step: int, data_step: int, *, kl_coefficient: float) -> Rollout:
        """The rollout of one step, or of one yet to come, with all figures of the weights that draw it."""
        rows, numbers = self._own_prompts(data_step)
        seeds = [self.setup.seed("rollout", step, number) for number in numbers]
        scored = self._scored(step, f"{step:06d}", rows, seeds)
        if self.spec.equal_groups != "keep":
            scored = self._refilled(step, data_step, scored)
        with self.setup.meter.phase("score"):
            return self._rollout(step, scored, kl_coefficient=kl_coefficient)

    def advance(self, flight: Flight | None, step: int, data_step: int, *, version: int) -> Flight:
        """Draw the answers of a rollout on by the weights as they are now, as far as this version may.

        Where the rollout is on record its tokens are read, and none is drawn.
        """
        spec, policy, most = self.spec, self.models.policy, self.spec.tokens_by(step, version)
        record = record_path(self.setup.stage.path, step, data_step, self.setup.ranks)
        if not self.setup.ranks.any(not record.exists()):
            return read_record(record).cut(most)
        rows, numbers = self._own_prompts(data_step)
        if flight is None:
            turns = [self.prompts[row].turns for row in rows]
            flight = Flight.of(
                [encode_prompt(policy.tokenizer, item, max_tokens=spec.max_prompt_tokens) for item in turns]
            )
        going = flight.going(policy.end_id, most)
        if not self.setup.ranks.any(bool(going)):
            return flight
        begin = flight.drawn
        further = (begin,) if begin else ()
        seeds = [self.setup.seed("rollout", step, numbers[place], *further) for place in going]
        settings = self._settings(most - begin, max(0, spec.min_new_tokens - begin))
        with self.setup.meter.phase("generate"), self.models.trained.gathered():
            if going:
                contexts = [flight.answers[place].context for place in going]
                flight = flight.extended(going, self._answers(version, contexts, seeds, settings), version)
        if version == step:
            return flight  # the rollout's own figures are of these weights
        with self.setup.meter.phase("score"):
            return flight.with_old(self._old(step, flight), version)

    def land(self, flight: Flight, step: int, data_step: int, *, kl_coefficient: float) -> Rollout:
        """The rollout of answers that are all drawn, which goes on record."""
        rows, numbers = self._own_prompts(data_step)
        seeds = [self.setup.seed("rollout", step, number) for number in numbers]
        answers = flight.as_answers(padding=self.models.policy.padding_id, device=self.setup.device)
        name = f"{step:06d}-{self.setup.ranks.data_rank}"
        with self.setup.meter.phase("score"):
            scored = self._judged(step, name, rows, seeds, answers, [])
            if self.spec.equal_groups == "drop":
                scored = scored.without_equal_groups(self.spec.samples_per_prompt)
            rollout = self._rollout(step, scored, kl_coefficient=kl_coefficient, flight=flight)
        record = record_path(self.setup.stage.path, step, data_step, self.setup.ranks)
        if not record.exists():
            flight.with_old(rollout.log_probability_BR, step).record(record)
        return rollout

    @torch.no_grad()
    def _old(self, step: int, flight: Flight) -> Tensor:
        """Log-probabilities of the answers so far by the weights as they are now, as the trainer computes them."""
        answers = flight.as_answers(padding=self.models.policy.padding_id, device=self.setup.device)
        width = max(self.setup.ranks.gather(answers.answer_BR.shape[1]))
        sequences = as_sequences(answers, answer_width=width, padding=self.models.policy.padding_id)
        (old_BR,), _ = self._evaluate(step, sequences, self.micro_batches(step, 0), (self.models.trained,), None)
        assert isinstance(old_BR, Tensor)
        return old_BR

    def _settings(self, max_new_tokens: int, min_new_tokens: int) -> SamplingSettings:
        return SamplingSettings(max_new_tokens, min_new_tokens, self.spec.temperature, self.spec.top_p, self.spec.dtype)

    def _scored(self, step: int, name: str, rows: Sequence[int], seeds: Sequence[int]) -> Scored:
        """One answer to each prompt, of one turn or of several, and what it got; stored under `name`."""
        spec, meter, policy, version = self.spec, self.setup.meter, self.models.policy, self.spec.version_of(step)
        settings = self._settings(spec.max_new_tokens, spec.min_new_tokens)
        turns = [self.prompts[row].turns for row in rows]
        name = f"{name}-{self.setup.ranks.data_rank}"
        played: list[Trajectory] = []
        with meter.phase("generate"), self.models.trained.gathered():
            if self.turns is None:
                ids = [encode_prompt(policy.tokenizer, item, max_tokens=spec.max_prompt_tokens) for item in turns]
                answers = self._answers(version, ids, list(seeds), settings)
            else:
                starts = [
                    Start(self.prompts[row].turns, self.prompts[row].columns, seed)
                    for row, seed in zip(rows, seeds, strict=True)
                ]
                store = ReplyStore(self.setup.stage.path / TURNS_DIRECTORY / f"{name}.jsonl")
                played = self.turns.play(starts, settings, lambda *asked: self._answers(version, *asked), store)
                answers = self.turns.answers(played, self.setup.device)
        with meter.phase("score"):
            return self._judged(step, name, rows, seeds, answers, played)

    def _judged(
        self,
        step: int,
        name: str,
        rows: Sequence[int],
        seeds: Sequence[int],
        answers: Answers,
        played: Sequence[Trajectory],
    ) -> Scored:
        """The scores of answers, stored under `name`."""
        turns = [self.prompts[row].turns for row in rows]
        texts = [item.text for item in played] or answer_texts(self.models.policy, answers)
        if self.rewards is None:
            score_B = self._scores(step, list(zip(turns, texts, strict=True))).to(self.setup.device)
            scored = Scored(answers, score_B)
        else:
            scored = self._rated(self.rewards, name, rows, seeds, answers, texts, played)
        if self.shows_samples and self.setup.ranks.is_first and step % self.spec.checkpoint_every == 0:
            table = () if scored.reward_BK is None else scored.reward_BK.T.tolist()
            rewards = dict(zip((item.name for item in self.spec.rewards), table, strict=True))
            prompts = [self.prompts[row] for row in rows]
            keep_rollout_samples(self.setup, step, prompts, texts, scored.score_B.tolist(), rewards)
        return scored

    def _rated(
        self,
        rewards: RewardList,
        name: str,
        rows: Sequence[int],
        seeds: Sequence[int],
        answers: Answers,
        texts: Sequence[str],
        played: Sequence[Trajectory],
    ) -> Scored:
        """This process's answers by the list of rewards; a group with a failure is not learnt from."""
        ended_B, device = self._ended(answers), self.setup.device
        rateable = [
            Answer(self.prompts[row].turns, text, self.prompts[row].columns, tokens, ended, seed)
            for row, text, tokens, ended, seed in zip(
                rows, texts, answers.answer_mask_BR.sum(1).tolist(), ended_B.tolist(), seeds, strict=True
            )
        ]
        turns_BF = None
        if played:
            rateable = [after_turns(answer, item) for answer, item in zip(rateable, played, strict=True)]
            turns_BF = torch.tensor([list(item.figures().values()) for item in played], device=device)
        rated = rewards.rate(rateable, name=name)
        reward_BK, failed_BK = rated.reward_BK.to(device), rated.failed_BK.to(device)
        weight_K = torch.tensor([item.weight for item in rewards.rewards], device=device)
        seconds_K, usd_K = (
            torch.tensor(amounts, device=device) / max(len(rateable), 1) for amounts in (rated.seconds_K, rated.usd_K)
        )
        return Scored(
            answers,
            weighted_sum(reward_BK, weight_K),
            sound_answers(failed_BK, weight_K, samples=self.spec.samples_per_prompt),
            reward_BK,
            failed_BK,
            seconds_K.expand_as(reward_BK).clone(),
            usd_K.expand_as(reward_BK).clone(),
            turns_BF,
        )

    def _refilled(self, step: int, data_step: int, first: Scored) -> Scored:
        """The rollout without groups of one score; with `refill` other prompts are sampled in their place.

        Every process samples as often as the one that needs most. Places that stay empty are not learnt from.
        """
        spec = self.spec
        scored = first.without_equal_groups(spec.samples_per_prompt)
        for attempt in range(1, spec.most_batches if spec.equal_groups == "refill" else 1):
            assert scored.counted_B is not None
            if not self.setup.ranks.any(not bool(scored.counted_B.all())):
                break
            rows, numbers = self._own_prompts(data_step, attempt)
            seeds = [self.setup.seed("rollout", step, number, attempt) for number in numbers]
            more = self._scored(step, f"{step:06d}.{attempt}", rows, seeds)
            more = more.without_equal_groups(spec.samples_per_prompt)
            scored = scored.filled_from(more, padding=self.models.policy.padding_id)
        return scored

    def _ended(self, answers: Answers) -> Tensor:
        last_B = (answer_lengths(answers.answer_mask_BR) - 1).clamp_min(0)
        ends_BR = (answers.answer_BR == self.models.policy.end_id) & answers.answer_mask_BR
        return ends_BR.gather(1, last_B[:, None]).squeeze(1)

    def _scores(self, step: int, conversations: Sequence[tuple[Sequence[Turn], str]]) -> Tensor:
        """Score this process's answers by the reward model, or by the judge."""
        if self.judge is not None:
            return self.judge.score(step, conversations)
        if self.models.reward is None:
            return torch.zeros(len(conversations))  # there is a teacher alone
        groups = None if self.setup.ranks.world_size == 1 else 1
        return score_answers(self.models.reward, conversations, dtype=self.spec.dtype, groups=groups)

    def _answers(self, version: int, prompts: list[list[int]], seeds: list[int], settings: SamplingSettings) -> Answers:
        """This process's answers; a generator beside the trainer answers for all processes, from rank 0."""
        ranks, generator = self.setup.ranks, self.generator
        if generator is not None and generator.is_exact:
            generator.update_weights((), version=version)
            return generator.sample(prompts, seeds=seeds, settings=settings, version=version)
        weights = self.models.trained.full_state_dict()
        everyone = ranks.gather((prompts, seeds))[:: ranks.world_size // ranks.data_size]
        answers: Answers | None = None
        if generator is not None:
            full_weights = published_weights(self.models.trained.module, weights, self.spec.adapter)
            generator.update_weights(full_weights.items(), version=version)
            all_prompts = [prompt for own, _ in everyone for prompt in own]
            all_seeds = [seed for _, own in everyone for seed in own]
            answers = generator.sample(all_prompts, seeds=all_seeds, settings=settings, version=version)
        answers = ranks.from_first(answers)
        assert answers is not None
        return answers.share(ranks.data_rank, len(prompts), ranks.device)

    def micro_batches(self, step: int, epoch: int) -> list[list[Tensor]]:
        """The answers of this process in the order of an epoch: minibatches, each as its micro-batches."""
        unit = self.spec.unit
        own = self.spec.rollout_batch // self.setup.ranks.data_size // unit
        seed = self.setup.seed("minibatches", step, epoch, *self.setup.own_parts())
        order = torch.tensor(keyed_permutation(own, seed=seed))
        rows = order[:, None] * unit + torch.arange(unit)
        size = self.spec.minibatch // self.setup.ranks.data_size // unit
        micro_batch = self.setup.layout.micro_batch or size * unit
        return [
            [some.flatten() for some in torch.split(part, max(1, micro_batch // unit))]
            for part in torch.split(rows, size)
        ]

    def _own_prompts(self, data_step: int, attempt: int = 0) -> tuple[list[int], list[int]]:
        """Rows of the prompts that this process answers, and the number of each answer in the whole rollout.

        Further attempts at a rollout draw from an order of their own.
        """
        each = self.spec.samples_per_prompt
        count = self.spec.rollout_batch // each
        order = (attempt,) if attempt else ()
        rows = batch_rows(data_step, rows=len(self.prompts), batch=count, seed=self.setup.seed("order", *order))
        own = self.setup.ranks.share(list(enumerate(rows)))
        repeated = [(row, number * each + copy) for number, row in own for copy in range(each)]
        return [row for row, _ in repeated], [number for _, number in repeated]

    @torch.no_grad()
    def _rollout(self, step: int, scored: Scored, *, kl_coefficient: float, flight: Flight | None = None) -> Rollout:
        spec, answers, score_B = self.spec, scored.answers, scored.score_B
        width = max(self.setup.ranks.gather(answers.answer_BR.shape[1]))
        sequences = as_sequences(answers, answer_width=width, padding=self.models.policy.padding_id)
        mask_BR, ended_B = sequences.answer_mask_BR, self._ended(answers)
        minibatches, models = self.micro_batches(step, 0), self.models
        (old_BR, *read_BR), value_BS = self._evaluate(
            step, sequences, minibatches, (models.trained, models.reference, models.teacher), models.value
        )
        version_BR, penalty = None, spec.missing_end_penalty
        if flight is not None:
            version_BR = flight.padded("versions", width, self.setup.device)
            old_BR = torch.where(version_BR == step, old_BR, flight.padded("old", width, self.setup.device))
        score_B = answer_scores(score_B, ended_B, reward_clip=spec.reward_clip, missing_end_penalty=penalty)
        learnt_BR = mask_BR if scored.counted_B is None else mask_BR & scored.counted_B[:, None]
        advantage_BR, return_BR = self._advantages(
            score_B, scored, ended_B, old_BR, read_BR, value_BS, learnt_BR, kl_coefficient=kl_coefficient
        )
        if spec.old_from_update:
            old_BR[on_device(torch.cat(minibatches[0]), self.setup.device)] = math.nan
        weight_BR, generator_BR, correction = None, None, spec.correction
        if answers.log_probability_BR is not None:
            missing = width - answers.log_probability_BR.shape[1]
            generator_BR = torch.nn.functional.pad(answers.log_probability_BR.to(old_BR), (0, missing))
        if correction is not None and generator_BR is not None:
            weight_BR = mismatch_weights(
                old_BR,
                generator_BR,
                mask_BR,
                method=correction.method,
                level=correction.level,
                low=correction.low or 0.0,
                high=math.inf if correction.high is None else correction.high,
            )
        return Rollout(
            sequences=sequences,
            log_probability_BR=old_BR,
            reference_BR=read_BR[0],
            teacher_BR=read_BR[1],
            advantage_BR=advantage_BR,
            score_B=score_B,
            ended_B=ended_B,
            value_BR=None if value_BS is None else value_BS[:, :-1] * mask_BR,
            return_BR=return_BR,
            weight_BR=weight_BR,
            generator_BR=generator_BR,
            counted_B=scored.counted_B,
            reward_BK=scored.reward_BK,
            failed_BK=scored.failed_BK,
            seconds_BK=scored.seconds_BK,
            usd_BK=scored.usd_BK,
            turns_BF=scored.turns_BF,
            version_BR=version_BR,
        )

    def _evaluate(
        self,
        step: int,
        sequences: Sequences,
        minibatches: Sequence[Sequence[Tensor]],
        readers: Sequence[Parallel | None],
        value: Parallel | None,
    ) -> tuple[list[Any], Tensor | None]:
        """Log-probabilities by each of the readers, and values, as the first epoch's micro-batches.

        Logits depend on the rows of a batch, and the same batch gives the same bits: the first ratio is exactly 1, and
        what the policy's first update computes by itself is left out. What it would only make again waits for it.
        """
        shape, device = sequences.answer_mask_BR.shape, self.setup.device
        own_BR = [None if reader is None else torch.zeros(shape, device=device) for reader in readers]
        value_BS = None if value is None else torch.zeros((shape[0], shape[1] + 1), device=device)
        spec, dtype, has_bonus = self.spec, self.spec.dtype, self.spec.entropy_weight > 0
        read = partial(answer_log_probabilities, temperature=spec.temperature, dtype=dtype, entropy_gradient=has_bonus)
        parts = [(number, item) for number, minibatch in enumerate(minibatches) for item in minibatch]
        for number, index in reversed(parts):  # no other pass is made beside those that wait
            self.setup.stage.alive()
            part, at_B = sequences.rows(index), on_device(index, device)
            waits = number == 0 and self._keeps_first(step, minibatches[0])
            is_read = number > 0 or not spec.old_from_update
            for reader, its_BR in zip(readers, own_BR, strict=True):
                is_own = reader is self.models.trained
                if reader is not None and its_BR is not None and (is_read or not is_own):
                    with torch.set_grad_enabled(waits and is_own):
                        figures = read(reader.module, part)
                    its_BR[at_B] = figures[0].detach()
                    reader.first_pass.keep(step, *figures)
            if value_BS is not None and value is not None:
                with torch.set_grad_enabled(waits):
                    values_BS = answer_values(value.module, part, dtype=dtype)
                value_BS[at_B] = values_BS.detach()
                value.first_pass.keep(step, values_BS)
        return [None if item is None else item * sequences.answer_mask_BR for item in own_BR], value_BS

    def _keeps_first(self, step: int, micro_batches: Sequence[Tensor]) -> bool:
        """Return True if passes over the first minibatch wait for its update; on accelerators memory is short."""
        is_next = self.spec.asynchrony is None and step >= self.spec.value_warmup_rollouts
        is_plain = self.setup.layout.is_plain and not is_queued(self.setup.device) and self.spec.divergence is None
        return is_next and is_plain and len(micro_batches) == 1

    def _advantages(
        self,
        score_B: Tensor,
        scored: Scored,
        ended_B: Tensor,
        old_BR: Tensor,
        read_BR: Sequence[Tensor | None],
        value_BS: Tensor | None,
        mask_BR: Tensor,
        *,
        kl_coefficient: float,
    ) -> tuple[Tensor, Tensor | None]:
        """Advantages of the tokens of `mask_BR`, which are learnt from, and the returns that a value model learns."""
        spec, return_BR, samples, total = self.spec, None, self.spec.samples_per_prompt, self.setup.ranks.sum
        reference_BR, teacher_BR = read_BR
        if teacher_BR is not None:
            return distillation_advantages(teacher_BR, old_BR, mask_BR), None
        if spec.estimator == "online_dpo":
            return torch.zeros_like(old_BR), None  # pairs are compared as they are learnt from
        if spec.mixture == "normalise_then_sum" and self.rewards is not None and scored.reward_BK is not None:
            weight_K = torch.tensor([item.weight for item in self.rewards.rewards], device=score_B.device)
            return normalised_advantages(scored.reward_BK, weight_K, mask_BR, samples=samples, total=total), None
        charged = 0.0 if spec.has_kl_loss else kl_coefficient
        rewards_BR = shaped_rewards(
            score_B,
            old_BR,
            old_BR if reference_BR is None else reference_BR,
            mask_BR,
            kl_coefficient=charged,
            kl_estimator=spec.kl_estimator,
        )
        if spec.estimator in ("grpo", "reinforce_pp_baseline"):
            whole_B = score_B if spec.has_kl_loss else (rewards_BR * mask_BR).sum(1)
            scale = spec.scale_advantages if spec.estimator == "grpo" else "none"
            advantage_BR = grpo_advantages(whole_B, mask_BR, samples=samples, scale=scale, total=total)
            if spec.estimator == "grpo":
                return advantage_BR, None
        elif spec.estimator == "reinforce_pp":
            zero_BR = torch.zeros_like(rewards_BR)
            advantage_BR = reinforce_advantages(rewards_BR, zero_BR, mask_BR, discount=spec.discount)[0]
        elif spec.estimator == "rloo":
            advantage_BR = rloo_advantages(rewards_BR, mask_BR, samples=spec.samples_per_prompt)
        elif spec.estimator == "reinforce":
            assert value_BS is not None
            values_BR = value_BS[:, :-1] * mask_BR
            advantage_BR, return_BR = reinforce_advantages(rewards_BR, values_BR, mask_BR, discount=spec.discount)
        else:
            assert value_BS is not None
            lengths_B = answer_lengths(mask_BR)
            bootstrap_B = value_BS.gather(1, lengths_B[:, None]).squeeze(1) if spec.bootstrap_truncated else None
            advantage_BR, return_BR = generalised_advantages(
                rewards_BR,
                value_BS[:, :-1] * mask_BR,
                mask_BR,
                discount=spec.discount,
                gae_lambda=spec.gae_lambda,
                bootstrap_B=bootstrap_B,
                ended_B=None if bootstrap_B is None else ended_B,
            )
        if spec.whiten_advantages:
            advantage_BR = whiten(advantage_BR, mask_BR, total=self.setup.ranks.sum)
        return advantage_BR, return_BR
