"""Episodes on a server that speaks OpenEnv's protocol: what the policy reads, and what becomes of lost sessions."""

from contextlib import ExitStack

import pytest

torch = pytest.importorskip("torch")

import tiny
from openenv_server import guess_server

from charter.data.dataset import Turn
from charter.errors import StageError
from charter.inference.generate import Answers, SamplingSettings
from charter.inference.turns import ReplyStore, Start, Tools, TurnTaking
from charter.spec.rewards import Environment

pytestmark = pytest.mark.torch
SETTINGS = SamplingSettings(max_new_tokens=200)
ROW = {"prompt": "x", "reset": {"number": 5}}


@pytest.fixture(scope="module")
def policy():
    return tiny.language_model()


@pytest.fixture
def server():
    with guess_server() as running:
        yield running


@pytest.fixture
def play(policy, server, tmp_path):
    with ExitStack() as stack:

        def played(*turns, count=1, row=ROW, processes=1, before_turn=None, **limits):
            spec = Environment(call=f"openenv:{server.url}", concurrency=processes, **limits)
            tools = Tools(spec, {})
            stack.callback(tools.close)
            number = 0

            def says(contexts, seeds, settings):
                nonlocal number
                if before_turn is not None:
                    before_turn(number, tools)
                text, number = turns[number], number + 1
                ids = [*policy.tokenizer(text, add_special_tokens=False)["input_ids"], policy.end_id]
                rows = torch.tensor([ids] * len(contexts))
                return Answers(rows, rows.bool(), rows, torch.ones_like(rows).bool(), None)

            starts = [Start((Turn("user", "Play."),), row, seed) for seed in range(count)]
            taking = TurnTaking(spec, tools, policy, 64)
            return taking.play(starts, SETTINGS, says, ReplyStore(tmp_path / "replies.jsonl"))

        yield played


class StageKilledError(Exception):
    """Stands for the end of the stage's process, with its tools and their sessions."""


def killed_at(turn):
    """End the stage before a turn of the policy, with the processes of its tools."""

    def before_turn(number, tools):
        if number == turn:
            tools.close()
            raise StageKilledError

    return before_turn


def test_episode_is_played_to_its_end_and_rewarded(play, server):
    (answer,) = play("3", '{"guess": 5}')
    assert answer.prompt == (Turn("user", "Play.\n\nguess up to 9, seed True"),)
    assert answer.history == [Turn("assistant", "3"), Turn("tool", "higher, try 1")]
    assert (answer.why, answer.reward, answer.turns, answer.repeats) == ("done", 1.0, 2, 0)
    assert [item["data"] for item in server.messages[1:]] == [{"guess": 3}, {"guess": 5}]


def test_answers_of_a_group_begin_alike_in_sessions_of_their_own(play, server):
    answers = play("1", "5", count=4, processes=2)
    assert {answer.reward for answer in answers} == {1.0}
    resets = [item["data"] for item in server.messages if item["type"] == "reset"]
    assert len(resets) == server.opened == 4
    assert all(item == resets[0] for item in resets)
    assert not sum(answer.repeats for answer in answers)


def test_seed_is_of_the_row_unless_its_reset_says_one(play, server):
    play("5", row={"prompt": "x", "reset": {"number": 5, "seed": 11}})
    assert server.messages[0]["data"]["seed"] == 11


def test_wrong_action_is_read_by_the_policy_and_no_step(play, server):
    (answer,) = play("no number", "5")
    assert answer.history[1].content == "error: guess: must be an integer"
    assert (answer.errors, answer.reward, answer.why) == (1, 1.0, "done")
    assert server.opened == 1


def test_episode_over_its_turns_is_closed_on_the_server(play, server):
    (answer,) = play("1", "2", max_turns=2)
    assert (answer.why, answer.reward) == ("max_turns", 0.0)
    assert play("1", "2", max_turns=2)[0].reward == 0.0
    assert server.opened == 1, "a replay reads its replies and opens nothing"


def test_killed_stage_goes_on_in_a_new_session(play, server):
    with pytest.raises(StageKilledError):
        play("1", "2", "5", before_turn=killed_at(2))
    (answer,) = play("1", "2", "5")
    assert (answer.reward, answer.why, answer.repeats) == (1.0, "done", 1)
    assert [turn.content for turn in answer.history[1::2]] == ["higher, try 1", "higher, try 2"]
    assert [item["data"].get("guess") for item in server.messages] == [None, 1, 2, None, 1, 2, 5]


def test_session_that_answers_otherwise_has_failed(play, server):
    server.forgetful = True
    with pytest.raises(StageKilledError):
        play("1", "2", before_turn=killed_at(1))
    (answer,) = play("1", "2")
    assert (answer.why, answer.reward) == ("failed", None)
    assert "does not answer as the first did" in answer.reason


def test_error_of_the_server_is_a_failure_and_no_zero(play, server):
    server.broken = True
    (answer,) = play("1")
    assert (answer.why, answer.reward) == ("failed", None)
    assert "EXECUTION_ERROR: it broke" in answer.reason


def test_address_without_a_server_stops_the_stage(server):
    with pytest.raises(StageError, match="does not answer as an OpenEnv server"):
        Tools(Environment(call=f"openenv:{server.url}/nowhere"), {})
