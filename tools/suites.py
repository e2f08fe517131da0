"""Run test suites one after the other: `suites.py GROUP`, or `suites.py GROUP SUITE ...`.

Each suite has a budget, printed beside the seconds it took. A suite over its budget is a warning, since
machines differ; a suite over ten times its budget is stuck, and is stopped.
"""

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NO_TESTS_COLLECTED = 5
STUCK_AFTER_BUDGETS = 10
BYTECODE = ROOT / ".venv" / "bytecode"
TORCH_PACKAGES = ("models", "inference", "feedback", "train", "evaluate")
APART = ("train", "kills")
"""Folders of tests/integration that are suites of their own."""
BY_FILE = ("-n", "2", "--dist", "loadfile")
"""Two workers, each with whole files: what a file makes once for its tests is made once."""


@dataclass(frozen=True, kw_only=True)
class Suite:
    """One call of pytest."""

    name: str
    arguments: tuple[str, ...]
    budget_seconds: float


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a suite went."""

    suite: Suite
    status: int
    seconds: float

    @property
    def verdict(self) -> str:
        """One word or two for the table.

        >>> Outcome(suite=Suite(name="unit", arguments=(), budget_seconds=60), status=0, seconds=61).verdict
        'passed, over budget'
        """
        if self.status != 0:
            return "FAILED"
        return "passed, over budget" if self.seconds > self.suite.budget_seconds else "passed"


def packages(*, with_torch: bool) -> tuple[str, ...]:
    """The modules and packages of `charter` that may, or may not, import torch."""
    inside = (path for path in sorted((ROOT / "src/charter").iterdir()) if not path.name.startswith("__"))
    code = (path for path in inside if path.suffix == ".py" or (path / "__init__.py").exists())
    return tuple(str(path.relative_to(ROOT)) for path in code if (path.name in TORCH_PACKAGES) == with_torch)


GROUPS: dict[str, tuple[Suite, ...]] = {
    "test": (
        Suite(name="unit", arguments=("tests/unit", "-n", "2"), budget_seconds=60),
        Suite(name="plans", arguments=("tests/plans", "-n", "2"), budget_seconds=60),
        Suite(name="published", arguments=("tests/published",), budget_seconds=30),
        Suite(name="golden", arguments=("tests/golden",), budget_seconds=30),
        Suite(
            name="doctests",
            arguments=("--doctest-modules", *packages(with_torch=False), "tools"),
            budget_seconds=30,
        ),
        Suite(
            name="integration",
            arguments=("tests/integration", *(f"--ignore=tests/integration/{name}" for name in APART), *BY_FILE),
            budget_seconds=420,
        ),
        Suite(
            name="engine",
            arguments=("tests/integration/train", "--doctest-modules", *packages(with_torch=True), *BY_FILE),
            budget_seconds=180,
        ),
        Suite(name="kills", arguments=("tests/integration/kills",), budget_seconds=360),
    ),
    "system": (Suite(name="postgres", arguments=("tests/system", *BY_FILE), budget_seconds=180),),
    "engines": (
        Suite(name="vllm", arguments=("tests/engines/test_vllm_generator.py",), budget_seconds=600),
        Suite(name="vllm endpoint", arguments=("tests/engines/test_vllm_endpoint.py",), budget_seconds=120),
        Suite(name="lm_eval", arguments=("tests/engines/test_lm_eval.py",), budget_seconds=120),
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


def run(suite: Suite) -> Outcome:
    """Run one suite to its end, or stop it when it is stuck."""
    print(f"\n== {suite.name} (budget {suite.budget_seconds:.0f} s)", flush=True)
    command = [sys.executable, "-m", "pytest", "-q", *suite.arguments]
    # Compiled once and kept beside the interpreter, whatever the caller's setting: tests start many processes.
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(BYTECODE), "PYTHONDONTWRITEBYTECODE": ""}
    start = time.monotonic()
    try:
        status = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            timeout=suite.budget_seconds * STUCK_AFTER_BUDGETS,
            check=False,
        ).returncode
    except subprocess.TimeoutExpired:
        print(f"{suite.name}: stopped, it took ten times its budget", flush=True)
        status = 124
    if status == NO_TESTS_COLLECTED:
        print(f"{suite.name}: holds no test, which is a failure")
    return Outcome(suite=suite, status=status, seconds=time.monotonic() - start)


def main(arguments: list[str]) -> int:
    """Run the suites of a group, or those named, and print a table of them."""
    group, *names = arguments or ["test"]
    if group not in GROUPS or any(name not in {suite.name for suite in GROUPS[group]} for name in names):
        print("usage: suites.py GROUP [SUITE ...]; groups and suites:", file=sys.stderr)
        for known, suites in GROUPS.items():
            print(f"  {known}: {', '.join(suite.name for suite in suites) or '(empty)'}", file=sys.stderr)
        return 2
    outcomes = [run(suite) for suite in GROUPS[group] if not names or suite.name in names]
    print(f"\n{'suite':<14}{'seconds':>8}{'budget':>8}  result")
    for outcome in outcomes:
        suite = outcome.suite
        print(f"{suite.name:<14}{outcome.seconds:>8.1f}{suite.budget_seconds:>8.0f}  {outcome.verdict}")
    return int(any(outcome.status != 0 for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
