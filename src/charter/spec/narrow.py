"""Reading a mapping as a dataclass by a schema of those fields that the mapping gives: the rest keep their defaults.

A schema of every field of a stage, let alone of a whole project, takes longer to build than any file to read.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import MISSING, Field, fields, make_dataclass
from functools import cache
from typing import Any

NO_PLUGINS = "PYDANTIC_DISABLE_PLUGINS"


def read_as(cls: type, value: Any) -> Any:
    """A plain value as this dataclass; pydantic's `ValidationError` where it is none."""
    given = frozenset(value) if isinstance(value, dict) else frozenset()
    known = given & {item.name for item in fields(cls)}
    found = _adapter(cls, known).validate_json(json.dumps(value), strict=True)
    return cls(**vars(found))


@cache
def _adapter(cls: type, given: frozenset[str]) -> Any:
    from pydantic import TypeAdapter

    with _without_plugins():
        return TypeAdapter(_narrowed(cls, given))


def _narrowed(cls: Any, given: frozenset[str]) -> type:
    """The dataclass with only the fields that are given, and those that have to be."""
    kept = [(item.name, item.type, copy(item)) for item in fields(cls) if item.name in given or _is_required(item)]
    namespace = {"__module__": cls.__module__, "__pydantic_config__": cls.__pydantic_config__}
    return make_dataclass(cls.__name__, kept, namespace=namespace, kw_only=True, init=False, repr=False, eq=False)


def _is_required(item: Field[Any]) -> bool:
    return item.default is MISSING and item.default_factory is MISSING


@contextmanager
def _without_plugins() -> Iterator[None]:
    """Pydantic does not look through everything installed for plugins, unless the environment says which it may."""
    if NO_PLUGINS in os.environ:
        yield
        return
    os.environ[NO_PLUGINS] = "1"
    try:
        yield
    finally:
        os.environ.pop(NO_PLUGINS, None)
