"""One PPO step: sample a rollout, score it, and update policy and value model on its minibatches."""

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from charter.artifacts.draws import keyed_permutation
from charter.data.dataset import Prompt, Turn
from charter.errors import DataError, StageError
from charter.inference.generate import Answers, SamplingSettings, answer_texts
from charter.inference.generator import Generator
from charter.inference.score import score_answers
from charter.models.adapters import published_weights
from charter.models.chat import encode_prompt
from charter.models.language_model import LanguageModel
from charter.models.parallel import Parallel
from charter.models.preference import PreferenceModel
from charter.models.ranks import Ranks
from charter.models.runtime import precision
from charter.models.token_forward import TokenFigures
from charter.spec.stage import PpoStage
from charter.train.judge_reward import JudgeReward
from charter.train.loop import DivergenceGuard
from charter.train.losses import Summed
from charter.train.optimizers import GradientScaler
from charter.train.ppo_math import (
    KlEstimator,
    answer_scores,
    clipped_policy_loss,
    clipped_value_loss,
    clipped_values,
    entropy_bonus,
    generalised_advantages,
    grpo_advantages,
    kl_loss,
    kl_penalty,
    mismatch_weights,
    ratio_moments,
    reinforce_advantages,
    reinforce_loss,
    rloo_advantages,
    shaped_rewards,
    update_kl,
    whiten,
)
from charter.train.pretraining_mix import PretrainingMix, counted_tokens
from charter.train.schedule import batch_rows
from charter.train.setup import Setup


@dataclass(frozen=True)
class Sequences:
    """Prompts, each followed by its answer, and what is known of each answer token.

    Padding is at the right, where causal attention never looks, so no mask is needed.
    """

    ids_BT: Tensor
    mask_BT: Tensor
    prompt_tokens_B: Tensor
    answer_mask_BR: Tensor

    def rows(self, index: Tensor) -> "Sequences":
        """Some of the sequences, without the columns that are padding in all of them."""
        mask_BT = self.mask_BT[index]
        width = int(mask_BT.sum(1).max())
        return Sequences(
            self.ids_BT[index, :width], mask_BT[:, :width], self.prompt_tokens_B[index], self.answer_mask_BR[index]
        )

    @property
    def answer_tokens(self) -> int:
        """Width of the answers, R."""
        return self.answer_mask_BR.shape[1]


def as_sequences(answers: Answers, *, answer_width: int, padding: int) -> Sequences:
    """Prompts and answers side by side, each row from its first column on; answers masked to `answer_width` tokens."""
    missing = answer_width - answers.answer_BR.shape[1]
    answer_mask_BR = torch.nn.functional.pad(answers.answer_mask_BR, (0, missing), value=False)
    real_BT = torch.cat([answers.prompt_mask_BQ.bool(), answers.answer_mask_BR], 1)
    length_B = real_BT.sum(1)
    first_B = (real_BT.shape[1] - answers.answer_mask_BR.shape[1]) - answers.prompt_mask_BQ.sum(1)
    places_T = torch.arange(int(length_B.max()), device=real_BT.device)
    column_BT = (first_B[:, None] + places_T).clamp_max(real_BT.shape[1] - 1)
    mask_BT = places_T < length_B[:, None]
    ids_BT = torch.cat([answers.prompt_BQ, answers.answer_BR], 1).gather(1, column_BT)
    return Sequences(
        torch.where(mask_BT, ids_BT, padding), mask_BT.long(), answers.prompt_mask_BQ.sum(1), answer_mask_BR
    )


