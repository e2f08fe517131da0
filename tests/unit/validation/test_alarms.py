"""Rows whose figure cannot be what their columns say are flagged and averaged in nowhere."""

from dataclasses import replace

import pytest

from charter.validation.alarms import alarms_of
from charter.validation.rows.measurement import Measurement
from charter.validation.validate import score, validate

STEP = Measurement(
    id="ABC-1", kind="sft", model="Llama-3.1-8B", seq=4096, gpu="H100-SXM-80GB", mem_gb=80.0, gpus=8, mbs=2.0, gbs=64.0,
    metric="step_time_s", value=4.0, framework="hf trainer", shard="zero3", recompute="full", dtype="bf16",
    parameter_dtype="bf16", gradient_dtype="bf16", optimizer_dtype="fp32", master_dtype="fp32",
)  # fmt: skip
PEAK = replace(STEP, metric="peak_mem_gib", value=40.0)


@pytest.mark.parametrize("row", [STEP, PEAK], ids=["step", "peak"])
def test_a_sound_row_raises_no_alarm(row):
    assert alarms_of(row) == ()


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (replace(STEP, value=0.5), "implied MFU"),
        (replace(STEP, value=400.0), "implied MFU"),
        (replace(STEP, metric="tokens_per_s_per_gpu", value=100_000.0), "implied MFU"),
        (replace(STEP, kind="lora", adapter="lora", value=0.5), "implied MFU"),
        (replace(PEAK, value=5.0), "weights, gradients and optimizer state"),
        (replace(PEAK, recompute="none", mbs=8.0, value=45.0), "samples are shorter than 4096"),
        (replace(STEP, ep=4), "model without experts"),
        (replace(STEP, mem_gb=40.0), "is called H100-SXM-80GB"),
    ],
    ids=["too-fast", "too-slow", "rate", "adapter", "memory", "activations", "experts", "device"],
)
def test_an_impossible_row_raises_its_alarm(row, words):
    assert words in alarms_of(row)[0]


def test_a_flagged_row_counts_in_no_figure():
    rows = (STEP, replace(STEP, id="ABC-2", value=400.0))
    verdicts = validate(rows)
    total = score(verdicts)
    assert (total.configurations, total.flagged) == (1, 1)
    assert verdicts[1].predicted == verdicts[0].predicted


def test_a_flagged_row_calibrates_nothing():
    rows = (replace(STEP, id="ABC-2", value=400.0), STEP)
    flagged, sound = validate(rows, calibrate_rows=1)
    assert (flagged.used, sound.used) == (False, True)


def test_a_memory_row_says_how_likely_it_fits():
    small, large = validate((PEAK, replace(PEAK, id="ABC-2", metric="oom", value=1.0, gpus=1)))
    assert small.fits == "fits"
    assert large.fits == "does not fit"
    assert validate((STEP,))[0].fits_probability is None
