"""Proximal policy optimisation against a preference model, resumable at every rollout.

Unit of durability: one rollout with its updates. All randomness is counter-based, so a checkpoint holds
weights, both optimizers and the KL controller, and nothing else is needed to go on bit for bit.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from charter.artifacts.draws import draw_seed, keyed_permutation
from charter.artifacts.stage_dir import StageDir
from charter.artifacts.stage_process import stage_main
from charter.errors import InterruptedRunError, StageError
from charter.inference.generate import SamplingSettings, answer_texts, generate
from charter.inference.score import score_answers
from charter.models.chat import encode_prompt
from charter.models.language_model import LanguageModel, load_language_model
from charter.models.preference import PreferenceModel, ScalarModel, load_preference_model
from charter.models.runtime import configure
from charter.spec.dataset import Prompt, read_prompts
from charter.spec.stage import PpoStage
from charter.train.advantages import generalised_advantages, shaped_rewards, whiten
from charter.train.checkpoint import load_state, save_state
from charter.train.kl_controller import KlController
from charter.train.losses import clipped_policy_loss, clipped_value_loss, kl_estimate, masked_mean
from charter.train.rollout import (
    Rollout,
    Sequences,
    answer_log_probabilities,
    answer_values,
    as_sequences,
    evaluate_sequences,
)
from charter.train.schedule import batch_rows, learning_rate_factor
from charter.train.supervised import make_optimizer, set_learning_rate


@dataclass
class PpoRun:
    """The four models of PPO and the state that training changes."""

    stage: StageDir
    spec: PpoStage
    policy: LanguageModel
    reference: LanguageModel
    reward: PreferenceModel
    value: ScalarModel
    prompts: tuple[Prompt, ...]
    controller: KlController = field(init=False)
    policy_optimizer: torch.optim.AdamW = field(init=False)
    value_optimizer: torch.optim.AdamW = field(init=False)

    def __post_init__(self) -> None:
        spec = self.spec
        self.controller = KlController(spec.kl_coefficient, spec.kl_target, spec.kl_horizon)
        self.policy_optimizer = make_optimizer([(list(self.policy.model.parameters()), spec.learning_rate)], spec)
        self.value_optimizer = make_optimizer([(list(self.value.parameters()), spec.value_learning_rate)], spec)
        for frozen in (self.reference.model, self.reward.scalar):
            frozen.requires_grad_(False)
        for module in (self.policy.model, self.reference.model, self.reward.scalar, self.value):
            module.eval()

    @property
    def target_step(self) -> int:
        """Rollouts in all."""
        return self.spec.episodes // self.spec.rollout_batch

    def train(self) -> None:
        """Run to the target, from the newest verified checkpoint if there is one."""
        step = self._resume()
        while step < self.target_step:
            metrics, tokens = self._step(step)
            step += 1
            counters = {"episodes": self.spec.rollout_batch, "tokens": tokens}
            self.stage.report(step, self.target_step, "rollout", metrics, counters)
            stopping = self.stage.should_stop()
            if step == self.target_step or stopping or step % self.spec.checkpoint_every == 0:
                self.stage.save_checkpoint(step, self._save)
            if stopping and step < self.target_step:
                raise InterruptedRunError(f"stopped at rollout {step} of {self.target_step}, after a checkpoint")

    def _seed(self, *parts: str | int) -> int:
        return draw_seed(self.stage.job.seed, self.stage.job.stage, *parts)

    def _step(self, step: int) -> tuple[dict[str, float], int]:
        factor = learning_rate_factor(step, self.target_step, self.spec)
        set_learning_rate(self.policy_optimizer, factor)
        set_learning_rate(self.value_optimizer, factor)
        rollout = self._rollout(step)
        metrics = self._update(rollout, step)
        kl = rollout.kl_nats()
        metrics |= {
            "reward_mean": rollout.score_B.mean().item(),
            "kl": kl,
            "kl_coefficient": self.controller.coefficient,
            "response_tokens": rollout.mask_BR.sum(1).float().mean().item(),
            "learning_rate": self.policy_optimizer.param_groups[0]["lr"],
        }
        if not all(value == value for value in metrics.values()):
            raise StageError(f"rollout {step + 1}: a metric is not a number ({metrics}); lower learning_rate")
        self.controller.update(kl_nats=kl, answers=self.spec.rollout_batch)
        return metrics, int(rollout.sequences.mask_BT.sum())

    def _minibatches(self, step: int, epoch: int) -> list[Tensor]:
        order = keyed_permutation(self.spec.rollout_batch, seed=self._seed("minibatches", step, epoch))
        return list(torch.split(torch.tensor(order), self.spec.minibatch))

    def _rollout(self, step: int) -> Rollout:
        spec = self.spec
        rows = batch_rows(step, rows=len(self.prompts), batch=spec.rollout_batch, seed=self._seed("order"))
        turns = [self.prompts[row].turns for row in rows]
        tokenizer = self.policy.tokenizer
        prompts = [encode_prompt(tokenizer, item, max_tokens=spec.max_prompt_tokens) for item in turns]
        sampling = SamplingSettings(spec.max_new_tokens, spec.min_new_tokens, spec.temperature, spec.top_p, spec.dtype)
        seeds = [self._seed("rollout", step, index) for index in range(len(rows))]
        answers = generate(self.policy, prompts, seeds=seeds, settings=sampling, prompt_width=spec.max_prompt_tokens)
        texts = answer_texts(self.policy, answers)
        score_B = score_answers(self.reward, list(zip(turns, texts, strict=True)), dtype=spec.dtype)
        if spec.reward_clip is not None:
            score_B = score_B.clamp(-spec.reward_clip, spec.reward_clip)
        sequences = as_sequences(answers, answer_width=spec.max_new_tokens, padding=self.policy.padding_id)
        log_probability, reference, value = evaluate_sequences(
            self.policy,
            self.reference,
            self.value,
            sequences,
            self._minibatches(step, 0),
            temperature=spec.temperature,
            dtype=spec.dtype,
        )
        return Rollout(sequences, log_probability, reference, value, score_B)

    def _update(self, rollout: Rollout, step: int) -> dict[str, float]:
        spec, mask_BR = self.spec, rollout.mask_BR
        rewards_BR = shaped_rewards(
            rollout.score_B,
            rollout.log_probability_BR,
            rollout.reference_BR,
            mask_BR,
            kl_coefficient=self.controller.coefficient,
        )
        advantages_BR, returns_BR = generalised_advantages(
            rewards_BR, rollout.value_BR, mask_BR, discount=spec.discount, gae_lambda=spec.gae_lambda
        )
        if spec.whiten_advantages:
            advantages_BR = whiten(advantages_BR, mask_BR)
        sums: dict[str, float] = {}
        count = 0
        for epoch in range(spec.ppo_epochs):
            for number, index in enumerate(self._minibatches(step, epoch)):
                first = epoch == 0 and number == 0
                found = self._minibatch(rollout, advantages_BR, returns_BR, index, first=first, step=step)
                count += 1
                for name, value in found.items():
                    sums[name] = sums.get(name, 0.0) + value
        return {name: value / count for name, value in sums.items()}

    def _minibatch(
        self,
        rollout: Rollout,
        advantages_BR: Tensor,
        returns_BR: Tensor,
        index: Tensor,
        *,
        first: bool,
        step: int,
    ) -> dict[str, float]:
        spec = self.spec
        part: Sequences = rollout.sequences.rows(index)
        mask, old = rollout.mask_BR[index], rollout.log_probability_BR[index]
        log_probability, entropy = answer_log_probabilities(
            self.policy,
            part,
            temperature=spec.temperature,
            dtype=spec.dtype,
            entropy_gradient=spec.entropy_weight > 0,
        )
        if first and not torch.equal(log_probability.detach() * mask, old):
            raise StageError("the first minibatch's ratio is not 1: the policy changed between rollout and update")
        policy_loss, clipped = clipped_policy_loss(
            log_probability, old, advantages_BR[index], mask, clip_ratio=spec.clip_ratio
        )
        value = answer_values(self.value, part, dtype=spec.dtype)
        value_loss = clipped_value_loss(
            value, rollout.value_BR[index], returns_BR[index], mask, value_clip=spec.value_clip
        )
        if step >= spec.value_warmup_rollouts:
            entropy_bonus = spec.entropy_weight * masked_mean(entropy, mask)
            _descend(policy_loss - entropy_bonus, self.policy.model, self.policy_optimizer, spec.gradient_clip)
        _descend(spec.value_loss_weight * value_loss, self.value, self.value_optimizer, spec.gradient_clip)
        reference = rollout.reference_BR[index]
        return {
            "policy_loss": policy_loss.item(),
            "value_loss": value_loss.item(),
            "clip_fraction": clipped.item(),
            "entropy": masked_mean(entropy, mask).item(),
            "kl_k3_per_token": masked_mean(kl_estimate(old, reference), mask).item(),
        }

    def _save(self, directory: Path) -> None:
        save_state(directory, self.state_dict())

    def state_dict(self) -> dict[str, Any]:
        """All that a resume needs."""
        return {
            "policy": self.policy.model.state_dict(),
            "value": self.value.state_dict(),
            "policy_optimizer": self.policy_optimizer.state_dict(),
            "value_optimizer": self.value_optimizer.state_dict(),
            "kl_controller": self.controller.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where a checkpoint stopped."""
        self.policy.model.load_state_dict(state["policy"])
        self.value.load_state_dict(state["value"])
        self.policy_optimizer.load_state_dict(state["policy_optimizer"])
        self.value_optimizer.load_state_dict(state["value_optimizer"])
        self.controller.load_state_dict(state["kl_controller"])

    def _resume(self) -> int:
        checkpoint = self.stage.latest_checkpoint()
        if checkpoint is None:
            return 0
        self.load_state_dict(load_state(checkpoint.path))
        return checkpoint.step


