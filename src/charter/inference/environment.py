"""Tools and environments that are called, in a process that keeps nothing between two calls.

An environment's state comes with the request and goes with the reply, so that any process may take the next call, and
one that has died has taken nothing with it.
"""

import ast
import inspect
import json
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from charter.data.sandbox import python
from charter.inference.limited import Request, Service, load_attribute, serve
from charter.inference.openenv import OpenEnvSession
from charter.inference.verifiers import VerifiersSession
from charter.spec.rewards import OPENENV, SHIPPED_REWARD, TOOL_CALL, VERIFIERS

EXPRESSION = re.compile(r"[0-9+\-*/(). ]{1,64}")
"""Expressions that the calculator reads: at most 64 characters."""
MOST_DIGITS = 40
"""Of a result; products of long numbers grow."""
MOST_STATE_BYTES = 4 * 2**20
"""Of an environment between two calls."""
_OPERATORS: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_OWN_METHODS = frozenset({"reset", "step", "reward", "close"})
"""Public methods of an environment that are no tools."""


class ArgumentError(ValueError):
    """A call that its tool does not take; the policy reads why."""


def calculator(expression: str) -> str:
    """The value of an expression of numbers, + - * / and brackets; whole numbers stay whole.

    A grammar reads it, nothing is evaluated as Python.

    >>> calculator("17*24"), calculator("(1 + 2) / 4"), calculator("6/3")
    ('408', '0.75', '2')
    """
    if EXPRESSION.fullmatch(expression) is None:
        raise ArgumentError("an expression has at most 64 of the characters 0-9 + - * / ( ) . and space")
    try:
        value = _value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, ZeroDivisionError, OverflowError, RecursionError) as error:
        raise ArgumentError(f"{expression.strip()} has no value: {error.__class__.__name__}") from None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = repr(value)
    if len(text) > MOST_DIGITS:
        raise ArgumentError(f"the value has more than {MOST_DIGITS} digits")
    return text


def _value(node: ast.expr) -> int | float:
    match node:
        case ast.Constant(value=int() | float() as value):
            return value
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
            value = _value(operand)
            return -value if isinstance(node.op, ast.USub) else value
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            result: int | float = _OPERATORS[type(op)](_value(left), _value(right))
            return result
    raise SyntaxError("no arithmetic")


SHIPPED: Mapping[str, Callable[..., Any]] = {"calculator": calculator, "python": python}
"""By the name after `charter:`, which `SHIPPED_TOOLS` lists for the checks."""
_TYPES: Mapping[Any, tuple[tuple[type, ...], str]] = {
    str: ((str,), "a text"),
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    bool: ((bool,), "true or false"),
    list: ((list,), "a list"),
    dict: ((dict,), "an object"),
}


def arguments_of(function: Callable[..., Any], text: str) -> dict[str, Any]:
    """The typed arguments that the text of a call gives: a JSON object by name, or the one argument as it stands.

    >>> def power(base: int, exponent: int = 2): return base**exponent
    >>> arguments_of(power, '{"base": 3, "exponent": 4}'), arguments_of(power, "3")
    ({'base': 3, 'exponent': 4}, {'base': 3})
    """
    parameters = list(inspect.signature(function, eval_str=True).parameters.values())
    required = [item for item in parameters if item.default is item.empty]
    given = _parsed(text)
    if not isinstance(given, dict) or (len(parameters) == 1 and parameters[0].annotation is dict):
        if len(required) > 1 or not parameters:
            names = ", ".join(item.name for item in parameters)
            raise ArgumentError(f"the arguments are a JSON object with {names}" if names else "takes no arguments")
        only = (required or parameters)[0]
        given = {only.name: text.strip() if only.annotation in (str, inspect.Parameter.empty) else given}
    allowed = {item.name for item in parameters}
    if unknown := sorted(set(given) - allowed):
        raise ArgumentError(f"takes no {unknown[0]}; it takes {', '.join(sorted(allowed)) or 'nothing'}")
    for item in parameters:
        if item.name in given:
            _check_type(item, given[item.name])
        elif item.default is item.empty:
            raise ArgumentError(f"{item.name} is missing")
    return given


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text.strip()


