"""Record what SkyRL's configuration may hold: `PYTHON tools/engine_schemas/skyrl_schema.py WHEEL`.

PYTHON is an interpreter of an environment that has skyrl and skyrl-gym with what their configuration and losses import
(torch for CPUs will do; 3.12, since its types are refused by pydantic before). Its dataclasses become a JSON schema:
names, types and defaults, and the names of its losses and estimators, nothing of its text. Written to
`src/charter/engines/skyrl/schema.json`, a class a line, with version and date; tests check every rendered file by it.
"""

import dataclasses
import json
import sys
import types
import typing
import zipfile
from importlib import import_module
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

TARGET = Path(__file__).resolve().parents[2] / "src/charter/engines/skyrl/schema.json"
PLAIN: dict[object, str] = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}
UNIONS = (typing.Union, types.UnionType)


def main(wheel: str) -> None:
    """Write the schema of the installed package; the date is that of the files in its wheel."""
    losses = import_module("skyrl.backends.skyrl_train.utils.ppo_utils")
    named: dict[str, Any] = {}
    root = described(import_module("skyrl.train.config").SkyRLTrainConfig, named)
    algorithm = named["AlgorithmConfig"]["properties"]
    algorithm["policy_loss_type"]["enum"] = sorted(losses.PolicyLossRegistry.list_available())
    algorithm["advantage_estimator"]["enum"] = sorted(losses.AdvantageEstimatorRegistry.list_available())
    with zipfile.ZipFile(wheel) as files:
        year, month, day = max(item.date_time[:3] for item in files.infolist())
    head = {"version": distribution("skyrl").version, "date": f"{year}-{month:02}-{day:02}", **root}
    lines = [f' "{name}": {json.dumps(value)}' for name, value in head.items()]
    definitions = ",\n".join(f'  "{name}": {json.dumps(value)}' for name, value in sorted(named.items()))
    text = "{\n" + ",\n".join([*lines, ' "$defs": {\n' + definitions + "\n }"]) + "\n}\n"
    TARGET.write_text(text, encoding="utf-8")


def described(kind: Any, named: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a type; of a dataclass a reference, which is recorded with all that its fields name."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        name = typing.cast(type, kind).__name__
        if name not in named:
            named[name] = {}
            hints = typing.get_type_hints(kind)
            fields = {
                field.name: {**described(hints[field.name], named), **default(field)}
                for field in dataclasses.fields(kind)
            }
            named[name] = {"type": "object", "additionalProperties": False, "properties": fields}
        return {"$ref": f"#/$defs/{name}"}
    if origin in UNIONS:
        return {"anyOf": [described(item, named) for item in inner]}
    if (origin or kind) is list:
        return {"type": "array", **({"items": described(inner[0], named)} if inner else {})}
    if (origin or kind) is dict:
        return {"type": "object"}
    return {} if kind is Any else {"type": PLAIN[kind]}


def default(field: "dataclasses.Field[Any]") -> dict[str, object]:
    """Return a field's plain default; places in the home directory of whoever records are left out."""
    value = field.default
    return {"default": value} if value is None or isinstance(value, int | float | str) else {}


if __name__ == "__main__":
    main(sys.argv[1])
