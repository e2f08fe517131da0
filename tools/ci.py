"""The steps of .ci/run: checks and installations beside the fast suites, smokes, and the suites that a change touches.

Each server, and each engine that is installed, has a smoke at every run. The rest of its suite runs where a file of
its tests, or of a folder of the package that these tests import directly, has changed since the base, the most touched
suite first, while its last seconds fit. What is left out is printed with the age of its last whole run; `make
test-system` and `make test-handover` run everything. A step that fails shows its output and fails the run, after all
others have run.
"""

import ast
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from pathlib import Path

import suites
from suites import GROUPS, Outcome, Suite

LIMIT_SECONDS = 18 * 60
"""No suite that is left to the time starts when it would end later than this after the run began."""
ALWAYS_INSTALLED = ("openrlhf",)
"""Engines whose environment is made at every run: seconds and one package. The others take minutes and gigabytes, their
recorded schemas are in the fast suites, and they are installed where a change touches their tests."""
MAIN_BRANCHES = ("origin/main", "main")
SMOKE_SECONDS = 45
SMOKE, REST = ("-m", "smoke"), ("-m", "not smoke")


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A suite of a server or an engine, with what decides whether it runs whole."""

    suite: Suite
    weight: int
    """Changed files that touch it."""
    record: Mapping[str, object]
    """Its entry in tests/last_whole.json."""

    @property
    def expected_seconds(self) -> float:
        """The seconds of its last whole run, or else its budget."""
        return float(str(self.record.get("seconds", self.suite.budget_seconds)))

    def age(self, today: date) -> str:
        """The time since it last ran whole.

        >>> suite = Suite(name="ray", arguments=(), budget_seconds=60)
        >>> Choice(suite=suite, weight=0, record={"date": "2026-01-01"}).age(date(2026, 1, 4))
        'last whole 2026-01-01, 3 days ago'
        """
        if "date" not in self.record:
            return "never recorded whole"
        last = date.fromisoformat(str(self.record["date"]))
        return f"last whole {last}, {(today - last).days} days ago"


def _git(*arguments: str, root: Path) -> str | None:
    ended = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    return ended.stdout.strip() if ended.returncode == 0 else None


def base_commit(root: Path, named: str | None) -> str | None:
    """The commit that a change began at: the one named, the fork from main, HEAD's parent, or else None."""
    if named:
        commit = _git("rev-parse", "--verify", f"{named}^{{commit}}", root=root)
        if commit is None:
            raise SystemExit(f"error: CHARTER_CI_BASE: {named} is no commit of this repository")
        return commit
    head = _git("rev-parse", "HEAD", root=root)
    for branch in MAIN_BRANCHES:
        fork = _git("merge-base", "HEAD", branch, root=root)
        if fork is not None and fork != head:
            return fork
    return _git("rev-parse", "--verify", "HEAD~1", root=root)


def changed_files(root: Path, base: str | None) -> frozenset[str]:
    """The files that differ from the base, those of the working tree included."""
    if base is None:
        return frozenset()
    listings = (_git("diff", "--name-only", base, root=root), _git("ls-files", "-o", "--exclude-standard", root=root))
    return frozenset(line for listing in listings for line in (listing or "").splitlines())