def answer_log_probabilities(
    call: Callable[..., Any],
    sequences: Sequences,
    *,
    temperature: float,
    dtype: str,
    entropy_gradient: bool = False,
) -> tuple[Tensor, Tensor]:
    """log p of each answer token at the sampling temperature, and the entropy there, both [B, R] and 0 at padding.

    `call` runs the model or what wraps it. Differentiable; the entropy only when asked.
    """
    mask_BR, read_BT = sequences.answer_mask_BR, sequences.ids_BT[:, :-1]
    if bool((sequences.prompt_tokens_B < 1).any()):
        raise DataError(
            "an answer without a prompt: nothing comes before its first token, so it has no probability; give every "
            "prompt at least one token (a chat template that begins with one, or a longer max_prompt_tokens)"
        )
    row_N, token_N = mask_BR.nonzero().unbind(1)
    column_N = sequences.prompt_tokens_B[row_N] + token_N
    with precision(dtype, read_BT.device):
        figures: TokenFigures = call(
            input_ids=read_BT,
            at_N=row_N * read_BT.shape[1] + column_N - 1,
            target_N=sequences.ids_BT[row_N, column_N],
            temperature=temperature or 1.0,
        )
    entropy_N = figures.entropy_N if entropy_gradient else figures.entropy_N.detach()
    place_N = row_N * mask_BR.shape[1] + token_N
    return _spread(figures.log_probability_N, place_N, mask_BR), _spread(entropy_N, place_N, mask_BR)


def _spread(value_N: Tensor, place_N: Tensor, mask_BR: Tensor) -> Tensor:
    """Values of real answer tokens at their places, 0 elsewhere."""
    return value_N.new_zeros(mask_BR.numel()).index_copy(0, place_N, value_N).view(mask_BR.shape)


def answer_values(call: Callable[..., Tensor], sequences: Sequences, *, dtype: str) -> Tensor:
    """The value of the state before each answer token, and after the last one, [B, S], differentiable.

    `call` runs the value model or what wraps it. 0 where an answer is padding.
    """
    ids_BT, prompt_B1 = sequences.ids_BT, sequences.prompt_tokens_B[:, None]
    states_S = torch.arange(sequences.answer_tokens + 1, device=ids_BT.device)
    is_state_BS = states_S <= sequences.answer_mask_BR.sum(1, keepdim=True)
    column_BS = prompt_B1 - 1 + states_S
    row_B1 = torch.arange(len(ids_BT), device=ids_BT.device)[:, None]
    at_N = (row_B1 * ids_BT.shape[1] + column_BS)[is_state_BS]
    with precision(dtype, ids_BT.device):
        value_N = call(ids_BT, at_N=at_N)
    return _spread(value_N, is_state_BS.flatten().nonzero().squeeze(1), is_state_BS)


_SEQUENCES = "sequences."


@dataclass(frozen=True)
class Rollout:
    """Everything that the epochs over a rollout need; what an estimator has no use for is None."""

    sequences: Sequences
    log_probability_BR: Tensor
    reference_BR: Tensor
    advantage_BR: Tensor
    score_B: Tensor
    ended_B: Tensor
    """Whether the answer has its end token."""
    value_BR: Tensor | None = None
    return_BR: Tensor | None = None
    weight_BR: Tensor | None = None
    """Importance weights where generator and trainer are different programs."""

    @property
    def mask_BR(self) -> Tensor:
        """Mask of the real answer tokens."""
        return self.sequences.answer_mask_BR

    def sums(self, *, kl_estimator: KlEstimator) -> dict[str, float]:
        """Sums over the answers, fetched from the device at once.

        `kl` is the log-ratio to the reference, the k1 estimate of KL(policy | reference); `kl_penalty` the estimate
        that the reward is charged for; `answer_entropy` is -log p, whose mean estimates the entropy of whole answers.
        """
        mask, old, reference = self.mask_BR, self.log_probability_BR, self.reference_BR
        sums = {
            "kl": ((old - reference) * mask).double().sum(),
            "kl_penalty": (kl_penalty(old, reference, estimator=kl_estimator) * mask).double().sum(),
            "answer_entropy": -(old * mask).double().sum(),
            "reward_mean": self.score_B.double().sum(),
            "response_tokens": mask.sum().double(),
            "ended_share": self.ended_B.sum().double(),
            "tokens": self.sequences.mask_BT.sum().double(),
        }
        return dict(zip(sums, torch.stack(list(sums.values())).tolist(), strict=True))

    def to_buffers(self, ranks: Ranks) -> dict[str, Tensor]:
        """All processes' rollouts as one, rank after rank: what a checkpoint holds. The answers' width is the same."""
        own = self._tensors()
        width = max(ranks.gather(self.sequences.ids_BT.shape[1]))
        for name in ("ids_BT", "mask_BT"):
            value = own[_SEQUENCES + name]
            own[_SEQUENCES + name] = torch.nn.functional.pad(value, (0, width - value.shape[1]))
        return {name: _gathered(value, ranks) for name, value in own.items()}

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


