"""Rewards of reinforcement learning, its environment and options of its loss, as a stage of `kind: ppo` writes them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from charter.errors import Problem
from charter.spec.quantity import (
    AT_LEAST_ONE,
    NOT_NEGATIVE,
    POSITIVE,
    Bytes,
    Count,
    Names,
    Seconds,
    check_ranges,
    execution,
)
from charter.spec.suggest import did_you_mean

LossAggregation = Literal["token", "sequence", "constant", "prompt"]
KlEstimator = Literal["k1", "k2", "k3"]
AdvantageScale = Literal["group", "batch", "mean", "none"]
RatioLevel = Literal["token", "sequence", "product"]
Surrogate = Literal["clip", "cispo", "sapo", "dppo"]
SAPO_TEMPERATURES = (1.0, 1.05)
"""Steepness of the gate of `sapo` for advantages above 0, and for the others, as TRL, verl and SkyRL have it."""
DPPO_ANCHOR = 1e-3
"""Weight of the squared log-ratio that `dppo` adds, as prime-rl has it (`kl_tau`)."""
Divergence = Literal["forward", "reverse", "jsd"]
"""Of two distributions of words: of the teacher's from the policy's, the other way, or of both from a mixture."""
MismatchMethod = Literal["tis", "icepop", "sequence_mask"]
Estimator = Literal[
    "gae", "rloo", "grpo", "reinforce", "reinforce_pp", "reinforce_pp_baseline", "online_dpo", "distill"
]
GROUPED = frozenset({"rloo", "grpo", "reinforce_pp_baseline", "online_dpo"})
"""Estimators that compare the answers to one prompt."""
KL_IN_LOSS = frozenset({"grpo", "reinforce_pp_baseline", "online_dpo"})
"""Estimators whose KL penalty is a term of the loss unless `kl_in` says otherwise; the others have it in the reward."""

REWARD_SOURCES = "reward_sources"
"""Role of the files of the user's reward functions among a stage's inputs."""
RUBRICS = "rubrics"
"""Role of the files with a judge's criteria among a stage's inputs."""
CONSTITUTION, OF_THE_ROW = "constitution", "row"
"""Criteria of a rubric that stand in no file of their own."""
SHIPPED_REWARDS = (
    "exact", "number", "choice", "regex", "tags", "json_schema", "expression", "overlong", "repetition", "program",
)  # fmt: skip
"""Reward functions by the name after `charter:`."""
PROGRAM, EXPRESSION = "charter:program", "charter:expression"
"""Those that need more than Python: a sandbox, and the package math-verify."""
PYTHON_TOOL = "charter:python"
"""The tool that runs programs, in a sandbox too."""
IN_SANDBOX = (PROGRAM, PYTHON_TOOL)
PROGRAM_SECONDS = 8.0
"""Of all tests of an answer's program together, unless the reward's arguments say otherwise."""
RewardKind = Literal["function", "preference_model", "judge", "env"]
SHIPPED_REWARD = "charter:"
"""Begins the name of a reward function or a tool that is shipped; others are `path/to/file.py:name`."""
ENVIRONMENT_SOURCES = "environment_sources"
"""Role of the files of the user's tools and environments among a stage's inputs."""
SHIPPED_TOOLS = ("calculator", "python")
"""Tools by the name after `charter:`."""
OPENENV = "openenv:"
"""Begins the address of a server of OpenEnv."""
VERIFIERS = "verifiers:"
"""Begins the id of a taskset of verifiers, or the path of a file that exports one."""


@dataclass(frozen=True, kw_only=True)
class Rubric:
    """Criteria by which a judge rates an answer, and the form in which it is asked.

    Answers to one prompt are rated by the same criteria. A criterion that the judge does not answer is a failure of
    the answer's reward, never a low one.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    criteria: str = CONSTITUTION
    """`constitution`: the comparison question of each of its principles; `row`: the column `rubric` of the prompt's
    row, a list of texts or of `{id, text, weight}`; or the path of a file `{schema: charter.rubric/v1, criteria: [{id,
    text, weight}]}`, whose content is part of the stage's key."""
    ask: Literal["pointwise", "checklist", "pairwise"] = "pointwise"
    """`pointwise`: the expected figure from 1 to 10 under each criterion, moved to -1 to 1; `checklist`: the
    probability that the answer meets it, 0 to 1; `pairwise`: the probability that it is better than the answers beside
    it in its group, in both orders, 0 to 1."""
    only: Names = ()
    """Ids of the criteria that are used; all of them unless given."""
    per_prompt: Count | None = None
    """So many criteria are drawn by weight for each prompt of a rollout; all of them unless given."""
    combine: Literal["mean", "min"] = "mean"
    """Mean over the criteria by weight (drawn ones count alike), or the worst of them."""
    opponents: Count = 1
    """`pairwise`: how many answers that follow in its group each answer is compared with."""


