"""SIGKILL of whole runs whose models are all behind an endpoint that fails one request in seven and bills the rest.

The server is a process of its own and writes down every request before it answers. What must hold after any kills: the
records are those of a run to which nothing happened, none is lost or doubled, the truth about the bill lies within the
ledger's interval, and after reconciliation with the server's log the bill is the log's.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import forks
import pytest
from bench import PRINCIPLES, TOPICS, rows
from layouts import THOROUGH
from processes import stage_pids
from results import Case, record

pytestmark = [pytest.mark.torch, pytest.mark.slow]
KILLS = max(20, int(os.environ.get("CHARTER_CHAOS_KILLS", "0")) // 3) if THOROUGH else 3
MOST_IN_A_RUN = 7
SEED = int(os.environ.get("CHARTER_CHAOS_SEED", "1"))
CHARTER = [sys.executable, "-m", "charter.cli.main"]
SERVER = Path(__file__).parents[2] / "cases" / "fault_server.py"
PRICE_INPUT, PRICE_OUTPUT = 3, 15
PROJECT = """
name: served
models:
  judge: {{model: fault-judge-1}}
  writer: {{model: fault-judge-1}}
constitution: constitution.yaml
data: {{seeds: prompts.jsonl, pairs: pairs.jsonl}}
pipeline:
  clean:    {{kind: prepare, data: [seeds], min_characters: 2, near_duplicates: null}}
  answers:  {{kind: generate, policy: writer, prompts: [clean], answers_per_prompt: 2, rollout_batch: 2}}
  critique: {{kind: critique, policy: writer, critic: judge, prompts: [clean], revisions: 2, rollout_batch: 2}}
  label:    {{kind: label, policy: writer, judge: judge, prompts: [clean], pairs: 24, candidates: [pairs],
             rollout_batch: 3}}
seed: 7
resources: {{infra: local, cpus: 1, max_parallel_stages: 2}}
serving:
  judge:  {{endpoint: "{url}", concurrency: 4, {price}}}
  writer: {{endpoint: "{url}", concurrency: 4, {price}}}
"""
PRICE = f"usd_per_million_input_tokens: {PRICE_INPUT}, usd_per_million_output_tokens: {PRICE_OUTPUT}"


@contextlib.contextmanager
def served(log: Path, *, faults: float):
    """The server's address."""
    command = [sys.executable, str(SERVER), "--log", str(log), "--faults", str(faults), "--seconds", "0.02"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.kill()


def project_at(path: Path, url: str) -> Path:
    path.mkdir()
    (path / "charter.yaml").write_text(PROJECT.format(url=url, price=PRICE))
    (path / "constitution.yaml").write_text(PRINCIPLES)
    for name in ("prompts", "pairs"):
        (path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(name)))
    return path


