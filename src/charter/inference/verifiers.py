"""Episodes of environments of verifiers as a class like the user's own, with a state that is JSON.

The environment's own code runs in a task of its own until it would ask a model. What it would ask is what the policy
reads next, and the policy's turn is the reply. Such a task cannot be stored; what is stored are the policy's turns, and
an episode that is gone is played again with them, if it still asks as it did. The interfaces are those of verifiers
0.4.0; the policy plays as in its harness `null`: the conversation alone, without tools, programs and containers.
"""

import asyncio
import hashlib
import inspect
import itertools
import json
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

from charter.inference.limited import load_file
from charter.inference.openenv import PlayError

CUT, NO_MORE_TURNS = "length", "max_turns"
"""Words of verifiers: why a turn ended that is not complete, and why a conversation stops that could go on."""
Turns = list[dict[str, str]]


@dataclass(frozen=True)
class _Reply:
    """A turn of the policy, or None where it takes no more, and why it ended."""

    text: str | None
    ending: str = "stop"


@dataclass(frozen=True)
class _Outcome:
    """Ratings of an episode: the sum by the weights of verifiers, and each score and metric by name."""

    reward: float | None
    scores: dict[str, float]


@dataclass
class _Episode:
    """One episode, which runs until it asks the policy, and then waits."""

    world: "_World"
    task: Any
    asked: Turns = field(default_factory=list)
    """The conversation that the policy is to go on with."""
    traces: list[Any] = field(default_factory=list)
    outcome: _Outcome | None = None
    _asks: asyncio.Event = field(default_factory=asyncio.Event)
    _reply: asyncio.Future[_Reply] | None = None
    _play: asyncio.Task[_Outcome] | None = None

    async def ask(self, conversation: Turns) -> _Reply:
        """Hand a conversation to the policy and wait for its turn."""
        if self._reply is not None:
            raise PlayError("the environment asks the policy twice at once; one answer is one conversation")
        self.asked, self._reply = conversation, asyncio.get_running_loop().create_future()
        self._asks.set()
        try:
            return await self._reply
        finally:
            self._reply = None

    async def go_on(self, reply: _Reply | None = None) -> None:
        """Let the environment run until it asks or ends, whose errors are the episode's."""
        self._asks.clear()
        if self._play is None:
            self._play = asyncio.ensure_future(self.world.play(self))
        elif self._reply is not None and reply is not None:
            self._reply.set_result(reply)
        asks = asyncio.ensure_future(self._asks.wait())
        await asyncio.wait({asks, self._play}, return_when=asyncio.FIRST_COMPLETED)
        asks.cancel()
        if self._play.done():
            self.outcome = self._play.result()

    async def end(self, reply: _Reply) -> None:
        """Let the environment come to its end: with a last turn, or none."""
        await self.go_on(reply)
        while self.outcome is None:
            await self.go_on(_Reply(None, NO_MORE_TURNS))

    def drop(self) -> None:
        """Forget what still runs."""
        if self._play is not None:
            self._play.cancel()


class _Seat:
    """The policy, as an environment's code sees its agent."""

    trainable = True

    def __init__(self, episode: _Episode, name: str, config: Any) -> None:
        self._episode, self._name, self._config = episode, name, config

    async def run(self, task: Any, **lent: Any) -> Any:
        """Play a task whose prompt opens the conversation: one turn."""
        async with self.interaction(task, **lent) as exchange:
            await exchange.turn()
            exchange.trace.stop("agent_completed")
        return exchange.trace

    @asynccontextmanager
    async def interaction(self, task: Any, **lent: Any) -> AsyncIterator["_Exchange"]:
        """Open a conversation whose other side is the environment's code."""
        from verifiers.v1.utils.decorators import invoke

        if named := sorted(name for name, value in lent.items() if value):
            raise PlayError(f"the environment lends its agent {named[0]}, which a policy here cannot use")
        if self._episode.traces:
            raise PlayError("the environment lets its agent play more than once; one answer is one conversation")
        exchange = _Exchange(self._episode, task, self._name, self._config)
        self._episode.traces.append(exchange.trace)
        await invoke(task.setup, {"trace": exchange.trace, "runtime": None})
        yield exchange
        await exchange.close()


