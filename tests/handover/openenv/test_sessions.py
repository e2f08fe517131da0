"""Episodes on a server of openenv-core itself, asked as a stage asks its environment."""

import os
import signal
import subprocess
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from engine_case import engine_python

from charter.inference.openenv import server_problem
from charter.inference.turns import Tools
from charter.spec.rewards import Environment

SERVER = Path(__file__).with_name("serve_game.py")
OFFERED = {"row": {"reset": {"number": 5}}, "turns": [{"role": "user", "content": "Play."}], "truth": None, "seed": 1}


@contextmanager
def serving(sessions):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(engine_python("openenv")), str(SERVER), str(sessions)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


@pytest.fixture(scope="module")
def address():
    with serving(4) as url:
        yield url


@pytest.fixture
def tools():
    with ExitStack() as stack:

        def opened(url):
            own = Tools(Environment(call=f"openenv:{url}", concurrency=1), {})
            stack.callback(own.close)
            return own

        yield opened


def reset(tools, seed=1):
    return tools.ask({"operation": "reset", "offered": {**OFFERED, "seed": seed}}, 0)


def step(tools, said, answer):
    return tools.ask({"operation": "step", "answer": answer, "state": said["state"]}, 0)


@pytest.mark.smoke
def test_episode_is_played_to_its_end(tools, address):
    own = tools(address)
    begun = reset(own)
    assert begun["turns"] == [{"role": "user", "content": "Play.\n\nguess up to 9, seed True"}]
    first = step(own, begun, "3")
    assert (first["observation"], first["reward"], first["done"]) == ("higher, try 1", 0.0, False)
    last = step(own, first, '{"guess": 5}')
    assert (last["observation"], last["reward"], last["done"]) == ("right, try 2", 1.0, True)
    assert own.ask({"operation": "reward", "offered": OFFERED, "state": last["state"]}, 0) == {"reward": 1.0}


def test_action_that_the_server_does_not_take_is_no_step(tools, address):
    own = tools(address)
    begun = reset(own)
    wrong = step(own, begun, "no number")
    assert wrong["is_error"]
    assert "guess" in wrong["observation"]
    assert step(own, wrong, "5")["observation"] == "right, try 1"


def test_killed_process_goes_on_in_a_new_session(tools, address):
    own = tools(address)
    first = step(own, reset(own), "3")
    os.kill(own.processes[0]._process.pid, signal.SIGKILL)
    own.processes[0]._process.wait()
    assert "error" not in first
    assert "ended with -9" in step(own, first, "5").reason
    again = step(own, first, "5")
    assert (again["observation"], again["repeated"]) == ("right, try 2", True)


def test_server_of_one_session_says_that_it_is_full(tools):
    with serving(1) as url:
        own = tools(url)
        begun = reset(own)
        assert "error" in (full := reset(own, seed=2))
        assert "CAPACITY_REACHED" in full["error"]
        assert "a session for each answer" in full["error"]
        assert step(own, begun, "5")["done"]
        own.close()


def test_server_is_looked_at_without_a_session(address):
    assert server_problem(address) is None
    assert f"{address}/nowhere does not answer" in server_problem(f"{address}/nowhere")
