"""The script that measures steps: its smoke grid on processors, the rows it writes, and what it measures."""

import argparse
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from charter.validation.rows.measurement import read_measurements

pytestmark = pytest.mark.torch
ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks" / "measure_steps.py"
PPO_PARTS = {"ppo_generate_time_s", "ppo_train_time_s", "ppo_other_time_s"}


@pytest.fixture
def parts(monkeypatch):
    """The script's package."""
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    from measured_steps import child, grid, memory, ppo_case, rows, subjects

    return {module.__name__.rpartition(".")[2]: module for module in (child, grid, memory, ppo_case, rows, subjects)}


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The smoke grid: its last line and its rows."""
    file = tmp_path_factory.mktemp("measured") / "own.csv"
    command = [sys.executable, SCRIPT, "--grid", "smoke", "-o", file, "--steps", "2", "--warmup", "1", "--cpu"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), read_measurements(file)


@pytest.mark.thorough
def test_every_case_of_the_smoke_grid_is_measured(measured, parts):
    last, rows = measured
    cases = parts["grid"].grid("smoke", on_cpu=True)
    assert last["figures"]["ok"] == len(cases)
    assert last["figures"]["told"] == {}
    assert len({row.config_id for row in rows}) == len(cases)
    assert {row.kind for row in rows} == {"sft", "lora", "rm", "ppo", "inference"}
    assert set(last) == {"figures", "command", "machine"}


@pytest.mark.thorough
def test_rows_are_complete_and_positive(measured):
    rows = measured[1]
    assert len({row.id for row in rows}) == len(rows)
    for row in rows:
        assert row.problems == ()
        assert row.value > 0
        assert row.prefix == "OWN"
        assert None not in (row.hidden, row.layers, row.heads, row.vocab, row.params_b, row.mbs, row.gpus, row.tp)
        assert row.framework.startswith("charter torch ")
    metrics = Counter((row.kind, row.metric) for row in rows)
    assert metrics["sft", "step_time_s"] == metrics["sft", "peak_mem_gib"] == 3
    assert metrics["inference", "out_tokens_per_s"] == 1
    assert {row.gbs for row in rows if row.kind == "sft"} == {2, 4}
    assert {row.recompute for row in rows if row.kind == "ppo"} == {"none", "full"}


@pytest.mark.thorough
def test_the_phases_of_a_ppo_step_add_up_to_it(measured):
    """Exactly, since the median of two steps is their mean."""
    rows = [row for row in measured[1] if row.kind == "ppo"]
    for config in {row.config_id for row in rows}:
        found = {row.metric: row.value for row in rows if row.config_id == config}
        assert found.keys() == PPO_PARTS | {"step_time_s", "peak_mem_gib"}
        assert sum(found[part] for part in PPO_PARTS) == pytest.approx(found["step_time_s"], rel=1e-3)


def machine(rows, name="NVIDIA H200"):
    return rows.Machine(
        device="cuda", name=name, memory_bytes=10**11, devices=8, torch="2.13.0+cu130", transformers="5", cuda="13.0"
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NVIDIA H200", ("H200-SXM-141GB", "141")),
        ("NVIDIA A100-SXM4-80GB", ("A100-SXM-80GB", "80")),
        ("NVIDIA A100 80GB PCIe", ("A100-PCIe-80GB", "80")),
        ("Tesla V100-SXM2-32GB", ("V100-SXM2-32GB", "32")),
        ("An accelerator of 2031", ("An accelerator of 2031", "100")),
    ],
)
def test_devices_get_the_name_of_the_catalog(parts, name, expected):
    assert machine(parts["rows"], name).accelerator() == expected


def test_a_case_without_room_is_one_row_and_spares_the_larger_ones(parts, tmp_path):
    grid, rows = parts["grid"], parts["rows"]
    case = grid.Case(kind="sft", model="Llama-3.1-8B", micro_batch=4, seq=2048)
    found = {"status": "oom", "detail": "OutOfMemoryError: CUDA out of memory"}
    rows.write_rows(tmp_path / "oom.csv", rows.rows_of(case, found, machine(rows)), "OWN")
    (row,) = read_measurements(tmp_path / "oom.csv")
    assert (row.metric, row.value, row.gpu, row.recompute) == ("oom", 1.0, "H200-SXM-141GB", "none")
    larger = grid.Case(kind="sft", model="Llama-3.1-8B", micro_batch=8, seq=2048)
    lighter = grid.Case(kind="sft", model="Llama-3.1-8B", micro_batch=8, seq=2048, recompute=True)
    assert larger.needs_no_less_than(case)
    assert not lighter.needs_no_less_than(case)
    assert not case.needs_no_less_than(larger)


@pytest.mark.parametrize("name", ["smoke", "standard", "full"])
def test_grids_hold_every_kind_and_no_case_twice(parts, name):
    for on_cpu in (True, False):
        cases = parts["grid"].grid(name, on_cpu=on_cpu)
        assert len(set(cases)) == len(cases)
        assert {case.kind for case in cases} == {"sft", "lora", "rm", "ppo", "inference"}
        assert {case.kind for case in cases[:5]} == {"sft", "lora", "rm", "ppo", "inference"}
        assert all(case.architecture.model_type in ("llama", "qwen3") for case in cases)


def test_texts_have_the_length_they_are_asked_for(parts):
    from charter.inference.score import encode_scored
    from charter.models.chat import encode_prompt

    grid, subjects = parts["grid"], parts["subjects"]
    case = grid.Case(kind="rm", model="charter-tiny", seq=64)
    model = subjects.preference_model(case, torch.device("cpu"))
    turns = subjects.question(32, 512, 1)
    assert len(encode_prompt(model.tokenizer, turns)) == 32
    ids, answer = encode_scored(model, turns, subjects.text_of(31, 512, 2), max_tokens=64)
    assert (len(ids), answer) == (64, 32)


def test_adapters_leave_the_model_as_it_was_and_train_alone(parts):
    grid, subjects = parts["grid"], parts["subjects"]
    case = grid.Case(kind="lora", model="charter-tiny", seq=16, lora_rank=4)
    subject = subjects.language_model(case, torch.device("cpu"))
    model = subject.model
    ids = torch.arange(2, 18)[None]
    before = model(input_ids=ids).logits
    subjects.add_lora(subject, 4)
    trained = sum(item.numel() for item in model.parameters() if item.requires_grad)
    hidden, kv, ffn, layers = 64, 32, 176, 2
    assert trained == layers * 4 * (2 * (hidden + hidden) + 2 * (hidden + kv) + 3 * (hidden + ffn))
    assert torch.equal(model(input_ids=ids).logits, before)


def test_recomputation_keeps_less_for_the_backward_pass(parts):
    def kept(recompute):
        case = parts["grid"].Case(kind="sft", model="charter-tiny", micro_batch=2, seq=64, recompute=recompute)
        child, subjects = parts["child"], parts["subjects"]
        setup = subjects.setup_of(None, torch.device("cpu"), None, recompute=recompute)
        parallel, _, loss_of = child._language_loss(case, setup)
        parallel.module.train()
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x: sizes.append(x.nbytes) or x, lambda x: x):
            loss_of([0, 1], 0)
        return sum(sizes)

    assert kept(True) < 0.7 * kept(False)


def test_it_stops_in_time_with_what_it_has(parts, monkeypatch, tmp_path):
    import measure_steps

    now = [0.0]

    def in_child(case, *settings, timeout):
        now[0] += 40
        if timeout < 40:
            return {"status": "late", "detail": "killed"}
        sizes = {"peak_gib": 1.0, "resident_gib": {"weights": 0.5}, "memory_unit": "GiB", "params_b": 0.6}
        return {"status": "ok", "metrics": {"step_time_s": 0.5}, "spread": [0.4, 0.6], "steps": 3, **sizes}

    monkeypatch.setattr(measure_steps, "in_child", in_child)
    monkeypatch.setattr(measure_steps.time, "monotonic", lambda: now[0])
    asked = argparse.Namespace(threads=1, steps=3, warmup=1, output=tmp_path / "own.csv", prefix="OWN")
    cases = list(parts["grid"].grid("smoke", on_cpu=True))
    figures = measure_steps.measure_all(cases, asked, machine(parts["rows"]), deadline=100.0)
    assert (figures["ok"], figures["no_time"], figures["late"]) == (2, len(cases) - 2, 0)
    assert len(read_measurements(tmp_path / "own.csv")) == figures["rows"] == 4
