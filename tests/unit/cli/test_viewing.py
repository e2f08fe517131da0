"""Verbs that look at a run change nothing of it, and work where nothing may be written."""

import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("starlette")

from dashboard_case import ProjectCase
from read_only_tree import open_directory, read_only
from starlette.testclient import TestClient
from typer.testing import CliRunner

from charter.cli.main import app
from charter.dashboard.app import build_app, export_pages
from charter.dashboard.site import Settings

PORT = 8765
TOKEN = "a-token-long-enough-for-the-guard-0123456789"
STAGES = {"sft": 40, "pm": 20, "ppo": 20, "judged": 1}
VERBS = {
    "status": ("status",),
    "status_thorough": ("status", "--verify", "--json"),
    "report": ("report", "--output", "OUT/report.html"),
    "report_text": ("report", "--text"),
    "cost": ("cost", "report", "--json"),
    "cost_text": ("cost", "report"),
    "samples": ("report", "samples"),
    "logs": ("logs", "sft"),
    "checkpoints": ("artifacts", "checkpoints", "list"),
}


def finished(root):
    """A run whose stages are all done, without the cache of hashes that a run leaves."""
    case = ProjectCase(root)
    case.plan()
    for after, (name, steps) in enumerate(STAGES.items()):
        case.attempt(name, seconds=60, after=100 * after, steps=steps)
        case.metrics(name, steps)
        case.done(name, steps)
        (case.directory(name) / "log.txt").write_text("loading\n")
    case.event("run_finished", run="demo")
    (case.run / "hashes.json").unlink(missing_ok=True)
    return case


def ledger_gone(case):
    (case.run / "ledger.sqlite").unlink()


def ledger_emptied(case):
    (case.run / "ledger.sqlite").write_bytes(b"")


LEDGERS = {"whole": lambda case: None, "gone": ledger_gone, "emptied": ledger_emptied}


def called(words, root, out):
    """Run a verb as the terminal does."""
    words = [word.replace("OUT", str(out)) for word in words]
    result = CliRunner().invoke(app, [*words, "-C", str(root)], prog_name="charter")
    assert result.exit_code == 0, result.output
    return result.output.replace(str(out), "OUT")


def browsed(root, *, pages):
    """Read the project in the running dashboard, and export its pages where their worker processes can start."""
    settings = Settings(roots=(root,), token=TOKEN, port=PORT)
    with TestClient(build_app(settings, PORT), base_url=f"http://127.0.0.1:{PORT}") as client:
        client.get("/", params={"token": TOKEN})
        home = client.get("/")
        assert (home.status_code, "demo" in home.text) == (200, True)
    if pages:
        export_pages(settings, root.parent / "pages")


def left(root):
    """Every name below a directory with its bytes and its time; directories with their names alone."""
    return {
        str(path.relative_to(root)): None if path.is_dir() else (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(root.rglob("*"))
    }


@pytest.mark.parametrize("ledger", LEDGERS)
def test_viewing_a_run_changes_no_file_of_it(tmp_path, ledger):
    case = finished(tmp_path / "demo")
    LEDGERS[ledger](case)
    before = left(case.root)
    for words in VERBS.values():
        called(words, case.root, tmp_path)
        assert left(case.root) == before, words
    browsed(case.root, pages=True)
    assert left(case.root) == before


@pytest.mark.parametrize("ledger", LEDGERS)
def test_a_run_that_may_only_be_read_can_be_viewed(ledger):
    with open_directory() as place:
        case = finished(place / "demo")
        LEDGERS[ledger](case)
        said = called(("status",), case.root, place)
        with read_only(case.root):
            for words in VERBS.values():
                called(words, case.root, place / "out")
            assert called(("status",), case.root, place) == said
            browsed(case.root, pages=False)
