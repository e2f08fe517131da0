"""Changes to a plan: the controls of the plan page, as values put over `charter.yaml`. Pure."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from urllib.parse import urlencode

from charter.errors import UsageError
from charter.plan.what_if import overrides_of
from charter.spec.project import Project

NONE = "none"
"""Of a limit: as if `charter.yaml` had none."""
MOST_CHARACTERS = 400
OPEN_SECTIONS = ("resources", "budget", "deadline", "objective", "risk", "costs")
"""Sections that further settings may change: where and how. None of them names a file."""
_STAGE_NUMBER = re.compile(r"pipeline\.[\w-]+\.[a-z_0-9]+")
_NUMBER = re.compile(r"true|false|[-+]?[\d_]+(\.[\d_]+)?([eE][-+]?\d+)?")


@dataclass(frozen=True, kw_only=True)
class WhatIfQuestion:
    """The controls as texts; an empty one leaves the file's value as it is."""

    accelerators: str = ""
    """`H100:8`, or several of them."""
    market: str = ""
    deadline: str = ""
    budget: str = ""
    nodes: str = ""
    max_nodes: str = ""
    objective: str = ""
    more: str = ""
    """Further settings, one `path=value` per line."""

    @classmethod
    def of(cls, given: Mapping[str, str]) -> "WhatIfQuestion":
        """From a query or a form; UsageError where a value is longer than any that makes sense."""
        values = {item.name: given.get(item.name, "").strip() for item in fields(cls)}
        for name, value in values.items():
            if len(value) > MOST_CHARACTERS:
                raise UsageError(f"{name}: {len(value)} characters; a what-if takes up to {MOST_CHARACTERS}")
            if any(ord(letter) < 32 and letter not in "\r\n\t" for letter in value):
                raise UsageError(f"{name}: holds control characters; write it as in charter.yaml")
        return cls(**values)

    def overrides(self, project: Project) -> tuple[str, ...]:
        """The `--set` values; UsageError for one that cannot be meant."""
        settings: list[str] = []
        for name, value in self._given().items():
            if name == "more" or not value:
                continue
            if ";" in value:
                raise UsageError(f"{name}: {value!r} holds a semicolon; write it as in charter.yaml")
            if value.lower() == NONE and name in ("budget", "deadline"):
                settings.append(f"{name}=null")
            else:
                settings += overrides_of(f"{name}={value}", project)
        return (*settings, *self._more())

    def query(self) -> str:
        """The part of an address that asks the same again; a link to share."""
        return urlencode({name: value for name, value in self._given().items() if value})

    def _given(self) -> dict[str, str]:
        return {item.name: getattr(self, item.name) for item in fields(self)}

    def _more(self) -> list[str]:
        return [_checked(line.strip()) for line in self.more.splitlines() if line.strip()]


def _checked(line: str) -> str:
    """A further setting: of where and how anything, of a stage numbers alone, so that nothing names a file."""
    path, equals, value = (part.strip() for part in line.partition("="))
    if not equals or not path or not value:
        raise UsageError(f"{line}: write a setting like pipeline.ppo.episodes=640 or resources.max_nodes=8")
    if path.partition(".")[0] in OPEN_SECTIONS:
        return f"{path}={value}"
    if _STAGE_NUMBER.fullmatch(path) and _NUMBER.fullmatch(value):
        return f"{path}={value}"
    raise UsageError(
        f"{line}: here can be changed {', '.join(OPEN_SECTIONS)}, and numbers of stages; "
        "for anything else edit charter.yaml, or ask charter plan --set"
    )


def command(overrides: Sequence[str], place: str) -> str:
    """The command line that plans the same, to copy: nothing is written to `charter.yaml` for anybody.

    >>> command(["deadline=3d", "resources.accelerators=[H100:8]"], "lab")
    "charter plan lab --set deadline=3d --set 'resources.accelerators=[H100:8]'"
    """
    parts = ["charter", "plan", place, *(part for item in overrides for part in ("--set", item))]
    return shlex.join(parts)
