"""A project directory as a run leaves it, written file by file, for tests that look at it: no process runs."""

import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from charter.artifacts.fingerprint import sha256_file
from charter.artifacts.lease import Holder, host_id, start_ticks
from charter.artifacts.record import Record, write_record
from charter.engines.project import load_project
from charter.ledger import Ledger
from charter.run.graph import PlannedStage, build_pipeline

FILE = """\
name: {name}
owner: {owner}
tags: {{team: alignment, goal: "{tag}"}}
models:
  base:
    architecture: {{hidden_size: 64, num_layers: 2, num_heads: 4, intermediate_size: 176, vocab_size: 512,
                   max_position_embeddings: 512, tied_embeddings: true}}
    tokenizer: {{train_on: [texts], vocab_size: 512}}
data:
  texts: texts.jsonl
  pairs: pairs.jsonl
  prompts: prompts.jsonl
pipeline:
  sft: {{kind: sft, init: base, data: [texts], steps: 40, global_batch: 4, seq_len: 64}}
  pm:  {{kind: preference_model, init: sft, data: [pairs], steps: 20, global_batch: 4, seq_len: 64}}
  ppo: {{kind: ppo, policy: sft, reward: pm, prompts: [prompts], episodes: 160, rollout_batch: 8, minibatch: 4,
        kl_target: 4.0, max_new_tokens: 8}}
  judged: {{kind: eval, policy: ppo, against: sft, reward: pm, prompts: [prompts], suites: [win_rate],
           needs_approval: {gate}}}
resources: {{infra: local, price: 36, max_parallel_stages: 2}}
budget: {{limit: $10}}
"""
HOUR_MICRO_USD = 36_000_000
START = 1_790_000_000.0
LIVELY_LEDGERS: dict[tuple[str, ...], bytes] = {}
"""The ledger of `lively` by the fingerprints of its stages: a test needs the file, not the seconds of its writing."""


