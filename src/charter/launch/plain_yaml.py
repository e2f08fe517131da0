"""YAML for programs in other languages: no anchors, and no text that another reader takes for a number."""

from typing import Any

import yaml

WIDTH = 110
NUMBER_BEGINS = "0123456789+-."
"""What a number begins with. PyYAML writes `49689e12` as it is, since in its YAML (1.1) that is a text; Kubernetes
reads it as a number, as YAML 1.2 has it."""


def yaml_text(value: Any) -> str:
    """A value as YAML, in the order of its keys.

    >>> print(yaml_text({"token": "49689e12", "replicas": 2, "name": "a"}), end="")
    token: '49689e12'
    replicas: 2
    name: a
    """
    return yaml.dump(value, Dumper=PlainDumper, sort_keys=False, width=WIDTH, allow_unicode=True)


class PlainDumper(yaml.SafeDumper):
    """Writes a value again each time, and quotes whatever could be a number."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write a value again each time."""
        return True


def _quoted(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "'" if text[:1] and text[0] in NUMBER_BEGINS and "\n" not in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


PlainDumper.add_representer(str, _quoted)
