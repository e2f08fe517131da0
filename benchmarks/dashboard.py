"""The speed of the dashboard with a large run: pages at 20 clients, and the first paint in a real browser.

A project with a stage of 10,000 shards, a ledger of 1,000,000 attempts, 100,000 steps of metrics, and a supervisor's
writes every 2 s while it is measured. `charter ui` is a process of its own; the clients are threads with a connection
each, and ask for one page after the other without a pause. Before that, the first page over 200 projects that never
ran; `--many` measures that alone. Last line: JSON.
"""

import http.client
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from statistics import median, quantiles

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "cases"))

from dashboard_case import HOUR_MICRO_USD, START, ProjectCase  # noqa: E402

from charter.dashboard.guard import cookie_name, session_of  # noqa: E402
from charter.dashboard.reading import key_of  # noqa: E402
from charter.ledger import Ledger  # noqa: E402
from charter.ledger.opening import open_database  # noqa: E402
from charter.ledger.sum_rows import check_of  # noqa: E402

SHARDS, ATTEMPTS, STEPS = 10_000, 1_000_000, 100_000
MANY = 200
"""Projects that never ran, for the first page over many."""
CLIENTS, SECONDS = 20, float(os.environ.get("DASHBOARD_SECONDS", "30"))
LIMIT_PAGE_SECONDS, LIMIT_PAINT_SECONDS = 0.3, 1.0
TOKEN = "benchmark-token-0123456789-abcdefghij"
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
FLAGS += ["--disable-background-networking", "--disable-component-update"]

FIRST_PAINT = """() => new Promise((done) => new PerformanceObserver((list) => {
  const found = list.getEntriesByName("first-contentful-paint")[0];
  if (found) done(found.startTime);
}).observe({type: "paint", buffered: true}))"""


def make_project(root: Path) -> ProjectCase:
    """The project in the middle of its run."""
    case = ProjectCase(root, name="large")
    case.plan()
    case.event("run_started", run="large", todo=list(case.stages))
    for _ in range(2000):
        case.event("stage_note", stage="sft", message="one more shard is done")
    case.metrics("sft", STEPS, accuracy=0.9, tokens_per_second=4000.0, kl=1.0, gradient_norm=2.0)
    case.done("sft", STEPS)
    record = json.loads((case.directory("sft") / "record.json").read_text())
    record["outputs"] = {f"records/shard-{shard:05d}.jsonl": "0" * 64 for shard in range(SHARDS)}
    (case.directory("sft") / "record.json").write_text(json.dumps(record))
    case.metrics("pm", 10_000, accuracy=0.9)
    case.running("pm", 10, 20_000, pid=os.getpid())
    (case.directory("pm") / "log.txt").write_text("a line of a log\n" * 200_000)
    return case


def fill_ledger(case: ProjectCase) -> int:
    """Write the attempts in bulk, and what follows from them as the ledger itself does; returns the rows."""
    from sqlalchemy import func, insert, select

    from charter.ledger.rebuilding import rebuild_sums
    from charter.ledger.schema import attempts, charges

    case.attempt("sft", seconds=1.0)
    database = open_database(case.run / "ledger.sqlite")
    with database.engine.begin() as connection:
        first = dict(connection.execute(select(attempts)).mappings().one())
        for start in range(0, ATTEMPTS - 1, 20_000):
            numbers = range(start, min(start + 20_000, ATTEMPTS - 1))
            connection.execute(insert(attempts), [_attempt(first, number) for number in numbers])
        rebuild_sums(connection)
        rows = sum(connection.scalar(select(func.count()).select_from(table)) or 0 for table in (attempts, charges))
    database.engine.dispose()
    return rows


