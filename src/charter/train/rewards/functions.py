"""A process that calls one reward function, shipped or the user's own."""

from collections.abc import Callable
from typing import Any

from charter.data.reward_functions import SHIPPED, called
from charter.data.sandbox import program
from charter.inference.limited import Request, Service, load_attribute, serve
from charter.spec.rewards import PROGRAM, SHIPPED_REWARD


def load(call: str) -> Callable[..., Any]:
    """The function that `charter:name` or `path/to/file.py:name` says."""
    place, _, name = call.rpartition(":")
    if call == PROGRAM:
        return program
    if call.startswith(SHIPPED_REWARD):
        return SHIPPED[name]
    function: Callable[..., Any] = load_attribute(place, name)
    return function


def open_function(settings: Request) -> tuple[Service, dict[str, Any]]:
    """The service of one function: a reward for what is offered."""
    function, arguments = load(settings["call"]), settings["arguments"]
    return lambda offered: {"reward": called(function, offered, arguments)}, {}


if __name__ == "__main__":
    serve(open_function)