def _check_type(parameter: inspect.Parameter, value: Any) -> None:
    types, words = _TYPES.get(parameter.annotation, ((object,), ""))
    is_truth = isinstance(value, bool) and parameter.annotation in (int, float)
    if is_truth or not isinstance(value, types):
        raise ArgumentError(f"{parameter.name} must be {words}; got {json.dumps(value)[:60]}")


@dataclass(frozen=True)
class Toolbox:
    """Functions by name, and the class of an environment, as a file loaded them."""

    functions: Mapping[str, Callable[..., Any]]
    environment: type | None
    arguments: Mapping[str, Any]

    @property
    def steps(self) -> bool:
        """Return True if the environment replies to every turn, instead of having methods that are tools."""
        return hasattr(self.environment, "step")

    @property
    def tools(self) -> dict[str, Callable[..., Any]]:
        """Functions, and methods of the environment, by name."""
        if self.environment is None or self.steps:
            return dict(self.functions)
        methods = {
            name: value
            for name, value in inspect.getmembers(self.environment, inspect.isfunction)
            if not name.startswith("_") and name not in _OWN_METHODS
        }
        return {**methods, **self.functions}

    def facts(self) -> dict[str, Any]:
        """Names of the tools, and what the environment has."""
        return {
            "tools": sorted(self.tools),
            "steps": self.steps,
            "has_class": self.environment is not None,
            "rewards": hasattr(self.environment, "reward"),
            "sessions": self.environment in (OpenEnvSession, VerifiersSession),
        }

    def reset(self, request: Request) -> dict[str, Any]:
        """Make an environment; its first turns, where it gives any."""
        assert self.environment is not None
        own = self.environment(**self.arguments)
        opening = _called_by_name(own.reset, request["offered"]) if hasattr(own, "reset") else None
        turns = None if opening is None else _turns(_fields(opening).get("observation", opening))
        return {"turns": turns, "state": _packed(own)}

    def _restored(self, text: str | None) -> Any:
        """The environment of a state; None where the tools have no class."""
        if text is None or self.environment is None:
            return None
        state = json.loads(text)
        own: Any = object.__new__(self.environment)
        if hasattr(own, "__setstate__"):
            own.__setstate__(state)
        else:
            vars(own).update(state)
        return own

    def call(self, request: Request) -> dict[str, Any]:
        """Run a tool; a call that it does not take, and what it raises, are replies too."""
        own = self._restored(request.get("state"))
        try:
            name, text = _named(request["tag"], request["text"])
            tool = self.functions.get(name) or getattr(own, name, None) if name in self.tools else None
            if tool is None:
                raise ArgumentError(f"no tool is called {name}; there are: {', '.join(sorted(self.tools))}")
            result = tool(**arguments_of(tool, text))
        except Exception as error:
            words = str(error) if isinstance(error, ArgumentError) else f"{type(error).__name__}: {error}"
            return {"observation": f"error: {words}", "is_error": True, "state": request.get("state")}
        observation = result if isinstance(result, str) else json.dumps(result)
        return {"observation": observation, "state": None if own is None else _packed(own)}

    def step(self, request: Request) -> dict[str, Any]:
        """Let the environment reply to a turn: (observation, done), or an object or a mapping with `reward` too."""
        own = self._restored(request["state"])
        result = own.step(request["answer"])
        if isinstance(result, tuple):
            if len(result) != 2:
                raise TypeError(f"step gave {len(result)} values; it gives (observation, done), or a mapping")
            result = {"observation": result[0], "done": result[1]}
        fields = _fields(result)
        if "done" not in fields:
            raise TypeError("step says nothing about `done`")
        seen = fields.get("observation")
        return {
            "observation": None if seen is None else seen if isinstance(seen, str) else json.dumps(seen),
            "done": bool(fields["done"]),
            **{name: True for name in ("is_error", "repeated") if fields.get(name)},
            "reward": _number(fields.get("reward")),
            "state": _packed(own),
        }

    def reward(self, request: Request) -> dict[str, Any]:
        """Ask what the environment says of the whole answer: a number, or a mapping of `reward` and named `scores`."""
        own = self._restored(request["state"])
        result = _called_by_name(own.reward, request["offered"])
        if not isinstance(result, Mapping):
            return {"reward": _number(result)}
        scores = {str(name): _number(value) for name, value in (result.get("scores") or {}).items()}
        repeated = {"repeated": True} if result.get("repeated") else {}
        return {"reward": _number(result.get("reward")), "scores": scores, **repeated}


