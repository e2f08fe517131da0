"""A stage's identity: a canonical payload, and the SHA-256 of it.

What counts is what is computed: the stage's name (its draws are seeded with it), the kind and its revision, the spec
without execution fields, the fingerprints of the inputs, the seed, the constitution. The payload is kept beside the
hash, so that drift can be shown field by field.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from typing import Any

from charter.errors import DataError
from charter.spec.quantity import ADDED, is_execution
from charter.spec.stage_base import Stage

SCHEMA = "charter.identity/1"


def canonical(value: object) -> Any:
    """`value` as plain JSON types, the same on every machine; what has no stable form is refused.

    Execution fields are left out; so are fields that are None, and fields marked `added` that equal their
    default, so that a newer Charter with more fields gives the same fingerprint. 1 and 1.0 are the same
    number.

    >>> canonical({"b": (1.0, None), "a": 0.5})
    {'a': 0.5, 'b': [1, None]}
    """
    if isinstance(value, Enum):
        return canonical(value.value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, list | tuple):
        return [canonical(item) for item in value]
    if isinstance(value, Mapping):
        return _mapping(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {
            item.name: canonical(getattr(value, item.name))
            for item in sorted(fields(value), key=lambda item: item.name)
            if _counts(item, getattr(value, item.name))
        }
    raise DataError(
        f"{value!r} ({type(value).__qualname__}) has no stable form, so it cannot be part of a fingerprint; "
        "use numbers, text, lists, mappings with text keys, or a dataclass of these"
    )


def fingerprint(payload: object) -> str:
    """SHA-256 of the canonical form, in hex."""
    text = json.dumps(canonical(payload), sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def stage_identity(
    spec: Stage, *, name: str, inputs: Mapping[str, Sequence[str]], seed: int, constitution: str | None
) -> dict[str, Any]:
    """The payload of a stage: `inputs` holds fingerprints by role, `constitution` a hash or None.

    The stage's own name counts, since its draws are seeded with it. The names of its inputs do not: the
    fields that hold them are replaced by what they name, so that renaming a data set or a model changes
    nothing.
    """
    counted = canonical(spec)
    return {
        "schema": SCHEMA,
        "stage": name,
        "kind": spec.kind,
        "revision": type(spec).REVISION,
        "spec": {field: value for field, value in counted.items() if field not in {*spec.REFERENCES, "kind"}},
        "inputs": {role: list(fingerprints) for role, fingerprints in sorted(inputs.items())},
        "seed": seed,
        "constitution": constitution,
    }


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """List the differences between two payloads: `(path, old, new)`, the path dotted; None stands for absent."""
    return list(_differences("", old, new))


def _differences(path: str, old: Any, new: Any) -> list[tuple[str, Any, Any]]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        changes: list[tuple[str, Any, Any]] = []
        for key in sorted({*old, *new}):
            changes += _differences(f"{path}.{key}" if path else key, old.get(key), new.get(key))
        return changes
    return [] if old == new else [(path, old, new)]


def _counts(item: "Field[Any]", value: object) -> bool:
    if is_execution(item) or value is None:
        return False
    return not (item.metadata.get(ADDED) and value == _default(item))


def _default(item: "Field[Any]") -> Any:
    return item.default_factory() if item.default_factory is not MISSING else item.default


def _number(value: float) -> int | float:
    if not math.isfinite(value):
        raise DataError(f"{value!r} has no stable form, so it cannot be part of a fingerprint; give a finite number")
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


def _mapping(value: Mapping[Any, object]) -> dict[str, Any]:
    if wrong := [key for key in value if not isinstance(key, str)]:
        raise DataError(
            f"the key {wrong[0]!r} has no stable form, so it cannot be part of a fingerprint; use text keys"
        )
    return {key: canonical(value[key]) for key in sorted(value)}
