"""Generation throughput and latency of measured inference rows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from charter.physics.columns import Array, array
from charter.physics.constants import ServingConstants
from charter.physics.generation import decode_terms, issue_of, prefill_terms
from charter.physics.serving_devices import ServingDevice
from charter.physics.serving_passes import Issue, ServedModel
from charter.validation.quantities.generation_cases import GenerationCase, generation_case
from charter.validation.rows.measurement import Measurement

RATES = re.compile(r"tokens_per_s|(requests|samples|sequences|queries|prompts)_per_(s|sec|second|min|minute)(_|$)")
TIMES = ("latency", "ttft", "tpot", "itl", "time_per_output_token", "time_to_first_token")


@dataclass(frozen=True, kw_only=True)
class PreparedGeneration:
    """Inference rows as columns."""

    model: ServedModel
    group: ServingDevice
    issue: Issue
    sequences: Array
    prompt: Array
    new_tokens: Array
    replicas: Array
    scale: Array
    counted: Array
    """What a rate counts while one sequence is served: tokens of its answer, of its prompt, both, or itself."""
    is_rate: Array
    is_prefill: Array
    is_step: Array


class Generation:
    """Rates and latencies of prefill and decode; see `charter.validation.quantity.Quantity`."""

    name = "generation"
    row_noise = 0.07
    """Scatter of rows of one source around a calibrated model, in logarithms (judgement)."""
    constants = ServingConstants

    def accepts(self, row: Measurement) -> bool:
        """Inference rows with a rate or a latency."""
        return row.kind == "inference" and (
            RATES.search(row.metric) is not None or any(word in row.metric for word in TIMES)
        )

    def case(self, row: Measurement) -> GenerationCase:
        """The configuration behind a row."""
        return generation_case(row)

    def stack(self, case: GenerationCase) -> str:
        """The engine."""
        return case.engine.label

    def prepare(self, cases: Sequence[GenerationCase]) -> PreparedGeneration:
        """Cases as columns."""
        groups = [
            ServingDevice.of(
                case.accelerator,
                weights=case.weights,
                cache_bytes=case.cache_bytes,
                tensor=case.tensor,
                pipeline=case.pipeline,
                data_attention=case.data_attention,
            )
            for case in cases
        ]
        return PreparedGeneration(
            model=ServedModel.stacked([ServedModel.of(case.architecture) for case in cases]),
            group=ServingDevice.stacked(groups),
            issue=issue_of([case.engine for case in cases]),
            sequences=array([case.sequences for case in cases]),
            prompt=array([case.prompt for case in cases]),
            new_tokens=array([case.new_tokens for case in cases]),
            replicas=array([case.replicas for case in cases]),
            scale=array([case.scale for case in cases]),
            counted=array([_counted(case) for case in cases]),
            is_rate=array([case.metric not in ("prefill", "step", "whole") for case in cases]),
            is_prefill=array([case.metric.startswith("prefill") for case in cases]),
            is_step=array([case.metric.startswith("step") for case in cases]),
        )

    def predict(self, prepared: PreparedGeneration, constants: ServingConstants) -> Array:
        """Rates or latencies in the unit of each row."""
        p = prepared
        first = prefill_terms(p.model, p.group, p.issue, constants, sequences=p.sequences, prompt=p.prompt).total
        middle = p.prompt + p.new_tokens / 2
        step = decode_terms(p.model, p.group, p.issue, constants, sequences=p.sequences, context=middle).total
        total = first + p.new_tokens * step
        counted = p.sequences * p.replicas * p.counted
        latency = np.where(p.is_prefill > 0, first, np.where(p.is_step > 0, step, total))
        return array(p.scale * np.where(p.is_rate > 0, counted / latency, latency))


def _counted(case: GenerationCase) -> float:
    both = case.new_tokens + case.prompt
    counts = {"total": both, "out": case.new_tokens, "prefill rate": case.prompt}
    return counts.get(case.metric, 1.0)


GENERATION = Generation()
