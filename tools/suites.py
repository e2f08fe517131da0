"""Run test suites, each one call of pytest: `suites.py GROUP [SUITE ...]`; `suites.py flake TEST` writes one down.

Each suite has a budget, printed beside the wall and processor seconds that it took. A suite over its budget is a
warning, since machines differ; a suite over four times its budget is stuck, and is stopped. No test runs twice: one
that fails is a defect of the test or of the product, and the line for tests/flakes.md is printed.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NO_TESTS_COLLECTED = 5
STUCK_AFTER_BUDGETS = 4
BYTECODE = ROOT / ".venv" / "bytecode"
FLAKES = "tests/flakes.md"
LAST_WHOLE = "tests/last_whole.json"
"""When each suite of the recorded groups last passed whole: its date, commit and seconds."""
RECORDED_GROUPS = ("system", "handover", "engines")
SERVERS = ("slurm", "ray", "tracking", "browser")
"""Folders of tests/system with clusters and servers of other people's make, each a suite of its own."""
SERVER_FOLDERS = tuple(f"tests/system/{name}" for name in SERVERS)
IN_RAY = tuple(f"src/charter/launch/ray/{name}.py" for name in ("keeper", "node_task", "task_outcome"))
"""Modules that Ray's own workers run: the rest of the house does without Ray."""
KUBERNETES = "tests/system/kubernetes"
"""It needs a control plane that takes minutes to build: in the group of other engines."""
BY_TEST = ("-n", "2", "--dist", "worksteal")
BY_FILE = ("-n", "2", "--dist", "loadfile")
"""Two workers, each with whole files: what a file makes once for its tests is made once."""
MOSTLY_WAITING = ("-n", "3", "--dist", "loadfile")
"""Tests of real processes wait for a third of their time: a third worker has the cores meanwhile."""


@dataclass(frozen=True, kw_only=True)
class Suite:
    """One call of pytest."""

    name: str
    arguments: tuple[str, ...]
    budget_seconds: float


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The end of a suite."""

    suite: Suite
    status: int
    seconds: float
    cpu_seconds: float
    failures: tuple[tuple[str, str], ...] = ()
    """The tests that failed, each with the last line of its log."""

    @property
    def verdict(self) -> str:
        """One word or two for the table.

        >>> suite = Suite(name="unit", arguments=(), budget_seconds=60)
        >>> Outcome(suite=suite, status=0, seconds=61, cpu_seconds=90).verdict
        'passed, over budget'
        """
        if self.status != 0:
            return "FAILED"
        return "passed, over budget" if self.seconds > self.suite.budget_seconds else "passed"


def _doctests() -> tuple[str, ...]:
    """The arguments that add the examples of the package and the tools to a call of pytest."""
    # Golden files are texts, some of them programs for other engines' environments.
    ignored = (*(f"--ignore={path}" for path in IN_RAY), "--ignore-glob=tests/golden/*/*")
    return ("src/charter", "tools", "--doctest-modules", *ignored)


FAST = ("tests/unit", "tests/plans", "tests/published", "tests/golden")
KILLS = "tests/integration/kills"
FUZZED = "tests/chaos/test_fuzz_readers.py"

GROUPS: dict[str, tuple[Suite, ...]] = {
    "test": (
        Suite(name="fast", arguments=(*FAST, *_doctests(), *BY_TEST), budget_seconds=300),
        Suite(
            name="integration",
            arguments=("tests/integration", f"--ignore={KILLS}", "-m", "not thorough", *MOSTLY_WAITING),
            budget_seconds=500,
        ),
        Suite(name="kills", arguments=(KILLS, *BY_FILE), budget_seconds=300),
    ),
    "system": (
        *(Suite(name=name, arguments=(f"tests/system/{name}",), budget_seconds=300) for name in SERVERS),
        Suite(
            name="postgres",
            arguments=(
                "tests/system",
                *(f"--ignore=tests/system/{name}" for name in SERVERS),
                f"--ignore={KUBERNETES}",
            ),
            budget_seconds=300,
        ),
    ),
    "handover": tuple(
        Suite(name=name, arguments=(f"tests/handover/{name}",), budget_seconds=300)
        for name in ("huggingface", "verl", "openrlhf", "dali", "openenv", "verifiers")
    ),
    "engines": (
        Suite(name="vllm", arguments=("tests/engines/test_vllm_generator.py",), budget_seconds=600),
        Suite(name="vllm endpoint", arguments=("tests/engines/test_vllm_endpoint.py",), budget_seconds=120),
        Suite(name="lm_eval", arguments=("tests/engines/test_lm_eval.py",), budget_seconds=120),
        Suite(name="kubernetes", arguments=(KUBERNETES,), budget_seconds=900),
        Suite(name="managed", arguments=("tests/engines/test_managed_schemas.py",), budget_seconds=300),
        Suite(name="skypilot", arguments=("tests/engines/test_skypilot.py",), budget_seconds=300),
    ),
    "chaos": (
        Suite(name="kills", arguments=(KILLS,), budget_seconds=7200),
        Suite(name="integration", arguments=("tests/integration", "-m", "thorough", *BY_FILE), budget_seconds=600),
        Suite(name="random kills", arguments=("tests/chaos", f"--ignore={FUZZED}"), budget_seconds=900),
        Suite(name="fuzzed readers", arguments=(FUZZED,), budget_seconds=900),
        Suite(
            name="properties",
            arguments=("tests/unit", "tests/plans", *BY_TEST, "--hypothesis-profile=thorough"),
            budget_seconds=300,
        ),
    ),
}
LANES = {"system": 2, "handover": 2}
"""Suites that run side by side, where they mostly wait for servers of other people's make; else one at a time."""


