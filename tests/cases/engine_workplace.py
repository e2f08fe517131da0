"""A small project whose stages are cheap and real, run on an engine by a supervisor in a process of its own."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import forks
import yaml
from waiting import eventually

from charter.artifacts.job_files import JobFiles, NodeRecord, numbers
from charter.engines.project import load_project
from charter.run.status import status_of

CASES = Path(__file__).resolve().parent
STAGES = CASES.parent / "integration"
"""Where the counting stages are: they need no torch."""
PYTHONPATH = os.pathsep.join(filter(None, (str(STAGES), str(CASES), os.environ.get("PYTHONPATH"))))
ROW = '{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]}\n'
PROMPTS = 24
PROJECT: Mapping[str, Any] = {
    "name": "count",
    "models": {
        "base": {
            "architecture": {
                "hidden_size": 8,
                "num_layers": 1,
                "num_heads": 1,
                "intermediate_size": 8,
                "vocab_size": 300,
            },
            "tokenizer": {"train_on": "chat", "vocab_size": 300},
        }
    },
    "data": {"chat": "chat.jsonl", "asked": "prompts.jsonl"},
    "pipeline": {
        "a": {"kind": "pretrain", "init": "base", "data": "chat", "steps": 8, "checkpoint_every": 2},
        "b": {"kind": "sft", "init": "a", "data": "chat", "steps": 4, "checkpoint_every": 2},
    },
    "resources": {"cpus": 1},
    "metering": {"every": 0},
}
RECORDS: Mapping[str, Any] = {
    "made": {"kind": "generate", "policy": "base", "prompts": "asked", "max_new_tokens": 4, "rollout_batch": 1}
}
"""A stage that makes records, one batch for each of the prompts."""


@dataclass
class EngineWorkplace:
    """A project directory, and ways to run, edit and disturb it."""

    root: Path
    on: str
    launch: Mapping[str, Any] = field(default_factory=dict)
    """Section `launch` of the file."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Of the supervisor, beside this process's own."""
    patience_seconds: float = 600.0
    running: list["subprocess.Popen[str]"] = field(default_factory=list)

    def write(
        self, *, stage_environment: Mapping[str, str] | None = None, held: str | None = None, **sections: Any
    ) -> None:
        """Write charter.yaml and its data; sections replace those of the usual project.

        With `held`, as in `a:4`, processes of that stage wait before that step until `open_gate`.
        """
        self.root.mkdir(exist_ok=True)
        launch = {**self.launch, **sections.pop("launch", {})}
        launch["environment"] = {"PYTHONPATH": PYTHONPATH, **(stage_environment or {})}
        if held is not None:
            self.gate.touch()
            launch["environment"]["HELD"] = f"{held}:{self.gate}"
        (self.root / "charter.yaml").write_text(yaml.safe_dump({**PROJECT, "launch": launch, **sections}))
        (self.root / "chat.jsonl").write_text(ROW)
        prompts = ({"prompt": [{"role": "user", "content": f"question {number}"}]} for number in range(PROMPTS))
        (self.root / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in prompts))

    def start(self, *arguments: str, module: str = "held_stage") -> "subprocess.Popen[str]":
        """Start a supervisor."""
        own = {"PYTHONPATH": PYTHONPATH, "COUNTING_MODULE": module}
        process = forks.Process(
            [sys.executable, str(STAGES / "counting_run.py"), str(self.root), "--on", self.on, *arguments],
            stdout=(self.root / "out.txt").open("w"),
            stderr=(self.root / "err.txt").open("w"),
            text=True,
            env={**os.environ, **own, **self.environment},
            start_new_session=True,
        )
        self.running.append(process)
        return process

    def run(self, *arguments: str, module: str = "held_stage") -> list[dict[str, Any]]:
        """Run to the end with success; its events."""
        return self.finish(self.start(*arguments, module=module))

    def finish(self, process: "subprocess.Popen[str]", *, code: int = 0) -> list[dict[str, Any]]:
        """Wait for the end of a supervisor; its events."""
        try:
            found = process.wait(timeout=self.patience_seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the run did not end\n{self.story()}") from None
        assert found == code, f"exit code {found}\n{self.story()}"
        return self.events()

    def kill_supervisor(self, process: "subprocess.Popen[str]") -> None:
        """SIGKILL the supervisor; its jobs know nothing of it."""
        os.kill(process.pid, signal.SIGKILL)
        process.wait()

    def events(self) -> list[dict[str, Any]]:
        """The events of the last run so far."""
        whole, _, _ = (self.root / "out.txt").read_text().rpartition("\n")  # a last line may be being written
        return [json.loads(line) for line in whole.splitlines() if line.startswith("{")]

    def named(self, name: str, stage: str | None = None) -> list[dict[str, Any]]:
        """The events of one kind."""
        return [event for event in self.events() if event["event"] == name and stage in (None, event.get("stage"))]

    def outputs(self) -> dict[str, dict[str, str]]:
        """Hashes of what every stage has published."""
        stages = status_of(load_project(self.root), self.root)["stages"]
        return {stage["name"]: stage["outputs"] for stage in stages}

    def stage_dir(self, stage: str) -> Path | None:
        """The directory of a stage, once it has one."""
        return next(iter((self.root / "run" / "stages").glob(f"{stage}-????????")), None)

    def jobs(self, stage: str) -> list[JobFiles]:
        """The submissions of a stage so far, oldest first."""
        directory = self.stage_dir(stage)
        return [] if directory is None else [JobFiles(directory, number) for number in numbers(directory)]

    def node_records(self, stage: str) -> Iterator[NodeRecord]:
        """Every start of a stage on every node."""
        for files in self.jobs(stage):
            yield from files.nodes()

    def job_id(self, stage: str) -> str | None:
        """The engine's number of a stage's newest job."""
        jobs = self.jobs(stage)
        if not jobs or not jobs[-1].submission.exists():
            return None
        found: str | None = json.loads(jobs[-1].submission.read_text())["job_id"]
        return found

    def wait_for_step(self, stage: str, step: int) -> NodeRecord:
        """Wait until a process of a stage has done so many steps, and may do more; the record of its node."""

        def reached() -> NodeRecord | None:
            directory = self.stage_dir(stage)
            if directory is None or not (directory / "progress.json").exists():
                return None
            progress = json.loads((directory / "progress.json").read_text())
            found = [record for record in self.node_records(stage) if record.first_pid == progress["pid"]]
            return found[-1] if found and progress["step"] >= step else None

        found: NodeRecord = self.wait_for(reached, f"step {step} of {stage}")
        return found

    @property
    def gate(self) -> Path:
        """The file that stages wait for, as long as it is there."""
        return self.root / "gate"

    def open_gate(self) -> None:
        """Let the stages that wait go on."""
        self.gate.unlink()

    def has_come_to_the_gate(self, pid: int) -> bool:
        """Whether that process has begun to wait."""
        return Path(f"{self.gate}.{pid}").exists()

    def wait_at_gate(self, stage: str, *, place: int = 0, not_pid: int | None = None) -> NodeRecord:
        """Wait until a process of a stage waits, another one than `not_pid`; the record of its node."""

        def waiting() -> NodeRecord | None:
            records = [record for record in self.node_records(stage) if record.place == place and record.first_pid]
            found = [it for it in records if it.first_pid != not_pid and self.has_come_to_the_gate(it.first_pid)]
            return found[-1] if found else None

        found: NodeRecord = self.wait_for(waiting, f"{stage} to wait")
        return found

    def wait_for(self, found: Callable[[], Any], what: str) -> Any:
        """Ask again and again until it says something."""
        return eventually(
            found, lambda: f"waited for {what}\n{self.story()}", seconds=self.patience_seconds, every=0.05
        )

    def ledger(self, stage: str) -> list[dict[str, Any]]:
        """The attempts at a stage, in the order in which they were begun."""
        with sqlite3.connect(self.root / "run" / "ledger.sqlite", timeout=60) as connection:
            connection.row_factory = sqlite3.Row
            rows = connection.execute("select * from attempts where stage = ? order by started_at", (stage,)).fetchall()
        connection.close()
        return [dict(row) for row in rows]

    def story(self) -> str:
        """All that can be said of what happened, for a test that failed."""
        parts = [self.root / "out.txt", self.root / "err.txt"]
        for stage in ("a", "b", "made"):
            directory = self.stage_dir(stage)
            parts += sorted(directory.glob("log*.txt")) if directory else []
            parts += [path for files in self.jobs(stage) for path in sorted(files.directory.iterdir())]
        told = [
            f"== {path.relative_to(self.root)}\n{path.read_text(errors='replace')[-1500:]}"
            for path in parts
            if path.exists()
        ]
        return "\n".join(told)

    def close(self) -> None:
        """End supervisors that still run."""
        for process in self.running:
            if process.poll() is None:
                process.kill()
                process.wait()
