"""The first part of a PPO step: sample answers, score them, and work out what every token earned.

Legend: B answers of this process, R answer tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from charter.artifacts.draws import keyed_permutation
from charter.inference.generate import Answers, SamplingSettings, answer_texts
from charter.inference.generator import Generator
from charter.inference.score import score_answers
from charter.models.adapters import published_weights
from charter.models.chat import encode_prompt
from charter.models.language_model import LanguageModel
from charter.models.parallel import Parallel
from charter.models.preference import PreferenceModel
from charter.spec.dataset import Prompt, Turn
from charter.spec.stage import PpoStage
from charter.train.advantages import answer_scores, generalised_advantages, reinforce_advantages, shaped_rewards, whiten
from charter.train.estimators import grpo_advantages, rloo_advantages
from charter.train.judge_reward import JudgeReward
from charter.train.losses_policy import mismatch_weights
from charter.train.ppo_rollout import Rollout
from charter.train.rollout import Sequences, answer_log_probabilities, answer_values, as_sequences
from charter.train.schedule import batch_rows
from charter.train.setup import Setup


@dataclass(frozen=True)
class Models:
    """The models of PPO as one process holds them."""

    policy: LanguageModel
    trained: Parallel
    """The policy as it is trained."""
    reference: Parallel
    reward: PreferenceModel | None
    """None where a judge's ratings are the reward."""
    value: Parallel | None
    """None where the estimator compares answers instead."""


