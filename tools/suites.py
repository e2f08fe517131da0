"""Run test suites one after the other: `suites.py GROUP`, or `suites.py GROUP SUITE ...`.

Each suite has a budget, printed beside the seconds it took. A suite over its budget is a warning, since
machines differ; a suite over four times its budget is stuck, and is stopped.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS_FAILED, NO_TESTS_COLLECTED = 1, 5
STUCK_AFTER_BUDGETS = 4
BYTECODE = ROOT / ".venv" / "bytecode"
TORCH_PACKAGES = ("models", "inference", "feedback", "train", "evaluate")
APART = ("train", "kills")
"""Folders of tests/integration that are suites of their own."""
SERVERS = ("tracking", "slurm", "ray", "browser")
"""Folders of tests/system with clusters and servers of other people's make, each a suite of its own."""
SECOND_LANE = ("tracking", "slurm")
"""Those that run beside the others; both lanes take about as long."""
IN_RAY = tuple(f"src/charter/launch/ray/{name}.py" for name in ("keeper", "node_task", "task_outcome"))
"""Modules that Ray's own workers run: the rest of the house does without Ray."""
KUBERNETES = "kubernetes"
"""Another one, which needs a control plane that takes minutes to build: in the group of other engines."""
BY_FILE = ("-n", "2", "--dist", "loadfile")
"""Two workers, each with whole files: what a file makes once for its tests is made once."""