@dataclass(frozen=True, kw_only=True)
class Reward:
    """One of the rewards whose weighted sum an answer gets.

    A function is called for each answer in a process of its own, without the network where the machine allows it; it
    takes by name what it needs of `answer`, `prompt`, `turns`, `truth` (the `answer` column of the prompt's row),
    `row`, `tokens`, `ended` and `seed`, and returns a finite number, or None where it does not apply.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    name: str
    """Of its metrics."""
    kind: RewardKind
    call: str | None = None
    """`function`: `charter:exact`, `number`, `choice`, `regex`, `tags`, `json_schema`, `expression` (by math-verify),
    `overlong`, `repetition` or `program` (the tests of the row's `tests` that the answer's program passes, in a
    sandbox of bubblewrap), or a function of your own as `path/to/file.py:name`; its source is part of the stage's key,
    and it imports nothing of the project's other files."""
    arguments: Mapping[str, Any] | None = None
    """`function`: further arguments of the call."""
    model: str | None = None
    """`preference_model`, `judge`: the model that scores; a judge gives its expected rating, from -1 to 1. `env` needs
    none: the stage's environment gives it."""
    score: str | None = None
    """`env`: one of the named scores that the environment gives beside its reward, instead of the reward."""
    rubric: Rubric | None = None
    """`judge`: criteria, and how they are asked; without it, how helpful, honest and harmless the answer is."""
    weight: float = 1.0
    timeout: Seconds = execution(10.0)
    """`function`: longest time of one call; beyond it the call has failed, which is no reward of 0."""
    memory: Bytes = execution(2 * 2**30)
    """`function`: address space of its process."""
    processes: Count = execution(1)
    """`function`: calls at the same time."""

    @property
    def source(self) -> str | None:
        """File of a function of the user's own."""
        is_own = self.kind == "function" and self.call is not None and not self.call.startswith(SHIPPED_REWARD)
        return str(self.call).rpartition(":")[0] if is_own else None


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Several turns in one answer: what replies to the policy between them, and how far that may go.

    A turn of the policy that calls a tool, `<name>arguments</name>` or `<tool_call>{"name": ..., "arguments": {...}}`,
    gets the tool's result as the next turn, and goes on; a turn without a call is the last. Replies are stored before
    they are used. What they say is read by the policy and never learnt from.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    call: str | None = None
    """A class of your own, `path/to/file.py:Class`: `reset(row)` says how the conversation begins; then `step(answer)`
    replies to every turn (`observation`, `reward`, `done`), or its other public methods are tools; `reward()` is the
    reward of kind `env`, else the sum of what the steps gave. Its attributes are kept as JSON between calls. Or
    `openenv:http://host:port`, a server of OpenEnv, whose `reset` takes the row's column `reset`. Or
    `verifiers:taskset`, an installed taskset of verifiers, or the path of a file that exports one; the row's column
    `task` has the data of its task."""
    arguments: Mapping[str, Any] | None = None
    """Arguments of the class; of verifiers, the fields of its `env` section."""
    tools: Mapping[str, str] | None = None
    """Functions by the name that the policy calls them by: `charter:calculator`, `charter:python` (a program in a
    sandbox of bubblewrap), or `path/to/file.py:function`, whose annotations say what types its parameters have."""
    role: Literal["tool", "user"] = "tool"
    """Role of a reply in the chat template."""
    max_turns: Count = 4
    """Turns of the policy at most."""
    max_tool_calls: Count = 8
    """Calls in one answer at most; one with more ends before them."""
    turn_tokens: Count | None = None
    """Longest turn of the policy; max_new_tokens, which is for all its turns together, unless given."""
    observation_tokens: Count = 256
    """Longest reply in tokens; a longer one is cut, and says so."""
    tool_timeout: Seconds = execution(10.0)
    """Longest time of one call. A tool that takes longer gives an error, which the policy reads; an environment that
    does has failed, which is no reward of 0."""
    memory: Bytes = execution(2 * 2**30)
    """Address space of a process that runs tools."""
    concurrency: Count = execution(1)
    """Calls at the same time, each in a process of its own."""
    mean_turns: float | None = execution(None)
    """For plans: turns of an answer; max_turns unless given."""
    mean_tool_time: Seconds = execution(0.0)
    """For plans: time of one call."""

    @property
    def calls(self) -> tuple[str, ...]:
        """The class and the functions, as the file names them."""
        return (*(() if self.call is None else (self.call,)), *(self.tools or {}).values())

    @property
    def server(self) -> str | None:
        """Address of the OpenEnv server that replies, where one does."""
        return self.call.removeprefix(OPENENV) if self.call is not None and self.call.startswith(OPENENV) else None

    @property
    def taskset(self) -> str | None:
        """Id or file of the taskset of verifiers that replies, where one does."""
        return self.call.removeprefix(VERIFIERS) if self.call is not None and self.call.startswith(VERIFIERS) else None

    @property
    def sources(self) -> tuple[str, ...]:
        """Files of the user's own tools, class and taskset, each once."""
        elsewhere = (SHIPPED_REWARD, OPENENV, VERIFIERS)
        files = [call.rpartition(":")[0] for call in self.calls if not call.startswith(elsewhere)]
        if self.taskset is not None and self.taskset.endswith(".py"):
            files.append(self.taskset)
        return tuple(dict.fromkeys(files))

    @property
    def most_observed_tokens(self) -> int:
        """Tokens of replies in one answer at most, without those of the chat template."""
        return (self.max_turns - 1) * self.observation_tokens


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """Correction for a generator whose probabilities differ from the trainer's: rho = trainer / generator.

    `tis` holds rho within [low, high]; `icepop` leaves out tokens outside of them; `sequence_mask` leaves out answers
    whose geometric mean of rho is outside, and weighs the tokens of the others by rho.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    method: MismatchMethod = "tis"
    low: float | None = None
    """Lower bound; none unless given."""
    high: float | None = None
    """Upper bound; none unless given."""
    level: RatioLevel = "token"
    """rho of each token, or of a whole answer: its geometric mean (`sequence`) or its product (`product`)."""


TOOL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
TASKSET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@/-]*")
PLAYED_SUITE = "exact_match"
TOOL_CALL = "tool_call"
"""Tag around a call that is JSON, so no tool's name."""


