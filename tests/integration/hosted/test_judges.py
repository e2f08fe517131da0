"""Judges of a stage that another engine computes: its reward function asks them as Charter's own engine would."""

import json
import urllib.error
import urllib.request
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import faked
import pytest

torch = pytest.importorskip("torch")

from fault_server import Behaviour, fault_server

import charter.hosted.run as hosted
from charter.artifacts.allowance import CallAllowance, allow
from charter.artifacts.group import NODE_ADDRESS
from charter.artifacts.job import Job, JobInput, write_job
from charter.artifacts.stage_dir import StageDir
from charter.data.dataset import Turn
from charter.engines import render
from charter.engines.common.reward_file import JUDGES_FILE
from charter.errors import BudgetError, DataError, StageError
from charter.feedback.answering import CALLS_FILE
from charter.inference.endpoint import gate
from charter.inference.limited import Failed
from charter.launch.job import ENGINE_NODES
from charter.ledger.calls import CallStore
from charter.models.engine_layout import StageLayout
from charter.models.ranks import Ranks
from charter.spec.project import Serving
from charter.spec.rewards import Reward, Rubric
from charter.train.judge_reward import JudgeReward, JudgeService, judge_score, serving_judges
from charter.train.meter import Meter
from charter.train.rewards.mixture import Answer
from charter.train.setup import Setup
from plain_stages import accepted_stage

pytestmark = pytest.mark.torch
TRAINER = Path(__file__).with_name("judged_trainer.py")
CONSTITUTION = """
schema: charter.constitution/v1
principles:
  - {id: kind, critique: "Is it kind?", revision: "Make it kind.", compare: "Is it kind?"}
  - {id: brief, critique: "Is it brief?", revision: "Make it brief.", compare: "Is it brief?"}
"""
REWARDS = (
    Reward(name="good", kind="judge", model="j"),
    Reward(name="principles", kind="judge", model="j", rubric=Rubric(), weight=0.5),
    Reward(name="met", kind="judge", model="j", rubric=Rubric(ask="checklist", only=("brief",)), weight=0.0),
    Reward(name="read", kind="function", call="charter:regex", arguments={"pattern": ".*book.*"}),
)
PRICED = {
    "concurrency": 8, "max_attempts": 3, "canary_every": 0,
    "usd_per_million_input_tokens": 1.0, "usd_per_million_output_tokens": 2.0,
}  # fmt: skip


def render_judged(handover):
    """The files as Charter writes them for TRL, and the command of the fake engine."""
    return replace(faked.render(handover), files=render(handover).files)


@pytest.fixture(autouse=True)
def engine(monkeypatch, tmp_path):
    """TRL's place is taken by a trainer that asks the rewards; where it writes them."""
    monkeypatch.setattr(faked, "TRAINER", TRAINER)
    monkeypatch.setattr(hosted, "render", render_judged)
    monkeypatch.setenv("RATINGS", str(tmp_path / "ratings"))
    return tmp_path / "ratings"


def stage_of(path, inputs, url, *, rewards=REWARDS, serving=PRICED, **changes):
    spec = accepted_stage(
        "trl", "ppo", estimator="grpo", samples_per_prompt=2, policy="p", prompts=("q",), reward=None, rewards=rewards,
        episodes=24, rollout_batch=4, minibatch=4, checkpoint_every=2, dtype="fp32", **changes,
    )  # fmt: skip
    read = {"policy": (inputs / "base", "sft"), "prompts": (inputs / "chats", "critique"), "judge": (None, None)}
    job = Job(
        run="test",
        stage="rl",
        kind="ppo",
        fingerprint="a" * 64,
        seed=7,
        spec=spec,
        inputs={
            role: (
                JobInput(
                    name="j" if where is None else role, role=role, source="model" if where is None else "stage",
                    path=None if where is None else str(where), fingerprint="0" * 64, stage_kind=maker,
                ),
            )
            for role, (where, maker) in read.items()
        },
        constitution=str(path / "constitution.yaml"),
        frozen={"threads": 1, "device": "cpu", "engine": "trl", "trl": "1.16.0"},
        keep_last=2,
        serving={"j": Serving(endpoint=url, **serving)},
    )  # fmt: skip
    path.mkdir(exist_ok=True)
    (path / "constitution.yaml").write_text(CONSTITUTION)
    write_job(path, job)
    return StageDir(path)