def _imported(path: Path) -> Iterable[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def touching(suite: Suite, changed: Iterable[str], root: Path) -> int:
    """The number of changed files that are a suite's own, or lie in a folder that it imports directly."""
    folder = root / suite.arguments[0]
    tests = list(folder.glob("*.py") if folder.name == "system" else folder.rglob("*.py"))
    names = {name for path in tests for name in _imported(path)}
    own = {str(path.relative_to(root)) for path in tests} | {f"tests/cases/{name}.py" for name in names}
    own.add(f"tools/engines/{suite.name}.txt")
    modules = [root / "src" / name.replace(".", "/") for name in names if name.split(".")[0] == "charter"]
    sources = {(path if path.is_dir() else path.parent).relative_to(root) for path in modules}
    # A file that was removed is no longer there to be listed: its place tells.
    removed_from = {folder.relative_to(root)}
    return sum(path in own or Path(path).parent in sources | removed_from for path in changed)


def choices(suites_: Sequence[Suite], changed: Iterable[str], root: Path) -> list[Choice]:
    """Suites in their order of weight, the most touched first."""
    path = root / suites.LAST_WHOLE
    records = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    weighed = [Choice(suite=s, weight=touching(s, changed, root), record=records.get(s.name, {})) for s in suites_]
    return sorted(weighed, key=lambda choice: -choice.weight)


def step(name: str, *command: str) -> Outcome:
    """Run a program to its end; its output is shown where it failed."""
    suite = Suite(name=name, arguments=command, budget_seconds=600)
    outcome, text = suites.measured(suite, command, aside=True)
    print(f"\n== {name}: {outcome.verdict}\n{text if outcome.status else ''}", end="", flush=True)
    return outcome


def checks() -> list[Outcome]:
    """Lint, types, layers and the limits of structure, one after the other beside the tests."""
    binaries = Path(sys.executable).parent
    outcomes = [
        step("lint", str(binaries / "ruff"), "check", "."),
        step("format", str(binaries / "ruff"), "format", "--check", "."),
        step("types", str(binaries / "mypy")),
        step("types of tools", str(binaries / "mypy"), "tools"),
        step("imports", str(binaries / "lint-imports")),
        step("site", "make", "--no-print-directory", "site"),
        step("package", "make", "--no-print-directory", "package"),
    ]
    if (suites.ROOT / "tools/house.py").exists():
        outcomes.append(step("house", sys.executable, "tools/house.py", "--check"))
    return outcomes


def installations(engines: Sequence[str]) -> list[Outcome]:
    """System packages, and the environments of engines."""
    return [
        step("system packages", "bash", "tools/system_packages.sh"),
        step("engines", "bash", "tools/engine_environment.sh", *engines),
    ]


def smokes(chosen: Sequence[Choice], engines: Sequence[str]) -> list[Outcome]:
    """The smoke of each server and of each engine that is installed."""
    available = [choice.suite for choice in chosen if choice.suite in GROUPS["system"] or choice.suite.name in engines]
    return suites.run_all(
        [replace(suite, name=f"{suite.name} smoke", budget_seconds=SMOKE_SECONDS) for suite in available],
        lanes=2,
        more=SMOKE,
    )


def rest(chosen: Sequence[Choice], began: float) -> list[Outcome]:
    """The rest of each suite that a change touches, while its last seconds fit; says what is left out."""

    def attempt(choice: Choice) -> Outcome | None:
        if choice.weight and time.monotonic() - began + choice.expected_seconds <= LIMIT_SECONDS:
            return suites.run(replace(choice.suite, name=f"{choice.suite.name} rest"), aside=True, more=REST)
        reason = "no time left" if choice.weight else "not touched"
        print(f"left out: {choice.suite.name}: {reason}; {choice.age(datetime.now(UTC).date())}", flush=True)
        return None

    with ThreadPoolExecutor(max_workers=2) as threads:
        return [outcome for outcome in threads.map(attempt, chosen) if outcome is not None]


def main(seconds_before: float) -> int:
    """Run all steps and print their table; fail when one of them has failed. The set-up took the seconds before."""
    began = time.monotonic() - seconds_before
    base = base_commit(suites.ROOT, os.environ.get("CHARTER_CI_BASE"))
    changed = changed_files(suites.ROOT, base)
    chosen = choices((*GROUPS["system"], *GROUPS["handover"]), changed, suites.ROOT)
    touched = [choice.suite.name for choice in chosen if choice.weight and choice.suite in GROUPS["handover"]]
    engines = sorted({*ALWAYS_INSTALLED, *touched})
    print(f"base: {base or 'none, so smokes alone'}; {len(changed)} changed files", flush=True)
    with ThreadPoolExecutor(max_workers=2) as threads:
        beside, installed = threads.submit(checks), threads.submit(installations, engines)
        outcomes = suites.run_all(GROUPS["test"])
        outcomes += installed.result()
        outcomes += smokes(chosen, engines)
        outcomes += rest(chosen, began)
        outcomes = beside.result() + outcomes
    print(suites.table(outcomes))
    print(f"{'total':<22}{time.monotonic() - began:>8.1f}{sum(outcome.cpu_seconds for outcome in outcomes):>8.1f}")
    return int(any(outcome.status != 0 for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]) if len(sys.argv) > 1 else 0.0))
