"""What our own engine took on a GPU, against what the planner says of it: rows that no constant was fitted to.

Seen failing under mutations of production lines: each of the two entries `charter` that name its stack and its decoder
(physics/runs.py, physics/serving_devices.py), `cross_entropy="tiled"` and `autocast_adapters` (memory_profiles.py).
"""

from functools import cache
from pathlib import Path
from statistics import median

import pytest

from charter.catalog import accelerators, models
from charter.physics.fitted import bundled
from charter.physics.generation import generation
from charter.physics.serving_devices import NATIVE
from charter.plan.knowledge import Knowledge
from charter.validation.rows.measurement import read_measurements
from charter.validation.validate import validate

FILE = Path(__file__).resolve().parents[2] / "benchmarks" / "measured" / "h200-2026-11-26.csv"
LARGEST = 4e9
"""Parameters from which on the host of that machine was quicker than its GPU."""


@cache
def verdicts():
    return validate(read_measurements(FILE))


def errors(chosen):
    return {item.row.id: abs(item.error) for item in verdicts() if chosen(item.row)}


def test_every_row_is_predicted_from_its_typed_columns():
    assert {item.row.id for item in verdicts() if item.refused or item.assumptions} == set()
    assert len(verdicts()) == 27


@pytest.mark.parametrize(
    ("name", "chosen", "worst"),
    [
        ("memory of training", lambda row: row.metric == "peak_mem_gib" and row.kind != "inference", 0.12),
        ("decoding", lambda row: row.metric in ("out_tokens_per_s", "ppo_generate_time_s"), 0.25),
        ("steps of 8B", lambda row: row.metric == "step_time_s" and row.params_b * 1e9 > LARGEST, 0.28),
    ],
)
def test_no_row_is_further_off(name, chosen, worst):
    off = errors(chosen)
    assert len(off) >= 3, name
    assert max(off.values()) <= worst, off


def test_the_pages_say_the_median_of_all():
    text = f"{100 * median(errors(lambda row: True).values()):.0f} %"
    for page in ("docs/reference/first-gpu.md", "README.md"):
        assert text in (FILE.parents[2] / page).read_text(), (page, text)


OPERATION_BY_OPERATION = {
    ("Qwen3-0.6B", 1): (48, 2.04),
    ("Qwen3-0.6B", 8): (436, 2.04),
    ("Qwen3-0.6B", 64): (3_562, 2.08),
    ("Llama-3.1-8B", 1): (46, 2.33),
    ("Llama-3.1-8B", 8): (434, 2.41),
    ("Llama-3.1-8B", 64): (2_820, 3.11),
}
"""Model and answers of 512 + 128 tokens at once: tokens a second without a graph, and seconds planned."""


@pytest.mark.parametrize(("model", "answers"), OPERATION_BY_OPERATION)
def test_the_page_says_what_is_planned_without_a_graph(model, answers):
    rate, planned = OPERATION_BY_OPERATION[model, answers]
    page, measured = (FILE.parents[2] / "docs/reference/first-gpu.md").read_text(), answers * 128 / rate
    printed = [f"{rate:,} |", f"{measured:.2f}", f"{planned:.2f}"]
    assert [text for text in printed if text not in page] == []
    time = generation(
        models.get(model).architecture,
        accelerators.get("H200"),
        sequences=answers,
        prompt_tokens=512,
        new_tokens=128,
        concurrency=answers,
        engine=NATIVE,
        constants=Knowledge.of(bundled()).serving_constants(NATIVE),
    )
    assert sum(term.value for term in time.terms) == pytest.approx(planned, abs=0.006)
    assert planned == pytest.approx(measured, rel=0.25)
