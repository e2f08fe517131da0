"""Rewards of a rollout's answers: every reward of the list called, stored before the update, and added up."""

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor

from charter.artifacts import durable
from charter.data.dataset import Turn
from charter.errors import DataError, StageError
from charter.inference.limited import Failed, LimitedProcess
from charter.inference.turns import Trajectory
from charter.spec.rewards import PROGRAM, REWARD_SOURCES, Reward

TRIES = 2
"""Calls of one answer where the process died or took too long; an exception of a pure function comes again."""


@dataclass
class RewardProcess:
    """One function, and the process that calls it."""

    call: str
    arguments: Mapping[str, Any]
    timeout_seconds: float
    memory_bytes: int
    _process: LimitedProcess = field(init=False)

    def __post_init__(self) -> None:
        self._process = LimitedProcess(
            "charter.train.rewards.functions",
            f"reward function {self.call}",
            {"call": self.call, "arguments": dict(self.arguments)},
            self.timeout_seconds,
            self.memory_bytes,
            starts_sandboxes=self.call == PROGRAM,
        )

    @property
    def is_isolated(self) -> bool | None:
        """True if its process has no network; None before the first has started."""
        return self._process.is_isolated

    def ask(self, offered: Mapping[str, Any]) -> float | Failed | None:
        """The reward of one answer; None where it does not apply."""
        outcome: float | Failed | None = Failed("never asked")
        for _ in range(TRIES):
            reply = self._process.ask(offered)
            if not isinstance(reply, Failed):
                return Failed(str(reply["error"])) if "error" in reply else reply["reward"]
            outcome = reply
        return outcome

    def close(self) -> None:
        """End the process and all that it started."""
        self._process.close()


DIRECTORY = "rewards"
"""Stored rewards of a stage, one file per rollout, sampling and process."""


@dataclass(frozen=True)
class Answer:
    """Answer as a reward may read it."""

    turns: tuple[Turn, ...]
    text: str
    row: Mapping[str, Any]
    """Columns of the prompt's row, apart from the prompt itself."""
    tokens: int
    ended: bool
    seed: int
    history: tuple[Turn, ...] = ()
    """Turns between the prompt and the text, of the policy and of what replied to it."""
    tool_calls: int | None = None
    """Calls in an answer of several turns; None in one of a single turn."""
    environment_reward: float | None = None
    environment_scores: Mapping[str, float | None] = field(default_factory=dict)
    failure: str | None = None
    """Why the environment failed, so that no reward can be given."""

    @property
    def conversation(self) -> tuple[Turn, ...]:
        """All turns before the text."""
        return (*self.turns, *self.history)

    def offered(self) -> dict[str, Any]:
        """The named values that a function chooses from."""
        turns = [{"role": turn.role, "content": turn.content} for turn in self.conversation]
        calls = {} if self.tool_calls is None else {"tool_calls": self.tool_calls}
        return {
            **calls,
            "answer": self.text,
            "prompt": self.turns[-1].content if self.turns else "",
            "turns": turns,
            "truth": self.row.get("answer"),
            "row": dict(self.row),
            "tokens": self.tokens,
            "ended": self.ended,
            "seed": self.seed,
        }


def after_turns(answer: Answer, played: Trajectory) -> Answer:
    """The answer with what came before its last turn, and what the environment says of it."""
    return replace(
        answer,
        turns=played.prompt,
        history=tuple(played.history),
        tool_calls=played.calls,
        environment_reward=played.reward,
        environment_scores=played.scores,
        failure=played.reason if played.why == "failed" else None,
    )


def environment_score(answer: Answer, name: str | None) -> float | Failed | None:
    """The environment's reward of an answer, or what it gave by a name; a name that it did not give is a failure."""
    if name is None:
        return answer.environment_reward
    if name not in answer.environment_scores:
        given = ", ".join(answer.environment_scores) or "none"
        return Failed(f"the environment gave no score {name!r}; it gave {given}")
    return answer.environment_scores[name]


@dataclass(frozen=True)
class Rewarded:
    """The rewards of some answers, one column for each of the list; NaN where one failed or does not apply."""

    reward_BK: Tensor
    failed_BK: Tensor
    seconds_K: tuple[float, ...]
    """Seconds that each reward took, together."""
    usd_K: tuple[float, ...]
    """Known cost of each reward's calls, together."""