class ProjectCase:
    """Writes a project and what its stages have left."""

    def __init__(self, root: Path, *, name: str = "demo", owner: str = "ada", tag: str = "safe", gate: bool = True):
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        (root / "charter.yaml").write_text(FILE.format(name=name, owner=owner, tag=tag, gate=str(gate).lower()))
        (root / "texts.jsonl").write_text('{"text": "A kettle boils at one hundred degrees."}\n' * 8)
        (root / "prompts.jsonl").write_text('{"prompt": "How long does rice cook?"}\n' * 8)
        pair = {"prompt": "How long does rice cook?", "chosen": "About twelve minutes.", "rejected": "Never."}
        (root / "pairs.jsonl").write_text((json.dumps(pair) + "\n") * 8)
        self.run = root / "run"
        self.run.mkdir(exist_ok=True)
        self.project = load_project(root / "charter.yaml")
        self.stages: dict[str, PlannedStage] = dict(build_pipeline(self.project, root).stages)

    def directory(self, name: str) -> Path:
        """The directory of a stage, with its job."""
        stage = self.stages[name]
        stage.directory.mkdir(parents=True, exist_ok=True)
        job = {
            "run": self.project.name,
            "stage": name,
            "kind": stage.spec.kind,
            "fingerprint": stage.fingerprint,
            "identity": dict(stage.identity),
            "inputs": {role: [asdict(item) for item in items] for role, items in stage.inputs.items()},
        }
        (stage.directory / "job.json").write_text(json.dumps(job, default=str))
        return stage.directory

    def metrics(self, name: str, steps: int, **values: float) -> None:
        """Append `steps` lines of metrics, each a little further on."""
        path = self.directory(name) / "metrics.jsonl"
        have = len(path.read_text().splitlines()) if path.exists() else 0
        with path.open("a") as file:
            for step in range(have + 1, have + steps + 1):
                moved = {key: value / step for key, value in values.items()}
                file.write(json.dumps({"step": step, "time": START + step, "loss": 4.0 / step, **moved}) + "\n")

    def progress(self, name: str, step: int, target: int, **more: Any) -> None:
        """What the stage last said."""
        content = {"step": step, "target_step": target, "unit": "step", "rate_per_second": 2.0, "updated_at": START}
        path = self.directory(name) / "progress.json"
        before = path.stat().st_mtime_ns if path.exists() else 0
        path.write_text(json.dumps({**content, **more}))
        if path.stat().st_mtime_ns <= before:  # the clock of a file system may tick too seldom for a quick machine
            os.utime(path, ns=(before + 1, before + 1))

    def results(self, name: str, *, key: str, **more: Any) -> None:
        """What an evaluation published: one figure, by default far above nothing."""
        figure = {"key": key, "label": key, "value": 0.5, "low": 0.4, "high": 0.6, "n": 200, "unit": "share", **more}
        outputs = self.directory(name) / "outputs"
        outputs.mkdir(exist_ok=True)
        (outputs / "results.json").write_text(json.dumps({"schema": "charter.results/1", "figures": [figure]}))

    def done(self, name: str, steps: int) -> None:
        """A finished stage."""
        directory, stage = self.directory(name), self.stages[name]
        self.progress(name, steps, steps)
        outputs = directory / "outputs"
        if not (outputs / "model").exists():
            (outputs / "model").mkdir(parents=True)
            (outputs / "model" / "weights").write_bytes(b"\0" * 1000)
        digests = {
            str(path.relative_to(outputs)): sha256_file(path) for path in sorted(outputs.rglob("*")) if path.is_file()
        }
        record = Record(
            stage=name, kind=stage.spec.kind, fingerprint=stage.fingerprint, identity=dict(stage.identity), inputs={},
            outputs=digests, frozen={}, versions={}, step=steps, target_step=steps,
        )  # fmt: skip
        write_record(directory, record)

    def running(self, name: str, step: int, target: int, *, pid: int) -> None:
        """A stage whose process is `pid`, with a checkpoint."""
        directory = self.directory(name)
        self.progress(name, step, target)
        holder = Holder(pid=pid, start_ticks=start_ticks(pid), host=host_id(), since=START)
        (directory / "lease.json").write_text(json.dumps(asdict(holder)))
        (directory / "state" / "step-00000010").mkdir(parents=True, exist_ok=True)
        (directory / "state" / "step-00000010" / "manifest.json").write_text("{}")

    def failed(self, name: str, message: str) -> None:
        """A stage that gave up."""
        failure = {"message": message, "exit_code": 5}
        (self.directory(name) / "failure.json").write_text(json.dumps(failure))

    def event(self, event: str, **details: Any) -> None:
        """One line of `events.jsonl`."""
        with (self.run / "events.jsonl").open("a") as file:
            file.write(json.dumps({"time": time.time(), "event": event, **details}) + "\n")

    def attempt(
        self, name: str, *, seconds: float, outcome: str = "done", after: float = 0.0, note: str = "", steps: int = 10
    ) -> None:
        """An attempt in the ledger, `after` seconds from the start."""
        stage = self.stages[name]
        with Ledger.open(self.run / "ledger.sqlite") as ledger:
            attempt = ledger.begin(
                run=self.project.name,
                stage=name,
                kind=stage.spec.kind,
                fingerprint=stage.fingerprint,
                at=START + after,
                accelerator="H100",
                price_micro_usd_per_hour=HOUR_MICRO_USD,
                price_source="charter.yaml",
                owner=self.project.owner,
                tags=dict(self.project.tags),
            )
            moment = START + after + seconds
            if outcome == "running":
                ledger.heartbeat(attempt, at=moment, step=steps)
            else:
                ledger.end(attempt, at=moment, outcome=outcome, step=steps, note=note)  # type: ignore[arg-type]

    def plan(self) -> None:
        """A plan of every stage: 100 s and $1 each."""
        spread = {"p10": 80.0, "p50": 100.0, "p90": 150.0}
        money = {"p10": 0.8, "p50": 1.0, "p90": 1.5}
        stages = [
            {"name": name, "kind": stage.spec.kind, "seconds": spread, "usd": money}
            for name, stage in self.stages.items()
        ]
        (self.run / "plan.json").write_text(json.dumps({"stages": stages, "total": {}, "assumptions": []}))


def lively(root: Path, *, pid: int) -> ProjectCase:
    """A run in the middle: one stage done after a kill, one running, one to come, one that waits behind a gate."""
    case = ProjectCase(root)
    case.plan()
    case.event("run_started", run="demo", todo=["sft", "pm", "ppo", "judged"])
    ledger, of = case.run / "ledger.sqlite", tuple(stage.fingerprint for stage in case.stages.values())
    if of in LIVELY_LEDGERS:
        ledger.write_bytes(LIVELY_LEDGERS[of])
    else:
        case.attempt("sft", seconds=50, outcome="killed", note="killed by signal 9", steps=20)
        case.attempt("sft", seconds=60, after=60, steps=40)
        case.attempt("pm", seconds=30, after=130, outcome="running", steps=10)
        LIVELY_LEDGERS[of] = ledger.read_bytes()
    case.metrics("sft", 40, tokens_per_second=4000.0)
    case.done("sft", 40)
    case.event("stage_done", stage="sft", seconds=60.0, number=2)
    case.metrics("pm", 10, accuracy=0.9)
    case.running("pm", 10, 20, pid=pid)
    (case.directory("pm") / "log.txt").write_text("loading\nstep 10 of 20\n")
    return case
