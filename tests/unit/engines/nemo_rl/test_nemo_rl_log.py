"""NeMo RL's lines, as NeMo RL 0.6.0 prints them (nemo_rl/algorithms/{sft,dpo,grpo}.py)."""

from charter.engines.nemo_rl.adapter import console_steps

BAR = "=" * 25
SFT = f"""
{BAR} Epoch 1/1 {BAR}

{BAR} Step 1/10 {BAR}
▶ Preparing batch...
▶ Taking a training step...

📊 Validation Results:
    • Validation loss: 9.0000
    • Total validation time: 1.00s

📊 Training Results:
  • Loss: 1.2500
  • Training FLOPS: 12.50 TFLOPS (6.25 TFLOPS per rank)

⏱️  Timing:
  • Total step time: 2.50s
  • policy_training: 2.00s (80.0%)

{BAR} Step 2/10 {BAR}

📊 Training Results:
  • Loss: nan

⏱️  Timing:
  • Total step time: 2.25s

{BAR} Step 3/10 {BAR}

📊 Training Results:
  • Loss: 1.0000
"""
DPO = f"""
{BAR} Step 4/10 {BAR}

📊 Training Results:
  • loss: 0.6900
  • accuracy: 0.5000
  • rewards_chosen_mean: 0.0100
  • num valid samples: 64

⏱️  Timing:
  • Total step time: 12.34s
"""
GRPO = f"""
{BAR} Step 7/10 {BAR}

📊 Training Results:
  • Loss: 0.0125
  • Generation KL Error: 0.0010
  • Avg Reward: 1.5000
  • Mean Generation Length: 112.2500

⏱️  Timing:
  • Total step time: 30.00s
"""


def test_a_step_is_told_when_it_has_ended() -> None:
    first, second = console_steps(SFT.splitlines(keepends=True))
    assert (first.step, first.metrics, first.seconds) == (1, {"loss": 1.25}, 2.5)
    assert second.step == 2
    assert second.metrics["loss"] != second.metrics["loss"]


def test_pairs_tell_accuracy() -> None:
    [step] = console_steps(DPO.splitlines())
    assert (step.step, step.seconds) == (4, 12.34)
    assert step.metrics == {"loss": 0.69, "accuracy": 0.5, "chosen_reward": 0.01, "num valid samples": 64.0}


def test_rollouts_tell_reward_and_length() -> None:
    [step] = console_steps(GRPO.splitlines())
    assert step.metrics == {"loss": 0.0125, "reward": 1.5, "generation_kl_error": 0.001, "mean_new_tokens": 112.25}


def test_figures_without_a_step_are_none() -> None:
    assert list(console_steps(GRPO.split("=\n")[1].splitlines())) == []
    assert list(console_steps([])) == []