def run(stage, monkeypatch, fault="none"):
    monkeypatch.setenv(faked.FAULT, fault)
    hosted.run(stage)


def rated(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def bill_of(stage):
    job = stage.job
    where = job.ledger or stage.path / CALLS_FILE
    with CallStore.open(where, run=job.run, stage=job.stage, fingerprint=job.fingerprint) as store:
        return store.totals().sums


def native(stage, carried, answers):
    """What Charter's own engine gives for the same answers."""
    setup = Setup(stage=stage, ranks=Ranks(), layout=StageLayout(), meter=Meter(stage.path, device=torch.device("cpu")))
    texts = [json.loads(text) for text in carried]
    given = [
        Answer(
            turns=tuple(Turn(turn["role"], turn["content"]) for turn in item["turns"]),
            text=answer, row=item["row"], tokens=1, ended=True, seed=number,
        )
        for number, (item, answer) in enumerate(zip(texts, answers, strict=True))
    ]  # fmt: skip
    with ExitStack() as stack:
        judges = JudgeReward.open(setup, stage.job.spec, stack)
        return [judge_score(item, judges["j"], samples=1)(given) for item in REWARDS if item.kind == "judge"]


def test_a_judge_rates_as_in_charters_own_engine(tmp_path, inputs, monkeypatch, engine):
    with fault_server() as (url, server):
        stage = stage_of(tmp_path / "s", inputs, url)
        taken = []
        monkeypatch.setattr(hosted, "discard", lambda work: taken.append((work / "data" / "prompts.jsonl").read_text()))
        run(stage, monkeypatch)
        calls = len(server.requests)
        rows = [json.loads(line) for line in taken[0].splitlines()]
        own = stage_of(tmp_path / "own", inputs, url)
        answers = [f"Read a book about number {number % 9}." for number in range(len(rows))]
        expected = native(own, [row["charter"] for row in rows], answers)
        assert len(server.requests) == 2 * calls
    [columns] = rated(engine)
    assert columns == [*expected, [1.0] * len(rows)]
    assert len({rating for column in expected for rating in column}) > 12
    assert bill_of(stage) == bill_of(own)
    assert bill_of(stage).settled_micro_usd > 0


def test_judges_are_asked_from_all_nodes_of_an_engine(tmp_path, inputs, monkeypatch, engine):
    """The first node's address, which the launcher tells; alone, the loopback."""
    addresses = []
    monkeypatch.setattr(hosted, "discard", lambda work: addresses.append(json.loads((work / JUDGES_FILE).read_text())))
    monkeypatch.setenv(NODE_ADDRESS, "127.0.0.2")
    with fault_server() as (url, _):
        for nodes in ("0", "1"):
            monkeypatch.setenv(ENGINE_NODES, nodes)
            run(stage_of(tmp_path / nodes, inputs, url), monkeypatch)
    alone, apart = rated(engine)
    assert alone == apart
    assert [item["url"].rpartition(":")[0] for item in addresses] == ["http://127.0.0.1", "http://127.0.0.2"]


def test_a_killed_engine_buys_nothing_twice(tmp_path, inputs, monkeypatch, engine):
    with fault_server() as (url, server):
        stage = stage_of(tmp_path / "s", inputs, url)
        with pytest.raises(SystemExit):
            run(stage, monkeypatch, "kill:4")
        calls, bill = len(server.requests), bill_of(stage)
        run(stage, monkeypatch)
        assert (len(server.requests), bill_of(stage)) == (calls, bill)
    first, second = rated(engine)
    assert first == second
    assert stage.is_done


def test_a_spent_budget_ends_the_engine_and_is_no_reward(tmp_path, inputs, monkeypatch, engine):
    monkeypatch.setattr(gate, "GRACE_SECONDS", 0.0)
    with fault_server() as (url, server):
        stage = stage_of(tmp_path / "s", inputs, url)
        allow(stage.path, CallAllowance(micro_usd=1_500))
        with pytest.raises(BudgetError, match="the budget leaves them"):
            run(stage, monkeypatch)
        assert not engine.exists()
        assert 0 < bill_of(stage).most_micro_usd <= 1_500
        calls = len(server.requests)
        allow(stage.path, CallAllowance(number=1))
        run(stage, monkeypatch)
        questions = [line["question"] for line in server.requests]
        assert len(questions) == len(set(questions)) > calls > 0
    assert len(rated(engine)) == 1


def test_a_judge_that_rates_nothing_ends_the_stage(tmp_path, inputs, monkeypatch, engine):
    with fault_server() as (url, _):
        stage = stage_of(tmp_path / "s", inputs, url, rewards=REWARDS[:1], serving={**PRICED, "api": "messages"})
        with pytest.raises(
            StageError, match=r"gave no rating for 1 answers of a rollout \(no log-probabilities given\)"
        ):
            run(stage, monkeypatch)
    assert not engine.exists()


def test_a_server_that_fails_for_good_ends_the_stage(tmp_path, inputs, monkeypatch, engine):
    with fault_server(Behaviour(script=["401"] * 99)) as (url, _), pytest.raises(DataError, match="401"):
        run(stage_of(tmp_path / "s", inputs, url), monkeypatch)
    assert not engine.exists()


def test_faults_of_the_server_change_no_rating(tmp_path, inputs, monkeypatch, engine):
    for share in (0.0, 0.2):
        with fault_server(Behaviour(faults=share, seed=3)) as (url, _):
            stage = stage_of(tmp_path / f"s-{share}", inputs, url, serving={**PRICED, "max_attempts": 30})
            run(stage, monkeypatch)
    first, second = rated(engine)
    assert first == second


@pytest.fixture
def service(tmp_path, inputs):
    with fault_server() as (url, server):
        stage = stage_of(tmp_path / "s", inputs, url)
        setup = Setup(
            stage=stage, ranks=Ranks(), layout=StageLayout(), meter=Meter(stage.path, device=torch.device("cpu"))
        )
        with serving_judges(setup, stage.job.spec, "secret", host="127.0.0.1", drops_failed=False) as (judges, address):
            yield judges, address, server


QUESTION = {"reward": "good", "answer": "Read.", "turns": [{"role": "user", "content": "How?"}], "row": {}}


def ask(address, question, key="secret"):
    data = question if isinstance(question, bytes) else json.dumps(question).encode()
    request = urllib.request.Request(address, data, {"Authorization": f"Bearer {key}"})
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)["rating"]


