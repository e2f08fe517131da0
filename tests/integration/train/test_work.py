"""Every kind of training stage counts what it reads, and its operations are those of a sum by hand."""

import pytest

torch = pytest.importorskip("torch")

import tiny
from engine_bench import metrics, run, stage

from charter.artifacts.job import PlannedStep, write_planned_step
from charter.physics.flops import forward_flops_per_token
from charter.train import (
    dpo,
    judge,
    ppo,
    preference_model,
    sft,
    work,
)

pytestmark = pytest.mark.torch
PHASES = ("generate", "score", "update", "save", "wait", "other")
PLANNED = PlannedStep(
    seconds_per_step=2.0, seconds_by_phase={"update": 2.0}, peak_bytes=1e6, bytes_by_part={}, flops_per_step=1.0
)


@pytest.fixture
def measured(engine_inputs, tmp_path, monkeypatch):
    """(module, changes of the spec) -> lines of metrics, and what the meter was told of every step."""

    def run_stage(module, **changes):
        told, set_up = [], module.set_up

        def watched(found):
            made = set_up(found)
            plain = made.meter.add
            made.meter.add = lambda counters: (told.append(dict(counters)), plain(counters))
            return made

        monkeypatch.setattr(module, "set_up", watched)
        kind = module.__name__.rpartition(".")[2]
        made = stage(engine_inputs, tmp_path / kind, kind, **changes)
        write_planned_step(made.path, PLANNED)
        return metrics(run(made, module)), told

    return run_stage


def per_token(tokens, sequences, logits):
    """Operations of a forward pass, with `logits` positions through the head."""
    found = forward_flops_per_token(tiny.ARCHITECTURE, tokens / sequences)
    return found.total - found.head + found.head * logits / tokens


def operations(line):
    """Of one line of metrics: its rate times its time."""
    return line["model_flops_per_second"] * sum(line[f"seconds_{phase}"] for phase in PHASES)


def check_figures(lines):
    for line in lines:
        assert all(line[f"seconds_{phase}"] >= 0 for phase in PHASES)
        assert line["allocated_bytes"] <= line["peak_bytes"]
        assert line["actual_over_planned_bytes"] == line["peak_bytes"] / PLANNED.peak_bytes
        spent = sum(line[f"seconds_{phase}"] for phase in PHASES if phase != "save")
        assert line["actual_over_planned_seconds"] == pytest.approx(spent / PLANNED.seconds_per_step)
        assert "mfu" not in line


def test_a_supervised_stage(measured):
    lines, told = measured(sft)
    check_figures(lines)
    assert len(lines) == len(told) == 4
    for line, counters in zip(lines, told, strict=True):
        tokens, logits = counters["tokens"], counters["logits"]
        assert 0 < logits < tokens
        assert operations(line) == pytest.approx(3 * tokens * per_token(tokens, 8, logits))
        assert line["seconds_update"] > 0


def test_a_preference_model_and_dpo_read_two_sequences_of_a_pair(measured):
    for module, forwards, head in ((preference_model, 3, 0), (dpo, 4, 1)):
        lines, told = measured(module, steps=2)
        check_figures(lines)
        for line, counters in zip(lines, told, strict=True):
            tokens, logits = counters["tokens"], counters["logits"]
            assert (logits > 0) == bool(head)
            assert operations(line) == pytest.approx(forwards * tokens * per_token(tokens, 16, logits))


def test_a_judge_reads_two_questions_of_a_pair(measured):
    lines, told = measured(judge, steps=2)
    for line, counters in zip(lines, told, strict=True):
        tokens = counters["tokens"]
        assert counters["logits"] == 16
        assert operations(line) == pytest.approx(3 * tokens * per_token(tokens, 16, 16))


def test_ppo(measured):
    lines, told = measured(ppo)
    check_figures(lines)
    assert len(lines) == len(told) == 2
    for line, counters in zip(lines, told, strict=True):
        tokens, logits = counters["tokens"], counters["logits"]
        assert counters["minibatches"] == 4
        assert line["response_tokens"] * 8 == pytest.approx(logits)
        policy, scalar = tokens * per_token(tokens, 8, logits), tokens * per_token(tokens, 8, 0)
        assert operations(line) == pytest.approx((3 + 2 * 3) * policy + (1 + 1 + 2 * 3) * scalar)
        assert all(line[f"seconds_{phase}"] > 0 for phase in ("generate", "score", "update"))


def test_without_a_critic_its_operations_are_not_counted(measured):
    lines, told = measured(ppo, estimator="rloo", samples_per_prompt=2)
    for line, counters in zip(lines, told, strict=True):
        tokens, logits = counters["tokens"], counters["logits"]
        policy, scalar = tokens * per_token(tokens, 8, logits), tokens * per_token(tokens, 8, 0)
        assert operations(line) == pytest.approx((3 + 2 * 3) * policy + scalar)


def test_a_model_that_the_planner_does_not_know_has_no_operations(measured, monkeypatch):
    monkeypatch.setattr(work, "_architecture", lambda config: None)
    lines, _ = measured(sft, steps=1)
    assert "model_flops_per_second" not in lines[0]
    assert lines[0]["tokens_per_second"] > 0
