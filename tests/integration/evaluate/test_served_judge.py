"""Suites whose judge is behind a real HTTP server, which may fail."""

import json
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from fault_server import Behaviour, fault_server

from charter.artifacts.job import write_job
from charter.artifacts.stage_dir import StageDir
from charter.errors import DataError, InterruptedRunError
from charter.evaluate import run
from charter.spec.project import Serving
from charter.spec.stage import EvalStage

from .conftest import SAMPLING, in_their_intervals, pair_rows, prompt_rows

pytestmark = pytest.mark.torch
SUITES = ("judge_agreement", "judge_win_rate", "refusal")


def served(workshop, name, url, **told):
    """An eval stage whose two judges are served, and nothing else."""
    spec = EvalStage(policy="p", suites=SUITES, **{**SAMPLING, "rollout_batch": 16})
    data = {
        "pairs": workshop.data("pairs", pair_rows(8)),
        "prompts": workshop.data("prompts", prompt_rows()),
        "refusal_prompts": workshop.data("refused", prompt_rows()[:4]),
    }
    models = {"policy": "policy", "against": "control", "judge": "judge", "also_judges": ("reward",)}
    stage = workshop.stage(name, spec, data=data, **models)
    serving = {name: Serving(endpoint=url, max_attempts=30, canary_every=0, **told) for name in ("judge", "reward")}
    write_job(stage.path, replace(stage.job, serving=serving))
    return StageDir(stage.path)


def test_figures_with_a_fifth_of_all_requests_failing_are_the_figures_without(workshop):
    found = {}
    for share in (0.0, 0.2):
        with fault_server(Behaviour(faults=share, seed=7)) as (url, server):
            stage = served(workshop, f"served-{share}", url)
            run.run(stage)
            found[share] = (stage.outputs / "results.json").read_bytes()
            assert any(line["fault"] != "ok" for line in server.requests) == (share > 0)
    assert found[0.0] == found[0.2]
    figures = {figure["key"]: figure for figure in json.loads(found[0.0])["figures"]}
    assert in_their_intervals(figures)
    assert {key.split(".")[0] for key in figures} == set(SUITES)


def test_a_stop_inside_a_suite_loses_no_answer(workshop):
    with fault_server(Behaviour(seconds=0.02)) as (url, server):
        whole = served(workshop, "whole", url)
        run.run(whole)
        asked = len(server.requests)
        server.requests.clear()
        stopped = served(workshop, "stopped", url)
        with pytest.raises(InterruptedRunError, match="inside a suite"):
            run.run(StageDir(stopped.path, should_stop=lambda: len(server.requests) > 5))
        assert not stopped.outputs.exists()
        run.run(StageDir(stopped.path))
        answered = {line["question"] for line in server.requests}
    assert (stopped.outputs / "results.json").read_bytes() == (whole.outputs / "results.json").read_bytes()
    assert len(answered) == asked, "the same questions, each of them once"


def test_a_judge_that_gives_no_log_probabilities_and_no_readable_answer_is_an_error(workshop):
    with (
        fault_server() as (url, _),
        pytest.raises(DataError, match=r"gave no valid answer to any of 8 questions .*log-probabilities"),
    ):
        run.run(served(workshop, "silent", url, log_probabilities="none"))


def test_two_judges_with_one_served_name_are_both_asked(workshop):
    """Many servers call everything `default`; what charter.yaml calls a model is what it is."""
    with (
        fault_server(Behaviour(model="default")) as (first, asked_first),
        fault_server(Behaviour(model="default")) as (second, asked_second),
    ):
        stage = served(workshop, "one-name", first, model="default")
        serving = stage.job.serving | {"reward": replace(stage.job.serving["reward"], endpoint=second)}
        write_job(stage.path, replace(stage.job, serving=serving))
        run.run(StageDir(stage.path))
        questions = [{line["question"] for line in server.requests} for server in (asked_first, asked_second)]
    assert questions[1], "the second judge was asked"
    assert questions[1] <= questions[0], (
        "each of its questions was put to the first as well, and neither stood for both"
    )
