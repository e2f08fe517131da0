"""Prompts and rewards of the stage as a taskset of verifiers: one turn, rated by rewards.py."""

import json
import pathlib

import verifiers.v1 as vf

import rewards

__all__ = ["CharterTaskset"]
ROWS = "data/prompts.jsonl"


class Data(vf.TaskData):
    carried: str


class CharterTask(vf.Task[Data]):
    @vf.reward
    async def total(self, trace) -> float:
        return rewards.rewards_of(trace.last_reply, self.data.carried, tokens=trace.num_output_tokens)[0]


class CharterTaskset(vf.Taskset[CharterTask, vf.TasksetConfig]):
    def load(self):
        with pathlib.Path(ROWS).open(encoding="utf-8") as lines:
            for line in lines:
                row = json.loads(line)
                yield CharterTask(Data(prompt=row["prompt"], carried=row["charter"]), self.config.task)