def charter(*arguments: str) -> dict:
    done = forks.run([*CHARTER, *arguments, "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def start(project: Path) -> subprocess.Popen:
    return forks.Process(
        [*CHARTER, "run", "-C", str(project), "--yes"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def outputs(project: Path) -> dict[str, dict[str, str]]:
    return {stage["name"]: stage["outputs"] for stage in charter("status", "-C", str(project))["stages"]}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Outputs of a run without kills or faults, how long it took, and its project."""
    place = tmp_path_factory.mktemp("served")
    with served(place / "log", faults=0) as url:
        project, began = project_at(place / "project", url), time.monotonic()
        run = start(project)
        assert run.communicate()[1] is not None
        assert run.returncode == 0
    return outputs(project), time.monotonic() - began, project


def kill_somebody(project: Path, run: subprocess.Popen, draws: random.Random) -> bool:
    """SIGKILL of the run or of one of its stages; whether there was somebody to kill."""
    stages = stage_pids(project)
    victim = draws.choice(stages) if stages and draws.random() < 0.5 else run.pid
    with contextlib.suppress(ProcessLookupError):
        os.kill(victim, signal.SIGKILL)
        return True
    return False


def disturbed(project: Path, draws: random.Random, *, most: int, latest_seconds: float) -> int:
    """Run to the end through so many kills at most; how many there were."""
    kills = 0
    for _ in range(10 * most):
        run = start(project)
        while run.poll() is None and kills < most:
            with contextlib.suppress(subprocess.TimeoutExpired):
                run.wait(timeout=draws.uniform(0.3, latest_seconds))
            if run.poll() is None:
                kills += kill_somebody(project, run, draws)
        problems = run.communicate()[1]
        if run.returncode == 0:
            return kills
        assert run.returncode in (-signal.SIGKILL, 5), problems
    raise AssertionError("the run never ended")


def billed(log: Path) -> dict[str, int]:
    """Micro-USD of every request that the server bills, by its id."""
    lines = [json.loads(line) for line in log.read_text().split("\n")[:-1]]
    return {
        line["id"]: line["prompt_tokens"] * PRICE_INPUT + line["completion_tokens"] * PRICE_OUTPUT
        for line in lines
        if line["billed"]
    }


def test_models_by_address_are_planned_and_reported(undisturbed):
    *_, project = undisturbed
    plan, cost = charter("plan", "-C", str(project)), charter("cost", "report", "-C", str(project))
    assert plan["total"]["usd"]["p50"] > 0
    planned = {stage["name"]: stage["asked"] for stage in plan["stages"] if "asked" in stage}
    calls = {stage["name"]: stage["actual"]["calls"]["requests"] for stage in cost["stages"]}
    identity = [use for uses in planned.values() for use in uses if use["for"].startswith("identity of")]
    sent = [json.loads(line) for line in (project.parent / "log").read_text().splitlines()]
    # Nobody knows which of the stages that begin at once makes the baseline of their model: only the sum is planned.
    assert sum(use["requests"] for use in identity) == sum(line["is_identity"] for line in sent)
    assert sum(use["requests"] for uses in planned.values() for use in uses) == sum(calls.values()) == len(sent)
    assert all(stage["planned"]["usd"] for stage in cost["stages"] if stage["name"] in planned)
    report = forks.run([*CHARTER, "report", "-C", str(project)], capture_output=True, text=True)
    assert report.returncode == 0, report.stderr


def test_no_record_is_lost_or_paid_twice_without_being_told(undisturbed, tmp_path):
    reference, seconds, _ = undisturbed
    kills = runs = mismatches = 0
    while kills < KILLS:
        runs += 1
        draws, log = random.Random(f"{SEED}-served-{runs}"), tmp_path / f"log-{runs}"
        with served(log, faults=1 / 7) as url:
            project = project_at(tmp_path / f"project-{runs}", url)
            kills += disturbed(project, draws, most=min(MOST_IN_A_RUN, KILLS - kills), latest_seconds=seconds / 3)
        mismatches += outputs(project) != reference
        check_records(project)
        check_bill(project, log, tmp_path / f"bill-{runs}.jsonl")
    record(
        Case(
            test="served", kind="prepare, generate, critique, label", layout="1", kills=kills, runs=runs,
            mismatches=mismatches, lost=0, doubled=0, seed=SEED,
        )
    )  # fmt: skip
    assert mismatches == 0, f"seed {SEED}: {mismatches} of {runs} runs with {kills} kills differ"


def check_records(project: Path) -> None:
    """Every record is there once."""
    for stage, count in {"clean": 12, "answers": 24, "critique": 24, "label": 36}.items():
        (path,) = (project / "run" / "stages").glob(f"{stage}-*/outputs/records.jsonl")
        ids = Counter(json.loads(line)["id"] for line in path.read_text().split("\n")[:-1])
        assert len(ids) == sum(ids.values()) == count, stage
    assert len(TOPICS) == 12


def check_bill(project: Path, log: Path, bill: Path) -> None:
    """The truth lies within the interval; after reconciliation it is the bill."""
    truth = billed(log)
    found = calls_of(project)
    assert found["settled_micro_usd"] <= sum(truth.values())
    assert sum(truth.values()) <= found["settled_micro_usd"] + found["unknown_micro_usd"]
    lines = [{"request_id": name, "cost_usd": f"{cost / 1e6:.6f}"} for name, cost in truth.items()]
    bill.write_text("".join(json.dumps(line) + "\n" for line in lines))
    charter("cost", "reconcile", str(bill), "-C", str(project))
    after = calls_of(project)
    assert (after["settled_micro_usd"], after["unknown_micro_usd"]) == (sum(truth.values()), 0)


def calls_of(project: Path) -> dict[str, int]:
    return charter("cost", "report", "-C", str(project))["actual"]["calls"]