def weighted_sum(reward_BK: Tensor, weight_K: Tensor) -> Tensor:
    """sum_k w_k r_bk over the rewards that apply to an answer; weights are not scaled up for those that do not (NaN).

    >>> weighted_sum(torch.tensor([[1.0, 0.5], [float("nan"), 0.5]]), torch.tensor([1.0, 2.0])).tolist()
    [2.0, 1.0]
    """
    return (torch.where(reward_BK.isnan(), 0.0, reward_BK) * weight_K).sum(1)


def sound_answers(failed_BK: Tensor, weight_K: Tensor, *, samples: int) -> Tensor:
    """Return True for answers of groups in which every score is known: no reward that is learnt from has failed.

    A reward of weight 0 is only measured; where it fails, nothing is missing of the score.

    >>> failed = torch.tensor([[True, False], [False, False], [False, True], [False, False]])
    >>> sound_answers(failed, torch.tensor([1.0, 0.0]), samples=2).tolist()
    [False, False, True, True]
    """
    failed_G = (failed_BK & (weight_K != 0)).any(1).view(-1, samples).any(1)
    return ~failed_G.repeat_interleave(samples)


Score = Callable[[Sequence[Answer]], Sequence[float | Failed | None]]
"""Scores of answers by one reward, in their order."""


@dataclass
class FunctionReward:
    """A reward function and its processes."""

    reward: Reward
    processes: tuple[RewardProcess, ...]
    _free: SimpleQueue[RewardProcess] = field(default_factory=SimpleQueue, init=False)

    @staticmethod
    def open(reward: Reward, directory: Path | None, stack: ExitStack) -> "FunctionReward":
        """A function of the list, its file below `directory` where it is the user's own."""
        call = str(reward.call)
        if directory is not None:
            call = f"{directory}:{call.rpartition(':')[2]}"
        processes = tuple(
            RewardProcess(call, reward.arguments or {}, reward.timeout, reward.memory) for _ in range(reward.processes)
        )
        for process in processes:
            stack.callback(process.close)
        opened = FunctionReward(reward, processes)
        for process in processes:
            opened._free.put(process)
        return opened

    def __call__(self, answers: Sequence[Answer]) -> Sequence[float | Failed | None]:
        """Rewards of answers; a function of the user's own that says something else of the first again is refused."""
        with ThreadPoolExecutor(len(self.processes)) as pool:
            outcomes = list(pool.map(self._ask, answers))
        if self.reward.source is None:
            return outcomes
        again = self._ask(answers[0]) if answers else None
        if answers and not isinstance(again, Failed) and not isinstance(outcomes[0], Failed) and again != outcomes[0]:
            raise StageError(
                f"the reward {self.reward.name!r} gave {outcomes[0]} and then {again} for the same answer\n"
                "  a reward is a pure function of what it is given; draw from its `seed`, and keep no state"
            )
        return outcomes

    @property
    def is_isolated(self) -> bool:
        """Return True if all processes that were started have no network."""
        return all(process.is_isolated for process in self.processes if process.is_isolated is not None)

    def _ask(self, answer: Answer) -> float | Failed | None:
        process = self._free.get()
        try:
            return process.ask(answer.offered())
        finally:
            self._free.put(process)


