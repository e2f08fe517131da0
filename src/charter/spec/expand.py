"""A project as the text of an explicit `charter.yaml`: presets expanded, defaults written out.

Reading the text again gives the same project.
"""

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from typing import Any

import yaml

from charter.spec.project import Project
from charter.spec.stage_base import Stage
from charter.spec.yaml_source import scalar

_HEADER = "# The whole project, with presets expanded and defaults written out (charter check --expand).\n"


def project_yaml(project: Project) -> str:
    """The explicit YAML text of a project; what is not given (None, an empty list) is left out."""
    blocks = [
        yaml.dump(
            {key: value},
            Dumper=_ProjectDumper,
            sort_keys=False,
            default_flow_style=False,
            width=110,
            allow_unicode=True,
        )
        for key, value in plain(project).items()
    ]
    return _HEADER + "\n".join(blocks)


def plain(value: Any) -> Any:
    """A dataclass as mappings, lists and scalars, in the order of its fields, without what is not given."""
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value):
        return {name: plain(getattr(value, name)) for name in _ordered_names(value) if _is_given(value, name)}
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return value


def _is_given(value: Any, name: str) -> bool:
    """Return True if a field is set; an empty table or list that is also the default is not."""
    setting = getattr(value, name)
    if setting is None or setting in ((), {}):
        item = next(item for item in fields(value) if item.name == name)
        default = item.default_factory() if item.default_factory is not MISSING else item.default
        return bool(setting != default)
    return True


def _ordered_names(value: Any) -> list[str]:
    """Field names; of a stage first its kind, then what it reads, then the rest, execution last."""
    names = [item.name for item in fields(value)]
    if not isinstance(value, Stage):
        return names
    first = [name for name in ("kind", *value.REFERENCES) if name in names]
    common = [item.name for item in fields(Stage) if item.name != "kind"]
    return [*first, *(name for name in names if name not in first and name not in common), *common]


class _ProjectDumper(yaml.SafeDumper):
    """Quotes what our reader would take for something else than text, and lists names in one line."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write equal values out, each in its place."""
        return True


def _text(dumper: _ProjectDumper, text: str) -> yaml.Node:
    style = '"' if scalar(text) != text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


def _list(dumper: _ProjectDumper, items: list[Any]) -> yaml.Node:
    flow = all(isinstance(item, str | int | float) for item in items)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=flow)


_ProjectDumper.add_representer(str, _text)
_ProjectDumper.add_representer(list, _list)
