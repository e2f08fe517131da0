"""Reward functions in processes of their own: what a function may do, and what becomes of one that misbehaves."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace

import pytest

from charter.data import reward_functions as functions
from charter.data.dataset import Turn
from charter.errors import StageError
from charter.inference import limited
from charter.inference.limited import Failed, LimitedProcess
from charter.spec.rewards import PROGRAM, SHIPPED_REWARD, SHIPPED_REWARDS, Reward
from charter.train.rewards.mixture import Answer, FunctionReward, RewardList, RewardProcess, environment_score

CODE = """
import os, subprocess, sys
counts = {"n": 0}
def length(answer): return len(answer)
def silent(answer): return None
def prints(answer): print("x" * 100_000); sys.stderr.write("y" * 100_000); return 1.0
def raises(answer): raise KeyError("no such thing")
def exits(answer): os._exit(3)
def leaves(answer): sys.exit(0)
def hangs(answer):
    while True: pass
def is_nan(answer): return float("nan")
def is_text(answer): return "1.0"
def leaks(answer): return len(bytearray(8 * 2**30))
def secret(answer): return float("CHARTER_TEST_SECRET" in os.environ)
def device(answer): return float(os.environ["CUDA_VISIBLE_DEVICES"] == "")
def impure(answer): counts["n"] += 1; return counts["n"]
def reads(row, truth, seed, tokens, ended, prompt, bonus): return row["extra"] + truth + seed + tokens + ended + bonus
def connects(answer, port):
    import socket
    with socket.create_connection(("127.0.0.1", port), timeout=5): return 1.0
def starts_one(answer):
    child = os.fork()
    if child == 0: os._exit(0)
    os.waitpid(child, 0)
    return 3.0
def forks(answer):
    if os.fork() == 0:
        while True: pass
    return 2.0
"""
HELD = """
import os, threading
from charter.inference import limited
limited.NEW_USER = limited.NEW_NETWORK = 1  # no flag of a namespace: the kernel refuses
print(limited.ProcessLimits(20.0, 2**40, 2**20, 64, 8, False, False).hold())
try:
    if os.fork() == 0:
        os._exit(0)
except OSError as error:
    print(error.errno)
