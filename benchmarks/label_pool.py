"""Labels from a pool of two servers that Charter starts, killed twice: plan, run and bill beside each other.

    python benchmarks/label_pool.py [--pairs 5000] [--model small] [--kill server stage]

A judge with random weights (`critique_speed.py`) answers in two replicas of `charter run serve`; pairs have the length
profile of the harmless half of the HH data. `charter plan --probe 1` measures a few batches first. Then the project
runs. When a third and two thirds of the pairs have their label, something is killed: a replica, or the stage's own
process with all its servers. The last line is one JSON object:

- pairs per hour by the plan, by the whole run, and by the run from the first batch to the last of each attempt, since a
  start takes seconds, whatever the number of pairs. The probe is repeated after the run, and `run_over_plan` is the run
  beside the geometric mean of both, so that another load than before weighs less;
- usd per 1,000 labels: the plan's p10, p50 and p90; the ledger; and a bill of lines that this script writes from the
  times at which the run said that its attempts started and ended, with the findings of `charter cost import`;
- CPU seconds of the client (the stage's process) and of the servers: from the first batch of each attempt on, and from
  the start of each process, which is mostly imports;
- questions, and how many stored answers they have.
"""

import argparse
import csv
import json
import math
import os
import platform
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from critique_speed import MODELS, PYTHON, ROOT, make_model, prompt_lengths, prompts_of
from label_speed import ANSWER_TOKENS, COMPARE

STAGE, REPLICAS = "label", 2
LIKING = 4.0
"""By how much both letters are raised among the tokens: a random judge would not have them among its 20 likeliest."""
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
FILE = """
name: label-pool
models: {judge: {model: judge}}
constitution: constitution.yaml
data: {pairs: pairs.jsonl}
pipeline:
  label: {kind: label, judge: judge, candidates: [pairs], rollout_batch: 32, checkpoint_every: 1}
resources: {infra: local, cpus: 2, price: $PRICE/h}
serving: {judge: {pool: {engine: charter, replicas: 2}, api: completions, billed: false, concurrency: 16}}
"""