def _descend(loss: Tensor, module: nn.Module, optimizer: torch.optim.Optimizer, gradient_clip: float) -> None:
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(module.parameters(), gradient_clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def ppo_run(stage: StageDir) -> PpoRun:
    """Load the models and the prompts of a PPO stage."""
    job, spec = stage.job, stage.job.spec
    assert isinstance(spec, PpoStage)
    device = configure(job.frozen)
    policy_path, reward_path = job.only("policy").location(), job.only("reward").location()
    prompts = tuple(p for item in job.inputs["prompts"] for p in read_prompts(item.location(), item.data))
    found = PpoRun(
        stage=stage,
        spec=spec,
        policy=load_language_model(policy_path),
        reference=load_language_model(policy_path),
        reward=load_preference_model(reward_path),
        value=load_preference_model(reward_path).scalar,
        prompts=prompts,
    )
    for module in (found.policy.model, found.reference.model, found.reward.scalar, found.value):
        module.to(device)
    return found


def run(stage: StageDir) -> None:
    """Train to the target and publish the policy."""
    ppo = ppo_run(stage)
    ppo.train()
    stage.publish_outputs(
        lambda directory: ppo.policy.save(directory / "model"),
        step=ppo.target_step,
        target_step=ppo.target_step,
    )


if __name__ == "__main__":
    stage_main(run)
