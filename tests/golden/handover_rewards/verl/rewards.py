"""Rewards of the stage stage of run, written by Charter for verl.

The shipped functions are copies of Charter's; your own lie in reward_sources.
"""

import inspect
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?")
"""A decimal number, with commas between thousands and an exponent, as people write it."""


def exact(answer: str, truth: object) -> float | None:
    """1 where the answer is the truth, apart from space around both, else 0; None where the row has no `answer`.

    >>> exact(" 42\\n", 42), exact("41", "42"), exact("42", None)
    (1.0, 0.0, None)
    """
    return None if truth is None else float(answer.strip() == str(truth).strip())


def number(answer: str, truth: object, tolerance: float = 0.0) -> float | None:
    """1 where the last number of the answer is the truth's last, within an absolute `tolerance`, else 0.

    >>> number("3 + 4 = 7", 7), number("about 1,000.4", "1000", tolerance=0.5), number("none", 1)
    (1.0, 1.0, 0.0)
    """
    if truth is None:
        return None
    wanted, given = NUMBER.findall(str(truth)), NUMBER.findall(answer)
    if not wanted:
        raise ValueError(f"the row's answer, {truth!r}, holds no number")
    return float(bool(given) and abs(_number(given[-1]) - _number(wanted[-1])) <= tolerance)


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def choice(answer: str, truth: object, letters: str = "ABCDE") -> float | None:
    """1 where the last single letter of `letters` in the answer is the truth's, else 0.

    >>> choice("I take (B).", "B"), choice("A or B", "(A)"), choice("no letter", "A")
    (1.0, 0.0, 0.0)
    """
    if truth is None:
        return None
    wanted = str(truth).strip().strip("()")
    if wanted not in set(letters):
        raise ValueError(f"the row's answer, {truth!r}, is none of the letters {letters}")
    given = re.findall(rf"(?<![A-Za-z])([{re.escape(letters)}])(?![A-Za-z])", answer)
    return float(bool(given) and given[-1] == wanted)


def regex(answer: str, pattern: str) -> float:
    """1 where a pattern matches the whole answer, apart from space around it, else 0; a dot matches any character.

    >>> regex("yes.", pattern="(yes|no)[.]"), regex("yes and no", pattern="yes|no")
    (1.0, 0.0)
    """
    return float(re.fullmatch(pattern, answer.strip(), flags=re.DOTALL) is not None)


def tags(answer: str, tags: Sequence[str]) -> float:
    """1 where the answer is made of these tags, each once, in this order, with nothing but space between, else 0.

    >>> tags("<think>x</think> <answer>7</answer>", tags=["think", "answer"]), tags("7", tags=["answer"])
    (1.0, 0.0)
    """
    rest = answer.strip()
    for tag in tags:
        opened, closed = f"<{tag}>", f"</{tag}>"
        inside, end, after = rest.removeprefix(opened).partition(closed)
        if not rest.startswith(opened) or not end or opened in inside:
            return 0.0
        rest = after.strip()
    return float(not rest)


def json_schema(answer: str, schema: Mapping[str, Any]) -> float:
    """1 where the answer is JSON of a shape, else 0: `type`, `properties`, `required`, `items`, `enum` of JSON Schema.

    A schema with other keywords is refused, as what it asks would not be checked.

    >>> wanted = {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}}
    >>> [json_schema(answer, schema=wanted) for answer in ('{"a": 1}', '{"a": "x"}', "a")]
    [1.0, 0.0, 0.0]
    """
    check_schema(schema)
    try:
        value = json.loads(answer, parse_constant=_no_json)
    except (ValueError, RecursionError):
        return 0.0
    return float(_has_shape(value, schema))


def _no_json(name: str) -> None:
    raise ValueError(f"{name} is no value of JSON")


_TYPES: Mapping[str, Callable[[object], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "integer": lambda value: not isinstance(value, bool) and (isinstance(value, int) or _is_whole(value)),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
}
_KEYWORDS = frozenset({"type", "properties", "required", "items", "enum", "title", "description"})


def _is_whole(value: object) -> bool:
    return isinstance(value, float) and value.is_integer()


def check_schema(schema: Mapping[str, Any]) -> None:
    """Refuse a schema that asks what `json_schema` does not check."""
    if unknown := set(schema) - _KEYWORDS:
        raise ValueError(f"the schema's {', '.join(sorted(unknown))} would not be checked")
    if "type" in schema and schema["type"] not in _TYPES:
        raise ValueError(f"no JSON type is called {schema['type']!r}")
    for inner in (*schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else [])):
        check_schema(inner)


def _is_same(value: object, item: object) -> bool:
    """Python takes true for 1, and JSON does not."""
    return isinstance(value, bool) is isinstance(item, bool) and value == item


