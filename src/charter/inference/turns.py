"""Answers of several turns: the policy writes, tools or an environment reply, until the answer ends.

Tokens stay as they were sampled: a reply is put behind them in tokens of its own, and nothing is tokenised again. Every
reply is stored before it is used, so that a replay after a kill reads it and calls nothing twice; a call that may have
run without leaving a reply is counted when it is made again.

Legend: B answers, R tokens of an answer, replies included.
"""

import hashlib
import json
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal, get_args

import torch

from charter.artifacts import durable
from charter.data.dataset import Turn
from charter.errors import DataError, loads_json
from charter.inference.generate import Answers, SamplingSettings, pad_left
from charter.inference.limited import Failed, LimitedProcess
from charter.models.chat import encode_prompt, encode_reply
from charter.models.language_model import LanguageModel
from charter.spec.rewards import ENVIRONMENT_SOURCES, PYTHON_TOOL, TOOL_CALL, VERIFIERS, Environment

Why = Literal["completed", "done", "max_turns", "max_tool_calls", "max_tokens", "context_overflow", "failed"]
"""`completed`: a turn without a call; `done`: the environment says so."""
WHYS: tuple[Why, ...] = get_args(Why)
TURNS_DIRECTORY = "turns"
"""Stored replies of a stage, one file per rollout, sampling and process."""
Sample = Callable[[list[list[int]], list[int], SamplingSettings], Answers]
"""Samples a turn for each context, by seed."""


@dataclass(frozen=True)
class Start:
    """Beginning of an answer: the prompt, the columns of its row, and the seed of its draws."""

    turns: tuple[Turn, ...]
    row: Mapping[str, Any]
    seed: int

    def offered(self) -> dict[str, Any]:
        """The named values that `reset` and `reward` of an environment choose from."""
        turns = [{"role": turn.role, "content": turn.content} for turn in self.turns]
        return {"row": dict(self.row), "turns": turns, "truth": self.row.get("answer"), "seed": self.seed}


@dataclass
class Trajectory:
    """An answer of several turns while it grows, and as it ended."""

    start: Start
    prompt: tuple[Turn, ...]
    """The turns before the policy's first, as the environment has set them."""
    ids: list[int]
    """Tokens of the prompt and of all that follows."""
    prompt_tokens: int
    is_own: list[bool] = field(default_factory=list)
    """Of every token after the prompt, whether the policy wrote it."""
    log_probability: list[float] = field(default_factory=list)
    """Of the same tokens, where the generator gave them; 0 where it wrote none."""
    history: list[Turn] = field(default_factory=list)
    """Turns of the policy and their replies, without the policy's last."""
    text: str = ""
    """The policy's last turn."""
    why: Why | None = None
    """Reason that it ended; None while it goes on."""
    reason: str = ""
    """Words about a failure."""
    turns: int = 0
    calls: int = 0
    errors: int = 0
    seconds: float = 0.0
    repeats: int = 0
    """Calls made again since a kill left it open whether they had run."""
    reward: float | None = None
    """The environment's, where it gave one."""
    scores: Mapping[str, float | None] = field(default_factory=dict)
    """What the environment gave beside it, by name."""
    state: str | None = None

    @property
    def own_tokens(self) -> int:
        """Tokens that the policy wrote."""
        return sum(self.is_own)

    @property
    def is_cut(self) -> bool:
        """Return True if the last turn ran out of tokens, so that nothing has replied to it."""
        return self.why == "max_tokens" and self.turns > len(self.history) // 2

    def figures(self) -> dict[str, float]:
        """Counts that metrics report the means of."""
        return {
            "turns": float(self.turns),
            "tool_calls": float(self.calls),
            "tool_errors": float(self.errors),
            "tool_seconds": self.seconds,
            "tool_repeats": float(self.repeats),
            **{f"stopped_{why}": float(self.why == why) for why in WHYS},
        }


TURN_FIGURES = tuple(Trajectory(Start((), {}, 0), (), [], 0).figures())
"""Names of the figures of an answer of several turns."""