def _attempt(first: dict[str, object], number: int) -> dict[str, object]:
    at = START + (number % 50) * 3600.0
    lost = number % 50 == 7
    row = {
        **first,
        "attempt_id": number + 2,
        "number": number + 2,
        "shard": number % SHARDS,
        "started_at": at,
        "last_heartbeat": at + 30,
        "ended_at": at + 30,
        "duration_milliseconds": 30_000,
        "outcome": "killed" if lost else "done",
        "accelerator": "H100" if number % 3 else "A100-80GB",
        "price_micro_usd_per_hour": HOUR_MICRO_USD,
    }
    return {**row, "row_check": check_of(row)}


def made_project(root: Path) -> tuple[ProjectCase, int]:
    """The project and its rows: made, or as an earlier call with the same `DASHBOARD_PROJECTS` has left it."""
    if (root / "rows.txt").exists():
        case = ProjectCase(root, name="large")
        case.running("pm", 10, 20_000, pid=os.getpid())
        return case, int((root / "rows.txt").read_text())
    started = time.monotonic()
    case = make_project(root)
    rows = fill_ledger(case)
    (root / "rows.txt").write_text(str(rows))
    print(f"made {rows:,} ledger rows in {time.monotonic() - started:.0f} s", flush=True)
    return case, rows


class Supervisor(threading.Thread):
    """Writes what a run writes every 2 s, so that nothing stays the same for long."""

    def __init__(self, case: ProjectCase) -> None:
        super().__init__(daemon=True)
        self.case, self.over = case, threading.Event()

    def run(self) -> None:
        with Ledger.open(self.case.run / "ledger.sqlite") as ledger:
            stage = self.case.stages["pm"]
            attempt = ledger.begin(
                run="large", stage="pm", kind=stage.spec.kind, fingerprint=stage.fingerprint, at=time.time(),
                accelerator="H100", price_micro_usd_per_hour=HOUR_MICRO_USD,
            )  # fmt: skip
            step = 10
            while not self.over.wait(2.0):
                step += 10
                ledger.heartbeat(attempt, at=time.time(), step=step)
                self.case.progress("pm", step, 20_000)
                self.case.metrics("pm", 10, accuracy=0.9)


def start_server(root: Path) -> tuple[subprocess.Popen[str], int]:
    """A dashboard as a user starts it, and its port."""
    command = [
        sys.executable,
        "-m",
        "charter.cli.main",
        "ui",
        str(root),
        "--port",
        "0",
        "--token",
        "env:BENCHMARK_TOKEN",
    ]
    environment = {**os.environ, "BENCHMARK_TOKEN": TOKEN}
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert server.stdout is not None
    address = server.stdout.readline()
    return server, int(address.rpartition(":")[2].partition("/")[0])


def measure(port: int, paths: dict[str, str]) -> dict[str, list[float]]:
    """Seconds of every request of all clients, by page."""
    seconds: dict[str, list[float]] = {name: [] for name in paths}
    until = time.monotonic() + SECONDS

    def client(number: int) -> None:
        headers = {"Cookie": f"{cookie_name(port)}={session_of(TOKEN)}", "Host": f"127.0.0.1:{port}"}
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        names = list(paths)
        while time.monotonic() < until:
            name = names[number % len(names)]
            number += 1
            start = time.perf_counter()
            connection.request("GET", paths[name], headers=headers)
            answer = connection.getresponse()
            content = answer.read()
            seconds[name].append(time.perf_counter() - start)
            if answer.status != 200:
                raise RuntimeError(f"{paths[name]}: {answer.status} {content[:300]!r}")

    threads = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return seconds


def first_paints(port: int, paths: dict[str, str]) -> dict[str, float]:
    """Seconds until the first content is painted: median of five visits with an empty cache; none without Chromium."""
    chromium = shutil.which("chromium")
    with suppress(ImportError):
        from playwright.sync_api import sync_playwright

        if chromium is not None:
            with sync_playwright() as started:
                browser = started.chromium.launch(executable_path=chromium, args=FLAGS)
                painted = {name: median(_paint(browser, port, path) for _ in range(5)) for name, path in paths.items()}
                browser.close()
                return painted
    return {}


