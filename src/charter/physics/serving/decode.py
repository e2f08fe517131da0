"""Seconds to answer a set of prompts with one engine replica, for many configurations at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from charter.physics.arrays import Array, array
from charter.physics.serving.constants import ServingConstants
from charter.physics.serving.device import ServingDevice
from charter.physics.serving.engines import Engine
from charter.physics.serving.model import ServedModel
from charter.physics.serving.passes import Issue, Pass, pass_terms
from charter.physics.serving.response_lengths import Drain
from charter.physics.terms import TermColumn, TermTable

Columns = TypeVar("Columns")


def issue_of(engines: Engine | list[Engine]) -> Issue:
    """Return how engines issue work, as columns.

    >>> from charter.physics.serving.engines import NATIVE, VLLM
    >>> issue_of([NATIVE, VLLM]).eager.tolist()
    [1.0, 0.0]
    """
    if isinstance(engines, Engine):
        return _issue(lambda name: getattr(engines, name))
    return _issue(lambda name: [getattr(one, name) for one in engines])


def _issue(read: Callable[[str], Any]) -> Issue:
    names = ("eager", "overlapped", "paged", "layer_slowness", "step_slowness", "token_slowness", "tile_share")
    return Issue(**{name: array(read(name)) for name in names})


def prefill_terms(
    model: ServedModel,
    group: ServingDevice,
    issue: Issue,
    constants: ServingConstants,
    *,
    sequences: Array,
    prompt: Array,
    cached: Array | float = 0.0,
) -> TermTable:
    """The prompts of all sequences read once; `cached` leading tokens of each are in the prefix cache already."""
    hit = np.minimum(array(cached), np.maximum(prompt - 1, 0.0))
    work = Pass(sequences=sequences, tokens=prompt - hit, before=hit, logits=array(1.0), decode=False)
    return pass_terms(model, group, issue, work, constants)


def decode_terms(
    model: ServedModel,
    group: ServingDevice,
    issue: Issue,
    constants: ServingConstants,
    *,
    sequences: Array,
    context: Array,
) -> TermTable:
    """One decode step of `sequences` sequences that hold `context` tokens each."""
    work = Pass(sequences=sequences, tokens=array(1.0), before=context, logits=array(1.0), decode=True)
    return pass_terms(model, group, issue, work, constants)


def rollout_terms(
    model: ServedModel,
    group: ServingDevice,
    issue: Issue,
    constants: ServingConstants,
    *,
    sequences: Array,
    limit: Array,
    prompt: Array,
    mean_tokens: Array,
    drain: Drain,
) -> TermTable:
    """`sequences` prompts that all wait at the start, at most `limit` decoded together, until the last answer ends.

    While prompts wait the engine stays full: `(sequences / limit - 1)` mean answers at full batch. Then the batch
    drains, and the tail of the length distribution holds the replica.
    """
    together = np.maximum(np.minimum(sequences, limit), 1.0)
    first = prefill_terms(model, group, issue, constants, sequences=sequences, prompt=prompt)
    full = decode_terms(model, group, issue, constants, sequences=together, context=prompt + mean_tokens / 2)
    waves = np.maximum(sequences / together - 1, 0.0)
    tail = decode_terms(
        _wide(model),
        _wide(group),
        _wide(issue),
        _wide(constants),
        sequences=np.maximum(together[..., None] * drain.alive, 1.0),
        context=prompt[..., None] + drain.position,
    )
    drained = tuple(
        replace(
            column,
            name=f"{column.name}, draining",
            values=array((column.values * drain.steps).sum(axis=-1)),
            formula=f"sum over the tail of steps x ({column.formula})",
        )
        for column in tail.columns
    )
    return TermTable(columns=(*first.columns, *_times(full, waves * mean_tokens, "waves x tokens x "), *drained))


def _times(table: TermTable, factor: Array, label: str) -> tuple[TermColumn, ...]:
    return tuple(
        replace(column, values=array(column.values * factor), formula=f"{label}({column.formula})")
        for column in table.columns
    )


def _wide(columns: Columns) -> Columns:
    """Every column with one more axis, so that it broadcasts against the pieces of a drain."""
    values = {name: getattr(columns, name)[..., None] for name in columns.__dataclass_fields__}  # type: ignore[attr-defined]
    return replace(columns, **values)  # type: ignore[type-var]