class ReplyStore:
    """Replies of one batch of answers in a file of lines: what was asked, and what came back."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock, self._is_dirty = path, threading.Lock(), False
        self._replies: dict[str, dict[str, Any]] = {}
        self._asked: set[str] = set()
        durable.make_dir(path.parent)
        if not path.exists():
            return
        content = path.read_bytes()
        complete = content.rfind(b"\n") + 1
        if complete < len(content):
            durable.truncate(path, complete)
        for line in content[:complete].splitlines():
            entry = loads_json(line)
            if "reply" in entry:
                self._replies[entry["key"]] = entry["reply"]
            else:
                self._asked.add(entry["key"])

    def reply(self, key: str, request: Mapping[str, Any], ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The stored reply to this very request, or the one that `ask` gets, stored before it is returned."""
        content = json.dumps(request, sort_keys=True)
        key = f"{key} {hashlib.sha256(content.encode()).hexdigest()}"
        if key in self._replies:
            return self._replies[key]
        is_repeated = key in self._asked
        self._append({"key": key})
        reply = {**ask(), **({"repeated": True} if is_repeated else {})}
        self._append({"key": key, "reply": reply})
        self._replies[key] = reply
        return reply

    def sync(self) -> None:
        """Flush what was stored, before anything is computed from it."""
        if self._is_dirty:
            self._append({"key": "synced"}, sync=True)
            self._is_dirty = False

    def _append(self, entry: Mapping[str, Any], *, sync: bool = False) -> None:
        with self._lock:
            durable.append_line(self._path, entry, sync=sync)
            self._is_dirty = True


class Tools:
    """Processes that run the tools and the environment of a stage."""

    def __init__(self, spec: Environment, files: Mapping[str, Path]) -> None:
        """Take the user's files by the names that the stage's inputs have."""

        def located(call: str) -> str:
            place, _, name = call.rpartition(":")
            if spec.taskset in spec.sources and call == spec.call:
                return f"{VERIFIERS}{files[spec.taskset]}"
            return f"{files[place]}:{name}" if place in spec.sources else call

        settings = {
            "tools": {name: located(call) for name, call in (spec.tools or {}).items()},
            "environment": None if spec.call is None else located(spec.call),
            "arguments": dict(spec.arguments or {}),
        }
        module, name = "charter.inference.environment", f"environment ({', '.join(spec.calls)})"
        self.processes = [
            LimitedProcess(
                module,
                name,
                settings,
                spec.tool_timeout,
                spec.memory,
                has_network=spec.server is not None,
                starts_sandboxes=PYTHON_TOOL in spec.calls,
            )
            for _ in range(spec.concurrency)
        ]
        self._holders = [threading.Lock() for _ in self.processes]
        self._free: SimpleQueue[LimitedProcess] = SimpleQueue()
        for process in self.processes:
            self._free.put(process)
        self.processes[0].start()

    @staticmethod
    def open(spec: Environment, inputs: Sequence[tuple[str, Path]], stack: ExitStack) -> "Tools":
        """The tools of a stage, their files found among its inputs; `stack` ends their processes."""
        prefix = f"{ENVIRONMENT_SOURCES} "
        files = {name.removeprefix(prefix): path for name, path in inputs if name.startswith(prefix)}
        if missing := [name for name in spec.sources if name not in files]:
            raise DataError(f"the environment's file {missing[0]} is not among the stage's inputs")
        tools = Tools(spec, files)
        stack.callback(tools.close)
        return tools

    @property
    def facts(self) -> Mapping[str, Any]:
        """Names of the tools, whether there is a class, whether it steps and rewards, and whether it is isolated."""
        return self.processes[0].facts

    def ask(self, request: Mapping[str, Any], number: int) -> dict[str, Any] | Failed:
        """The reply to a request by the first process that is free, or that holds the session of an answer."""
        if self.facts["sessions"]:
            index = number % len(self.processes)
            with self._holders[index]:
                return self.processes[index].ask(request)
        process = self._free.get()
        try:
            return process.ask(request)
        finally:
            self._free.put(process)

    def close(self) -> None:
        """End the processes."""
        for process in self.processes:
            process.close()


def tool_calls(text: str, names: Sequence[str]) -> list[tuple[str, str]]:
    """The calls in a turn, in their order: the tag, and the text inside of it.

    >>> tool_calls("a <calc>1+2</calc> b <no>x</no>", ["calc"])
    [('calc', '1+2')]
    """
    tags = "|".join(re.escape(name) for name in (*names, TOOL_CALL))
    return re.findall(rf"<({tags})>(.*?)</\1>", text, flags=re.DOTALL)


