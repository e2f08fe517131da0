"""A list of rewards for another engine: one `rewards.py` with the shipped functions and the user's own, no package.

The file holds the functions themselves, the list, and one caller for the engine. It is called in the engine's own
process, so nothing limits a function there; one that fails ends the run, and is never a reward of 0. A row carries
what a function may ask for beside the answer as JSON text, under the name `adapter.ROW`. A judge is asked by Charter's
process beside the engine, which stores and pays for its answers; the file sends that process one answer at a time.
Where such a process runs, every answer's rewards are written down for it too: it watches them (`hosted/scores.py`).
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
    ENDS_THE_RUN,
    INSTEAD_OF_REWARDS,
    NO_OTHER_GROUPS,
    UNWATCHED,
    Capabilities,
    has_own_score,
    listed_rewards,
    own_penalty,
    refused_rewards,
)
from charter.engines.common.mapping import STAGE, FieldMapper
from charter.spec.ppo_stage import PpoStage
from charter.spec.rewards import Reward

REWARDS_FILE, OWN_SOURCES = "rewards.py", "reward_sources"
"""In the work directory: the file, and the directory of the user's own functions."""
SCORES = "scores"
"""Likewise, a directory of a stage that runs: what each process that calls the file has scored, as JSON lines."""
JUDGES_FILE = "judges.json"
"""In the work directory of a stage that runs: the address of the process that asks the judges, and its key's file."""
NOT_EXPORTED = "a judge is asked by Charter's process beside the engine, and an export has none"
BY_RUN = "`charter run`, `engine: native`, or other rewards"
NOT_WATCHED = "Charter's process beside the engine compares the rewards with the gold, and an export has none"


def unlimited(failed: str) -> str:
    """Return the note of an export with a list of rewards."""
    return (
        "reward functions run inside the engine: nothing limits their time, memory, files or network there; one that "
        f"raises {failed}"
    )


UNLIMITED = unlimited(ENDS_THE_RUN)


@dataclass(frozen=True, kw_only=True)
class ExportedRewards:
    """A list of rewards as an engine gets it."""

    functions: tuple[Reward, ...] = ()
    """Functions and judges, in the order of the list."""
    penalty: Reward | None = None
    """`charter:overlong` where the engine does it itself."""
    model: Reward | None = None
    files: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


def row_text(turns: Sequence[Turn], columns: Mapping[str, Any], place: int) -> str:
    """Return the columns and turns of a prompt's row, which a reward may read, and its place in the file, as JSON text.

    A prompt that is drawn again has another place, so its answers are not taken for those of the first time.

    >>> row_text([Turn("user", "2 + 2?")], {"answer": 4}, 7)
    '{"place": 7, "row": {"answer": 4}, "turns": [{"role": "user", "content": "2 + 2?"}]}'
    """
    return json.dumps({"place": place, "row": dict(columns), "turns": messages(turns)}, ensure_ascii=False)


def map_rewards(mapper: FieldMapper, stage: PpoStage, engine: Capabilities, caller: str) -> ExportedRewards:
    """The list and all that goes with it, with `caller`, the code that the engine calls; refuses what it cannot."""
    refusals = dict(refused_rewards(stage, engine, sources=mapper.handover.sources))
    for name, reason in refusals.items():
        mapper.refuse(f"{STAGE}.{name}", reason, INSTEAD_OF_REWARDS.get(name, ""))
    is_exported = stage.rewards and not mapper.handover.is_run
    if is_exported and stage.judges and "rewards" not in refusals:
        refusals["rewards"] = NOT_EXPORTED
        mapper.refuse(f"{STAGE}.rewards", NOT_EXPORTED, BY_RUN)
    if is_exported and stage.on_overoptimisation != "warn" and "on_overoptimisation" not in refusals:
        refusals["on_overoptimisation"] = NOT_WATCHED
        mapper.refuse(f"{STAGE}.on_overoptimisation", NOT_WATCHED, "`charter run`, or on_overoptimisation: warn")
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
    if "mixture" not in refusals:
        mapper.same(f"{STAGE}.mixture", stage.mixture, ADDED_UP)
    if "on_overoptimisation" not in refusals:
        mapper.charter(f"{STAGE}.on_overoptimisation", _watched(mapper, stage, penalty))
    functions = listed_rewards(stage, calls)
    return ExportedRewards(
        functions=functions,
        penalty=penalty,
        model=next((item for item in stage.rewards if item.kind == "preference_model"), None),
        files={} if refusals or is_played else _files(mapper, functions, caller),
    )


def _watched(mapper: FieldMapper, stage: PpoStage, penalty: Reward | None) -> str:
    """Return who compares the rewards with the gold, and in what."""
    if has_own_score(stage):
        return UNWATCHED
    if not mapper.handover.is_run:
        return NOT_WATCHED
    without = "" if penalty is None else f", without {penalty.name}, which the engine computes itself"
    return f"Charter compares what {REWARDS_FILE} has given with the gold after every rollout{without}"


