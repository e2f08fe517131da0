"""TRL's side of `engine_vs_trl.py`: its trainers on the fixed work of `peer_workload.py`, run in TRL's environment.

python trl_peer.py STAGE STEPS SCALE
"""

import os
import sys
import tempfile
from functools import partial

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["OMP_NUM_THREADS"] = "1"

import datasets
import peer_workload as work
import torch
import transformers
from torch.utils.data import DataLoader, SequentialSampler
from transformers import TrainerCallback

torch.set_num_threads(1)
transformers.logging.set_verbosity_error()
datasets.disable_progress_bars()
STEPS_IN = work.StepByStep()


class Watch(TrainerCallback):
    """Keeps the step's own log, and ends the step."""

    def __init__(self):
        self.logs = {}

    def on_train_begin(self, args, state, control, **kwargs):
        STEPS_IN.begin()

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.logs = {name: value for name, value in (logs or {}).items() if isinstance(value, int | float)}
        STEPS_IN.done(self.logs)


def common(steps, **more):
    """The settings of all trainers."""
    return {
        "output_dir": tempfile.mkdtemp(prefix="trl-peer-"),
        "report_to": "none",
        "logging_steps": 1,
        "bf16": False,
        "gradient_checkpointing": False,
        "use_cpu": True,
        "disable_tqdm": True,
        "learning_rate": work.RATE,
        "adam_beta1": work.BETAS[0],
        "adam_beta2": work.BETAS[1],
        "max_grad_norm": work.GRADIENT_CLIP,
        "lr_scheduler_type": "linear",
        "save_strategy": "no",
        **more,
    }


def in_order(trainer_class):
    """The same trainer, reading its rows in the order given."""

    class InOrder(trainer_class):
        def _get_train_sampler(self, dataset=None):
            return SequentialSampler(self.train_dataset if dataset is None else dataset)

    return InOrder


def sft(steps, scale):
    """Supervised fine-tuning."""
    from trl import SFTConfig, SFTTrainer

    rows = [{"input_ids": row} for row in work.sft_rows(work.SFT_ROWS * steps)]
    arguments = SFTConfig(
        **common(steps, max_steps=steps, per_device_train_batch_size=work.SFT_ROWS, max_length=work.SEQUENCE)
    )
    in_order(SFTTrainer)(
        model=work.causal_model(scale),
        processing_class=work.tokenizer(),
        train_dataset=datasets.Dataset.from_list(rows),
        callbacks=[Watch()],
        args=arguments,
    ).train()


def preference_model(steps, scale, *, same_length):
    """Reward modelling."""
    from trl import RewardConfig, RewardTrainer

    pairs = work.pairs(work.PAIRS * steps, same_length=same_length)
    rows = [{"chosen_ids": pair.chosen, "rejected_ids": pair.rejected} for pair in pairs]
    arguments = RewardConfig(
        **common(steps, max_steps=steps, per_device_train_batch_size=work.PAIRS, max_length=work.PAIR_TOKENS)
    )
    in_order(RewardTrainer)(
        model=work.scalar_model(scale),
        processing_class=work.tokenizer(),
        train_dataset=datasets.Dataset.from_list(rows),
        callbacks=[Watch()],
        args=arguments,
    ).train()


def ppo(steps, scale):
    """Proximal policy optimisation."""
    from trl.experimental.ppo import PPOConfig, PPOTrainer, ppo_trainer

    rows = [{"input_ids": row} for row in work.prompts(work.ANSWERS * steps)]
    arguments = PPOConfig(
        **common(
            steps, learning_rate=work.PPO_RATE, per_device_train_batch_size=work.ANSWERS, gradient_accumulation_steps=1
        ),
        total_episodes=steps * work.ANSWERS,
        num_ppo_epochs=work.EPOCHS,
        num_mini_batches=1,
        local_rollout_forward_batch_size=work.ANSWERS,
        response_length=work.ANSWER_TOKENS,
        temperature=1.0,
        num_sample_generations=0,
        kl_coef=work.KL_COEFFICIENT,
        vf_coef=work.VALUE_WEIGHT,
        cliprange=work.CLIP,
        cliprange_value=work.CLIP,
        lam=work.GAE_LAMBDA,
    )
    ppo_trainer.GenerationConfig = partial(transformers.GenerationConfig, suppress_tokens=[work.END])
    trainer = PPOTrainer(
        args=arguments,
        processing_class=work.tokenizer(),
        model=work.causal_model(scale),
        ref_model=work.causal_model(scale),
        reward_model=work.scalar_model(scale),
        value_model=work.scalar_model(scale),
        train_dataset=datasets.Dataset.from_list(rows),
        eval_dataset=datasets.Dataset.from_list(rows[: work.ANSWERS]),
        callbacks=[Watch()],
    )
    old = trainer.dataloader
    trainer.dataloader = DataLoader(trainer.train_dataset, batch_size=work.ANSWERS, collate_fn=old.collate_fn)
    trainer.train()


def grpo(steps, scale):
    """Group relative policy optimisation, its losses and rewards as TRL has them by default."""
    from trl import GRPOConfig, GRPOTrainer

    def even(completions, **_):
        return [work.even(completion) for completion in completions]

    each = work.ANSWERS // work.ANSWERS_TO_ONE
    rows = [{"prompt": work.text(ids)} for ids in work.prompts(each * steps)]
    arguments = GRPOConfig(
        **common(steps, learning_rate=work.PPO_RATE, max_steps=steps, per_device_train_batch_size=work.ANSWERS),
        num_generations=work.ANSWERS_TO_ONE,
        max_completion_length=work.ANSWER_TOKENS,
        generation_kwargs={"min_new_tokens": work.ANSWER_TOKENS},
        temperature=1.0,
        beta=0.0,
        epsilon=work.CLIP,
        shuffle_dataset=False,
    )
    GRPOTrainer(
        model=work.causal_model(scale),
        reward_funcs=even,
        processing_class=work.tokenizer(),
        train_dataset=datasets.Dataset.from_list(rows),
        callbacks=[Watch()],
        args=arguments,
    ).train()


def main():
    """Run the stage that was asked for."""
    stage, steps, scale = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    if stage == "sft":
        sft(steps, scale)
    elif stage in ("ppo", "grpo"):
        {"ppo": ppo, "grpo": grpo}[stage](steps, scale)
    else:
        preference_model(steps, scale, same_length=stage == "preference_model")


if __name__ == "__main__":
    main()
