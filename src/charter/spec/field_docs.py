"""What the fields of a dataclass mean, taken from the docstrings that stand under them in the source."""

import ast
import inspect
import textwrap
from dataclasses import fields
from functools import cache
from itertools import pairwise
from typing import Any


@cache
def field_docs(cls: type) -> dict[str, str]:
    """The docstring under each field of a dataclass and its bases; fields without one are left out.

    >>> from charter.spec.project import DataSpec
    >>> field_docs(DataSpec)["limit"]
    'At most so many rows, in file order, after `part`.'
    """
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__[:-1]):
        found.update(_own_docs(base))
    for item in fields(cls):
        if item.metadata.get("help"):
            found[item.name] = item.metadata["help"]
    return {item.name: found[item.name] for item in fields(cls) if item.name in found}


def _own_docs(cls: type) -> dict[str, str]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    body: list[Any] = getattr(tree, "body", [])
    found = {}
    for statement, following in pairwise(body):
        described = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
        named = isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
        if named and described and isinstance(following.value.value, str):
            found[statement.target.id] = " ".join(following.value.value.split())
    return found
