"""Feedback stages whose models are behind a real HTTP server, which may fail."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import forks
import pytest
from waiting import eventually

torch = pytest.importorskip("torch")

import fault_server as fault_server_module
from batch_server import batch_server
from call_checks import unsettled
from fault_server import Behaviour, fault_server, set_gate

from charter.artifacts.job import write_job
from charter.artifacts.stage_dir import StageDir
from charter.errors import DataError
from charter.feedback import critique, generate, label
from charter.feedback.answering import CALLS_FILE
from charter.inference.endpoint import batch_desk
from charter.ledger.calls import CallStore
from charter.spec.project import Serving
from charter.spec.stage import CritiqueStage, GenerateStage, LabelStage

from .conftest import pair_rows, prompt_rows, published

pytestmark = pytest.mark.torch
SAMPLING = {"max_new_tokens": 16, "rollout_batch": 4}


def served(workshop, name, spec, url, *, here=(), **more):
    """A stage directory all of whose models are served at an address, except the roles `here`."""
    data = {"prompts": workshop.data("prompts", prompt_rows())}
    if isinstance(spec, LabelStage):
        data["candidates"] = workshop.data("pairs", pair_rows(6))
    roles = [role for role in ("policy", "critic", "judge") if hasattr(spec, role)]
    stage = workshop.stage(name, spec, data=data, **{role: role if role != "critic" else "control" for role in roles})
    names = {stage.job.only(role).name for role in roles if role not in here}
    told = {"concurrency": 8, "max_attempts": 30, "canary_every": 0, **more}
    serving = {model: Serving(endpoint=url, **told) for model in names}
    write_job(stage.path, replace(stage.job, serving=serving))
    return StageDir(stage.path)


def label_spec(**changes):
    told = {"judge": "j", "policy": "p", "prompts": ("d",), "pairs": 6, "candidates": ("c",), **SAMPLING, **changes}
    return LabelStage(**told)


def rows_of(stage, file="records.jsonl"):
    return [json.loads(line) for line in (stage.outputs / file).read_text().splitlines()]


def test_labels_with_a_fifth_of_all_requests_failing_are_the_labels_without(workshop):
    found = {}
    for share in (0.0, 0.2):
        with fault_server(Behaviour(faults=share, seed=3)) as (url, server):
            stage = served(workshop, f"label-{share}", label_spec(), url)
            label.run(stage)
            found[share] = published(stage)
            failed = [line for line in server.requests if line["fault"] != "ok"]
            answered = [line["question"] for line in server.requests if line["fault"] == "ok"]
            assert bool(failed) == (share > 0)
            assert len(answered) == len(set(answered)), "an answered question was asked again"
    assert found[0.0] == found[0.2]


def test_labels_by_file_are_the_labels_one_by_one(workshop, monkeypatch):
    monkeypatch.setattr(batch_desk, "GATHER_SECONDS", 0.01)
    found = {}
    with batch_server() as (url, server):
        for by_file in (True, False):
            stage = served(workshop, f"label-{by_file}", label_spec(), url, batch=by_file, batch_poll=0.01)
            label.run(stage)
            found[by_file] = published(stage)
            assert 2 <= len(server.batches) <= 6, "the candidates, and what is said of them"
    assert found[True] == found[False]


def test_critiques_by_messages_are_the_same_by_file(workshop, monkeypatch):
    monkeypatch.setattr(batch_desk, "GATHER_SECONDS", 0.01)
    spec = CritiqueStage(policy="p", critic="c", prompts=("d",), **SAMPLING)
    texts = {}
    with batch_server("messages") as (url, server):
        for by_file in (True, False):
            more = {"api": "messages", "batch": by_file, "batch_poll": 0.01, "canary_every": 256}
            stage = served(workshop, f"critique-{by_file}", spec, url, **more)
            critique.run(stage)
            texts[by_file] = published(stage)
            assert len(server.batches) >= 2, "the answers, and what is said of them"
    assert texts[True] == texts[False]


def test_a_record_names_what_the_server_says_it_is(workshop):
    with fault_server() as (url, _):
        stage = served(workshop, "label", label_spec(), url)
        label.run(stage)
    rows = rows_of(stage)
    assert len(rows) == 12
    for row in rows:
        assert row["judge_model"] == "fault-judge-1"
        assert row["judge"] == "of-judge"
        assert [item["how"] for item in row["judgements"]] == ["log_probabilities"] * 2
        assert not [key for key in row if "usd" in key or "cost" in key]


def test_the_policy_may_be_here_and_the_judge_elsewhere(workshop):
    spec = label_spec(min_new_tokens=2, max_prompt_tokens=100)
    with fault_server() as (url, server):
        one, same = (served(workshop, name, spec, url, here=("policy",)) for name in ("one", "same"))
        label.run(one)
        asked = len(server.requests)
        label.run(same)
    assert published(one) == published(same)
    assert asked == 2 * len(rows_of(one))


def test_a_served_stage_that_is_done_again_asks_nothing_again(workshop):
    """The batches are lost; the answers are in the store."""
    with fault_server() as (url, server):
        stage = served(workshop, "critique", CritiqueStage(policy="p", critic="c", prompts=("d",), **SAMPLING), url)
        critique.run(stage)
        before, asked = published(stage), len(server.requests)
        assert asked == 3 * len(prompt_rows())
        for path in (stage.path / "batches").iterdir():
            path.unlink()
        (stage.path / "record.json").unlink()
        critique.run(StageDir(stage.path))
        assert (published(stage), len(server.requests)) == (before, asked)


@pytest.mark.slow
def test_a_sigkill_loses_no_answer_and_asks_only_what_was_under_way(workshop, tmp_path):
    spec = CritiqueStage(policy="p", critic="c", prompts=("d",), revisions=2, **SAMPLING)
    gate = tmp_path / "gate"
    with fault_server(Behaviour(seconds=0.05, gate=gate)) as (url, server):
        undisturbed, killed = (served(workshop, name, spec, url) for name in ("undisturbed", "killed"))
        critique.run(undisturbed)
        server.requests.clear()
        command = [sys.executable, "-m", "charter.feedback.critique", "--stage-dir", str(killed.path)]
        kills = 0
        for wanted in (5, 20, 35):
            set_gate(gate, wanted + 8)  # of 50: however late the kill comes, the stage cannot have ended
            process = forks.Process(
                command, preload=forks.STAGES, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ
            )
            eventually(lambda: len(server.requests) >= wanted or process.poll() is not None)  # noqa: B023
            process.send_signal(signal.SIGKILL)
            kills += process.wait() == -signal.SIGKILL
        assert kills == 3
        gate.unlink()
        assert forks.run(command, preload=forks.STAGES, check=False, capture_output=True, timeout=600).returncode == 0
        asked = [line["question"] for line in server.requests]
    assert published(killed) == published(undisturbed)
    assert len(set(asked)) == 50
    told = {"run": killed.job.run, "stage": killed.job.stage, "fingerprint": killed.job.fingerprint}
    with CallStore.open(killed.path / CALLS_FILE, **told) as calls:
        unknown = len(unsettled(calls))
    assert len(asked) - len(set(asked)) <= unknown, "an answer that was on disk was asked for again"
    assert 0 < unknown <= 3 * 3 * 8, "more was under way than three times what may be in flight"


def test_a_server_known_to_give_no_log_probabilities_needs_votes(workshop):
    with fault_server() as (url, server):
        stage = served(workshop, "label", label_spec(), url, log_probabilities="none")
        with pytest.raises(DataError, match=r"(?s)the server of judge gives no log-probabilities.*votes: 5"):
            label.run(stage)
        assert server.requests == [], "answers were sampled, and paid for, that cannot be judged"


def test_a_server_found_to_give_none_ends_the_stage_with_its_first_batch(workshop, monkeypatch):
    """It says that it gives them, and does not."""
    real = fault_server_module.reply_to

    def silent(body, *more):
        return real({key: value for key, value in body.items() if key not in ("logprobs", "top_logprobs")}, *more)

    monkeypatch.setattr(fault_server_module, "reply_to", silent)
    with fault_server() as (url, server):
        spec = label_spec(policy=None, pairs=0, rollout_batch=2)
        stage = served(workshop, "label", spec, url)
        write_job(
            stage.path, replace(stage.job, serving={"judge": Serving(endpoint=url, concurrency=1, canary_every=0)})
        )
        with pytest.raises(DataError, match=r"(?s)gives log-probabilities for none of 2 pairs.*votes: 5"):
            label.run(StageDir(stage.path))
        assert len(server.requests) <= 2 * 2 * 3 * 2, "more than the batches under way was asked"


def test_votes_that_say_nothing_fail_the_stage(workshop):
    with fault_server() as (url, _):
        spec = label_spec(policy=None, pairs=0, votes=3)
        stage = served(workshop, "label", spec, url, log_probabilities="none")
        with pytest.raises(DataError, match=r"6 of 6 pairs have no valid judgement \(100.0%\); max_invalid_share is"):
            label.run(stage)
        assert not stage.is_done


def test_refused_questions_are_counted_and_set_aside_within_the_share_allowed(workshop):
    with fault_server(Behaviour(script=["refusal"] * 3)) as (url, _):
        spec = label_spec(policy=None, pairs=0, max_invalid_share=0.5, both_orders=False, rollout_batch=1)
        stage = served(workshop, "label", spec, url, log_probabilities="top")
        write_job(
            stage.path, replace(stage.job, serving={"judge": Serving(endpoint=url, concurrency=1, canary_every=0)})
        )
        label.run(StageDir(stage.path))
    summary = json.loads((stage.outputs / "summary.json").read_text())
    assert summary["invalid_judgements"] == summary.get("invalid/refused", 0)
    aside = rows_of(stage, "set_aside.jsonl") if (stage.outputs / "set_aside.jsonl").exists() else []
    assert len(aside) == summary["invalid_judgements"]
    assert len(rows_of(stage)) + len(aside) == 6


def test_too_many_invalid_answers_fail_the_stage_and_a_larger_share_goes_on_from_what_is_there(workshop):
    with fault_server(Behaviour(script=["refusal"] * 6)) as (url, server):
        spec = label_spec(policy=None, pairs=0, max_invalid_share=0.1, both_orders=False, rollout_batch=1)
        stage = served(workshop, "label", spec, url)
        told = {"serving": {"judge": Serving(endpoint=url, concurrency=1, canary_every=0)}}
        job = replace(stage.job, **told)
        write_job(stage.path, job)
        summary = stage.outputs / "summary.json"
        with pytest.raises(DataError, match=r"of 6 pairs have no valid judgement"):
            label.run(StageDir(stage.path))
        asked = len(server.requests)
        assert not summary.exists()
        write_job(stage.path, replace(job, spec=replace(spec, max_invalid_share=1.0)))
        label.run(StageDir(stage.path))
        assert len(server.requests) == asked
        assert json.loads(summary.read_text())["invalid_judgements"] > 0


def test_a_format_that_no_server_can_answer_is_refused_before_anything_is_paid(workshop):
    with fault_server() as (url, server):
        stage = served(workshop, "label", label_spec(format="yes_no_mean"), url)
        with pytest.raises(DataError, match="no endpoint gives"):
            label.run(stage)
        assert server.requests == []


def test_answers_and_prompts_are_made_by_a_server_as_well(workshop):
    with fault_server() as (url, _):
        answers = served(workshop, "answers", GenerateStage(policy="p", prompts=("d",), **SAMPLING), url)
        generate.run(answers)
        spec = GenerateStage(policy="p", prompts=("d",), makes="prompts", num_prompts=7, **SAMPLING)
        prompts = served(workshop, "prompts", spec, url)
        generate.run(prompts)
    assert all(row["messages"][-1]["content"].startswith("Answer") for row in rows_of(answers))
    assert [row["policy_model"] for row in rows_of(prompts)] == ["fault-judge-1"] * 7
