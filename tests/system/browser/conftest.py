"""Real Chromium against a real dashboard."""

import os
import shutil
import subprocess
import sys
import tempfile
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
TOKEN = "browser-tests-0123456789-abcdefghij"


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
        browser = started.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def dashboard_of():
    """Starts a dashboard for a directory; ended after the test."""
    started = []

    def start(root: Path) -> Dashboard:
        environment = {**os.environ, "BROWSER_TEST_TOKEN": TOKEN}
        command = [sys.executable, "-m", "charter.cli.main", "ui", str(root), "--port", "0", "--token"]
        process = subprocess.Popen(
            [*command, "env:BROWSER_TEST_TOKEN"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        started.append(process)
        line = process.stdout.readline()
        assert line.startswith("Dashboard: "), line + process.stdout.read()
        return Dashboard(root=root, address=line.partition(": ")[2].strip())

    yield start
    for process in started:
        process.terminate()
        process.wait(10)
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
    """A directory of its own, with a short path."""
    with tempfile.TemporaryDirectory(prefix="charter-browser-") as directory:
        yield Path(directory)


@pytest.fixture
def counting():
    """Starts `charter run` on a project whose stages only count."""
    started = []

    def start(root: Path, *, seconds_per_step: float = 0.0, **more: str) -> subprocess.Popen:
        environment = {
            **os.environ,
            "PYTHONPATH": str(INTEGRATION),
            "COUNTING_SECONDS_PER_STEP": str(seconds_per_step),
            **more,
        }
        process = subprocess.Popen(
            [sys.executable, str(INTEGRATION / "counting_run.py"), str(root)],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait(10)
        process.stderr.close()


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