@dataclass(frozen=True)
class TurnTaking:
    """Lets a policy and an environment take turns; the same answers again for the same weights, seeds and replies."""

    spec: Environment
    tools: Tools
    policy: LanguageModel
    max_prompt_tokens: int

    def play(
        self,
        starts: Sequence[Start],
        settings: SamplingSettings,
        sample: Sample,
        store: ReplyStore,
        *,
        goes_on: Callable[[bool], bool] = bool,
    ) -> list[Trajectory]:
        """One answer for each start; `settings.max_new_tokens` is for all turns of an answer together.

        `goes_on` says whether another turn is sampled, given whether an answer of here has one: processes that sample
        together do so as often as the one that needs most, with nothing to say at last.
        """
        trajectories = self._begun(starts, store)
        for turn in range(self.spec.max_turns):
            rooms = {id(item): self._room(item, settings) for item in trajectories if item.why is None}
            for item in trajectories:
                if item.why is None and rooms[id(item)] < 1:
                    item.why = "max_tokens" if item.own_tokens >= settings.max_new_tokens else "context_overflow"
            going = [item for item in trajectories if item.why is None]
            if not goes_on(bool(going)):
                break
            most = max((rooms[id(item)] for item in going), default=1)
            longest = min(self.spec.turn_tokens or settings.max_new_tokens, most)
            turn_settings = replace(
                settings, max_new_tokens=longest, min_new_tokens=min(settings.min_new_tokens, longest)
            )
            sampled = sample([list(item.ids) for item in going], [_seed(item, turn) for item in going], turn_settings)
            self._write(going, sampled, [rooms[id(item)] for item in going])
            self._let_reply(trajectories, going, store, is_last=turn + 1 == self.spec.max_turns)
        self._rewarded(trajectories, store)
        return trajectories

    def answers(self, trajectories: Sequence[Trajectory], device: torch.device) -> Answers:
        """Padded tensors; the mask is True at the policy's own tokens, and not at the replies between them."""
        width = max(1, *(len(item.is_own) for item in trajectories))
        shape = (len(trajectories), width)
        answer_BR = torch.full(shape, self.policy.padding_id, dtype=torch.long)
        mask_BR = torch.zeros(shape, dtype=torch.bool)
        log_probability_BR = torch.zeros(shape)
        has_log_probability = any(item.log_probability for item in trajectories)
        for row, item in enumerate(trajectories):
            size = len(item.is_own)
            answer_BR[row, :size] = torch.tensor(item.ids[item.prompt_tokens :])
            mask_BR[row, :size] = torch.tensor(item.is_own)
            if has_log_probability:
                log_probability_BR[row, :size] = torch.tensor(item.log_probability)
        prompts = [item.ids[: item.prompt_tokens] for item in trajectories]
        prompt_BQ, prompt_mask_BQ = pad_left(prompts, padding=self.policy.padding_id)
        return Answers(
            prompt_BQ.to(device),
            prompt_mask_BQ.to(device),
            answer_BR.to(device),
            mask_BR.to(device),
            log_probability_BR.to(device) if has_log_probability else None,
        )

    def _begun(self, starts: Sequence[Start], store: ReplyStore) -> list[Trajectory]:
        """The prompts, or what the environment makes of them."""
        trajectories = [Trajectory(start, start.turns, [], 0) for start in starts]
        if self.tools.facts["has_class"]:
            offered = [{"operation": "reset", "offered": item.start.offered()} for item in trajectories]
            replies = self._replies(trajectories, trajectories, [[item] for item in offered], store)
            for item, (reply,) in zip(trajectories, replies, strict=True):
                if not self._ends(item, reply) and reply["turns"] is not None:
                    item.prompt = tuple(Turn(turn["role"], turn["content"]) for turn in reply["turns"])
        for item in trajectories:
            item.ids = encode_prompt(self.policy.tokenizer, item.prompt, max_tokens=self.max_prompt_tokens)
            item.prompt_tokens = len(item.ids)
        return trajectories

    def _room(self, item: Trajectory, settings: SamplingSettings) -> int:
        """Tokens that the policy may still write: of its budget, and of the context that it was built for."""
        limit = getattr(self.policy.model.config, "max_position_embeddings", None)
        own = settings.max_new_tokens - item.own_tokens
        return own if limit is None else min(own, int(limit) - len(item.ids))

    def _write(self, going: Sequence[Trajectory], sampled: Answers, rooms: Sequence[int]) -> None:
        """Put a sampled turn behind each context, cut to what the answer may still hold."""
        columns = [sampled.answer_BR.tolist(), sampled.answer_mask_BR.sum(1).tolist()]
        given = sampled.log_probability_BR
        for row, (item, room) in enumerate(zip(going, rooms, strict=True)):
            ids = columns[0][row][: min(columns[1][row], room)]
            item.ids += ids
            item.is_own += [True] * len(ids)
            item.turns += 1
            if given is not None:
                item.log_probability += given[row, : len(ids)].tolist()
            words = [token for token in ids if token != self.policy.end_id]
            item.text = str(self.policy.tokenizer.decode(words, skip_special_tokens=True)).strip()
            if not ids or ids[-1] != self.policy.end_id:
                item.why = "max_tokens"

    def _let_reply(
        self, trajectories: Sequence[Trajectory], going: Sequence[Trajectory], store: ReplyStore, *, is_last: bool
    ) -> None:
        """Ask the tools, or the environment, about the turns that ended; what they say is the next context."""
        asking: list[Trajectory] = []
        requests: list[list[dict[str, Any]]] = []
        for item in going:
            if item.why is not None:
                continue
            if self.tools.facts["steps"]:
                asking.append(item)
                requests.append([{"operation": "step", "answer": item.text}])
                continue
            calls = tool_calls(item.text, self.tools.facts["tools"])
            if not calls:
                item.why = "completed"
            elif item.calls + len(calls) > self.spec.max_tool_calls:
                item.why = "max_tool_calls"
            elif is_last:
                item.why = "max_turns"
            else:
                asking.append(item)
                requests.append([{"operation": "call", "tag": tag, "text": text} for tag, text in calls])
        replies = self._replies(trajectories, asking, requests, store)
        for item, own in zip(asking, replies, strict=True):
            self._take(item, own, is_last=is_last)

    def _take(self, item: Trajectory, replies: Sequence[dict[str, Any]], *, is_last: bool) -> None:
        """Put the replies to one turn behind an answer, or end it."""
        observations = []
        for reply in replies:
            if self._ends(item, reply):
                return
            item.errors += bool(reply.get("is_error"))
            if reply.get("reward") is not None:
                item.reward = (item.reward or 0.0) + reply["reward"]
            if reply.get("observation") is not None:
                observations.append(reply["observation"])
        if self.tools.facts["steps"]:
            if replies[-1]["done"] or is_last:
                item.why = "done" if replies[-1]["done"] else "max_turns"
                return
        else:
            item.calls += len(replies)
        text = "\n".join(observations)
        ids, shown = encode_reply(
            self.policy.tokenizer, text, role=self.spec.role, most=self.spec.observation_tokens, end=self.policy.end_id
        )
        item.ids += ids
        item.is_own += [False] * len(ids)
        if item.log_probability:
            item.log_probability += [0.0] * len(ids)
        item.history += [Turn("assistant", item.text), Turn(self.spec.role, shown)]

    def _rewarded(self, trajectories: Sequence[Trajectory], store: ReplyStore) -> None:
        """Ask the environment for the reward of every answer, where it has one to give at the end."""
        if not self.tools.facts["rewards"]:
            return
        asking = [item for item in trajectories if item.why != "failed"]
        offered = [
            {**item.start.offered(), "answer": item.text, **({"cut": True} if item.is_cut else {})} for item in asking
        ]
        requests = [[{"operation": "reward", "offered": own}] for own in offered]
        for item, (reply,) in zip(asking, self._replies(trajectories, asking, requests, store), strict=True):
            if not self._ends(item, reply):
                item.reward, item.scores = reply["reward"], reply.get("scores", {})

    def _replies(
        self,
        trajectories: Sequence[Trajectory],
        asking: Sequence[Trajectory],
        requests: Sequence[Sequence[Mapping[str, Any]]],
        store: ReplyStore,
    ) -> list[list[dict[str, Any]]]:
        """Replies to the requests of each answer, one after the other within it, stored and flushed."""
        numbers = {id(item): number for number, item in enumerate(trajectories)}

        def replies_of(item: Trajectory, own: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
            replies: list[dict[str, Any]] = []
            for index, request in enumerate(own):
                full = {**request, "state": item.state}
                key = f"{numbers[id(item)]}.{item.turns}.{index}.{request['operation']}"
                reply = store.reply(key, full, lambda full=full: self._asked(full, numbers[id(item)]))  # type: ignore[misc]
                item.state = reply.get("state", item.state)
                item.seconds += reply["seconds"]
                item.repeats += bool(reply.get("repeated"))
                replies.append(reply)
            return replies

        if not asking:
            return []
        with ThreadPoolExecutor(len(self.tools.processes)) as pool:
            replies = list(pool.map(replies_of, asking, requests))
        store.sync()
        return replies

    def _asked(self, request: Mapping[str, Any], number: int) -> dict[str, Any]:
        """Make a call; a tool without a reply in time is an error for the policy to read, an environment has failed."""
        begin = time.monotonic()
        reply = self.tools.ask(request, number)
        seconds = round(time.monotonic() - begin, 6)
        if isinstance(reply, Failed):
            words = {"observation": f"error: {reply.reason}", "is_error": True, "state": request["state"]}
            reply = words if request["operation"] == "call" else {"error": reply.reason}
        return {**reply, "seconds": seconds}

    @staticmethod
    def _ends(item: Trajectory, reply: Mapping[str, Any]) -> bool:
        """End an answer whose environment has failed; True if it has."""
        if "error" in reply:
            item.why, item.reason, item.reward = "failed", str(reply["error"]), None
        return "error" in reply


def _seed(item: Trajectory, turn: int) -> int:
    """The seed of a turn's draws: that of the answer for its first turn."""
    if turn == 0:
        return item.start.seed
    return int.from_bytes(hashlib.sha256(f"{item.start.seed} {turn}".encode()).digest()[:8]) >> 1
