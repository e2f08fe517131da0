"""The time in which the ledger of a large run answers: 10,000 shards, a million rows; `charter status` and cost pages.

    python benchmarks/ledger_size.py [--shards 10000] [--attempts-per-shard 50]

Makes a project with the template cai-smoke, fills the ledger of its run with attempts at the shards of its label stage
(each with its charge, as `charter run` writes them), and measures `charter status --json` as a user starts it, the
queries that the cost pages make, and one more attempt written at that size. The last line is one JSON object. Wall
time is what a user waits; CPU time is told beside it, since machines are shared: `meets` holds for wall time,
`meets_in_cpu_time` for the time on a machine that does nothing else.
"""

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv" / "bin"
STATUS_RUNS, QUERY_RUNS, WRITES = 7, 60, 20
AT_ONCE = 500
"""Shards that are written in one transaction."""
START = 1_780_000_000.0
NEEDED = {"status_seconds": 1.0, "page_seconds_p95": 0.3}
ACCELERATORS = ("H100-SXM-80GB", "A100-SXM-80GB", "L40S")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shards", type=int, default=10_000)
    parser.add_argument("--attempts-per-shard", type=int, default=50)
    arguments = parser.parse_args()
    if Path(sys.executable).parent != VENV:
        os.execv(VENV / "python", [str(VENV / "python"), *sys.argv])
    with tempfile.TemporaryDirectory(prefix="charter-ledger-size-") as directory:
        figures = measure(Path(directory) / "project", arguments)
    print(json.dumps(figures))


def measure(project: Path, arguments: argparse.Namespace) -> dict[str, object]:
    """Make the project, fill its ledger, measure."""
    from charter.ledger import Ledger

    subprocess.run(
        [VENV / "charter", "init", "--template", "cai-smoke", project], check=True, stdout=subprocess.DEVNULL
    )
    place = project / "run" / "ledger.sqlite"
    (project / "run").mkdir()
    name = run_name(project)
    started = time.monotonic()
    rows = fill(place, name, shards=arguments.shards, attempts=arguments.attempts_per_shard)
    filled = time.monotonic() - started
    with Ledger.open(place, create=False) as ledger:
        pages = {name_: timed(query) for name_, query in queries(ledger, name).items()}
        written = timed(lambda: one_more(ledger, name), runs=WRITES)
        assert ledger.total(run=name).totals.attempts == arguments.shards * arguments.attempts_per_shard + 1 + WRITES
    status = timed(lambda: run_status(project), runs=STATUS_RUNS)
    page = sum(figure["p95"] for figure in pages.values())
    return {
        "rows": rows,
        "shards": arguments.shards,
        "attempts": arguments.shards * arguments.attempts_per_shard,
        "ledger_bytes": sum(p.stat().st_size for p in (project / "run").glob("ledger*")),
        "fill_seconds": round(filled, 1),
        "status_seconds": status,
        "queries_seconds": pages,
        "page_seconds_p95": round(page, 4),
        "write_seconds": written,
        "needed": NEEDED,
        "meets_in_cpu_time": status["cpu_median"] <= NEEDED["status_seconds"]
        and sum(figure["cpu_p95"] for figure in pages.values()) <= NEEDED["page_seconds_p95"],
        "meets": status["median"] <= NEEDED["status_seconds"] and page <= NEEDED["page_seconds_p95"],
        "command": " ".join(["python", *sys.argv]),
        "machine": f"{platform.machine()}, {os.cpu_count()} processors, Python {platform.python_version()}",
    }


def run_name(project: Path) -> str:
    """The name of the project's run."""
    from charter.engines.project import load_project

    return load_project(project).name


def write_ended(connection: Any, group: Sequence[Any]) -> None:
    """Write attempts with ids of their own, their charges, checks and sums, many at a time."""
    from sqlalchemy import insert

    from charter.ledger.account import account
    from charter.ledger.rows import write_charges
    from charter.ledger.schema import attempts
    from charter.ledger.sum_rows import add_spend, check_of, spend_of_attempts

    rows = [{**asdict(item), "started_monotonic": None, "ended_at": item.ended_at} for item in group]
    connection.execute(insert(attempts), [{**row, "row_check": check_of(row)} for row in rows])
    accounted = account(group)
    write_charges(connection, accounted)
    add_spend(connection, spend_of_attempts(accounted))