class _Exchange:
    """A conversation, recorded as verifiers does, for its stops and scores to read."""

    def __init__(self, episode: _Episode, task: Any, name: str, config: Any) -> None:
        import verifiers.v1 as vf
        from verifiers.v1.session import RolloutLimits
        from verifiers.v1.state import state_cls

        _check_task(task)
        self._episode, self._task = episode, task
        self._limits = RolloutLimits(max_turns=config.max_turns)
        self.trace = vf.Trace(
            task=vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash),
            state=state_cls(type(task))(),
            agent=vf.AgentInfo(config=config, name=name),
        )

    async def turn(self, message: Any = None) -> Any:
        """Let the policy reply to a message, or to the task's prompt where that opens the conversation."""
        import verifiers.v1 as vf
        from verifiers.v1.graph import prepare_turn

        pending = prepare_turn(self.trace, self._conversation(message))
        if self.trace.is_completed:
            raise RuntimeError("the conversation has ended; read interaction.trace")
        if await self._is_refused():
            return vf.Segment(messages=[], terminated=True)
        reply = await self._episode.ask(_shown(pending.prompt))
        if reply.text is None:
            self.trace.stop(reply.ending)
            return vf.Segment(messages=[], terminated=True)
        said = vf.AssistantMessage(content=reply.text)
        number = len(self.trace.calls)
        response = vf.Response(id=f"turn-{number}", created=0, model="policy", message=said, finish_reason=reply.ending)
        self.trace.calls.append(vf.ModelCall(node=pending.commit(response), finish_reason=reply.ending))
        return vf.Segment(messages=[said])

    async def close(self) -> Any:
        """End the conversation, and let the task rate it."""
        from verifiers.v1.utils.decorators import invoke

        self.trace.stop("user_closed")
        await invoke(self._task.finalize, {"trace": self.trace, "runtime": None})
        await self._task.score(self.trace)
        self.trace.ok = True
        return self.trace

    def _conversation(self, message: Any) -> list[Any]:
        """Everything that the policy reads, the new message last."""
        import verifiers.v1 as vf
        from verifiers.v1.dialects import parse_message

        data = self._task.data
        opens = data.prompt is not None and not self.trace.calls
        if opens is not (message is None):
            raise ValueError("a task's prompt opens the conversation: `turn()`; later turns need a message")
        new = data.prompt if opens else message
        if isinstance(new, str):
            new = [vf.UserMessage(content=new)]
        system = (
            [] if self.trace.calls or data.system_prompt is None else [vf.SystemMessage(content=data.system_prompt)]
        )
        return [
            *self.trace.messages,
            *system,
            *(parse_message(item) if isinstance(item, dict) else item for item in new),
        ]

    async def _is_refused(self) -> bool:
        """Return True if a limit or one of the task's stops ends the conversation before the policy's turn."""
        import verifiers.v1 as vf
        from verifiers.v1.session import call_hook

        reached = self._limits.reached(self.trace)
        for stop in self._task.hooks("stop"):
            if reached is None and await call_hook(stop, {vf.Trace: self.trace}):
                reached = stop.__name__
        if reached is not None:
            self.trace.stop(reached)
        return reached is not None


