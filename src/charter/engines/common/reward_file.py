"""A list of rewards for another engine: one `rewards.py` with the shipped functions and the user's own, no package.

The file holds the functions themselves, the list, and one caller for the engine. It is called in the engine's own
process, so nothing limits a function there; one that fails ends the run, and is never a reward of 0. A row carries
what a function may ask for beside the answer as JSON text, under the name `adapter.ROW`.
"""

import ast
import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from pprint import pformat
from types import MappingProxyType
from typing import Any

from charter.data import reward_functions
from charter.data.dataset import Turn
from charter.data.rows import messages
from charter.engines.common.mapping import STAGE, FieldMapper
from charter.spec.ppo_stage import PpoStage
from charter.spec.rewards import PROGRAM, SHIPPED_REWARD, Reward

REWARDS_FILE, OWN_SOURCES = "rewards.py", "reward_sources"
"""In the work directory: the file, and the directory of the user's own functions."""
ALWAYS = frozenset({"answer", "prompt", "turns", "truth", "row"})
"""Values that a function may ask for in every engine; others are those that the engine knows."""
OVERLONG = f"{SHIPPED_REWARD}overlong"
UNWATCHED = "no engine but Charter's own compares the rewards with the gold while it trains"
UNLIMITED = (
    "reward functions run inside the engine: nothing limits their time, memory, files or network there; one that "
    "raises ends the run"
)
"""Note of an export with a list of rewards."""


@dataclass(frozen=True, kw_only=True)
class Offered:
    """Abilities of an engine that calls a list of rewards."""

    values: frozenset[str] = frozenset()
    """What it tells a function beside `ALWAYS`: `tokens` where it says how long an answer is."""
    no_values: str = ""
    """The reason why it tells no more."""
    penalty: bool = False
    """It has DAPO's penalty of its own, near max_new_tokens."""
    model: bool = False
    """It adds the score of a preference model to the functions'."""
    mixtures: tuple[str, ...] = ("sum_then_normalise",)
    caller: str
    """Code at the end of the file: what the engine calls."""
    no_tools: str
    """The reason why tools and environments of the stage are not handed over."""


@dataclass(frozen=True, kw_only=True)
class ExportedRewards:
    """A list of rewards as an engine gets it."""

    functions: tuple[Reward, ...] = ()
    penalty: Reward | None = None
    """`charter:overlong` where the engine does it itself."""
    model: Reward | None = None
    files: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


def row_text(turns: Sequence[Turn], columns: Mapping[str, Any]) -> str:
    """Return the columns and turns of a prompt's row, which a reward may read, as JSON text.

    >>> row_text([Turn("user", "2 + 2?")], {"answer": 4})
    '{"row": {"answer": 4}, "turns": [{"role": "user", "content": "2 + 2?"}]}'
    """
    return json.dumps({"row": dict(columns), "turns": messages(turns)}, ensure_ascii=False)


def map_rewards(mapper: FieldMapper, stage: PpoStage, offered: Offered) -> ExportedRewards:
    """The list and all that goes with it; refuses what the engine cannot call."""
    if stage.environment is not None:
        mapper.refuse(f"{STAGE}.environment", offered.no_tools, "engine: native, which plays the turns")
    else:
        mapper.same(f"{STAGE}.environment", None, "one turn")
    if not stage.rewards:
        mapper.charter(f"{STAGE}.rewards", "there is no list here; one of functions is written as rewards.py")
        for name in ("mixture", "gold", "on_overoptimisation", "max_failed_share"):
            mapper.charter(f"{STAGE}.{name}", "decides nothing here: there is no list of rewards")
        return ExportedRewards()
    penalty = _penalty(stage, offered)
    model = next((item for item in stage.rewards if item.kind == "preference_model"), None)
    functions = tuple(item for item in stage.rewards if item.kind == "function" and item is not penalty)
    refusals = [*_refusals(mapper, stage, offered, penalty)]
    if not functions and not refusals:
        refusals = ["no reward of the list is a function; name the one model as `reward`"]
    if refusals:
        mapper.refuse(f"{STAGE}.rewards", "; ".join(refusals), "engine: native, or other rewards")
    else:
        note = f"the functions and their weights; {UNLIMITED}"
        mapper.to(f"{STAGE}.rewards", f"{REWARDS_FILE}: REWARDS", how="computed", note=note)
    mapper.charter(f"{STAGE}.gold", "a reward of weight 0: the engine may log it, and never learns from it")
    mapper.same(f"{STAGE}.on_overoptimisation", "warn", UNWATCHED)
    mapper.charter(f"{STAGE}.max_failed_share", "a reward that fails ends the run there: nothing is left out")
    mapper.same(f"{STAGE}.mixture", offered.mixtures, "it adds rewards up before it compares them")
    files = {} if refusals else _files(mapper, stage, functions, offered)
    return ExportedRewards(functions=functions, penalty=penalty, model=model, files=files)


def _penalty(stage: PpoStage, offered: Offered) -> Reward | None:
    """Return the penalty of long answers that the engine computes itself, by the same formula.

    The engines count back from their longest answer, so `longest` has to be max_new_tokens.
    """
    if "tokens" in offered.values or not offered.penalty:
        return None
    penalties = [item for item in stage.rewards if item.call == OVERLONG and item.weight > 0]
    exact = [item for item in penalties if (item.arguments or {}).get("longest") == stage.max_new_tokens]
    return exact[0] if len(penalties) == len(exact) == 1 else None