def fill(place: Path, run: str, *, shards: int, attempts: int) -> int:
    """Write attempts with their charges and sums, whole shards at a time; returns how many rows there are then."""
    from charter.ledger import Ledger

    with Ledger.open(place) as ledger:
        draw, number = random.Random(7), 0
        for first in range(0, shards, AT_ONCE):
            group = list(drawn(draw, run, range(first, min(shards, first + AT_ONCE)), attempts, number))
            number += len(group)
            with ledger._database.transaction() as connection:
                write_ended(connection, group)
        with ledger._database.transaction(reading=True) as connection:
            tables = ("attempts", "charges", "spend_sums")
            return sum(connection.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar_one() for table in tables)


def drawn(draw: random.Random, run: str, shards: range, attempts: int, number: int) -> Iterator[object]:
    """Attempts at some shards: most were killed and done again, the last one of each finished."""
    from charter.ledger.attempt import Attempt

    for shard in shards:
        step, at = 0, START + draw.random() * 30 * 86_400
        for index in range(attempts):
            number += 1
            duration, last = draw.randrange(60_000, 900_000), index == attempts - 1
            minute = step + draw.randrange(1, 20)
            yield Attempt(
                attempt_id=number, run=run, stage="label", kind="label", number=number, fingerprint="f" * 64,
                accelerator=ACCELERATORS[shard % 3], count=1, infra="slurm", market=("spot", "on_demand")[shard % 2],
                started_at=at, duration_milliseconds=duration, clock="engine", last_heartbeat=at + duration / 1000,
                first_step=step, last_step=minute, outcome="done" if last else "killed", records=minute - step,
                price_micro_usd_per_hour=2_500_000, price_source="benchmark", price_as_of="2026-11-01",
                host=f"node{shard % 64}", job_id=f"{shard}_{index}", nodes=f"node{shard % 64}", shard=shard,
                owner=("ann", "ben")[shard % 2], tags='{"team": "alignment"}',
            )  # fmt: skip
            step, at = minute - draw.randrange(0, 2), at + duration / 1000 + 60


def queries(ledger: object, run: str) -> dict[str, Callable[[], object]]:
    """The queries of the cost pages."""
    by = (("stage",), ("day",), ("owner",), ("accelerator",), ("tag:team",), ("stage", "outcome"))
    by_name: dict[str, Callable[[], object]] = {
        "by_" + "_".join(names): (lambda names=names: ledger.sums(run=run, by=names))  # type: ignore[attr-defined, misc]
        for names in by
    }
    return {
        **by_name,
        "recent": lambda: ledger.recent(run=run, limit=50),  # type: ignore[attr-defined]
        "running": lambda: ledger.running(run=run),  # type: ignore[attr-defined]
        "counts": lambda: ledger.attempt_counts(run=run),  # type: ignore[attr-defined]
    }


def one_more(ledger: object, run: str) -> None:
    """Begin and end one more attempt."""
    attempt = ledger.begin(  # type: ignore[attr-defined]
        run=run, stage="label", kind="label", fingerprint="f" * 64, at=START, shard=1, price_micro_usd_per_hour=10**6
    )
    ledger.end(attempt, at=START + 5, outcome="done", step=1)  # type: ignore[attr-defined]


def run_status(project: Path) -> None:
    """`charter status --json`, as a user starts it: with compiled modules, which an editable install may not write."""
    own = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(VENV.parent / "bytecode")}
    done = subprocess.run(
        [VENV / "charter", "status", "-C", project, "--json"], env=own, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)["stages"]


def timed(work: Callable[[], object], *, runs: int = QUERY_RUNS) -> dict[str, float]:
    """Median and 95th percentile of some runs, in seconds; the first run, which fills caches, is left out."""
    work()
    walls, processors = [], []
    for _ in range(runs):
        started, used = time.perf_counter(), cpu_seconds()
        work()
        walls.append(time.perf_counter() - started)
        processors.append(cpu_seconds() - used)
    at_95 = max(0, int(0.95 * runs) - 1)
    return {
        "median": round(statistics.median(walls), 5),
        "p95": round(sorted(walls)[at_95], 5),
        "cpu_median": round(statistics.median(processors), 5),
        "cpu_p95": round(sorted(processors)[at_95], 5),
    }


def cpu_seconds() -> float:
    """Of this process and of those it has waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


if __name__ == "__main__":
    main()