def _files(mapper: FieldMapper, functions: Sequence[Reward], caller: str) -> Mapping[str, str]:
    handover = mapper.handover
    sources = tuple(dict.fromkeys(str(item.source) for item in functions if item.source is not None))
    places = {path: f"{number}_{PurePath(path).name}" for number, path in enumerate(sources)}
    listed = {
        item.name: {"call": _call(item, places), "arguments": dict(item.arguments or {}), "weight": item.weight}
        for item in functions
    }
    judges = [item.name for item in functions if item.kind == "judge"]
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
            *(["", "", _ASKED.replace("NAMES", repr(judges)).strip("\n")] if judges else []),
            *(["", "", caller.strip("\n")] if caller else []),
            "",
        ]
    )
    own = {f"{OWN_SOURCES}/{place}": handover.sources[path] for path, place in places.items()}
    return {REWARDS_FILE: text, **own}


def _call(reward: Reward, places: Mapping[str, str]) -> str:
    """Return the function that a reward calls, as the file names it."""
    if reward.kind == "judge":
        return f"judge:{reward.name}"
    if reward.source is None:
        return str(reward.call)
    return f"{places[reward.source]}:{str(reward.call).rpartition(':')[2]}"


_COMMON = f'''
"""Name -> function, its arguments and its weight in the sum."""
_LOADED = {{}}


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
            spec = importlib.util.spec_from_file_location(f"own_{{path.stem}}", path)
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            _LOADED[call] = getattr(module, name)
    return _LOADED[call]


def reward_of(name, answer, text, **more):
    """One reward of one answer; `text` is what the row carries. None where it does not apply."""
    carried = json.loads(text)
    turns, row = carried["turns"], carried["row"]
    values = {{"answer": answer, "turns": turns, "prompt": turns[-1]["content"] if turns else "", "row": row}}
    listed = REWARDS[name]
    return called(function_of(listed["call"]), {{**values, "truth": row.get("answer"), **more}}, listed["arguments"])


def note_scores(text, each, seconds):
    """Let Charter's process beside the engine read the rewards of one answer; a reward that is missing has failed."""
    import os
    import pathlib
    import socket
    import time

    directory = pathlib.Path(__file__).resolve().parent / "{SCORES}"
    if directory.is_dir():
        place = json.loads(text)["place"]
        line = json.dumps({{"place": place, "at": time.time(), "rewards": each, "seconds": seconds}}) + "\\n"
        path = directory / f"{{socket.gethostname()}}-{{os.getpid()}}.jsonl"
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(file, line.encode())  # at once: threads of this process write lines, not halves of them
        finally:
            os.close(file)


def in_digits(total, digits=18):
    """A number of so many binary digits: sums of up to 64 equal ones are exact in 32 bits.

    So is their mean. Else a group of equal scores differs from it by rounding, and OpenRLHF divides that by a deviation
    as small: advantages near 1, where there are none.
    """
    mantissa, exponent = math.frexp(total)
    return math.ldexp(round(math.ldexp(mantissa, digits)), exponent - digits)


def rewards_of(answer, text, **more):
    """The weighted sum over the rewards that apply, and each of them (NaN where one does not)."""
    import time

    each, seconds = {{}}, {{}}
    try:
        for name in REWARDS:
            began = time.perf_counter()
            each[name] = reward_of(name, answer, text, **more)
            seconds[name] = time.perf_counter() - began
    finally:
        note_scores(text, each, seconds)
    total = sum(REWARDS[name]["weight"] * reward for name, reward in each.items() if reward is not None)
    return in_digits(total), {{name: math.nan if reward is None else reward for name, reward in each.items()}}

'''

_ASKED = f'''
JUDGES = NAMES
"""Rewards that a judge gives."""
AT_ONCE = 64
_AHEAD = {{}}


def _rating(name, answer, turns, row):
    """A judge's rating of one answer, by Charter's process beside the engine; an answer without one is an error."""
    import pathlib
    import urllib.error
    import urllib.request

    place = pathlib.Path(__file__).resolve().parent / "{JUDGES_FILE}"
    if not place.is_file():
        raise RuntimeError("nobody asks the judges here: start this stage by `charter run`")
    service = json.loads(place.read_text(encoding="utf-8"))
    key = pathlib.Path(service["key"]).read_text(encoding="utf-8").strip()
    body = json.dumps({{"reward": name, "answer": answer, "turns": turns, "row": row}}).encode()
    request = urllib.request.Request(service["url"], body, {{"Authorization": f"Bearer {{key}}"}})
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({{}})).open(request) as reply:
            return json.load(reply)["rating"]
    except urllib.error.HTTPError as error:
        reason = error.read().decode("utf-8", "replace")
        raise RuntimeError(f"the judge of {{name}} gave no rating: {{reason}}") from None


def _key(name, answer, turns, row):
    return json.dumps([name, answer, turns, row], sort_keys=True)


def _judge(name):
    """The function of a reward that a judge gives."""

    def rated(answer, turns, row):
        key = _key(name, answer, turns, row)
        return _AHEAD[key] if key in _AHEAD else _rating(name, answer, turns, row)

    return rated


def ask_ahead(answers, texts, names=JUDGES):
    """Ask the judges about several answers at once, before each is rewarded by itself."""
    from concurrent.futures import ThreadPoolExecutor

    carried = [json.loads(text) for text in texts]
    places = [
        (name, answer, item["turns"], item["row"])
        for name in names
        for answer, item in zip(answers, carried, strict=True)
    ]
    _AHEAD.clear()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for place, rating in zip(places, pool.map(lambda place: _rating(*place), places), strict=True):
            _AHEAD[_key(*place)] = rating


_LOADED.update({{f"judge:{{name}}": _judge(name) for name in JUDGES}})
'''
