import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import forks
import pytest
from power_cut import is_power_cut, wait_until_all_ended
from waiting import eventually

from charter.engines.project import load_project
from charter.run.status import status_of

HERE = Path(__file__).parent
sys.path.append(str(HERE))
"""Counting stages, which tests also run in forks of their own, import modules that stand beside them."""
PYTHONPATH = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
CHARTER_YAML = """\
name: count
metering: {every: 0}
models:
  base:
    architecture: {hidden_size: 8, num_layers: 1, num_heads: 1, intermediate_size: 8, vocab_size: 300}
    tokenizer: {train_on: chat, vocab_size: 300}
data: {chat: chat.jsonl, other: other.jsonl}
pipeline:
  a: {kind: pretrain, init: base, data: chat, steps: 6, checkpoint_every: 2}
  b: {kind: sft, init: a, data: chat, steps: 6, checkpoint_every: 2}
  c: {kind: sft, init: a, data: other, steps: 6, checkpoint_every: 2}
"""
ROW = '{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]}\n'


@dataclass
class Finished:
    code: int
    out: str
    err: str

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines() if line.startswith("{")]

    def names(self, event: str) -> list[str]:
        return [entry["stage"] for entry in self.events if entry["event"] == event]

    def only(self, event: str) -> dict[str, Any]:
        (found,) = [entry for entry in self.events if entry["event"] == event]
        return found


@dataclass
class Workplace:
    """A small project whose stages are counting stages, and ways to run, edit and kill it."""

    root: Path
    running: list["subprocess.Popen[str]"] = field(default_factory=list)

    def is_running(self, pid: int) -> bool:
        return is_running(pid)

    def start(self, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
        process = forks.Process(
            [sys.executable, str(HERE / "counting_run.py"), str(self.root), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": PYTHONPATH, **environment},
            start_new_session=True,
        )
        self.running.append(process)
        return process

    def run(self, *arguments: str, timeout: float = 300.0, **environment: str) -> Finished:
        done = self.wait(self.start(*arguments, **environment), timeout=timeout)
        if is_power_cut(environment):
            wait_until_all_ended(self.root)
        return done

    def wait(self, process: "subprocess.Popen[str]", *, timeout: float = 300.0) -> Finished:
        out, err = process.communicate(timeout=timeout)
        return Finished(process.returncode, out, err)

    def charter(self, *arguments: str, **environment: str) -> Finished:
        command = [sys.executable, "-m", "charter.cli.main", *arguments, "-C", str(self.root)]
        done = forks.run(command, capture_output=True, text=True, env={**os.environ, **environment})
        if is_power_cut(environment):
            wait_until_all_ended(self.root)
        return Finished(done.returncode, done.stdout, done.stderr)

    def status(self) -> dict[str, dict[str, Any]]:
        """What `charter status --json` prints, without a process: tests ask for it often."""
        found = json.loads(json.dumps(status_of(load_project(self.root), self.root)))
        return {stage["name"]: stage for stage in found["stages"]}

    def outputs(self) -> dict[str, dict[str, str]]:
        return {name: stage["outputs"] for name, stage in self.status().items()}

    def edit(self, old: str, new: str) -> None:
        path = self.root / "charter.yaml"
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    def stage_dir(self, name: str) -> Path:
        (found,) = (self.root / "run" / "stages").glob(f"{name}-????????")
        return found

    def release(self, name: str) -> None:
        """Let a stage go on that `COUNTING_HOLD` has stopped."""
        (self.stage_dir(name) / "go").touch()

    def wait_for(self, condition: Callable[[], object], *, seconds: float = 120.0) -> None:
        eventually(condition, self._last_words, seconds=seconds)

    def _last_words(self) -> str:
        """End of every log and journal of the run, for what did not happen in time."""
        files = sorted(path for kind in ("*.jsonl", "log*.txt") for path in (self.root / "run").rglob(kind))
        ends = [f"{path.relative_to(self.root)}:\n{path.read_text(errors='replace')[-1500:]}" for path in files]
        return "\n".join(["it did not happen in time", *ends])


def is_running(pid: int) -> bool:
    """Whether a process still runs; one that has ended and waits for its parent's notice (a zombie) does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def make_workplace(root: Path) -> Workplace:
    root.mkdir(exist_ok=True)
    (root / "charter.yaml").write_text(CHARTER_YAML)
    (root / "chat.jsonl").write_text(ROW)
    (root / "other.jsonl").write_text(ROW.replace("hello", "good day"))
    return Workplace(root)


@pytest.fixture(scope="session")
def new_workplace():
    return make_workplace


@pytest.fixture
def work(tmp_path):
    place = make_workplace(tmp_path / "project")
    yield place
    for process in place.running:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture(scope="session")
def undisturbed_project(tmp_path_factory):
    """A run that nothing happened to, and nothing may happen to."""
    place = make_workplace(tmp_path_factory.mktemp("undisturbed") / "project")
    done = place.run()
    assert done.code == 0, done.err
    return place


@pytest.fixture(scope="session")
def undisturbed(undisturbed_project):
    """The outputs of a run that nothing happened to."""
    return undisturbed_project.outputs()


@pytest.fixture
def finished(work, undisturbed_project):
    """A project whose run has come to its end."""
    shutil.copytree(undisturbed_project.root, work.root, dirs_exist_ok=True)
    return work
