"""Episodes of verifiers itself, whose process is one of its environment: turns, rewards by name, kills, refusals."""

import json
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from engine_case import ask_engine, engine_python

from charter.data.dataset import Turn
from charter.inference.generate import Answers, SamplingSettings
from charter.inference.turns import ReplyStore, Start, Tools, TurnTaking
from charter.models.chat import train_tokenizer
from charter.models.language_model import new_language_model
from charter.spec.architecture import Architecture
from charter.spec.rewards import Environment

FILE = Path(__file__).with_name("guess_taskset.py")
ROW = {"task": {"prompt": "Guess up to 9.", "system_prompt": "Digits alone.", "number": 5}}
OFFERED = {"row": ROW, "turns": [{"role": "user", "content": "x"}], "truth": None, "seed": 1}
SCORES = {"right": 1.0, "turns_taken": 3.0, "is_truncated": 0.0}


@pytest.fixture(scope="module")
def policy():
    size = {"hidden_size": 32, "num_layers": 2, "num_heads": 2, "intermediate_size": 64, "vocab_size": 512}
    architecture = Architecture(**size, tied_embeddings=True, max_position_embeddings=512)
    return new_language_model(architecture, train_tokenizer(["Guess a number up to 9."] * 4, vocab_size=400), seed=0)


def opened(taskset):
    """An environment whose process is of the interpreter of verifiers."""
    spec = Environment(call=f"verifiers:{taskset}", role="user", tool_timeout=60.0)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "executable", str(engine_python("verifiers")))
        return Tools(spec, {str(taskset): taskset} if spec.sources else {})


@pytest.fixture(scope="module")
def tools():
    own = opened(FILE)
    yield own
    own.close()


@pytest.fixture
def play(policy, tools, tmp_path):
    def played(*turns, count=1, before_turn=None, **limits):
        spec = Environment(call=f"verifiers:{FILE}", role="user", **limits)
        number = 0

        def says(contexts, seeds, settings):
            nonlocal number
            if before_turn is not None:
                before_turn(number)
            text, number = turns[number], number + 1
            ids = [*policy.tokenizer(text, add_special_tokens=False)["input_ids"], policy.end_id]
            rows = torch.tensor([ids[: settings.max_new_tokens]] * len(contexts))
            return Answers(rows, rows.bool(), rows, torch.ones_like(rows).bool(), None)

        starts = [Start((Turn("user", "x"),), ROW, seed) for seed in range(count)]
        taking = TurnTaking(spec, tools, policy, 128)
        settings = SamplingSettings(max_new_tokens=limits.get("turn_tokens", 200))
        return taking.play(starts, settings, says, ReplyStore(tmp_path / "replies.jsonl"))

    return played


def step(tools, said, answer):
    return tools.ask({"operation": "step", "answer": answer, "state": said["state"]}, 0)


def reset(tools, row=ROW):
    return tools.ask({"operation": "reset", "offered": {**OFFERED, "row": row}, "state": None}, 0)


@pytest.mark.smoke
def test_game_is_played_and_rated_by_name(play):
    answers = play("3", "7", "5", count=2)
    assert [answer.reward for answer in answers] == [2.0 - 0.5 * 3] * 2
    (answer, other) = answers
    assert answer.prompt == (Turn("system", "Digits alone."), Turn("user", "Guess up to 9."))
    assert answer.history[1::2] == [Turn("user", "higher, try 1"), Turn("user", "lower, try 2")]
    assert (answer.why, answer.turns, dict(answer.scores)) == ("done", 3, SCORES)
    assert answer.own_tokens == sum(answer.is_own) < len(answer.is_own)
    assert other.ids == answer.ids


def test_stop_of_the_task_ends_the_conversation(play):
    (answer,) = play("3", "I give up")
    assert (answer.why, answer.scores["right"], answer.scores["turns_taken"]) == ("done", 0.0, 2.0)


def test_turn_that_is_cut_is_the_last_and_is_rated(play):
    (answer,) = play("I do not know which number it could be", turn_tokens=4)
    assert (answer.why, answer.turns) == ("max_tokens", 1)
    assert answer.scores == {"right": 0.0, "turns_taken": 1.0, "is_truncated": 1.0}


def test_answer_over_its_turns_is_rated_as_it_stands(play):
    (answer,) = play("3", "7", max_turns=2)
    assert (answer.why, answer.reward) == ("max_turns", -1.0)
    assert answer.scores == {"right": 0.0, "turns_taken": 2.0, "is_truncated": 1.0}
    (again,) = play("3", "7", max_turns=2)
    assert (again.reward, again.scores) == (answer.reward, answer.scores)


def test_error_in_a_score_is_a_failure_and_no_zero(play):
    (answer,) = play("I give up", "break")
    assert answer.why == "done"
    (answer,) = play("3", "break", max_turns=2)
    assert (answer.why, answer.reward) == ("failed", None)
    assert "it broke" in answer.reason


class StageKilledError(Exception):
    """Stands for the end of the stage's process, with its environment's."""