def _gathered(value: Tensor, ranks: Ranks) -> Tensor:
    if ranks.data_size == 1:
        return value
    sent = value.to(torch.uint8) if value.dtype == torch.bool else value.contiguous()
    parts = [torch.empty_like(sent) for _ in range(ranks.data_size)]
    torch.distributed.all_gather(parts, sent, group=ranks.data_group)
    return torch.cat(parts).to(value.dtype)


@dataclass(frozen=True)
class PpoModels:
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
    models: PpoModels
    generator: Generator | None
    """None where rank 0 samples for this process."""
    prompts: tuple[Prompt, ...]
    judge: JudgeReward | None = None

    @property
    def is_exact(self) -> bool:
        """Return True if a rollout can be sampled again bit for bit; if not, it is stored as soon as it is there."""
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
        """Score this process's answers by the reward model, or by the judge."""
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
        answers: Answers | None = None
        if generator is not None:
            full_weights = published_weights(self.models.trained.module, weights, self.spec.adapter)
            generator.update_weights(full_weights.items(), version=step)
            all_prompts = [prompt for own, _ in everyone for prompt in own]
            all_seeds = [seed for _, own in everyone for seed in own]
            answers = generator.sample(all_prompts, seeds=all_seeds, settings=settings, version=step)
        answers = ranks.from_first(answers)
        assert answers is not None
        return answers.share(ranks.data_rank, len(prompts), ranks.device)

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


COUNT = " count"
"""Ends the name of the number of terms of a sum."""
RATIO, RATIO_SQUARE = "ratio less 1", "its square"
"""Sums over tokens of which the mean and the variance of the ratio are made."""


