"""Which options Megatron-LM's parser knows, as recorded from its code by tools/engine_schemas/megatron_lm.py."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

NUMBERS = {"int": int, "float": float}


@dataclass(frozen=True, kw_only=True)
class Schema:
    """Options of one commit."""

    commit: str
    version: str
    options: Mapping[str, Mapping[str, Any]]


@cache
def recorded_schema() -> Schema:
    """The record that is installed with Charter."""
    found = json.loads(files("charter.handover.megatron").joinpath("schema.json").read_text(encoding="utf-8"))
    return Schema(commit=found["commit"], version=found["version"], options=found["options"])


def refusals(words: Sequence[str], schema: Schema) -> Iterator[str]:
    """What the parser would refuse of a command line, told as it would tell it.

    >>> list(refusals(["--bf16", "--lr", "fast", "--ckpt-format", "zip", "--sequence"], recorded_schema()))
    ["--lr: 'fast' is no float", "--ckpt-format: 'zip' is none of torch, torch_dist, torch_dcp, fsdp_dtensor", \
'--sequence is not known']
    """
    option, values = "", list[str]()
    for word in (*words, "--"):
        if not word.startswith("--"):
            values.append(word)
            continue
        if option:
            yield from _refused(option, values, schema)
        elif values:
            yield f"{values[0]!r} belongs to no option"
        option, values = word, []


def _refused(option: str, values: Sequence[str], schema: Schema) -> Iterator[str]:
    facts = schema.options.get(option)
    if facts is None:
        yield f"{option} is not known"
        return
    wanted = facts.get("nargs", 1)
    if not (values if wanted == "+" else wanted in ("*", "?") or len(values) == wanted):
        yield f"{option} takes {wanted} values, not {len(values)}"
    kind, choices = facts.get("type"), facts.get("choices")
    for value in values:
        if kind in NUMBERS and not _reads(value, kind):
            yield f"{option}: {value!r} is no {kind}"
        elif choices is not None and value not in [str(choice) for choice in choices]:
            yield f"{option}: {value!r} is none of {', '.join(map(str, choices))}"


def _reads(value: str, kind: str) -> bool:
    try:
        NUMBERS[kind](value)
    except ValueError:
        return False
    return True