def check_environment(environment: Environment | None, path: str, *, suites: Sequence[str] = ()) -> Iterator[Problem]:
    """Problems of the environment of a stage: nothing that replies, names that are none, budgets without a turn."""
    if environment is None:
        return
    if others := sorted(set(suites) - {PLAYED_SUITE}):
        message = f"answers of several turns are for the suite {PLAYED_SUITE}; found {', '.join(others)} too"
        yield Problem(message=message, path=path, hint="give those suites a stage of their own")
    counts = ("max_turns", "max_tool_calls", "turn_tokens", "observation_tokens", "concurrency", "mean_turns")
    ranges = [*((name, AT_LEAST_ONE) for name in counts), ("tool_timeout", POSITIVE), ("memory", POSITIVE)]
    yield from check_ranges(environment, path, [*ranges, ("mean_tool_time", NOT_NEGATIVE)])
    if not environment.calls:
        hint = "give tools: {calc: charter:calculator}, or call: path/to/file.py:Class"
        yield Problem(message="nothing replies to the policy", path=path, hint=hint)
    if environment.arguments and environment.call is None:
        yield Problem(message="are for a class, and none is named", path=f"{path}.arguments", hint="give `call`")
    yield from _check_server(environment, path)
    yield from _check_taskset(environment, path)
    places = {f"{path}.tools.{name}": call for name, call in (environment.tools or {}).items()}
    for name in environment.tools or {}:
        if TOOL_NAME.fullmatch(name) is None or name == TOOL_CALL:
            message = f"{name!r} cannot be the name of a tool"
            yield Problem(message=message, path=f"{path}.tools", hint="letters, digits and _")
    is_class = environment.call is not None and environment.server is None and environment.taskset is None
    own = {f"{path}.call": str(environment.call)} if is_class else {}
    for place, call in {**own, **places}.items():
        file, _, name = call.rpartition(":")
        if call.startswith(SHIPPED_REWARD) and place in places:
            if name not in SHIPPED_TOOLS:
                hint = did_you_mean(name, SHIPPED_TOOLS)
                yield Problem(message=f"no shipped tool is called {name!r}", path=place, hint=hint)
        elif not file.endswith(".py") or not name.isidentifier():
            hint = f"path/to/file.py:name{', or charter:calculator' if place in places else ''}"
            yield Problem(message="needs a name, and where it stands", path=place, hint=hint)


