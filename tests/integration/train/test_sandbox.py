"""Programs of a model: what the sandbox keeps from them, what they may do, and the reward of their tests."""

import os

import pytest

from charter.data import sandbox
from charter.data.sandbox import (
    OUTPUT_BYTES,
    Ended,
    SandboxError,
    no_processes,
    program,
    python,
    run_program,
    sandbox_problem,
)
from charter.train.rewards.mixture import RewardProcess

needs_sandbox = pytest.mark.skipif(bool(sandbox_problem()), reason=sandbox_problem() or "there is a sandbox")
MEMORY_BYTES = 2**28
SUMS = {"tests": [{"stdin": "3 4\n", "stdout": "7\n"}, {"stdin": "1 1", "stdout": "2"}]}
ADDS = "So:\n```python\na, b = map(int, input().split())\nprint(a + b)\n```"


def ended(text, entered="", *, seconds=20.0):
    return run_program(text, entered, seconds=seconds, memory_bytes=MEMORY_BYTES)


@needs_sandbox
def test_a_program_reads_and_prints():
    done = ended("print(input()[::-1])", "äbc\n")
    assert (done.code, done.output) == (0, "cbä\n")


@needs_sandbox
@pytest.mark.parametrize(
    ("text", "code"),
    [("raise SystemExit(3)", 3), ("1 / 0", 1), ("import os; os.kill(os.getpid(), 9)", 137), ("'x' * 10**10", 1)],
)
def test_a_program_ends_with_its_own_code(text, code):
    assert ended(text).code == code


@needs_sandbox
def test_a_program_that_does_not_end_is_ended():
    assert ended("while True: pass", seconds=0.5).code is None


@needs_sandbox
@pytest.mark.parametrize(
    "deed",
    [
        "os.fork()",
        "subprocess.run(['/bin/true'])",
        "os.posix_spawn('/bin/true', ['true'], {})",
        "socket.create_connection(('127.0.0.1', PORT), 1)",
        "open('/etc/passwd')",
        "open(FILE)",
        "open('/tmp/written', 'w')",
        "open('/usr/lib/mine', 'w')",
        "os.listdir('/proc')",
    ],
)
def test_a_program_reaches_nothing_of_this_machine(deed, tmp_path, unused_port):
    (tmp_path / "secret").write_text("s")
    names = f"import os, socket, subprocess\nPORT = {unused_port}\nFILE = {str(tmp_path / 'secret')!r}\n"
    done = ended(f"{names}try:\n    {deed}\nexcept OSError as error:\n    print(type(error).__name__)\n")
    assert done.code == 0
    assert done.output.strip().endswith(("Error", "Refused"))


@pytest.fixture
def unused_port():
    """A port that somebody listens on, so that only the sandbox keeps a program from it."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@needs_sandbox
def test_a_program_has_no_variables_and_no_user(monkeypatch):
    monkeypatch.setenv("CHARTER_TEST_SECRET", "1")
    done = ended("import os\nprint(os.getuid(), os.getgid(), *os.environ)")
    assert done.output.split()[:2] == ["65534", "65534"]
    assert set(done.output.split()[2:]) <= {"PATH", "PYTHONHASHSEED", "PWD", "LC_CTYPE"}


@needs_sandbox
def test_a_program_may_use_threads():
    text = "import threading\nt = threading.Thread(target=print, args=('there',))\nt.start()\nt.join()"
    assert ended(text).output == "there\n"


@needs_sandbox
def test_what_a_program_prints_and_writes_is_limited():
    assert len(ended(f"print('a' * {4 * OUTPUT_BYTES})").output) <= OUTPUT_BYTES
    assert ended(f"open('/tmp/mine', 'w').write('a' * {4 * OUTPUT_BYTES})").code != 0


def test_without_bubblewrap_nothing_is_run(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    sandbox_problem.cache_clear()
    assert "bwrap is not installed" in sandbox_problem()
    with pytest.raises(SandboxError, match="not installed"):
        ended("print(1)")
    sandbox_problem.cache_clear()


def test_a_sandbox_that_does_not_start_the_program_is_no_result(monkeypatch, tmp_path):
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(SandboxError, match="before the program began"):
        ended("print(1)")
    sandbox_problem.cache_clear()
    assert "there is none here" in sandbox_problem()
    sandbox_problem.cache_clear()


def test_a_machine_without_a_filter_is_refused():
    with pytest.raises(SandboxError, match="s390x"):
        no_processes("s390x")
    assert set(sandbox.FORKS) == {"x86_64", "aarch64"}


@needs_sandbox
@pytest.mark.parametrize(
    ("answer", "row", "more", "reward"),
    [
        (ADDS, SUMS, {}, 1.0),
        (ADDS.replace("a + b", "a * b"), SUMS, {}, 0.0),
        (ADDS.replace("a + b", "7"), SUMS, {"partial": True}, 0.5),
        (ADDS.replace("a + b", "7"), SUMS, {}, 0.0),
        ("print(7)", SUMS, {}, 0.0),
        (ADDS, {}, {}, None),
        (f"```py\nprint(1)\n``` no:\n{ADDS}", SUMS, {}, 1.0),
        ("```python\nwhile True: pass\n```", SUMS, {"seconds": 0.5}, 0.0),
        ("```\ndef f(x): return x + 1\n```", {"tests": "assert f(1) == 2"}, {}, 1.0),
        ("```\ndef f(x): return x\n```", {"tests": "assert f(1) == 2"}, {}, 0.0),
        ("```\nraise SystemExit(0)\n```", {"tests": "assert f(1) == 2"}, {}, 0.0),
        ("```\nimport os\nos._exit(0)\n```", {"tests": "assert f(1) == 2"}, {}, 0.0),
    ],
)
def test_a_program_is_rewarded_for_the_tests_it_passes(answer, row, more, reward):
    assert program(answer, row, **more) == reward


@pytest.mark.parametrize("tests", [7, [], [{"stdin": "1"}], ["assert True"], [{"stdout": "1", "code": 0}]])
def test_tests_that_cannot_be_read_are_a_failure(tests):
    with pytest.raises(ValueError, match="the row"):
        program(ADDS, {"tests": tests})


@needs_sandbox
def test_the_reward_runs_programs_from_its_own_limited_process():
    process = RewardProcess("charter:program", {}, 20.0, 2**31)
    assert process.ask({"answer": ADDS, "row": SUMS}) == 1.0
    process.close()


@needs_sandbox
@pytest.mark.parametrize(
    ("code", "reply"),
    [("print(17 * 24)", "408"), ("1 + 1", "it printed nothing"), ("raise SystemExit(4)", "ended with 4")],
)
def test_a_policy_computes_by_programs(code, reply):
    assert python(code) == reply


@needs_sandbox
def test_a_policy_reads_why_its_program_failed(monkeypatch):
    assert "ZeroDivisionError" in python("print(1 / 0)")
    monkeypatch.setattr(sandbox, "run_program", lambda code, **limits: Ended(None, "so far\n"))
    assert python("print('so far')\nwhile True: pass").split("\n")[0] == "so far"
    assert python("while True: pass").endswith("ended after 8 s")


@needs_sandbox
def test_a_program_cannot_say_how_it_ended():
    said = b'{"exit-code": 0}'
    text = f"import os\nfor end in range(3, 256):\n    try: print(os.write(end, {said!r}))\n    except OSError: pass\n"
    done = ended(f"{text}raise SystemExit(5)")
    assert (done.code, done.output) == (5, "")