thread = threading.Thread(target=lambda: print("thread"))
thread.start()
thread.join()
"""
OWNER = """
import sys
from charter.inference.limited import LimitedProcess
process = LimitedProcess("charter.train.rewards.functions", "it", {"call": sys.argv[1], "arguments": {}}, 20, 2**30)
process.start()
print(process._process.pid, process._directory.name, flush=True)
sys.stdin.read()
"""
ANSWER = Answer((Turn("user", "2 + 2?"),), "four", {"answer": 4, "extra": 100}, 7, True, 1000)


@pytest.fixture
def code(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(CODE)
    return path


@pytest.fixture
def ask(code):
    with ExitStack() as stack:

        def asked(name, *, timeout=20.0, **arguments):
            process = RewardProcess(f"{code}:{name}", arguments, timeout, 2**30)
            stack.callback(process.close)
            return process.ask(ANSWER.offered())

        yield asked


def test_process_says_whether_it_has_a_network(code):
    process = RewardProcess(f"{code}:length", {}, 20.0, 2**30)
    assert process.is_isolated is None
    process.ask(ANSWER.offered())
    assert process.is_isolated in (True, False)
    process.close()


@pytest.mark.parametrize(("name", "reward"), [("length", 4.0), ("silent", None), ("prints", 1.0), ("device", 1.0)])
def test_function_gives_a_number_or_nothing(ask, name, reward):
    assert ask(name) == reward


def test_function_gets_what_it_names_and_its_arguments(ask):
    assert ask("reads", bonus=0.5) == 100 + 4 + 1000 + 7 + 1 + 0.5


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("raises", "no such thing"),
        ("exits", "ended with 3"),
        ("leaves", "ended with 0"),
        ("is_nan", "not a finite number"),
        ("is_text", "not a finite number"),
        ("leaks", "MemoryError"),
    ],
)
def test_function_that_breaks_has_failed_and_is_no_zero(ask, name, reason):
    outcome = ask(name)
    assert isinstance(outcome, Failed)
    assert reason in outcome.reason


def test_function_that_hangs_is_ended_and_asked_again(ask):
    outcome = ask("hangs", timeout=0.2)
    assert isinstance(outcome, Failed)
    assert "no answer within 0.2 s" in outcome.reason


def test_function_sees_no_variables_of_the_caller(ask, monkeypatch):
    monkeypatch.setenv("CHARTER_TEST_SECRET", "1")
    assert ask("secret") == 0.0


def test_process_that_was_forked_ends_with_the_function(code):
    process = RewardProcess(f"{code}:forks", {}, 20.0, 2**30)
    assert process.ask(ANSWER.offered()) == 2.0
    assert process.ask(ANSWER.offered()) == 2.0
    process.close()


def test_process_that_died_between_two_calls_has_failed(code):
    process = LimitedProcess(
        "charter.train.rewards.functions", "it", {"call": f"{code}:length", "arguments": {}}, 20, 2**30
    )
    process.start()
    os.kill(process._process.pid, signal.SIGKILL)
    process._process.wait()
    assert process.ask(ANSWER.offered()) == Failed("its process ended with -9")
    assert process.ask(ANSWER.offered()) == {"reward": 4.0}
    process.close()


def test_process_of_a_killed_owner_leaves_no_directory(code):
    command = [sys.executable, "-c", OWNER, f"{code}:length"]
    owner = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    number, directory = owner.stdout.readline().split()
    watched = os.pidfd_open(int(number))
    assert os.path.isdir(directory)
    owner.kill()
    owner.communicate()
    select.select([watched], [], [])
    os.close(watched)
    assert not os.path.exists(directory)


@pytest.mark.parametrize(("most", "outcome"), [(1, "Resource temporarily unavailable"), (2, 3.0)])
def test_function_starts_no_more_processes_than_it_may(ask, monkeypatch, most, outcome):
    monkeypatch.setattr(limited, "MOST_THREADS", most)
    reward = ask("starts_one")
    assert outcome in reward.reason if isinstance(reward, Failed) else reward == outcome


def test_function_without_a_namespace_starts_no_process(tmp_path):
    (tmp_path / "held.py").write_text(HELD)
    ended = subprocess.run([sys.executable, str(tmp_path / "held.py")], capture_output=True, text=True, timeout=60)
    assert ended.stdout.split() == ["False", "1", "thread"], ended.stderr


def test_function_that_is_not_there_stops_the_stage(code):
    process = RewardProcess(f"{code}:absent", {}, 20.0, 2**30)
    with pytest.raises(StageError, match=r"cannot be loaded.*absent"):
        process.ask(ANSWER.offered())


def reward(name, call, **more):
    return Reward(name=name, kind="function", call=call, **more)


@pytest.fixture
def listed(code, tmp_path):
    with ExitStack() as stack:

        def opened(*rewards, share=0.5):
            scores = tuple(FunctionReward.open(item, None if item.source is None else code, stack) for item in rewards)
            return RewardList(rewards, scores, tmp_path / "rewards", share)

        yield opened


def test_list_gives_a_column_for_each_reward(listed):
    rewards = listed(reward("right", "charter:exact"), reward("long", "own.py:length", processes=2))
    answers = [replace(ANSWER, text=text) for text in ("4", "four", "44")]
    rated = rewards.rate(answers, name="000000-0")
    assert rated.reward_BK.tolist() == [[1.0, 1.0], [0.0, 4.0], [0.0, 2.0]]
    assert not rated.failed_BK.any()


def test_stored_rewards_are_read_and_not_asked_again(listed, tmp_path):
    rewards = listed(reward("long", "own.py:length"))
    rewards.rate([ANSWER], name="000003-0")
    path = tmp_path / "rewards" / "000003-0.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "rewards": [[17.0]]}))
    assert rewards.rate([ANSWER], name="000003-0").reward_BK.tolist() == [[17.0]]
    other = replace(ANSWER, text="other answer")
    assert rewards.rate([other], name="000003-0").reward_BK.tolist() == [[12.0]], "rewards of other answers"


def test_failure_is_marked_and_too_many_stop_the_stage(listed):
    broken = reward("broken", "own.py:raises")
    rated = listed(broken, share=1.0).rate([ANSWER, ANSWER], name="a")
    assert rated.failed_BK.all()
    assert rated.reward_BK.isnan().all()
    with pytest.raises(StageError, match=r"2 of 2 rewards .* max_failed_share, 0.5\n.*no such thing"):
        listed(broken).rate([ANSWER, ANSWER], name="b")


def test_function_that_is_not_pure_is_refused(listed):
    with pytest.raises(StageError, match=r"'odd' gave 1\.0 and then 2\.0 for the same answer"):
        listed(reward("odd", "own.py:impure")).rate([ANSWER], name="a")


@pytest.mark.parametrize(
    ("answer", "truth", "equal"),
    [
        (r"so $x = \frac{1}{2}$", 0.5, 1.0),
        (r"\boxed{x^2 + 2x + 1}", "(x+1)^2", 1.0),
        (r"$\sqrt{8}$", r"2\sqrt{2}", 1.0),
        ("it is 7", 8, 0.0),
        ("I do not know.", 8, 0.0),
        ("7", None, None),
    ],
)
def test_mathematics_is_compared_by_its_meaning(answer, truth, equal):
    pytest.importorskip("math_verify")
    process = RewardProcess("charter:expression", {}, 60.0, 2**31)
    assert process.ask({"answer": answer, "truth": truth}) == equal
    process.close()


def test_a_shipped_function_is_asked_once_an_answer(monkeypatch):
    calls = []
    monkeypatch.setattr(RewardProcess, "ask", lambda self, offered: calls.append(offered) or 1.0)
    with ExitStack() as stack:
        score = FunctionReward.open(reward("r", "charter:exact"), None, stack)
        assert score([ANSWER, ANSWER]) == [1.0, 1.0]
    assert len(calls) == 2


def test_every_shipped_function_is_offered_by_its_name():
    assert {*functions.SHIPPED, PROGRAM.removeprefix(SHIPPED_REWARD)} == set(SHIPPED_REWARDS)
    for name, function in functions.SHIPPED.items():
        assert function.__name__ == name
        assert function.__doc__


def test_schema_with_an_unknown_keyword_is_refused():
    with pytest.raises(ValueError, match="minLength"):
        functions.json_schema('"a"', schema={"type": "string", "minLength": 2})


def test_function_that_needs_the_network_fails_without_one(code):
    with socket.create_server(("127.0.0.1", 0)) as server:
        process = RewardProcess(f"{code}:connects", {"port": server.getsockname()[1]}, 20.0, 2**30)
        outcome = process.ask(ANSWER.offered())
        process.close()
    assert isinstance(outcome, Failed) if process.is_isolated else outcome == 1.0


def test_call_that_nobody_waits_for_is_ended_by_the_kernel():
    code = "from charter.inference import limited; limited._end_after(0.2)\nwhile True: pass"
    done = subprocess.run([sys.executable, "-c", code], timeout=60)
    assert done.returncode == -signal.SIGALRM


def test_rating_that_was_interrupted_is_counted(listed, tmp_path):
    rewards = listed(reward("long", "own.py:length"))
    rewards.rate([ANSWER], name="000000-0")
    path = tmp_path / "rewards" / "000000-0.json"
    stored = json.loads(path.read_text())
    assert stored["attempts"] == 1
    path.write_text(json.dumps({name: stored[name] for name in ("digest", "attempts")}))
    assert rewards.rate([ANSWER], name="000000-0").reward_BK.tolist() == [[4.0]]
    assert json.loads(path.read_text())["attempts"] == 2


def test_score_that_the_environment_did_not_give_has_failed():
    answer = Answer((), "x", {}, 1, True, 0, environment_reward=0.5, environment_scores={"tries": 2.0, "absent": None})
    assert [environment_score(answer, name) for name in (None, "tries", "absent")] == [0.5, 2.0, None]
    assert "no score 'trys'; it gave tries, absent" in environment_score(answer, "trys").reason