def make_project(root: Path, *, pairs: int, model: str, price: float) -> None:
    """Write a project whose only stage labels so many pairs."""
    import torch

    judge = make_model(model)
    tokenizer = judge.tokenizer
    contexts = prompts_of(prompt_lengths(pairs, seed=1), tokenizer)
    answers = prompts_of(prompt_lengths(2 * pairs, seed=2, quantiles=ANSWER_TOKENS), tokenizer)
    letters = [tokenizer(letter)["input_ids"][0] for letter in "AB"]
    with torch.no_grad():
        ends = [tokenizer(f"{context[-200:]} The better answer is (")["input_ids"] for context in contexts[:8]]
        states = [judge.model.model(input_ids=torch.tensor([ids])).last_hidden_state[0, -1] for ids in ends]
        mean = torch.stack(states).mean(0)
        judge.model.lm_head.weight[letters] += LIKING * mean / mean.square().sum()
    judge.save(root / "judge")
    rows = [
        {
            "id": f"pair-{number}",
            "prompt": [{"role": "user", "content": context}],
            "chosen": [{"role": "assistant", "content": answers[2 * number]}],
            "rejected": [{"role": "assistant", "content": answers[2 * number + 1]}],
        }
        for number, context in enumerate(contexts)
    ]
    (root / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    principle = {"id": "kind", "critique": "Is it kind?", "revision": "Make it kinder.", "compare": COMPARE}
    constitution = {"schema": "charter.constitution/v1", "principles": [principle]}
    (root / "constitution.yaml").write_text(json.dumps(constitution))
    (root / "charter.yaml").write_text(FILE.replace("$PRICE", f"${price:g}"))


def charter(root: Path, *words: str) -> dict[str, Any]:
    """The answer of a command of the product."""
    command = [str(PYTHON), "-m", "charter.cli.main", *words, "-C", str(root), "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout))


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file of JSON."""
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []


def cpu_seconds(pid: int) -> float | None:
    """CPU seconds of a process so far; None where it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


@dataclass
class Meter:
    """CPU seconds of the processes of one kind, each looked at until it ends."""

    seconds: dict[int, float] = field(default_factory=dict)
    before_work: dict[int, float] = field(default_factory=dict)

    def look(self, pid: int, *, works: bool) -> None:
        """Take the present figure of a process; `works`: there are questions and answers by now."""
        if (now := cpu_seconds(pid)) is not None:
            self.seconds[pid] = now
            if not works or pid not in self.before_work:
                self.before_work[pid] = now

    @property
    def total(self) -> float:
        """CPU seconds of all of them."""
        return sum(self.seconds.values())

    @property
    def working(self) -> float:
        """CPU seconds since they began to work."""
        return self.total - sum(self.before_work.values())


@dataclass
class Watch:
    """A running stage, as its files show it."""

    root: Path
    client: Meter = field(default_factory=Meter)
    servers: Meter = field(default_factory=Meter)
    labelled_before: dict[int, int] = field(default_factory=dict)
    """Batches that were there when a process of the stage was first seen."""

    @property
    def directory(self) -> Path | None:
        """The stage's directory; None before it is there."""
        return next((self.root / "run" / "stages").glob(f"{STAGE}-*"), None)

    def labelled(self) -> int:
        """Batches whose labels are there."""
        return 0 if self.directory is None else len(lines_of(self.directory / "metrics.jsonl"))

    def look(self) -> None:
        """Take down what its processes have computed so far."""
        if (pid := self.stage_process()) is None:
            return
        labelled = self.labelled()
        works = labelled > self.labelled_before.setdefault(pid, labelled)
        self.client.look(pid, works=works)
        for replica in self.replicas():
            self.servers.look(int(replica["pid"]), works=works and replica["state"] == "ready")

    def replicas(self) -> list[dict[str, Any]]:
        """The servers of the newest start."""
        starts = [] if self.directory is None else list((self.directory / "servers").glob("*"))
        newest = max(starts, key=lambda path: path.stat().st_mtime, default=None)
        return [] if newest is None else [json.loads(path.read_text()) for path in sorted(newest.glob("judge-*.json"))]

    def stage_process(self) -> int | None:
        """The process that holds the stage's lease."""
        fence = None if self.directory is None else self.directory / ".fence"
        return int(json.loads(fence.read_text())["pid"]) if fence is not None and fence.exists() else None

    def kill(self, what: str) -> bool:
        """Kill a replica or the stage's process; False where there is none that works."""
        ready = [int(replica["pid"]) for replica in self.replicas() if replica["state"] == "ready"]
        pid = self.stage_process() if what == "stage" else ready[0] if len(ready) == REPLICAS else None
        if pid is None or cpu_seconds(pid) is None:
            return False
        self.look()
        if what == "stage":
            os.kill(pid, signal.SIGKILL)
        else:
            os.killpg(pid, signal.SIGKILL)
        return True


def run(root: Path, *, batches: int, kills: Sequence[str]) -> Watch:
    """Run the project to its end, with its kills spread over the batches."""
    watch, pending = Watch(root), [*kills]
    command = [str(PYTHON), "-m", "charter.cli.main", "run", "-C", str(root), "--yes", "--json-events"]
    with (root / "events.txt").open("w") as events, (root / "errors.txt").open("w") as errors:
        process = subprocess.Popen(command, stdout=events, stderr=errors)
        while process.poll() is None:
            watch.look()
            due = batches * (len(kills) - len(pending) + 1) / (len(kills) + 1)
            if pending and watch.labelled() >= due and watch.kill(pending[0]):
                print(f"killed: {pending.pop(0)} after {watch.labelled()} of {batches} batches", file=sys.stderr)
            time.sleep(0.1)
    if process.returncode or pending:
        sys.exit(f"ended with {process.returncode}, kills left: {pending}\n{(root / 'errors.txt').read_text()[-3000:]}")
    return watch


def attempts_in(events: Sequence[Mapping[str, Any]]) -> list[tuple[float, float]]:
    """Start and end of every attempt, as the run told them."""
    starts = [event["time"] for event in events if event["event"] == "stage_started"]
    ends = [event["time"] for event in events if event["event"] in ("stage_restart", "stage_done")]
    return list(zip(starts, ends, strict=True))


def write_bill(path: Path, attempts: Sequence[tuple[float, float]], price: float) -> float:
    """Write a provider's bill of these times; its sum."""
    total = 0.0
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("cost_usd", "machine", "start", "end", "seconds"))
        for start, end in attempts:
            cost = price * (end - start) / 3600
            total += cost
            moments = (datetime.fromtimestamp(moment, UTC).isoformat() for moment in (start, end))
            writer.writerow((f"{cost:.6f}", platform.node(), *moments, f"{end - start:.3f}"))
    return total


def stored_answers(directory: Path) -> dict[str, int]:
    """Questions with a stored answer, and how often one of them was answered."""
    with sqlite3.connect(f"file:{directory / 'calls.sqlite'}?mode=ro", uri=True) as database:
        (stored,) = database.execute("SELECT count(*) FROM call_answers").fetchone()
        (answered,) = database.execute(
            "SELECT count(*) FROM call_intents i JOIN call_settlements s USING (scope_id, call_id) "
            "WHERE s.outcome = 'answered' AND i.key IN (SELECT key FROM call_answers)"
        ).fetchone()
    return {"stored": stored, "answered": answered}


def working_pairs_per_hour(batches: Sequence[Mapping[str, Any]], attempts: Sequence[tuple[float, float]]) -> float:
    """Pairs per hour between the first batch and the last of each attempt."""
    records, seconds = 0, 0.0
    for start, end in attempts:
        within = [batch for batch in batches if start <= batch["time"] <= end]
        for before, after in pairwise(within):
            records += after["records"]
            seconds += after["time"] - before["time"]
    return 3600 * records / seconds


def working_seconds(plan: Mapping[str, Any]) -> float:
    """Planned seconds of the stage without its start."""
    (stage,) = plan["stages"]
    return float(stage["seconds"]["p50"] - stage["breakdown"]["seconds"].get("start", 0.0))


def measured(root: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Plan, run, and compare."""
    make_project(root, pairs=options.pairs, model=options.model, price=options.price)
    plan = charter(root, "plan", "--probe", "1")
    (planned,) = plan["stages"]
    load = os.getloadavg()[0]
    watch = run(root, batches=-(-options.pairs // 32), kills=options.kill)
    again = charter(root, "plan", "--probe", "1")
    report = charter(root, "cost", "report")
    (stage,) = report["stages"]
    events = lines_of(root / "run" / "events.jsonl")
    attempts = attempts_in(events)
    billed = write_bill(root / "bill.csv", attempts, options.price)
    compared = charter(root, "cost", "import", str(root / "bill.csv"))
    assert watch.directory is not None
    each = 1000 / options.pairs
    working = working_pairs_per_hour(lines_of(watch.directory / "metrics.jsonl"), attempts)
    useful = math.sqrt(working_seconds(plan) * working_seconds(again))
    return {
        "pairs": options.pairs,
        "killed": options.kill,
        "attempts": len(attempts),
        "pairs_per_hour": {
            "plan": round(3600 * options.pairs / planned["seconds"]["p50"]),
            "run": round(3600 * options.pairs / stage["actual"]["seconds"]),
            "plans_without_start": [round(3600 * options.pairs / working_seconds(item)) for item in (plan, again)],
            "run_between_batches": round(working),
            "run_over_plan": round(working * useful / 3600 / options.pairs, 3),
        },
        "usd_per_1000_labels": {
            "plan": {name: round(each * value, 5) for name, value in planned["usd"].items()},
            "run": round(each * stage["actual"]["usd"], 5),
            "bill": round(each * billed, 5),
            "findings": {item["kind"]: item["count"] for item in compared["kinds"]},
        },
        "client_cpu_share": {
            "working": round(watch.client.working / watch.servers.working, 4),
            "with_starts": round(watch.client.total / watch.servers.total, 4),
            "client_cpu_seconds": [round(watch.client.working, 2), round(watch.client.total, 2)],
            "servers_cpu_seconds": [round(watch.servers.working, 2), round(watch.servers.total, 2)],
        },
        "answers": {"questions": 2 * options.pairs, **stored_answers(watch.directory)},
        "load_before": round(load, 1),
    }


def main() -> None:
    """Measure and print."""
    if not PYTHON.exists():
        subprocess.run(["make", "-C", str(ROOT), ".venv/.ready-run"], check=True, stdout=sys.stderr)
    if sys.prefix == sys.base_prefix:
        os.execv(PYTHON, [str(PYTHON), *sys.argv])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5000)
    parser.add_argument("--model", choices=list(MODELS), default="small")
    parser.add_argument("--kill", nargs="*", choices=("server", "stage"), default=["server", "stage"])
    parser.add_argument("--price", type=float, default=4.0, help="USD an hour of this machine.")
    parser.add_argument("--keep", type=Path, help="Where the project is left; else nowhere.")
    options = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="charter-label-pool-") as name:
        root = options.keep or Path(name)
        root.mkdir(parents=True, exist_ok=True)
        result = measured(root, options)
    machine = {"cpus": os.cpu_count(), "architecture": platform.machine()}
    print(json.dumps({"label_pool": result, "command": " ".join(sys.argv), "machine": machine}))


if __name__ == "__main__":
    main()