@dataclass(frozen=True)
class Sampler:
    """Makes rollouts; the same one again for the same step and weights."""

    setup: Setup
    spec: PpoStage
    models: Models
    generator: Generator | None
    """None where rank 0 samples for this process."""
    prompts: tuple[Prompt, ...]
    judge: JudgeReward | None = None

    @property
    def is_exact(self) -> bool:
        """Whether the same rollout can be sampled again bit for bit; if not, it is stored as soon as it is there."""
        rates_exactly = self.judge is None or self.judge.is_exact
        return self.generator is not None and self.generator.is_exact and rates_exactly

    def sample(self, step: int, data_step: int, *, kl_coefficient: float) -> Rollout:
        """The rollout of one step: answers of the present policy, and the advantages of their tokens."""
        spec, meter = self.spec, self.setup.meter
        prompts, numbers = self._own_prompts(data_step)
        turns = [self.prompts[row].turns for row in prompts]
        tokenizer = self.models.policy.tokenizer
        ids = [encode_prompt(tokenizer, item, max_tokens=spec.max_prompt_tokens) for item in turns]
        seeds = [self.setup.seed("rollout", step, number) for number in numbers]
        settings = SamplingSettings(spec.max_new_tokens, spec.min_new_tokens, spec.temperature, spec.top_p, spec.dtype)
        with meter.phase("generate"), self.models.trained.gathered():
            answers = self._answers(step, ids, seeds, settings)
        with meter.phase("score"):
            texts = answer_texts(self.models.policy, answers)
            score_B = self._scores(step, list(zip(turns, texts, strict=True)))
            return self._rollout(step, answers, score_B.to(self.setup.device), kl_coefficient=kl_coefficient)

    def _scores(self, step: int, conversations: Sequence[tuple[Sequence[Turn], str]]) -> Tensor:
        """What the reward model, or the judge, thinks of this process's answers."""
        if self.judge is not None:
            return self.judge.score(step, conversations)
        assert self.models.reward is not None
        groups = None if self.setup.ranks.world_size == 1 else 1
        return score_answers(self.models.reward, conversations, dtype=self.spec.dtype, groups=groups)

    def _answers(self, step: int, prompts: list[list[int]], seeds: list[int], settings: SamplingSettings) -> Answers:
        """This process's answers; a generator beside the trainer answers for all processes, from rank 0."""
        ranks, generator = self.setup.ranks, self.generator
        if generator is not None and generator.is_exact:
            generator.update_weights((), version=step)
            return generator.sample(prompts, seeds=seeds, settings=settings, version=step)
        weights = self.models.trained.full_state_dict()
        everyone = ranks.gather((prompts, seeds))[:: ranks.world_size // ranks.data_size]
        found: Answers | None = None
        if generator is not None:
            whole = published_weights(self.models.trained.module, weights, self.spec.adapter)
            generator.update_weights(whole.items(), version=step)
            asked = [prompt for own, _ in everyone for prompt in own]
            all_seeds = [seed for _, own in everyone for seed in own]
            found = generator.sample(asked, seeds=all_seeds, settings=settings, version=step)
        found = ranks.from_first(found)
        assert found is not None
        return found.share(ranks.data_rank, len(prompts), ranks.device)

    def micro_batches(self, step: int, epoch: int) -> list[list[Tensor]]:
        """The answers of this process in the order of an epoch: minibatches, each as its micro-batches."""
        own = self.spec.rollout_batch // self.setup.ranks.data_size
        seed = self.setup.seed("minibatches", step, epoch, *self.setup.own_parts())
        order = torch.tensor(keyed_permutation(own, seed=seed))
        size = self.spec.minibatch // self.setup.ranks.data_size
        return [
            [part[start:stop] for start, stop in self.setup.layout.micro_batches(len(part))]
            for part in torch.split(order, size)
        ]

    def _own_prompts(self, data_step: int) -> tuple[list[int], list[int]]:
        """Rows of the prompts that this process answers, and the number of each answer in the whole rollout."""
        each = self.spec.samples_per_prompt
        count = self.spec.rollout_batch // each
        rows = batch_rows(data_step, rows=len(self.prompts), batch=count, seed=self.setup.seed("order"))
        own = self.setup.ranks.share(list(enumerate(rows)))
        repeated = [(row, number * each + copy) for number, row in own for copy in range(each)]
        return [row for row, _ in repeated], [number for _, number in repeated]

    @torch.no_grad()
    def _rollout(self, step: int, answers: Answers, score_B: Tensor, *, kl_coefficient: float) -> Rollout:
        spec = self.spec
        width = max(self.setup.ranks.gather(answers.answer_BR.shape[1]))
        sequences = as_sequences(answers, answer_width=width, padding=self.models.policy.padding_id)
        mask_BR = sequences.answer_mask_BR
        ended_B = ((answers.answer_BR == self.models.policy.end_id) & answers.answer_mask_BR).any(1)
        old_BR, reference_BR, value_BS = self._evaluate(sequences, self.micro_batches(step, 0))
        score_B = answer_scores(
            score_B, ended_B, reward_clip=spec.reward_clip, missing_end_penalty=spec.missing_end_penalty
        )
        advantage_BR, return_BR = self._advantages(
            score_B, ended_B, old_BR, reference_BR, value_BS, mask_BR, kl_coefficient=kl_coefficient
        )
        weight_BR = None
        if spec.mismatch_clip is not None and answers.log_probability_BR is not None:
            missing = width - answers.log_probability_BR.shape[1]
            generator_BR = torch.nn.functional.pad(answers.log_probability_BR.to(old_BR), (0, missing))
            weight_BR = mismatch_weights(old_BR, generator_BR, mask_BR, most=spec.mismatch_clip)
        return Rollout(
            sequences=sequences,
            log_probability_BR=old_BR,
            reference_BR=reference_BR,
            advantage_BR=advantage_BR,
            score_B=score_B,
            ended_B=ended_B,
            value_BR=None if value_BS is None else value_BS[:, :-1] * mask_BR,
            return_BR=return_BR,
            weight_BR=weight_BR,
        )

    def _evaluate(
        self, sequences: Sequences, minibatches: Sequence[Sequence[Tensor]]
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Old log-probabilities, the reference's, and old values, micro-batch by micro-batch of the first epoch.

        Logits depend on the rows of a batch, and the same batch gives the same bits: so the first minibatch's ratio
        is exactly 1.
        """
        shape, device = sequences.answer_mask_BR.shape, self.setup.device
        old_BR, reference_BR = torch.zeros(shape, device=device), torch.zeros(shape, device=device)
        value_BS = None if self.models.value is None else torch.zeros((shape[0], shape[1] + 1), device=device)
        temperature, dtype = self.spec.temperature, self.spec.dtype
        for index in (item for minibatch in minibatches for item in minibatch):
            self.setup.stage.alive()
            part = sequences.rows(index)
            policy, reference = self.models.trained.module, self.models.reference.module
            old_BR[index] = answer_log_probabilities(policy, part, temperature=temperature, dtype=dtype)[0]
            reference_BR[index] = answer_log_probabilities(reference, part, temperature=temperature, dtype=dtype)[0]
            if value_BS is not None and self.models.value is not None:
                value_BS[index] = answer_values(self.models.value.module, part, dtype=dtype)
        mask = sequences.answer_mask_BR
        return old_BR * mask, reference_BR * mask, value_BS

    def _advantages(
        self,
        score_B: Tensor,
        ended_B: Tensor,
        old_BR: Tensor,
        reference_BR: Tensor,
        value_BS: Tensor | None,
        mask_BR: Tensor,
        *,
        kl_coefficient: float,
    ) -> tuple[Tensor, Tensor | None]:
        spec, return_BR = self.spec, None
        if spec.estimator == "grpo":
            return grpo_advantages(score_B, mask_BR, samples=spec.samples_per_prompt), None
        rewards_BR = shaped_rewards(
            score_B, old_BR, reference_BR, mask_BR, kl_coefficient=kl_coefficient, kl_estimator=spec.kl_estimator
        )
        if spec.estimator == "rloo":
            advantage_BR = rloo_advantages(rewards_BR, mask_BR, samples=spec.samples_per_prompt)
        elif spec.estimator == "reinforce":
            assert value_BS is not None
            values_BR = value_BS[:, :-1] * mask_BR
            advantage_BR, return_BR = reinforce_advantages(rewards_BR, values_BR, mask_BR, discount=spec.discount)
        else:
            assert value_BS is not None
            lengths_B = mask_BR.long().sum(1)
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
