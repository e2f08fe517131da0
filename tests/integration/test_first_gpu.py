"""The script for the first minutes with a GPU: what it measures first, and that it goes on where it was cut off."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

pytestmark = pytest.mark.torch
BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
HERE = {"device": "a", "commit": "1"}


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import first_gpu

    return first_gpu


@pytest.mark.parametrize("on_gpu", [True, False])
def test_exactness_comes_first_and_every_case_has_its_name(script, on_gpu):
    every = list(script.cases(on_gpu=on_gpu))
    names = [fields["name"] for fields in every]
    assert names[:5] == ["sft 1", "sft 2", "ppo 1", "ppo 2", "sft not strict"]
    assert len(set(names)) == len(names)
    for number, fields in enumerate(every):
        assert fields.get("like", names[0]) in names[: number + 1], "what it must be like is measured before it"
    strict = {name for name in names if not name.endswith("not strict")}
    assert all(fields.get("strict", True) == (fields["name"] in strict) for fields in every)


def test_cases_of_another_machine_or_commit_are_measured_again(script, tmp_path):
    every = [{"name": "a"}, {"name": "b"}, {"name": "c"}]
    output = tmp_path / "out.jsonl"
    lines = [{"name": "a", "machine": HERE}, {"name": "b", "machine": {**HERE, "commit": "2"}}]
    output.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"name": "c", "mach')
    assert [fields["name"] for fields in script.left(every, script.lines_of(output), HERE)] == ["b", "c"]
    assert script.left(every, script.lines_of(tmp_path / "none"), HERE) == every


def test_a_case_says_if_its_bits_are_those_it_must_have(script):
    lines = [{"name": "sft 1", "machine": HERE, "bits": "ab"}]
    for bits, same in (("ab", True), ("cd", False)):
        assert script.with_bits({"bits": bits, "machine": HERE}, "sft 1", lines)["same_bits"] is same
    assert "same_bits" not in script.with_bits({"error": "no memory", "machine": HERE}, "sft 1", lines)
    assert "same_bits" not in script.with_bits({"bits": "ab", "machine": HERE}, "", lines)


def test_a_mask_over_one_conversation_is_causal_attention(script):
    fields = {"backend": "sdpa causal", "tokens": 32, "conversations": (1, 4)}
    threads = torch.get_num_threads()
    try:
        causal = script.attention(fields, strict=True, on_gpu=False)["attention"]
        masked = script.attention({**fields, "backend": "sdpa mask"}, strict=True, on_gpu=False)["attention"]
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(False)
    assert set(causal) == {"1"}
    assert set(masked) == {"1", "4"}
    assert max(row["largest_difference"] for row in (*causal.values(), *masked.values())) < 3e-2


@pytest.mark.thorough
def test_it_goes_on_where_it_was_cut_off(tmp_path):
    command = [sys.executable, BENCHMARKS / "first_gpu.py", "-o", tmp_path / "o.jsonl", "--names", "sft 1,sft 2"]
    said = [
        subprocess.run([*command, *more], capture_output=True, text=True, timeout=300, check=True).stdout
        for more in (("--budget-seconds", "1"), ("--names", "sft 1"), (), ())
    ]
    assert "2 of 2 cases left" in said[0]
    assert "time is up" in said[0]
    assert "1 of 2 cases left" in said[2]
    assert '"same_bits": true' in said[2]
    assert "0 of 2 cases left" in said[3]


def test_benchmarks_measure_the_kernels_that_stages_run(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from measured_steps import child, grid

    seen = []
    monkeypatch.setattr(torch, "use_deterministic_algorithms", lambda on, warn_only=False: seen.append(warn_only))
    monkeypatch.setattr(child, "configure", lambda frozen: torch.device("cpu"))
    monkeypatch.setattr(child, "_inference", lambda *_, **__: {})
    child.measure(grid.Case(kind="inference", model="charter-tiny"), "cpu", 1, 1, 0)
    assert seen == [False]
    trained = [case for case in grid.grid("standard", on_cpu=False) if case.kind != "inference"]
    assert {case.precision for case in trained} == {grid.AMP}, "no stage trains in bf16 alone"