def run(suite: Suite, *, aside: bool = False, more: tuple[str, ...] = ()) -> Outcome:
    """Run one suite to its end, or stop it when it is stuck.

    `aside`: its output is held back until it has ended, since another suite writes at the same time.
    """
    heading = f"\n== {suite.name} (budget {suite.budget_seconds:.0f} s)\n"
    if not aside:
        print(heading, end="", flush=True)
    report = _report(suite)
    report.unlink(missing_ok=True)
    cache = ("-o", f"cache_dir={report.parent}", f"--junitxml={report}")
    command = (sys.executable, "-m", "pytest", "-q", *cache, *suite.arguments, *more)
    outcome, text = measured(suite, command, aside=aside)
    if outcome.status == NO_TESTS_COLLECTED:
        text += f"{suite.name}: holds no test, which is a failure\n"
    print(heading + text if aside else text, end="", flush=True)
    return replace(outcome, failures=tuple(failures(report)))


def measured(suite: Suite, command: Sequence[str], *, aside: bool) -> tuple[Outcome, str]:
    """Run a command under the budget of a suite: its end with its seconds, and, `aside`, its output."""
    # Compiled once and kept beside the interpreter, whatever the caller's setting: tests start many processes.
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(BYTECODE), "PYTHONDONTWRITEBYTECODE": ""}
    start = time.monotonic()
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        output = log if aside else None
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
        stuck = threading.Event()

        def stop() -> None:
            stuck.set()
            process.kill()

        timer = threading.Timer(suite.budget_seconds * STUCK_AFTER_BUDGETS, stop)
        timer.start()
        # wait4, since it alone tells the processor seconds of this child among others that run beside it.
        _, ended, usage = os.wait4(process.pid, 0)
        timer.cancel()
        process.returncode = os.waitstatus_to_exitcode(ended)
        seconds = time.monotonic() - start
        log.seek(0)
        text = log.read()
    if stuck.is_set():
        text += f"{suite.name}: stopped, it took {STUCK_AFTER_BUDGETS} times its budget\n"
    cpu_seconds = usage.ru_utime + usage.ru_stime
    return Outcome(suite=suite, status=process.returncode, seconds=seconds, cpu_seconds=cpu_seconds), text