def _refusals(mapper: FieldMapper, stage: PpoStage, offered: Offered, penalty: Reward | None) -> Iterator[str]:
    for item in stage.rewards:
        if item.kind == "judge":
            yield f"{item.name}: a judge is asked, stored and paid for by Charter's own engine alone"
        elif item.kind == "env":
            yield f"{item.name}: {offered.no_tools}"
        elif item.kind == "preference_model" and not offered.model:
            yield f"{item.name}: it scores by a model or by functions, not by both"
        elif item.kind == "function" and item is not penalty and (wanted := _not_offered(mapper, item, offered)):
            yield f"{item.name}: {wanted}"


def _not_offered(mapper: FieldMapper, reward: Reward, offered: Offered) -> str:
    """Return what a function asks for that the engine does not know; empty where there is nothing."""
    if reward.call == PROGRAM:
        return "programs of a model run in a sandbox, which Charter's own engine alone starts"
    values = ALWAYS | offered.values | set(reward.arguments or {})
    if reward.source is None:
        function = reward_functions.SHIPPED[str(reward.call).rpartition(":")[2]]
        parameters = inspect.signature(function).parameters.values()
        missing = [item.name for item in parameters if item.default is item.empty and item.name not in values]
        if missing and reward.call == OVERLONG:
            return f"longest is not max_new_tokens, and {offered.no_values}"
    else:
        try:
            missing = [name for name in _asked_names(reward, mapper.handover.sources) if name not in values]
        except (SyntaxError, KeyError) as error:
            return f"{reward.call} cannot be read ({error})"
    return f"it asks for {', '.join(missing)}, and {offered.no_values}" if missing else ""


def _asked_names(reward: Reward, sources: Mapping[str, str]) -> list[str]:
    """Return the parameters without a default of a function of the user's own, by its source alone."""
    name = str(reward.call).rpartition(":")[2]
    for node in ast.parse(sources[str(reward.source)]).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            given = node.args
            plain = [item.arg for item in (*given.posonlyargs, *given.args)]
            named = [
                item.arg for item, default in zip(given.kwonlyargs, given.kw_defaults, strict=True) if default is None
            ]
            return [*plain[: len(plain) - len(given.defaults)], *named]
    raise KeyError(f"it defines no function {name}")


def _files(mapper: FieldMapper, stage: PpoStage, functions: Sequence[Reward], offered: Offered) -> Mapping[str, str]:
    handover = mapper.handover
    sources = tuple(dict.fromkeys(str(item.source) for item in functions if item.source is not None))
    places = {path: f"{number}_{PurePath(path).name}" for number, path in enumerate(sources)}
    listed = {
        item.name: {
            "call": str(item.call)
            if item.source is None
            else f"{places[item.source]}:{str(item.call).rpartition(':')[2]}",
            "arguments": dict(item.arguments or {}),
            "weight": item.weight,
        }
        for item in functions
    }
    tree = inspect.getsource(reward_functions)
    docstring = ast.get_docstring(ast.parse(tree), clean=False)
    assert docstring is not None
    text = "\n".join(
        [
            f'"""Rewards of the stage {handover.name} of {handover.run}, written by Charter for {handover.engine}.',
            "",
            "The shipped functions are copies of Charter's; your own lie in reward_sources.",
            '"""',
            "",
            tree.partition(docstring)[2].removeprefix('"""').strip(),
            "",
            f"REWARDS = {pformat(listed, sort_dicts=False, width=100)}",
            _COMMON.strip("\n"),
            *(["", "", offered.caller.strip("\n")] if offered.caller else []),
            "",
        ]
    )
    own = {f"{OWN_SOURCES}/{place}": handover.sources[path] for path, place in places.items()}
    return {REWARDS_FILE: text, **own}


_COMMON = '''
"""Name -> function, its arguments and its weight in the sum."""
_LOADED = {}


def function_of(call):
    """The function of a name in the list: shipped, or of a file beside this one."""
    if call not in _LOADED:
        place, _, name = call.rpartition(":")
        if place == "charter":
            _LOADED[call] = SHIPPED[name]
        else:
            import importlib.util
            import pathlib

            path = pathlib.Path(__file__).resolve().parent / "reward_sources" / place
            spec = importlib.util.spec_from_file_location(f"own_{path.stem}", path)
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            _LOADED[call] = getattr(module, name)
    return _LOADED[call]


def reward_of(name, answer, text, **more):
    """One reward of one answer; `text` is what the row carries. None where it does not apply."""
    carried = json.loads(text)
    turns, row = carried["turns"], carried["row"]
    values = {"answer": answer, "turns": turns, "prompt": turns[-1]["content"] if turns else "", "row": row}
    listed = REWARDS[name]
    return called(function_of(listed["call"]), {**values, "truth": row.get("answer"), **more}, listed["arguments"])


def rewards_of(answer, text, **more):
    """The weighted sum over the rewards that apply, and each of them (NaN where one does not)."""
    each = {name: reward_of(name, answer, text, **more) for name in REWARDS}
    total = sum(REWARDS[name]["weight"] * reward for name, reward in each.items() if reward is not None)
    return float(total), {name: math.nan if reward is None else reward for name, reward in each.items()}

'''
