"""Real Chromium against a real dashboard."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
]  # fmt: skip
AXE = Path(__file__).parent / "vendor" / "axe.min.js"
HERE = Path(__file__).parent
INTEGRATION = HERE.parent.parent / "integration"
CASES = HERE.parent.parent / "cases"
TOKEN = "browser-tests-0123456789-abcdefghij"
VIEWERS = "browser-viewers-0123456789-abcdefghij"
LONG = 300_000
"""Milliseconds: ends a test that hangs; nothing is measured by it."""


@dataclass(frozen=True)
class Dashboard:
    """A running `charter ui`."""

    root: Path
    address: str
    """With the token."""

    @property
    def home(self) -> str:
        """The address without it."""
        return self.address.partition("/?token=")[0]


@pytest.fixture(scope="session")
def chromium():
    """The browser, started once."""
    playwright = pytest.importorskip("playwright.sync_api")
    path = os.environ.get("CHARTER_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.fail("no chromium; tools/system_packages.sh installs it")
    with playwright.sync_playwright() as started:
        playwright.expect.set_options(timeout=LONG)
        browser = started.chromium.launch(executable_path=path, args=FLAGS, timeout=LONG)
        yield browser
        browser.close()


@pytest.fixture
def dashboard_of():
    """Starts a dashboard for a directory, and gives its address, or that of its viewers; ended after the test."""
    started = []

    def start(root: Path, *, viewer: bool = False) -> Dashboard:
        environment = {**os.environ, "BROWSER_TEST_TOKEN": TOKEN, "BROWSER_VIEWERS": VIEWERS}
        command = [sys.executable, "-m", "charter.cli.main", "ui", str(root), "--port", "0"]
        process = subprocess.Popen(
            [*command, "--token", "env:BROWSER_TEST_TOKEN", "--viewer-token", "env:BROWSER_VIEWERS"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        started.append(process)
        line = process.stdout.readline()
        assert line.startswith("Dashboard: "), line + process.stdout.read()
        address = line.partition(": ")[2].strip()
        return Dashboard(root=root, address=address.replace(TOKEN, VIEWERS) if viewer else address)

    yield start
    for process in started:
        process.terminate()
        process.wait(LONG / 1000)
        process.stdout.close()


@pytest.fixture
def visit(chromium) -> Iterator:
    """Opens a dashboard in a browser of its own: `visit(dashboard, phone=True, dark=True)` gives a signed-in page."""
    contexts = []

    def go(dashboard: Dashboard, *, phone: bool = False, dark: bool = False):
        size = {"width": 375, "height": 760} if phone else {"width": 1280, "height": 900}
        context = chromium.new_context(
            viewport=size, color_scheme="dark" if dark else "light", reduced_motion="reduce", base_url=dashboard.home
        )
        context.set_default_timeout(LONG)
        contexts.append(context)
        page = context.new_page()
        page.complaints = []
        page.on(
            "console", lambda said: page.complaints.append(said.text) if said.type in ("error", "warning") else None
        )
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        page.goto(dashboard.address)
        page.wait_for_url(dashboard.home + "/")
        return page

    yield go
    for context in contexts:
        context.close()


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A directory of its own, with a short path; the stage of a run that a failed test has left may still write."""
    with tempfile.TemporaryDirectory(prefix="charter-browser-", ignore_cleanup_errors=True) as directory:
        yield Path(directory)


@dataclass
class Counting:
    """A run whose stages only count, and wait before some steps until they are let go."""

    gates: list[Path]
    process: "subprocess.Popen[str]"

    def let_go(self) -> None:
        """Past the next gate."""
        self.gates.pop(0).unlink()

    def ended(self) -> int:
        """Its exit code."""
        return self.process.wait(LONG / 1000)


@pytest.fixture
def counting(tmp_path):
    """Starts `charter run` on a project: `counting(root, held=("sft:3",))` waits before the third step of sft."""
    started = []

    def start(root: Path, *, seconds_per_step: float = 0.0, held: tuple[str, ...] = ()) -> Counting:
        gates = [tmp_path / f"gate-{number}" for number in range(len(held))]
        for gate in gates:
            gate.touch()
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(CASES), str(INTEGRATION)]),
            "COUNTING_MODULE": "held_stage",
            "COUNTING_SECONDS_PER_STEP": str(seconds_per_step),
            "HELD": " ".join(f"{at}:{gate}" for at, gate in zip(held, gates, strict=True)),
        }
        process = subprocess.Popen(
            [sys.executable, str(INTEGRATION / "counting_run.py"), str(root)],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True, env=environment,
        )  # fmt: skip
        started.append(process)
        return Counting(gates, process)

    yield start
    for process in started:
        process.kill()
        process.wait()


def violations(page) -> list[str]:
    """What axe-core finds that is serious or critical, in words."""
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate("() => axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{item['id']} ({item['impact']}): {node['html'][:160]} {node['failureSummary'][:200]}"
        for item in found["violations"]
        if item["impact"] in ("serious", "critical")
        for node in item["nodes"]
    ]


@pytest.fixture
def axe():
    """The check as a function of a page."""
    return violations


@pytest.fixture
def until():
    """Waits for something that the browser tells the test: `until(page, lambda: asked)`."""

    def wait(page, found) -> None:
        end = time.monotonic() + LONG / 1000
        while not found():
            assert time.monotonic() < end, "it did not happen"
            page.wait_for_timeout(20)

    return wait