def _named(tag: str, text: str) -> tuple[str, str]:
    """The tool and the text of its arguments; both are inside of the tag where that says `tool_call`."""
    if tag != TOOL_CALL:
        return tag, text
    call = _parsed(text)
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        raise ArgumentError('a call is {"name": ..., "arguments": {...}} in JSON')
    return call["name"], json.dumps(call.get("arguments", {}))


def _called_by_name(function: Callable[..., Any], offered: Mapping[str, Any]) -> Any:
    """Call a function with what it names of what is offered."""
    names = inspect.signature(function).parameters
    return function(**{name: value for name, value in offered.items() if name in names})


def _fields(result: Any) -> Mapping[str, Any]:
    """A mapping as it is, an object by its attributes (the results of Gymnasium-like clients), anything else empty."""
    if isinstance(result, Mapping):
        return result
    names = ("observation", "reward", "done")
    return {name: getattr(result, name) for name in names if hasattr(result, name)}


def _turns(opening: Any) -> list[dict[str, str]]:
    """The first turns, of a text or of a list of turns."""
    if isinstance(opening, str):
        return [{"role": "user", "content": opening}]
    if not isinstance(opening, Sequence) or not all(
        isinstance(turn, Mapping) and isinstance(turn.get("content"), str) for turn in opening
    ):
        raise TypeError("reset gives None, a text, or a list of turns with `role` and `content`")
    return [{"role": str(turn.get("role", "user")), "content": turn["content"]} for turn in opening]


def _number(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, str) or not math.isfinite(float(value)):
        raise ValueError(f"the reward is {value!r}, not a finite number")
    return float(value)


def _packed(own: Any) -> str:
    """The state of an environment as JSON: its attributes, or what its `__getstate__` gives."""
    state = own.__getstate__() or {}
    text = json.dumps(state, sort_keys=True)
    if json.loads(text) != state:
        raise TypeError("the environment's state changes in JSON (a tuple, a number as a key); give it __getstate__")
    if len(text) > MOST_STATE_BYTES:
        raise ValueError(f"the environment's state has {len(text)} bytes; at most {MOST_STATE_BYTES} are stored")
    return text


def open_toolbox(settings: Request) -> tuple[Service, dict[str, Any]]:
    """The service of the tools and the environment that the settings name."""
    functions: dict[str, Callable[..., Any]] = {}
    for name, call in settings["tools"].items():
        place, _, attribute = call.rpartition(":")
        is_shipped = call.startswith(SHIPPED_REWARD)
        functions[name] = SHIPPED[attribute] if is_shipped else load_attribute(place, attribute)
    environment: type | None = None
    arguments = settings["arguments"]
    if (call := settings["environment"]) is not None and call.startswith(OPENENV):
        environment, arguments = OpenEnvSession, {"url": call.removeprefix(OPENENV)}
        OpenEnvSession(**arguments)  # a server that does not answer stops the stage here
    elif call is not None and call.startswith(VERIFIERS):
        environment, arguments = VerifiersSession, {"taskset": call.removeprefix(VERIFIERS), "settings": arguments}
        VerifiersSession(**arguments)  # so does a taskset that cannot be played
    elif call is not None:
        place, _, attribute = call.rpartition(":")
        environment = load_attribute(place, attribute)
    toolbox = Toolbox(functions, environment, arguments)
    operations: Mapping[str, Service] = {
        "reset": toolbox.reset,
        "call": toolbox.call,
        "step": toolbox.step,
        "reward": toolbox.reward,
    }
    return lambda request: operations[request["operation"]](request), toolbox.facts()


if __name__ == "__main__":
    serve(open_toolbox)
