"""Stages whose servers change their weights under one name: noticed before answers of two models are mixed."""

import json
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from call_checks import checked_totals
from fault_server import Behaviour, fault_server, set_gate

from charter.artifacts.job import write_job
from charter.artifacts.stage_dir import StageDir
from charter.feedback import label
from charter.feedback.answering import CALLS_FILE
from charter.inference.endpoint.identity import ModelChangedError
from charter.ledger.calls import CallStore
from charter.physics.identity_questions import QUESTIONS, REPEATS, IdentityWatch
from charter.spec.project import Serving
from charter.spec.stage import LabelStage

from .conftest import pair_rows, published

pytestmark = pytest.mark.torch
EVERY, AT_ONCE, PAIRS = 8, 2, 30
BASELINE = REPEATS * len(QUESTIONS)


def stage_of(workshop, name, *urls, **more):
    """A stage that labels pairs with one served judge, in a place of its own."""
    spec = LabelStage(judge="j", candidates=("c",), max_new_tokens=16, rollout_batch=2)
    stage = workshop.stage(name, spec, data={"candidates": workshop.data("pairs", pair_rows(PAIRS))}, judge="judge")
    return served_by(stage, *urls, **more)


def served_by(stage, *urls, **more):
    told = {"concurrency": AT_ONCE, "canary_every": EVERY, "max_attempts": 30, **more}
    serving = Serving(endpoint=urls[0], also_endpoints=urls[1:], **told)
    write_job(stage.path, replace(stage.job, serving={stage.job.only("judge").name: serving}))
    return StageDir(stage.path)


def undo(stage):
    """Lose what a finished stage has made; the answers stay stored."""
    (stage.path / "record.json").unlink()
    for path in (stage.path / "batches").iterdir():
        path.unlink()


def questions_of(server):
    """Requests that are no canaries."""
    return [prompt for prompt in server.prompts if prompt not in QUESTIONS]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Outputs without a change of weights, filled by the first test that needs them."""
    return {}


def labels(workshop, undisturbed):
    if not undisturbed:
        with fault_server() as (url, _):
            stage = stage_of(workshop, "undisturbed", url, canary_every=0)
            label.run(stage)
        undisturbed["labels"] = published(stage)
    return undisturbed["labels"]


@pytest.mark.parametrize("faults", [0.0, 0.2])
def test_a_server_that_stays_the_same_is_asked_now_and_then(workshop, undisturbed, faults):
    with fault_server(Behaviour(faults=faults, seed=5)) as (url, server):
        stage = stage_of(workshop, "same", url)
        label.run(stage)
        rounds = [prompt for prompt in server.prompts if prompt in QUESTIONS]
        asked = len(questions_of(server))
    assert published(stage) == labels(workshop, undisturbed)
    if not faults:
        planned = IdentityWatch(every=EVERY).rounds(asked)
        assert len(rounds) == len(QUESTIONS) * planned, "the number that a plan counts"
    with CallStore.open(
        stage.path / CALLS_FILE, run=stage.job.run, stage=stage.job.stage, fingerprint=stage.job.fingerprint
    ) as calls:
        # A server that closes a connection never sees a request that was on its way.
        lost = checked_totals(calls).sums.requests - len(server.requests)
        assert lost >= 0 if faults else lost == 0, "every request is in the ledger"


@pytest.mark.parametrize("swap_after", [BASELINE, BASELINE + 21])
def test_weights_swapped_in_mid_stage_are_noticed_within_a_batch(workshop, undisturbed, swap_after):
    with fault_server(Behaviour(swap_after=swap_after)) as (url, server):
        stage = stage_of(workshop, "swapped", url)
        with pytest.raises(ModelChangedError, match="no longer serves the model") as error:
            label.run(stage)
        assert "--accept-model judge" in str(error.value) or "--accept-model of-judge" in str(error.value)
        since = sum(prompt not in QUESTIONS for prompt in server.prompts[swap_after:])
        assert since <= 2 * EVERY + AT_ONCE, "those until a round is due, those while it is out, and those on their way"
        assert not stage.is_done
    # The first model is back: what the other one said is asked again, and the labels are those of one model.
    with fault_server() as (url, _):
        label.run(served_by(stage, url))
    assert published(stage) == labels(workshop, undisturbed)


def test_a_stage_resumed_with_other_weights_stops_before_it_asks(workshop, undisturbed):
    with fault_server(Behaviour(swap_after=BASELINE + 21)) as (url, server):
        stage = stage_of(workshop, "resumed", url)
        with pytest.raises(ModelChangedError):
            label.run(stage)
    with fault_server(Behaviour(weights="other")) as (url, server):
        with pytest.raises(ModelChangedError):
            label.run(served_by(stage, url))
        assert questions_of(server) == []


def test_a_replica_with_other_weights_answers_nothing(workshop, tmp_path):
    set_gate(tmp_path / "gate", BASELINE)  # the first one gives no answer before the other has been looked at
    with (
        fault_server(Behaviour(gate=tmp_path / "gate")) as (first, _),
        fault_server(Behaviour(weights="other")) as (other, server),
    ):
        with pytest.raises(ModelChangedError, match=other):
            label.run(stage_of(workshop, "replicas", first, other))
        assert questions_of(server) == []


def test_another_address_of_the_same_model_buys_nothing_again(workshop):
    with fault_server() as (url, _):
        stage = stage_of(workshop, "moved", url)
        label.run(stage)
        before = published(stage)
    undo(stage)
    with fault_server() as (url, server):
        label.run(served_by(stage, url))
        assert server.requests == []
    assert published(stage) == before


def test_a_server_that_lists_another_root_is_refused(workshop):
    with (
        fault_server(Behaviour(root="/models/llama")) as (first, _),
        fault_server(Behaviour(root="/else/llama/")) as (same, _),
        fault_server(Behaviour(root="/models/qwen")) as (other, server),
    ):
        stage = stage_of(workshop, "root", first)
        label.run(stage)
        undo(stage)
        label.run(served_by(stage, same))
        undo(stage)
        (stage.path / CALLS_FILE).unlink()
        with pytest.raises(ModelChangedError, match="lists root 'qwen', where it was 'llama'"):
            label.run(served_by(stage, other))
        assert server.requests == []


def test_a_server_without_log_probabilities_is_compared_by_text(workshop):
    with fault_server(Behaviour(swap_after=BASELINE + 30)) as (url, _):
        stage = stage_of(workshop, "texts", url, log_probabilities="none")
        write_job(stage.path, replace(stage.job, spec=replace(stage.job.spec, votes=3)))
        with pytest.raises(ModelChangedError):
            label.run(StageDir(stage.path))
    models = stage.of_run("models")
    kept = json.loads(next(path for path in models.glob("*.json") if "sound" not in path.name).read_text())
    assert kept["how"] == "text"
    assert len(kept["repeats"]) == REPEATS
