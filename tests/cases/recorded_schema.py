"""Checks a configuration against a schema that `tools/engine_schemas` has recorded: unknown keys and types fail."""

import json
from pathlib import Path
from typing import Any

NEMO_RL = Path(__file__).resolve().parents[2] / "src/charter/engines/nemo_rl/schema.json"
PLAIN: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "PathLike": (str,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "None": (type(None),),
    "dict": (dict,),
    "list": (list,),
}


class RecordedSchema:
    """The recorded classes of one engine."""

    def __init__(self, path: Path = NEMO_RL) -> None:
        self.content: dict[str, Any] = json.loads(path.read_text())

    def errors(self, root: str, values: dict[str, Any]) -> list[str]:
        """Everything in a configuration of that root that the classes do not allow."""
        beside = {f".{key}: unknown" for key in self.content["beside"][root]}
        return [error for error in self._class(self.content["roots"][root], values, "") if error not in beside]

    def _class(self, name: str, values: object, at: str) -> list[str]:
        name = self.content["instead"].get(name.rsplit(".", 1)[-1], name)
        if not isinstance(values, dict):
            return [f"{at}: not a mapping"]
        fields = self.content["types"][name]["fields"]
        found = [f"{at}.{key}: unknown" for key in values if key not in fields]
        found += [f"{at}.{key}: missing" for key, field in fields.items() if field["required"] and key not in values]
        for key in values:
            if key in fields:
                found += self._value(fields[key]["type"], values[key], f"{at}.{key}")
        return found

    def _value(self, kind: Any, value: object, at: str) -> list[str]:
        if isinstance(kind, str):
            allowed = PLAIN.get(kind)
            if allowed is None:
                return []
            is_wrong = not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed)
            return [f"{at}: {value!r} is not {kind}"] if is_wrong else []
        if "class" in kind:
            return self._class(kind["class"], value, at)
        if "literal" in kind:
            return [] if value in kind["literal"] else [f"{at}: {value!r} is none of {kind['literal']}"]
        if "list" in kind:
            if not isinstance(value, list):
                return [f"{at}: not a list"]
            return [
                error for index, item in enumerate(value) for error in self._value(kind["list"], item, f"{at}[{index}]")
            ]
        choices = [self._value(choice, value, at) for choice in kind["any"]]
        return min(choices, key=len) if all(choices) else []