@dataclass(frozen=True, kw_only=True)
class Suite:
    """One call of pytest."""

    name: str
    arguments: tuple[str, ...]
    budget_seconds: float
    lane: int = 0
    """Suites of different lanes run side by side: those that mostly wait for servers of other people's make."""
    tries: int = 1
    """Where many processes run on two cores: tests that failed run once more, and the table names them.

    Never where exactness is the claim (engine, kills): hashes that differ once in fifty runs are a defect.
    """


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a suite went."""

    suite: Suite
    status: int
    seconds: float
    again: tuple[str, ...] = ()
    """The tests that failed and ran once more."""

    @property
    def verdict(self) -> str:
        """One word or two for the table.

        >>> Outcome(suite=Suite(name="unit", arguments=(), budget_seconds=60), status=0, seconds=61).verdict
        'passed, over budget'
        """
        if self.status != 0:
            return "FAILED"
        if self.again:
            return f"passed, {len(self.again)} at the second try"
        return "passed, over budget" if self.seconds > self.suite.budget_seconds else "passed"


def packages(*, with_torch: bool) -> tuple[str, ...]:
    """The modules and packages of `charter` that may, or may not, import torch."""
    inside = (path for path in sorted((ROOT / "src/charter").iterdir()) if not path.name.startswith("__"))
    code = (path for path in inside if path.suffix == ".py" or (path / "__init__.py").exists())
    return tuple(str(path.relative_to(ROOT)) for path in code if (path.name in TORCH_PACKAGES) == with_torch)


GROUPS: dict[str, tuple[Suite, ...]] = {
    "test": (
        Suite(name="unit", arguments=("tests/unit", "-n", "2"), budget_seconds=150),
        Suite(name="plans", arguments=("tests/plans", "-n", "2"), budget_seconds=60),
        Suite(name="published", arguments=("tests/published",), budget_seconds=60),
        Suite(name="golden", arguments=("tests/golden",), budget_seconds=30),
        Suite(
            name="doctests",
            arguments=(
                "--doctest-modules",
                *packages(with_torch=False),
                "tools",
                *(f"--ignore={path}" for path in IN_RAY),
            ),
            budget_seconds=30,
        ),
        Suite(
            name="integration",
            arguments=("tests/integration", *(f"--ignore=tests/integration/{name}" for name in APART), *BY_FILE),
            budget_seconds=600,
            tries=2,
        ),
        Suite(
            name="engine",
            arguments=("tests/integration/train", "--doctest-modules", *packages(with_torch=True), *BY_FILE),
            budget_seconds=180,
        ),
        Suite(name="kills", arguments=("tests/integration/kills",), budget_seconds=600),
    ),
    "system": (
        Suite(
            name="postgres",
            arguments=("tests/system", *(f"--ignore=tests/system/{name}" for name in (*SERVERS, KUBERNETES)), *BY_FILE),
            budget_seconds=240,
        ),
        *(
            Suite(
                name=name,
                arguments=(f"tests/system/{name}", "--durations=10"),
                budget_seconds=1200,
                lane=int(name in SECOND_LANE),
                tries=2,
            )
            for name in SERVERS
        ),
    ),
    "handover": tuple(
        Suite(name=path.name, arguments=(str(path.relative_to(ROOT)), *BY_FILE), budget_seconds=300, tries=2)
        for path in sorted((ROOT / "tests/handover").iterdir())
        if path.is_dir() and not path.name.startswith("_")
    ),
    "engines": (
        Suite(name="vllm", arguments=("tests/engines/test_vllm_generator.py",), budget_seconds=600),
        Suite(name="vllm endpoint", arguments=("tests/engines/test_vllm_endpoint.py",), budget_seconds=120),
        Suite(name="lm_eval", arguments=("tests/engines/test_lm_eval.py",), budget_seconds=120),
        Suite(name="kubernetes", arguments=("tests/system/kubernetes",), budget_seconds=900, tries=2),
        Suite(name="managed", arguments=("tests/engines/test_managed_schemas.py",), budget_seconds=300),
        Suite(name="skypilot", arguments=("tests/engines/test_skypilot.py",), budget_seconds=300),
    ),
    "chaos": (
        Suite(name="kills", arguments=("tests/integration/kills",), budget_seconds=7200),
        Suite(name="random kills", arguments=("tests/chaos",), budget_seconds=900),
        Suite(
            name="properties",
            arguments=("tests/unit", "tests/plans", "-n", "2", "--hypothesis-profile=thorough"),
            budget_seconds=300,
        ),
    ),
}


def run(suite: Suite, *, aside: bool = False) -> Outcome:
    """Run one suite to its end, or stop it when it is stuck; where it has several tries, failed tests run again.

    `aside`: its output is held back until it has ended, since another suite writes at the same time.
    """
    start = time.monotonic()
    output = [f"\n== {suite.name} (budget {suite.budget_seconds:.0f} s)\n"]
    _say(output, aside=aside)
    again: tuple[str, ...] = ()
    status = _pytest(suite, (), output, aside=aside)
    if status == TESTS_FAILED and suite.tries > 1:
        again = _failed(suite)
        output.append(f"\n== {suite.name}: what failed runs once more\n")
        _say(output, aside=aside)
        status = _pytest(suite, ("--last-failed", "--last-failed-no-failures=none"), output, aside=aside)
    if status == NO_TESTS_COLLECTED:
        output.append(f"{suite.name}: holds no test, which is a failure\n")
    _say(output, aside=False)
    return Outcome(suite=suite, status=status, seconds=time.monotonic() - start, again=again)


def _failed(suite: Suite) -> tuple[str, ...]:
    """The tests that failed in the last call of pytest, or that it could not begin."""
    path = _cache(suite) / "v" / "cache" / "lastfailed"
    return tuple(sorted(json.loads(path.read_text(encoding="utf-8")))) if path.exists() else ("?",)


def _cache(suite: Suite) -> Path:
    return ROOT / ".pytest_cache" / suite.name.replace(" ", "-")


def _say(output: list[str], *, aside: bool) -> None:
    if not aside:
        print("".join(output), end="", flush=True)
        output.clear()


def _pytest(suite: Suite, more: tuple[str, ...], output: list[str], *, aside: bool) -> int:
    """The exit status of one call of pytest."""
    command = [sys.executable, "-m", "pytest", "-q", "-o", f"cache_dir={_cache(suite)}", *suite.arguments, *more]
    # Compiled once and kept beside the interpreter, whatever the caller's setting: tests start many processes.
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(BYTECODE), "PYTHONDONTWRITEBYTECODE": ""}
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as held:
        try:
            return subprocess.run(
                command,
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=held if aside else None,
                stderr=held if aside else None,
                timeout=suite.budget_seconds * STUCK_AFTER_BUDGETS,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            output.append(f"{suite.name}: stopped, it took {STUCK_AFTER_BUDGETS} times its budget\n")
            return 124
        finally:
            held.seek(0)
            output.insert(len(output), held.read())


def run_all(suites: Sequence[Suite]) -> list[Outcome]:
    """Run suites, those of one lane one after the other; the first lane writes as it goes."""
    lanes = sorted({suite.lane for suite in suites})

    def of_lane(lane: int) -> list[Outcome]:
        return [run(suite, aside=lane != lanes[0]) for suite in suites if suite.lane == lane]

    with ThreadPoolExecutor(max_workers=max(1, len(lanes))) as threads:
        found = [outcome for outcomes in threads.map(of_lane, lanes) for outcome in outcomes]
    return sorted(found, key=lambda outcome: suites.index(outcome.suite))


def main(arguments: list[str]) -> int:
    """Run the suites of a group, or those named, and print a table of them."""
    group, *names = arguments or ["test"]
    if group not in GROUPS or any(name not in {suite.name for suite in GROUPS[group]} for name in names):
        print("usage: suites.py GROUP [SUITE ...]; groups and suites:", file=sys.stderr)
        for known, suites in GROUPS.items():
            print(f"  {known}: {', '.join(suite.name for suite in suites) or '(empty)'}", file=sys.stderr)
        return 2
    outcomes = run_all([suite for suite in GROUPS[group] if not names or suite.name in names])
    print(f"\n{'suite':<14}{'seconds':>8}{'budget':>8}  result")
    for outcome in outcomes:
        suite = outcome.suite
        print(f"{suite.name:<14}{outcome.seconds:>8.1f}{suite.budget_seconds:>8.0f}  {outcome.verdict}")
        for test in outcome.again:
            print(f"{'':<30}  ran twice: {test}")
    return int(any(outcome.status != 0 for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