class _World:
    """An environment of verifiers, loaded once, and the episodes of this process by the state that each is in."""

    def __init__(self, taskset: str, settings: Mapping[str, Any]) -> None:
        self.env, self.seat = _environment(taskset, settings)
        self.episodes: dict[str, _Episode] = {}
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self.wait(self.env.start())

    def wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        """The result of work in the loop where all episodes run."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def begin(self, row: Mapping[str, Any]) -> _Episode:
        """A new episode of the task of a row, up to its first question."""
        data = row.get("task")
        if not isinstance(data, Mapping):
            raise PlayError("the row's column `task` is no object; `charter data tasks` writes rows that have one")
        kind = type(self.env.taskset).task_type()
        task = kind(kind.data_type().model_validate(data), self.env.taskset.config.task)

        async def begun() -> _Episode:
            episode = _Episode(self, task)
            await episode.go_on()
            return episode

        episode: _Episode = self.wait(begun())
        if episode.outcome is not None:
            raise PlayError("the environment ended without asking the policy anything")
        return episode

    async def play(self, episode: _Episode) -> _Outcome:
        """Run an episode as verifiers does: its set-up, its conversation, its last judgement."""
        import verifiers.v1 as vf

        agents = vf.Agents(self.env.config, lambda name, config: _Seat(episode, name, config))
        await self.env.setup(agents)
        await self.env.run(episode.task, agents)
        if not episode.traces:
            raise PlayError("the environment ended without asking the policy anything")
        trace, task = episode.traces[0], episode.task
        played = vf.Episode(
            env=vf.EnvInfo(id=self.env.config.env_id),
            task=vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash),
            traces=[trace],
        )
        await self.env.finalize(task, played)
        if lost := [name for name, value in trace.rewards.items() if value is None]:
            raise PlayError(f"the reward {lost[0]} was not computed")
        scores = {name: value for name, value in trace.metrics.items() if value is not None}
        scores |= {name: value.score for name, value in trace.rewards.items()}
        return _Outcome(trace.reward if trace.rewards else None, scores)


class VerifiersSession:
    """One episode of an environment of verifiers; what it asks is an observation, a turn of the policy the reply.

    The row's column `task` is the data of its task. The reward is the sum of the task's rewards by their weights;
    each score and each metric has its name beside it.
    """

    world: ClassVar[_World | None] = None
    """The environment that this process plays; no part of a state, since a file may lie elsewhere at the next start."""

    def __init__(self, taskset: str, settings: Mapping[str, Any]) -> None:
        if VerifiersSession.world is None:
            VerifiersSession.world = _World(taskset, settings)
        self.row: dict[str, Any] = {}
        self.answers: list[str] = []
        self.seen: list[str] = []
        """Digests of the conversations that the environment asked about."""
        self.outcome: dict[str, Any] | None = None
        self.answer = 0
        """Seed of the answer, by which the episodes of two answers that say alike differ."""

    def reset(self, row: Mapping[str, Any], seed: int) -> Turns:
        """Begin an episode; what it asks first stands instead of the prompt."""
        self.row, self.answer = {"task": row.get("task")}, seed
        episode = self._world().begin(self.row)
        self._keep(episode)
        return episode.asked

    def step(self, answer: str) -> dict[str, Any]:
        """Give the environment the policy's turn; its next question, or its end."""
        world = self._world()
        episode, is_again = self._episode()
        before = [*episode.asked, {"role": "assistant", "content": answer}]
        world.wait(episode.go_on(_Reply(answer)))
        self.answers.append(answer)
        if episode.outcome is not None:
            self.outcome = vars(episode.outcome)
            return {"observation": None, "done": True, "repeated": is_again}
        new = episode.asked[len(before) :]
        if episode.asked[: len(before)] != before or not new or any(turn["role"] != "user" for turn in new):
            episode.drop()
            raise PlayError("the environment rewrites the conversation; here it may only add turns of the user")
        self._keep(episode)
        return {"observation": "\n".join(turn["content"] for turn in new), "done": False, "repeated": is_again}

    def reward(self, answer: str, cut: bool = False) -> dict[str, Any]:
        """End the episode, with a last turn that is `cut` or none; its reward, and its scores by name."""
        is_again = False
        if self.outcome is None:
            episode, is_again = self._episode()
            last = _Reply(answer, CUT) if cut else _Reply(None, NO_MORE_TURNS)
            self._world().wait(episode.end(last))
            assert episode.outcome is not None
            self.outcome = vars(episode.outcome)
        return {**self.outcome, "repeated": is_again}

    def _episode(self) -> tuple[_Episode, bool]:
        """The episode in this state, and whether it is a new one to which every turn was given again."""
        world = self._world()
        if (episode := world.episodes.pop(self._key(), None)) is not None:
            return episode, False
        episode = world.begin(self.row)
        seen = [_digest(episode)]
        for answer in self.answers:
            world.wait(episode.go_on(_Reply(answer)))
            seen.append(_digest(episode))
        if seen != self.seen:
            episode.drop()
            raise PlayError("a new episode with the same task and turns does not ask as the first did")
        return episode, True

    def _keep(self, episode: _Episode) -> None:
        self.seen.append(_digest(episode))
        self._world().episodes[self._key()] = episode

    @classmethod
    def _world(cls) -> _World:
        assert cls.world is not None
        return cls.world

    def _key(self) -> str:
        """The state of the episode."""
        return json.dumps(vars(self), sort_keys=True)


def rows_of(taskset: str, settings: Mapping[str, Any], most: int | None) -> Iterator[dict[str, Any]]:
    """Rows of prompts for the tasks of a taskset, in its order; each has its task's data in the column `task`.

    A field `answer` of the data is a column too, for rewards and suites that compare with it.
    """
    env, _ = _environment(taskset, settings)
    if most is None and not env.taskset.bounded:
        raise PlayError(f"{taskset} has tasks without end; say how many")
    for task in itertools.islice(env.taskset, most):
        data = task.data
        opening = data.prompt if data.prompt is not None else data.name or f"task {data.idx}"
        turns = [{"role": "user", "content": opening}] if isinstance(opening, str) else _shown(opening)
        system = [] if data.system_prompt is None else [{"role": "system", "content": data.system_prompt}]
        content = data.model_dump(mode="json", exclude_defaults=True)
        truth = {"answer": content["answer"]} if "answer" in content else {}
        yield {"prompt": [*system, *turns], "task": content, **truth}