def run_all(suites: Sequence[Suite], *, lanes: int = 1, more: tuple[str, ...] = ()) -> list[Outcome]:
    """Run suites in their order, as many at a time as there are lanes."""
    with ThreadPoolExecutor(max_workers=lanes) as threads:
        return list(threads.map(lambda suite: run(suite, aside=lanes > 1, more=more), suites))


def _report(suite: Suite) -> Path:
    return ROOT / ".pytest_cache" / suite.name.replace(" ", "-") / "report.xml"


def failures(report: Path) -> Iterable[tuple[str, str]]:
    """The tests that failed in a report of pytest, each with the last line of its log."""
    if report.exists():
        for case in ET.parse(report).iter("testcase"):
            for problem in (*case.iterfind("failure"), *case.iterfind("error")):
                lines = (problem.text or problem.get("message") or "").split("\n")
                yield (
                    f"{case.get('classname')}::{case.get('name')}",
                    next((x for x in reversed(lines) if x.strip()), ""),
                )


def flake_line(test: str, last_line: str) -> str:
    """The line of tests/flakes.md for a test that failed now, at this commit."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    cells = (f"{datetime.now(UTC):%Y-%m-%d}", f"`{test}`", commit, f"`{last_line.strip().replace('|', '/')}`", "")
    return "| " + " | ".join(cells).rstrip() + " |"


def write_flake(test: str) -> int:
    """Append a test's failure, as its last report tells it, to tests/flakes.md."""
    reports = sorted((ROOT / ".pytest_cache").glob("*/report.xml"), key=lambda path: path.stat().st_mtime)
    line_of_test = {name: line for report in reports for name, line in failures(report)}
    matching = [name for name in line_of_test if test in name]
    if len(matching) != 1:
        print(
            f"error: {test}: names {len(matching)} of the tests that failed last:",
            *line_of_test,
            sep="\n  ",
            file=sys.stderr,
        )
        return 2
    with (ROOT / FLAKES).open("a", encoding="utf-8") as file:
        file.write(flake_line(matching[0], line_of_test[matching[0]]) + "\n")
    return 0


def record_whole(outcomes: Iterable[Outcome]) -> None:
    """Write down the suites that have just passed whole."""
    path = ROOT / LAST_WHOLE
    records = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for outcome in outcomes:
        if outcome.status == 0:
            records[outcome.suite.name] = {
                "date": f"{datetime.now(UTC):%Y-%m-%d}",
                "seconds": round(outcome.seconds),
            }
    path.write_text(json.dumps(records, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def table(outcomes: Iterable[Outcome]) -> str:
    """Suites with their seconds, and the lines to be added to tests/flakes.md for what failed."""
    outcomes = list(outcomes)
    lines = [f"\n{'suite':<22}{'wall s':>8}{'cpu s':>8}{'budget':>8}  result"]
    for outcome in outcomes:
        figures = f"{outcome.seconds:>8.1f}{outcome.cpu_seconds:>8.1f}{outcome.suite.budget_seconds:>8.0f}"
        lines.append(f"{outcome.suite.name:<22}{figures}  {outcome.verdict}")
    if failed := [flake_line(*failure) for outcome in outcomes for failure in outcome.failures]:
        lines += [f"\nIf it passes now, it belongs into {FLAKES} (tools/suites.py flake TEST):", *failed]
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Run the suites of a group, or those named, and print a table of them."""
    group, *names = arguments or ["test"]
    if group == "flake" and len(names) == 1:
        return write_flake(names[0])
    if group not in GROUPS or any(name not in {suite.name for suite in GROUPS[group]} for name in names):
        print("usage: suites.py flake TEST, or suites.py GROUP [SUITE ...]; groups and suites:", file=sys.stderr)
        for group, suites in GROUPS.items():
            print(f"  {group}: {', '.join(suite.name for suite in suites)}", file=sys.stderr)
        return 2
    chosen = [suite for suite in GROUPS[group] if not names or suite.name in names]
    outcomes = run_all(chosen, lanes=LANES.get(group, 1))
    if group in RECORDED_GROUPS:
        record_whole(outcomes)
    print(table(outcomes))
    return int(any(outcome.status != 0 for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