@dataclass(frozen=True)
class RewardList:
    """The rewards of a stage, opened, and where their results are stored."""

    rewards: tuple[Reward, ...]
    scores: tuple[Score, ...]
    directory: Path
    max_failed_share: float
    all_have: Callable[[bool], bool] = lambda stored: stored
    """Whether every process has stored rewards; a model scores in all of them together."""
    group: int = 1
    """Answers to one prompt, which stand together."""
    spent: Callable[[], int] = lambda: 0
    """Micro-usd that calls of this process have cost so far; it asks one reward after the other."""

    def rate(self, answers: Sequence[Answer], *, name: str) -> Rewarded:
        """The rewards of a rollout's answers, read where they are stored under `name` for these very answers."""
        path = self.directory / f"{name}.json"
        digest = self._digest(answers)
        stored = durable.read_json(path) if path.exists() else {}
        if not self.all_have(stored.get("digest") == digest and "rewards" in stored):
            # A rating that a kill interrupted has asked some rewards already: it is begun again, and that is counted.
            before = stored.get("attempts", 1 if "rewards" in stored else 0) if stored.get("digest") == digest else 0
            begun = {"digest": digest, "attempts": before + 1}
            self.directory.mkdir(exist_ok=True)
            durable.write_json(path, begun)
            stored = {**begun, **self._rated(answers)}
            durable.write_json(path, stored)
        nan = float("nan")
        values = [[nan if value is None else value for value in row] for row in stored["rewards"]]
        shape = (len(answers), len(self.rewards))
        return Rewarded(
            torch.tensor(values, dtype=torch.float32).view(shape),
            torch.tensor(stored["failed"], dtype=torch.bool).view(shape),
            tuple(stored["seconds"]),
            tuple(stored["usd"]),
        )

    def _rated(self, answers: Sequence[Answer]) -> dict[str, Any]:
        columns: list[list[float | Failed | None]] = []
        seconds, usd, reasons = [], [], []
        left_out = self._left_out(answers)
        rateable = [answer for answer, out in zip(answers, left_out, strict=True) if not out]
        for reward, score in zip(self.rewards, self.scores, strict=True):
            begin, before = time.monotonic(), self.spent()
            outcomes = iter(score(rateable))
            columns.append(
                [
                    (None if item.failure is None else Failed(item.failure)) if out else next(outcomes)
                    for item, out in zip(answers, left_out, strict=True)
                ]
            )
            seconds.append(round(time.monotonic() - begin, 6))
            usd.append((self.spent() - before) / 1e6)
            reasons += [f"{reward.name}: {item.reason}" for item in columns[-1] if isinstance(item, Failed)]
        if len(reasons) > self.max_failed_share * len(answers) * len(self.rewards):
            counted = "\n".join(f"  {reason}" for reason in dict.fromkeys(reasons[:5]))
            raise StageError(
                f"{len(reasons)} of {len(answers) * len(self.rewards)} rewards of a rollout failed, more than "
                f"max_failed_share, {self.max_failed_share:g}\n{counted}"
            )
        rows = list(zip(*columns, strict=True))
        return {
            "rewards": [[None if isinstance(item, Failed) else item for item in row] for row in rows],
            "failed": [[isinstance(item, Failed) for item in row] for row in rows],
            "seconds": seconds,
            "usd": usd,
            "reasons": reasons,
            "isolated": {
                reward.name: score.is_isolated
                for reward, score in zip(self.rewards, self.scores, strict=True)
                if isinstance(score, FunctionReward)
            },
        }

    def _left_out(self, answers: Sequence[Answer]) -> list[bool]:
        """Mark the answers that nobody is asked about: the environment failed in their group, which is left out."""
        fails = [answer.failure is not None for answer in answers]
        return [any(fails[place - place % self.group :][: self.group]) for place in range(len(answers))]

    def _digest(self, answers: Sequence[Answer]) -> str:
        """SHA-256 of what the rewards read."""
        text = json.dumps([answer.offered() for answer in answers], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def reward_metrics(names: Sequence[str], sums: Mapping[str, float], answers: int) -> dict[str, float]:
    """Mean and deviation of each reward where it applied, shares where it did not and where it failed, seconds, usd.

    >>> sums = {"a/applied": 2.0, "a/sum": 2.0, "a/square": 4.0, "a/failed": 1.0, "a/seconds": 0.5, "a/usd": 0.0}
    >>> reward_metrics(["a"], sums, answers=4)["reward_a_mean"]
    1.0
    """
    metrics: dict[str, float] = {}
    for name in names if sums else ():
        applied = max(sums[f"{name}/applied"], 1.0)
        mean = sums[f"{name}/sum"] / applied
        failed = sums[f"{name}/failed"]
        metrics |= {
            f"reward_{name}_mean": mean,
            f"reward_{name}_deviation": math.sqrt(max(sums[f"{name}/square"] / applied - mean**2, 0.0)),
            f"reward_{name}_not_applicable": (answers - sums[f"{name}/applied"] - failed) / answers,
            f"reward_{name}_failed": failed / answers,
            f"reward_{name}_seconds": sums[f"{name}/seconds"],
            f"reward_{name}_usd": sums[f"{name}/usd"],
        }
    return metrics


def own_file(reward: Reward, sources: Iterable[tuple[str, Path]]) -> Path | None:
    """Return the path of a user's function among the stage's inputs by name; None for a shipped function."""
    if reward.source is None:
        return None
    for name, path in sources:
        if name == f"{REWARD_SOURCES} {reward.source}":
            return path
    raise DataError(f"the file of the reward {reward.name!r}, {reward.source}, is not among the stage's inputs")
