"""The environment of rewards.py for NeMo RL: one turn, whose answers the functions reward."""

import ray
import torch
from nemo_rl.environments.interfaces import EnvironmentInterface, EnvironmentReturn

import rewards


@ray.remote
class RewardsEnvironment(EnvironmentInterface):
    def __init__(self, cfg):
        self.cfg = cfg

    def step(self, message_log_batch, metadata):
        answers = [log[-1]["content"] for log in message_log_batch]
        rows = [item["ground_truth"] for item in metadata]
        totals = [rewards.rewards_of(answer, row)[0] for answer, row in zip(answers, rows, strict=True)]
        return EnvironmentReturn(
            observations=[{"role": "environment", "content": ""} for _ in answers],
            metadata=metadata,
            next_stop_strings=[None] * len(answers),
            rewards=torch.tensor(totals),
            terminateds=torch.ones(len(answers), dtype=torch.bool),
            answers=answers,
        )

    def global_post_process_and_metrics(self, batch):
        return batch, {}

    def shutdown(self):
        pass