@pytest.mark.parametrize(
    ("question", "key", "status"),
    [
        (QUESTION, "", 401),
        (QUESTION, "another", 401),
        ({**QUESTION, "reward": "read"}, "secret", 400),
        ({"reward": "good"}, "secret", 400),
        ([QUESTION], "secret", 400),
        (b"{", "secret", 400),
    ],
)
def test_a_request_that_is_none_asks_nothing(service, question, key, status):
    judges, address, server = service
    with pytest.raises(urllib.error.HTTPError) as caught:
        ask(address, question, key)
    assert (caught.value.code, server.requests, judges.failure) == (status, [], None)
    assert -1 < ask(address, QUESTION) < 1
    assert len(server.requests) == 1


class Looked:
    """An answerer of which only the looks are counted."""

    looks = 0

    def confirm(self):
        self.looks += 1


def counted(outcomes, most_failed):
    answers = iter(outcomes)
    job = type("Job", (), {"seed": 7, "stage": "rl"})
    scores = {"good": lambda given: [next(answers)]}
    return JudgeService(
        job=job, scores=scores, answerer=Looked(), rollout=4, most_failed=most_failed, key="k", judges={}
    )


def test_the_servers_are_looked_at_after_each_rollout():
    judges = counted([0.5] * 9, 0)
    assert [judges.rate(QUESTION) for _ in range(9)] == [0.5] * 9
    assert judges.answerer.looks == 2


def test_more_failures_than_a_rollout_may_have_end_it():
    failed = Failed("no answer")
    judges = counted([failed, 0.5, 0.5, 0.5, failed, None, failed, 0.5], 1)
    assert [judges.rate(QUESTION) for _ in range(6)] == [failed, 0.5, 0.5, 0.5, failed, None]
    with pytest.raises(StageError, match="for 2 answers of a rollout"):
        judges.rate(QUESTION)
    with pytest.raises(StageError, match="for 2 answers of a rollout"):
        judges.rate(QUESTION)
