"""A list of rewards for another engine: one `rewards.py` with the shipped functions and the user's own, no package.

The file holds the functions themselves, the list, and one caller for the engine. It is called in the engine's own
process, so nothing limits a function there; one that fails ends the run, and is never a reward of 0. A row carries
what a function may ask for beside the answer as JSON text, under the name `adapter.ROW`.
"""

import ast
import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from pprint import pformat
from types import MappingProxyType
from typing import Any

from charter.data import reward_functions
from charter.data.dataset import Turn
from charter.data.rows import messages
from charter.engines.common.capabilities import (
    ADDED_UP,
    INSTEAD_OF_REWARDS,
    NO_OTHER_GROUPS,
    UNWATCHED,
    Capabilities,
    RewardCalls,
    own_penalty,
    refused_rewards,
)
from charter.engines.common.mapping import STAGE, FieldMapper
from charter.spec.ppo_stage import PpoStage
from charter.spec.rewards import Reward

REWARDS_FILE, OWN_SOURCES = "rewards.py", "reward_sources"
"""In the work directory: the file, and the directory of the user's own functions."""


def unlimited(failed: str) -> str:
    """Return the note of an export with a list of rewards."""
    return (
        "reward functions run inside the engine: nothing limits their time, memory, files or network there; one that "
        f"raises {failed}"
    )


UNLIMITED = unlimited(RewardCalls.failed)


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


def map_rewards(mapper: FieldMapper, stage: PpoStage, engine: Capabilities, caller: str) -> ExportedRewards:
    """The list and all that goes with it, with `caller`, the code that the engine calls; refuses what it cannot."""
    refusals = dict(refused_rewards(stage, engine, sources=mapper.handover.sources))
    for name, reason in refusals.items():
        mapper.refuse(f"{STAGE}.{name}", reason, INSTEAD_OF_REWARDS.get(name, ""))
    no_groups = NO_OTHER_GROUPS if engine.rewards is None else engine.rewards.no_groups
    is_played = stage.environment is not None and "environment" not in refusals
    for name, why in (("environment", "one turn"), ("equal_groups", no_groups)):
        if name not in refusals and not (is_played and name == "environment"):
            mapper.same(f"{STAGE}.{name}", getattr(stage, name), why)
    if not stage.rewards:
        mapper.charter(f"{STAGE}.rewards", "there is no list here; one of functions is written as rewards.py")
        for name in ("mixture", "gold", "on_overoptimisation", "max_failed_share"):
            mapper.charter(f"{STAGE}.{name}", "decides nothing here: there is no list of rewards")
        return ExportedRewards()
    calls = engine.rewards
    assert calls is not None, f"{engine.name} has a caller, so it calls a list"
    penalty = own_penalty(stage, calls)
    if is_played:
        mapper.to(f"{STAGE}.rewards", "the taskset's own", how="computed", note="by the weights of verifiers")
    elif not refusals.keys() & {"rewards"}:
        note = f"the functions and their weights; {unlimited(calls.failed)}"
        mapper.to(f"{STAGE}.rewards", f"{REWARDS_FILE}: REWARDS", how="computed", note=note)
    mapper.charter(f"{STAGE}.gold", "a reward of weight 0: the engine may log it, and never learns from it")
    mapper.charter(f"{STAGE}.max_failed_share", f"nothing counts failures there: a reward that fails {calls.failed}")
    for name, why in (("mixture", ADDED_UP), ("on_overoptimisation", UNWATCHED)):
        if name not in refusals:
            mapper.same(f"{STAGE}.{name}", getattr(stage, name), why)
    functions = tuple(item for item in stage.rewards if item.kind == "function" and item is not penalty)
    return ExportedRewards(
        functions=functions,
        penalty=penalty,
        model=next((item for item in stage.rewards if item.kind == "preference_model"), None),
        files={} if refusals or is_played else _files(mapper, functions, caller),
    )


def _files(mapper: FieldMapper, functions: Sequence[Reward], caller: str) -> Mapping[str, str]:
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
            *(["", "", caller.strip("\n")] if caller else []),
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