def _environment(taskset: str, settings: Mapping[str, Any]) -> tuple[Any, Any]:
    """The environment of a taskset's id or file, and the settings of its one agent; a PlayError where it needs more."""
    from verifiers.v1.configs.agent import agent_config_fields
    from verifiers.v1.utils import loaders

    name = load_file(taskset).__name__ if taskset.endswith(".py") else taskset
    module = loaders.import_taskset(name)
    try:
        kind = loaders.taskset_class(name)
    except (AttributeError, TypeError):
        if not hasattr(module, "load_environment"):
            raise
        raise PlayError(f"{taskset} has `load_environment`, of verifiers before 0.3, and no Taskset") from None
    given = {**settings, "taskset": {**settings.get("taskset", {}), "id": name}}
    env = loaders.load_environment(loaders.resolve_env_config(given))
    seats = agent_config_fields(env.config)
    task = kind.task_type().__new__(kind.task_type())
    task.config = env.taskset.config.task
    if len(seats) != 1:
        raise PlayError(f"it has the agents {', '.join(seats)}; a policy here is one, and alone")
    seat = next(iter(seats.values()))
    for is_lacking, words in (
        (seat.harness is not None, "its agent is pinned to a harness; here it has a conversation alone"),
        (loaders.default_harness_id(name) == name, "it brings a harness; here its agent has a conversation alone"),
        (task.NEEDS_CONTAINER, "its tasks need a container"),
        (env.taskset.toolsets(env.taskset.config), "its tasks share servers of tools (MCP)"),
        (task.toolsets(task.config), "its tasks start servers of tools (MCP)"),
        (task.config.judges, "it asks judges past Charter's ledger; name them among the stage's rewards"),
        (_rewriting(task), f"{_rewriting(task)} reads or rewrites requests and responses of a server"),
        (_wanting_runtime(task), f"{_wanting_runtime(task)} needs a runtime, in which programs of a model would run"),
    ):
        if is_lacking:
            raise PlayError(f"{taskset} cannot be played: {words}")
    return env, seat


def _rewriting(task: Any) -> str:
    """Name a hook of a task that wants the requests and responses of verifiers' own server."""
    import verifiers.v1 as vf
    from verifiers.v1.session import hook_boundary
    from verifiers.v1.utils.decorators import discover_decorated

    stops = [hook for hook in task.hooks("stop") if hook_boundary(hook, allow_trace=True) is not vf.Trace]
    return next((hook.__name__ for hook in (*discover_decorated(task, "intercept"), *stops)), "")


def _wanting_runtime(task: Any) -> str:
    """Name a function of a task that cannot do without a runtime, where verifiers would leave it out in silence."""
    import verifiers.v1 as vf

    own = [
        getattr(task, name) for name in ("setup", "finalize") if getattr(type(task), name) is not getattr(vf.Task, name)
    ]
    for function in (*task.hooks("reward"), *task.hooks("metric"), *own):
        parameter = inspect.signature(function).parameters.get("runtime")
        if parameter is not None and parameter.default is parameter.empty:
            return str(function.__name__)
    return ""


def _check_task(task: Any) -> None:
    """Raise where a task's data want more than a conversation."""
    data = task.data
    wants = {"image": data.image, "agent_user": data.agent_user, "skills": data.skills, "artifacts": data.artifacts}
    if named := [name for name, value in wants.items() if value]:
        raise PlayError(f"the task wants {named[0]}; a policy here has a conversation alone")


def _shown(messages: Sequence[Any]) -> Turns:
    """Messages of verifiers as turns; those that are more than text are refused."""
    for message in messages:
        if message.role not in ("system", "user", "assistant") or not isinstance(message.content, str):
            raise PlayError(f"a message of the role {message.role} is more than text; a policy here reads text alone")
    return [{"role": message.role, "content": message.content} for message in messages]


def _digest(episode: _Episode) -> str:
    """Digest of what an episode asks."""
    return hashlib.sha256(json.dumps(episode.asked).encode()).hexdigest()