def test_killed_stage_plays_the_stored_turns_again(play, tools, monkeypatch):
    def killed(number):
        if number == 2:
            tools.close()
            raise StageKilledError

    monkeypatch.setattr(sys, "executable", str(engine_python("verifiers")))

    with pytest.raises(StageKilledError):
        play("3", "7", "5", before_turn=killed)
    (answer,) = play("3", "7", "5")
    assert (answer.why, answer.reward, answer.repeats) == ("done", 0.5, 1)
    assert dict(answer.scores) == SCORES


def test_environment_that_asks_otherwise_has_failed(tools):
    first = step(tools, reset(tools), "3")
    state = json.loads(first["state"])
    other = {**first, "state": json.dumps({**state, "seen": [*state["seen"][:-1], "0" * 64]})}
    assert "does not ask as the first did" in step(tools, other, "5")["error"]


def test_row_without_its_task_is_a_failure(tools):
    assert "charter data tasks" in reset(tools, row={})["error"]
    assert "number" in reset(tools, row={"task": {"prompt": "x"}})["error"]
    assert "wants image" in reset(tools, row={"task": {**ROW["task"], "image": "ubuntu"}})["error"]


HEAD = """
import verifiers.v1 as vf
class T(vf.Task[vf.TaskData, vf.State, vf.TaskConfig]):
    {task}
class S(vf.Taskset[T, vf.TasksetConfig]):
    def load(self):
        yield T(vf.TaskData(prompt="x"), self.config.task)
    {taskset}
{more}
__all__ = ["S", {names}]
"""
TWO = """
class C(vf.EnvConfig):
    one: vf.AgentConfig = vf.AgentConfig()
    two: vf.AgentConfig = vf.AgentConfig()
class E(vf.Env[C]):
    async def run(self, task, agents):
        pass
"""
STOP = "@vf.stop\n    async def quits(self, response: vf.Response) -> bool: return True"
TOOLS = "@classmethod\n    def toolsets(cls, config): return [1]"
RUNTIME = "@vf.reward\n    async def runs(self, trace, runtime) -> float: return 1.0"


REFUSED = {
    "it has the agents one, two": {"more": TWO, "names": '"E"'},
    "its tasks need a container": {"task": "NEEDS_CONTAINER = True"},
    "quits reads or rewrites requests": {"task": STOP},
    "runs needs a runtime": {"task": RUNTIME},
    "setup needs a runtime": {"task": "async def setup(self, trace, runtime): pass"},
    "its tasks start servers of tools": {"task": TOOLS},
    "its tasks share servers of tools": {"taskset": TOOLS},
}


def file_of(path, task="pass", taskset="pass", more="", names=""):
    path.write_text(HEAD.format(task=task, taskset=taskset, more=more, names=names))
    return path


def test_what_a_policy_here_cannot_do_is_refused(tmp_path):
    files = [file_of(tmp_path / f"{number}.py", **parts) for number, parts in enumerate(REFUSED.values())]
    (tmp_path / "old.py").write_text("def load_environment(**arguments): ...")
    asked = [[str(file), {}] for file in (*files, tmp_path / "old.py")]
    asked += [["no-such-game", {}], [str(FILE), {"taskset": {"lowest": 1}}], [str(FILE), {"player": {"max_turns": 3}}]]
    said = json.loads(ask_engine("verifiers", Path(__file__).with_name("ask_rows.py"), json.dumps(asked)))
    expected = [*REFUSED, "of verifiers before 0.3", "'no-such-game' not found", "lowest", "10 rows"]
    assert [words for words, text in zip(expected, said, strict=True) if words not in text] == []


def test_plain_taskset_is_one_turn(tmp_path):
    rated = "@vf.reward\n    async def says_yes(self, trace) -> float: return float('yes' in trace.last_reply)"
    own = opened(file_of(tmp_path / "own.py", task=rated))
    said = step(own, reset(own, row={"task": {"prompt": "x"}}), "oh yes")
    assert (said["done"], said["observation"]) == (True, None)
    rated = own.ask({"operation": "reward", "offered": {**OFFERED, "answer": "oh yes"}, "state": said["state"]}, 0)
    own.close()
    assert rated == {"reward": 1.0, "scores": {"says_yes": 1.0}}


def test_tasks_are_written_as_prompts(tmp_path):
    out = tmp_path / "prompts.jsonl"
    command = ["data", "tasks", str(FILE), str(out), "--arguments", '{"taskset": {"highest": 4}}', "--limit", "3"]
    said = ask_engine("verifiers", Path(__file__).with_name("run_charter.py"), *command)
    assert said == f"wrote 3 tasks to {out}\n"
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    data = {"prompt": "Guess up to 4.", "system_prompt": "Digits alone."}
    truths = [{"number": number, "answer": str(number)} for number in range(3)]
    assert [row["task"] for row in rows] == [{"idx": truth["number"], **data, **truth} for truth in truths]
    assert [row["answer"] for row in rows] == ["0", "1", "2"]
    opening = [{"role": "system", "content": "Digits alone."}, {"role": "user", "content": "Guess up to 4."}]
    assert all(row["prompt"] == opening for row in rows)