def _has_shape(value: Any, schema: Mapping[str, Any]) -> bool:
    if "type" in schema and not _TYPES[schema["type"]](value):
        return False
    if "enum" in schema and not any(_is_same(value, item) for item in schema["enum"]):
        return False
    if isinstance(value, dict):
        inner = schema.get("properties", {})
        return all(name in value for name in schema.get("required", ())) and all(
            _has_shape(value[name], shape) for name, shape in inner.items() if name in value
        )
    return not isinstance(value, list) or all(_has_shape(item, schema.get("items", {})) for item in value)


def expression(answer: str, truth: object) -> float | None:
    """1 where the last expression of the answer equals the truth, as math-verify reads and simplifies both, else 0.

    Needs the package math-verify. A truth that it cannot read is a failure, an answer that it cannot read is wrong.
    """
    if truth is None:
        return None
    from math_verify import parse, verify

    # Its own limits of time are alarms, which would take the place of those that end this call.
    wanted = parse(f"${truth}$", parsing_timeout=None) or parse(str(truth), parsing_timeout=None)
    if not wanted:
        raise ValueError(f"the row's answer, {truth!r}, holds no expression")
    return float(verify(wanted, parse(answer, parsing_timeout=None), timeout_seconds=None))


def overlong(tokens: int, longest: int, cache: int) -> float:
    """Penalty of a long answer: 0 up to longest - cache tokens, falling to -1 at `longest` and beyond.

    (longest - cache - L) / cache within [-1, 0], for L tokens.
    Source: Yu et al. 2025 (DAPO, arXiv:2503.14476), eq. 13.

    >>> overlong(100, longest=2000, cache=400), overlong(1800, longest=2000, cache=400)
    (0.0, -0.5)
    """
    return max(-1.0, min(0.0, (longest - cache - tokens) / cache))


def repetition(answer: str, words: int = 4) -> float:
    """Return minus the share of runs of `words` words that the answer had before: 0 where none comes twice.

    -(1 - distinct / runs). Source: the repetition measure of Welleck et al. 2020 (arXiv:1908.04319), seq-rep-n.

    >>> repetition("a b a b a b", words=2), repetition("a b c", words=2)
    (-0.6, 0.0)
    """
    parts = answer.split()
    runs = [tuple(parts[start : start + words]) for start in range(len(parts) - words + 1)]
    return round(len(set(runs)) / len(runs) - 1, 12) if runs else 0.0


SHIPPED: Mapping[str, Callable[..., float | None]] = {
    "exact": exact,
    "number": number,
    "choice": choice,
    "regex": regex,
    "tags": tags,
    "json_schema": json_schema,
    "expression": expression,
    "overlong": overlong,
    "repetition": repetition,
}
"""By the name after `charter:`, which `SHIPPED_REWARDS` lists for the checks."""


def called(function: Callable[..., Any], offered: Mapping[str, Any], arguments: Mapping[str, Any]) -> float | None:
    """Return the reward: the function is given what it names of what is offered, and all arguments.

    >>> called(lambda answer, bonus: len(answer) + bonus, {"answer": "ab", "seed": 1}, {"bonus": 1})
    3.0
    """
    parameters = inspect.signature(function).parameters.values()
    takes_all = any(item.kind is item.VAR_KEYWORD for item in parameters)
    names = {item.name for item in parameters}
    given = {name: value for name, value in offered.items() if takes_all or name in names}
    value = function(**{**given, **arguments})
    if value is None:
        return None
    reward = float(value)
    if isinstance(value, str) or not math.isfinite(reward):
        raise ValueError(f"the reward is {value!r}, not a finite number")
    return reward

REWARDS = {'right': {'call': 'charter:number', 'arguments': {}, 'weight': 1.0},
 'polite': {'call': '0_own.py:polite', 'arguments': {'word': 'thanks'}, 'weight': 0.1}}
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


def note_scores(text, each, seconds):
    """Let Charter's process beside the engine read the rewards of one answer; a reward that is missing has failed."""
    import os
    import pathlib
    import socket
    import time

    directory = pathlib.Path(__file__).resolve().parent / "scores"
    if directory.is_dir():
        place = json.loads(text)["place"]
        line = json.dumps({"place": place, "at": time.time(), "rewards": each, "seconds": seconds}) + "\n"
        path = directory / f"{socket.gethostname()}-{os.getpid()}.jsonl"
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

    each, seconds = {}, {}
    try:
        for name in REWARDS:
            began = time.perf_counter()
            each[name] = reward_of(name, answer, text, **more)
            seconds[name] = time.perf_counter() - began
    finally:
        note_scores(text, each, seconds)
    total = sum(REWARDS[name]["weight"] * reward for name, reward in each.items() if reward is not None)
    return in_digits(total), {name: math.nan if reward is None else reward for name, reward in each.items()}


def compute_score(data_source, solution_str, ground_truth, extra_info, **_):
    """The rewards of one answer as verl's reward loop calls them."""
    total, each = rewards_of(solution_str, ground_truth)
    return {"score": total, **{f"reward_{name}": reward for name, reward in each.items()}}
