"""Options of Megatron-LM's parser, as recorded from its code by tools/engine_schemas/megatron_lm.py."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Schema:
    """Options of one commit."""

    commit: str
    version: str
    options: Mapping[str, Mapping[str, Any]]


@cache
def recorded_schema() -> Schema:
    """The record that is installed with Charter."""
    document = json.loads(files("charter.engines.megatron").joinpath("schema.json").read_text(encoding="utf-8"))
    return Schema(commit=document["commit"], version=document["version"], options=document["options"])