def _paint(browser: object, port: int, path: str) -> float:
    context = browser.new_context(base_url=f"http://127.0.0.1:{port}")  # type: ignore[attr-defined]
    address = f"http://127.0.0.1:{port}"
    context.add_cookies([{"name": cookie_name(port), "value": session_of(TOKEN), "url": address}])
    page = context.new_page()
    page.goto(path)
    paint = page.evaluate(FIRST_PAINT)
    context.close()
    return float(paint) / 1000


def spread(values: list[float]) -> dict[str, float]:
    """Median, p95 and the longest, in seconds."""
    cuts = quantiles(values, n=100) if len(values) > 1 else values * 99
    return {"p50": round(cuts[49], 4), "p95": round(cuts[94], 4), "max": round(max(values), 4), "count": len(values)}


def first_of_many(place: Path, count: int = MANY) -> float:
    """Seconds of the first request, for the page of all projects, to a dashboard over projects that never ran."""
    subprocess.run(
        [sys.executable, "-m", "charter.cli.main", "init", "--template", "cai-smoke", str(place / "0")],
        check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    for number in range(1, count):
        shutil.copytree(place / "0", place / str(number))
    server, port = start_server(place)
    try:
        begun = time.perf_counter()
        first = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        first.request("GET", "/", headers={"Cookie": f"{cookie_name(port)}={session_of(TOKEN)}"})
        text = first.getresponse().read().decode()
        seconds = time.perf_counter() - begun
    finally:
        server.terminate()
        server.wait(20)
    assert "being read" in text, "a page that waited for all of them"
    return seconds


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="charter-many-") as scratch:
        many = first_of_many(Path(scratch))
        print(f"first page over {MANY} projects {many:.3f} s", flush=True)
    if "--many" in sys.argv:
        return
    with tempfile.TemporaryDirectory(prefix="charter-dashboard-") as scratch:
        place = Path(os.environ.get("DASHBOARD_PROJECTS", scratch))
        case, rows = made_project(place / "large")
        key = key_of(case.root.resolve())
        names = {"run": "", "stage": "/stage/sft", "running stage": "/stage/pm", "cost": "/cost"}
        paths = {"projects": "/", **{name: f"/p/{key}{path}" for name, path in names.items()}}
        server, port = start_server(place)
        supervisor = Supervisor(case)
        try:
            supervisor.start()
            begun = time.perf_counter()
            first = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
            first.request("GET", paths["run"], headers={"Cookie": f"{cookie_name(port)}={session_of(TOKEN)}"})
            first.getresponse().read()
            cold = time.perf_counter() - begun
            seconds = measure(port, paths)
            pages = {name: spread(values) for name, values in seconds.items()}
            for name, figures in pages.items():
                print(f"{name:<14} p50 {figures['p50']:.3f} s, p95 {figures['p95']:.3f} s", flush=True)
            paints = first_paints(port, paths)
        finally:
            supervisor.over.set()
            supervisor.join()
            server.terminate()
            server.wait(20)
    everything = spread([value for values in seconds.values() for value in values])
    result = {
        "ledger_rows": rows, "shards": SHARDS, "metric_steps": STEPS, "clients": CLIENTS, "seconds": SECONDS,
        "first_page_of_many_seconds": round(many, 3), "many": MANY,
        "all_pages": everything, "pages": pages, "first_page_after_start_seconds": round(cold, 3),
        "first_paint_seconds": {name: round(value, 3) for name, value in paints.items()},
        "within": everything["p95"] <= LIMIT_PAGE_SECONDS and all(v <= LIMIT_PAINT_SECONDS for v in paints.values()),
        "command": "python benchmarks/dashboard.py", "machine": f"{platform.machine()}, {os.cpu_count()} processors",
        "load": [round(value, 1) for value in os.getloadavg()],
    }  # fmt: skip
    print(json.dumps(result))


if __name__ == "__main__":
    main()
