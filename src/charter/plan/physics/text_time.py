"""Seconds of work on text alone, where no model takes part."""

from charter.physics.terms import Term
from charter.plan.work.phase import Workload

TEXT_BYTES_PER_SECOND = 20e6
"""Reading, hashing and writing JSONL in Python; judgement."""


def text_term(work: Workload) -> Term:
    """The bytes a stage writes over the rate; answers of an endpoint have terms of their own."""
    return Term(
        name="read and write text",
        part="text",
        value=work.data_bytes / TEXT_BYTES_PER_SECOND,
        unit="seconds",
        formula=f"{work.data_bytes:,.0f} B / {TEXT_BYTES_PER_SECOND:,.0f} B per second",
        source="judgement; answers of an endpoint are terms of their own",
    )
