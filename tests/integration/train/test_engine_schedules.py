"""Learning rates that other engines are told of: torch's schedules, step for step as Charter's own."""

import pytest
import torch
import yaml
from engine_stages import handover, sft, sharded

from charter.engines.nemo_rl.mapping import render_nemo_rl
from charter.train.schedule import learning_rate_factor


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
@pytest.mark.parametrize("warmup", [0, 1, 2, 5])
def test_the_schedule_is_charters_own_step_for_step(schedule, warmup):
    stage = sft(schedule=schedule, warmup_steps=warmup, min_learning_rate_ratio=0.2, learning_rate=1e-3)
    run = render_nemo_rl(handover("nemo_rl", stage, sharded(64), target_steps=12))
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=1e-3)
    *parts, last = yaml.safe_load(run.files["sft.yaml"])["policy"]["scheduler"]
    made = [
        getattr(torch.optim.lr_scheduler, part["name"].split(".")[-1])(optimizer, **part["kwargs"]) for part in parts
    ]
    scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, made, last["milestones"])
    for step in range(12):
        wanted = 1e-3 * learning_rate_factor(step, 12, stage)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(wanted, rel=1e-9), step
        optimizer.step()
        scheduler.step()