def _check_server(environment: Environment, path: str) -> Iterator[Problem]:
    """Problems of a reference to a server: no address, or tools and arguments that it does not take."""
    if (url := environment.server) is None:
        return
    if not url.startswith(("http://", "https://")):
        hint = "openenv:http://host:port, where the environment's server answers"
        yield Problem(message=f"{url!r} is no address of a server", path=f"{path}.call", hint=hint)
    elif "@" in url:
        hint = "remove the user and the password; this file is no place for them"
        yield Problem(message="the address holds a user or a password", path=f"{path}.call", hint=hint)
    if environment.tools:
        hint = "remove tools, or write a class of your own"
        message = "a server replies to every turn; nothing would call a tool"
        yield Problem(message=message, path=f"{path}.tools", hint=hint)
    if environment.arguments:
        hint = "give the row a column `reset`, whose object goes to the server's reset"
        yield Problem(message="a server has been started with its own", path=f"{path}.arguments", hint=hint)


def _check_taskset(environment: Environment, path: str) -> Iterator[Problem]:
    """Problems of a taskset of verifiers: no name, tools that it would not call, replies that are no user's."""
    if (taskset := environment.taskset) is None:
        return
    if TASKSET.fullmatch(taskset) is None and not taskset.endswith(".py"):
        hint = "verifiers:name, as its package is called, or verifiers:path/to/file.py"
        yield Problem(message=f"{taskset!r} names no taskset", path=f"{path}.call", hint=hint)
    if environment.tools:
        hint = "remove tools, or write a class of your own"
        message = "an environment of verifiers replies to every turn; nothing would call a tool"
        yield Problem(message=message, path=f"{path}.tools", hint=hint)
    if environment.role != "user":
        message = "an environment of verifiers replies as the user"
        yield Problem(message=message, path=f"{path}.role", hint="role: user")


def check_turns(environment: Environment | None, rewards: Sequence[Reward], path: str) -> Iterator[Problem]:
    """Problems of an environment beside the rewards: several turns need a list, and a reward of one needs its class.

    A reward that runs programs needs more time than they have, or a slow program would be a failure of the reward.
    """
    yield from check_environment(environment, f"{path}.environment")
    for index, item in enumerate(rewards):
        seconds = (item.arguments or {}).get("seconds", PROGRAM_SECONDS)
        if item.call == PROGRAM and isinstance(seconds, int | float) and seconds >= item.timeout:
            message = f"{item.timeout:g} s are no more than the {seconds:g} s that a program's tests may take"
            hint = "give a longer timeout, or fewer `seconds` in arguments"
            yield Problem(message=message, path=f"{path}.rewards[{index}].timeout", hint=hint)
    if environment is not None and not rewards:
        hint = "give `rewards`, a list: {name: ..., kind: env}, or functions of the last turn"
        yield Problem(message="several turns need a list of rewards", path=f"{path}.environment", hint=hint)
    for index, item in enumerate(rewards):
        if item.kind == "env" and item.model is not None:
            yield Problem(message="an environment has no model", path=f"{path}.rewards[{index}].model")
        if item.kind != "env" and item.score is not None:
            message = f"a reward of kind {item.kind} has no named scores"
            yield Problem(message=message, path=f"{path}.rewards[{index}].score", hint="kind: env, or remove score")
    scores = [item.score for item in rewards if item.kind == "env"]
    if len(scores) > len(set(scores)):
        message = "the same score of the environment twice"
        yield Problem(message=message, path=f"{path}.rewards", hint="give each a `score` of its own, one none")
    if scores and (environment is None or environment.call is None):
        hint = "give `environment` with `call`, a class that rewards"
        yield Problem(message="a reward is of an environment, and there is none", path=f"{path}.rewards", hint=hint)


OPTIONS_OF_REWARDS = ("kl_target", "reward_clip", "missing_end_penalty", "gold", "equal_groups")
"""Options that say how rewards are learnt from."""


def check_teacher(
    estimator: str, teacher: str | None, of_rewards: Mapping[str, object], path: str
) -> Iterator[Problem]:
    """A teacher and the estimator that learns from it come together, and rewards teach nothing."""
    if estimator != "distill":
        if teacher is not None:
            message = f"the estimator {estimator} learns from rewards, not from a teacher"
            yield Problem(message=message, path=f"{path}.teacher", hint="estimator: distill, or remove teacher")
        return
    if teacher is None:
        message = "the estimator distill learns from a teacher"
        yield Problem(message=message, path=f"{path}.teacher", hint="name a model with the policy's tokenizer")
    for name, value in of_rewards.items():
        if value not in (None, "keep"):
            message = f"the estimator distill does not learn from rewards; found {value}"
            yield Problem(message=message, path=f"{path}.{name}", hint=f"remove {name}")