@dataclass
class Update:
    """The optimizers of PPO and how a minibatch moves them."""

    setup: Setup
    spec: PpoStage
    policy: Parallel
    policy_optimizer: torch.optim.Optimizer
    value: Parallel | None
    value_optimizer: torch.optim.Optimizer | None
    mix: PretrainingMix | None = None
    scaler: GradientScaler = field(init=False)

    def __post_init__(self) -> None:
        self.scaler = GradientScaler(self.spec.dtype, self.setup.device)

    def minibatch(
        self,
        rollout: Rollout,
        parts: Sequence[Tensor],
        at: "MinibatchPosition",
        guard: DivergenceGuard,
        *,
        kl_coefficient: float,
    ) -> dict[str, float]:
        """Accumulate over the micro-batches, then update; what was measured, the same in every process.

        `kl_coefficient` counts where the KL penalty is part of the loss (grpo).
        """
        self._clear()
        learns = at.step >= self.spec.value_warmup_rollouts
        sums: dict[str, float] = {}
        for index, rows in enumerate(parts):
            waits = index < len(parts) - 1
            self.setup.stage.alive()
            measured = self._policy_part(rollout, rows, at, kl_coefficient, learns=learns, waits=waits)
            if self.value is not None:
                measured |= self._value_part(self.value, rollout, rows, waits=waits)
            _add(sums, _numbers(measured))
        totals = self.setup.ranks.total(sums)
        counted = [name for name in totals if name + COUNT in totals]
        means = _with_ratio({name: totals[name] / max(totals[name + COUNT], 1.0) for name in counted})
        norms, ptx = self._gradients(totals, at, learns=learns)
        loss = means["policy_loss"] + means.get("value_loss", 0.0)
        norm = math.hypot(*norms.values())
        overflowed = math.isfinite(loss) and self.scaler.overflowed(norm)
        if not overflowed and guard.allows(at.step, loss, norm):
            if learns:
                self.policy_optimizer.step()
            if self.value_optimizer is not None:
                self.value_optimizer.step()
        self._clear()
        return {**means, **norms, **ptx, "minibatches": 1.0}

    def _policy_part(
        self,
        rollout: Rollout,
        rows: Tensor,
        at: "MinibatchPosition",
        kl_coefficient: float,
        *,
        learns: bool,
        waits: bool,
    ) -> dict[str, Summed]:
        """Loss and gradient of the policy on some answers, and what is measured of it."""
        spec, mask, old = self.spec, rollout.mask_BR[rows], rollout.log_probability_BR[rows]
        reference = rollout.reference_BR[rows]
        with torch.set_grad_enabled(learns), self.policy.accumulating() if waits else contextlib.nullcontext():
            log_probability, entropy = answer_log_probabilities(
                self.policy.call,
                rollout.sequences.rows(rows),
                temperature=spec.temperature,
                dtype=spec.dtype,
                entropy_gradient=spec.entropy_weight > 0,
            )
            if at.is_first and not torch.equal(log_probability.detach() * mask, old):
                raise StageError("the first minibatch's ratio is not 1: the policy changed between rollout and update")
            measured = self._policy_loss(log_probability, rollout, rows)
            total = measured["policy_loss"].total
            if spec.entropy_weight:
                bonus = entropy_bonus(entropy, mask, aggregation=spec.loss_aggregation)
                total = total - spec.entropy_weight * bonus.total
            if spec.estimator == "grpo":
                penalty = kl_loss(log_probability, reference, mask, aggregation=spec.loss_aggregation)
                total = total + kl_coefficient * penalty.total
            if learns:
                self.scaler.scale(total).backward()  # type: ignore[no-untyped-call]
        beyond, squared = ratio_moments(log_probability, old, mask)
        return {
            **measured,
            "entropy": entropy_bonus(entropy, mask),
            "update_kl": update_kl(log_probability, old, mask),
            "kl_k3_per_token": update_kl(reference, old, mask),
            RATIO: beyond,
            RATIO_SQUARE: squared,
        }

    def _policy_loss(self, log_probability: Tensor, rollout: Rollout, rows: Tensor) -> dict[str, Summed]:
        """The loss that the estimator belongs to; how many tokens are clipped where there is a ratio to clip."""
        spec, mask, advantage = self.spec, rollout.mask_BR[rows], rollout.advantage_BR[rows]
        weight = None if rollout.weight_BR is None else rollout.weight_BR[rows]
        how = spec.loss_aggregation
        if spec.estimator == "reinforce":
            return {"policy_loss": reinforce_loss(log_probability, advantage, mask, aggregation=how, weight_BR=weight)}
        loss, clipped = clipped_policy_loss(
            log_probability,
            rollout.log_probability_BR[rows],
            advantage,
            mask,
            clip_ratio=spec.clip_ratio,
            aggregation=how,
            weight_BR=weight,
        )
        return {"policy_loss": loss, "clip_fraction": clipped}

    def _value_part(self, value: Parallel, rollout: Rollout, rows: Tensor, *, waits: bool) -> dict[str, Summed]:
        """Loss and gradient of the value model on some answers, and how many of its values are clipped."""
        spec = self.spec
        assert rollout.value_BR is not None
        assert rollout.return_BR is not None
        old, returns, mask = rollout.value_BR[rows], rollout.return_BR[rows], rollout.mask_BR[rows]
        clip = spec.value_clip
        with value.accumulating() if waits else contextlib.nullcontext():
            values = answer_values(value.call, rollout.sequences.rows(rows), dtype=spec.dtype)[:, :-1]
            loss = clipped_value_loss(values, old, returns, mask, value_clip=clip, aggregation=spec.loss_aggregation)
            self.scaler.scale(loss.total).backward()  # type: ignore[no-untyped-call]
        return {"value_loss": loss, "value_clip_fraction": clipped_values(values, old, returns, mask, value_clip=clip)}

    def _gradients(
        self, totals: dict[str, float], at: "MinibatchPosition", *, learns: bool
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Turn sums into means, add the pretraining mix, clip; the norms before clipping."""
        size, norms, ptx = self.setup.ranks.data_size, {}, {}
        if learns:
            self.policy.scale_gradients(size / max(totals["policy_loss" + COUNT], 1.0))
            ptx = self._pretraining_mix(at)
            self.policy.scale_gradients(1 / self.scaler.factor)
            norms["gradient_norm"] = self.policy.clip(self.spec.gradient_clip).item()
        if self.value is not None:
            count = max(totals["value_loss" + COUNT], 1.0)
            self.value.scale_gradients(self.spec.value_loss_weight * size / (count * self.scaler.factor))
            norms["value_gradient_norm"] = self.value.clip(self.spec.gradient_clip).item()
        return norms, ptx

    def _pretraining_mix(self, at: "MinibatchPosition") -> dict[str, float]:
        """PPO-ptx: the gradient of the mean language-modelling loss, weighted (Ouyang et al. 2022, eq. 2)."""
        if self.mix is None:
            return {}
        parts, ranks = self.mix.parts(at.number_of(self.spec)), self.setup.ranks
        terms = max(ranks.total({"terms": float(sum(map(counted_tokens, parts)))})["terms"], 1.0)
        weight, loss = self.spec.ptx_weight * ranks.data_size / terms, 0.0
        for index, rows in enumerate(parts):
            self.setup.stage.alive()
            with self.policy.accumulating() if index < len(parts) - 1 else contextlib.nullcontext():
                mix_loss = self.mix.loss(rows).loss_sum
                self.scaler.scale(weight * mix_loss).backward()  # type: ignore[no-untyped-call]
            loss += mix_loss.item()
        return {"ptx_loss": ranks.total({"loss": loss})["loss"] / terms}

    def _clear(self) -> None:
        for optimizer in (self.policy_optimizer, self.value_optimizer):
            if optimizer is not None:
                optimizer.zero_grad(set_to_none=True)


@dataclass(frozen=True)
class MinibatchPosition:
    """Position of a minibatch in a stage: its rollout, the epoch over it, its number in the epoch."""

    step: int
    epoch: int
    minibatch: int

    @property
    def is_first(self) -> bool:
        """Return True if the policy is still the one that sampled."""
        return self.epoch == 0 and self.minibatch == 0

    def number_of(self, spec: PpoStage) -> int:
        """Return the number of minibatches before this one, counted from the start of the stage.

        >>> spec = PpoStage(policy="p", reward="r", prompts=(), episodes=128, rollout_batch=64)
        >>> MinibatchPosition(1, 0, 1).number_of(spec)
        3
        """
        each = spec.rollout_batch // spec.minibatch
        return (self.step * spec.ppo_epochs + self.epoch) * each + self.minibatch


def _numbers(measured: Mapping[str, Summed]) -> dict[str, float]:
    """Totals and counts as plain numbers, fetched from the device at once."""
    flat = [item for summed in measured.values() for item in (summed.total, summed.count)]
    values = torch.stack([item.detach().double() for item in flat]).tolist()
    names = [name for key in measured for name in (key, key + COUNT)]
    return dict(zip(names, values, strict=True))


def _with_ratio(means: Mapping[str, float]) -> dict[str, float]:
    """The means with mean and variance of the ratio instead of its moments."""
    reported = {name: value for name, value in means.items() if name not in (RATIO, RATIO_SQUARE)}
    beyond, squared = means[RATIO], means[RATIO_SQUARE]
    return {**reported, "ratio_mean": 1 + beyond, "ratio_variance": squared - beyond**2}


def _add(sums: dict[str, float], more: Mapping[str, float]) -> None:
    for name, value in more.items():
        sums[name] = sums.get(name, 0.0) + value
