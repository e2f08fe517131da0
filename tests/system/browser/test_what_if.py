"""Plan, data, records, accuracy and compare pages in a real browser: a what-if changes the plan; texts stay texts."""

import json
import os

import pytest
from dashboard_case import ProjectCase, lively
from hostile_texts import HOSTILE, MARK

from charter.dashboard.reading import key_of

RENTED = """
name: rented
models:
  base: {model: meta-llama/Llama-3.1-8B}
data:
  chat: {path: chat.jsonl, rows: 40_000, mean_tokens: 300}
pipeline:
  helpful: {kind: sft, init: base, data: [chat], global_batch: 128, seq_len: 2048}
resources: {infra: aws, accelerators: [H100:8], max_nodes: 2}
budget: {limit: $900}
"""
PLANNED = 300_000
"""Milliseconds: ends a test that hangs."""
MODES = [pytest.param(phone, dark, id=f"{'phone' if phone else 'desk'}-{'dark' if dark else 'light'}")
         for phone in (False, True) for dark in (False, True)]  # fmt: skip


@pytest.fixture
def rented(scratch):
    """A project on rented machines that has never run."""
    root = scratch / "rented"
    root.mkdir()
    (root / "charter.yaml").write_text(RENTED)
    return root


def plan_page(rented):
    return f"/p/{key_of(rented.resolve())}/plan"


def ready(page):
    page.locator("#result[data-state=ready]:not([data-busy])").wait_for(timeout=PLANNED)


def test_a_what_if_changes_the_plan(rented, dashboard_of, visit):
    page = visit(dashboard_of(rented.parent))
    page.goto(plan_page(rented))
    ready(page)
    assert "H100" in page.locator("#result table").first.inner_text()
    assert not page.locator("#apply-command").count()
    page.locator("#wi-accelerators").fill("A100-80GB:8")
    page.locator("#apply-command").wait_for(timeout=PLANNED)
    table = page.locator("#result table").first.inner_text()
    assert "A100" in table
    assert "was " in table
    assert "charter plan" in page.locator("#apply-command").inner_text()
    shared = page.evaluate("location.href")
    assert "accelerators=A100-80GB%3A8" in shared
    page.locator("#wi-reset").click()
    page.locator("#apply-command").wait_for(state="detached", timeout=PLANNED)
    assert "accelerators" not in page.evaluate("location.href")
    page.goto(shared)
    ready(page)
    assert page.locator("#wi-accelerators").input_value() == "A100-80GB:8"
    assert "A100" in page.locator("#result table").first.inner_text(), "the link shows the same"
    assert (rented / "charter.yaml").read_text() == RENTED
    assert page.complaints == []


def test_a_run_before_its_start_shows_its_plan(rented, dashboard_of, visit, axe):
    page = visit(dashboard_of(rented.parent))
    page.goto(plan_page(rented).removesuffix("/plan"))
    page.locator("#piece[data-state=ready]").wait_for(timeout=PLANNED)
    assert page.get_by_text("Budget $900").is_visible()
    assert "H100" in page.locator("#piece table").inner_text()
    assert axe(page) == []
    assert page.complaints == []


def test_an_invalid_value_says_what_would_work_and_the_next_one_plans(rented, dashboard_of, visit):
    page = visit(dashboard_of(rented.parent))
    page.goto(plan_page(rented))
    ready(page)
    page.locator("#wi-deadline").fill("banana")
    page.locator("#result[data-state=error]").wait_for(timeout=PLANNED)
    assert "is not a duration; write it like 14d" in page.locator("#result [role=alert]").inner_text()
    page.locator("#wi-deadline").fill("9d")
    ready(page)
    assert "Deadline 9 d" in page.locator("#result .stats").inner_text()


def test_typing_asks_once_and_cancelling_leaves_the_plan_before(rented, dashboard_of, visit):
    """By a clock of the page that the test moves: else a machine that stands still pauses between two letters."""
    page = visit(dashboard_of(rented.parent))
    page.clock.install()
    page.goto(plan_page(rented))
    ready(page)
    before = page.locator("#result .stats").inner_text()
    asked = []
    page.on("request", lambda request: asked.append(request) if request.method == "POST" else None)
    page.route("**/what-if", lambda route: None)  # an answer that never comes
    page.clock.pause_at(page.evaluate("Date.now()") / 1000 + 3600)
    for letter in "$1_234":
        page.locator("#wi-budget").press(letter)
        page.clock.run_for(400)
    assert asked == []
    with page.expect_request("**/what-if"):
        page.clock.run_for(50)
    page.locator("#wi-cancel").wait_for()
    page.clock.run_for(10_000)
    assert len(asked) == 1, "one question for six letters"
    page.locator("#wi-cancel").click()
    assert "Cancelled" in page.locator("#wi-status").inner_text()
    assert page.locator("#result .stats").inner_text() == before
    assert not page.locator("#wi-cancel").is_visible()


@pytest.mark.smoke
def test_a_dashboard_that_went_away_is_said(rented, dashboard_of, visit):
    page = visit(dashboard_of(rented.parent))
    page.goto(plan_page(rented))
    ready(page)
    page.route("**/what-if", lambda route: route.abort())
    page.locator("#wi-nodes").fill("2")
    page.get_by_text("The dashboard does not answer").wait_for()
    assert page.locator("#wi-nodes").input_value() == "2"


def test_by_keyboard_alone(rented, dashboard_of, visit):
    from playwright.sync_api import expect

    page = visit(dashboard_of(rented.parent))
    page.goto(plan_page(rented))
    ready(page)
    page.locator("#wi-accelerators").focus()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "wi-market"
    page.keyboard.press("w")
    page.locator("#wi-nodes").focus()
    page.keyboard.type("2")
    page.keyboard.press("Enter")
    expect(page.locator("#apply-command")).to_contain_text("resources.num_nodes=2", timeout=PLANNED)


@pytest.fixture
def two(scratch):
    """A run in the middle and a finished one, whose data hold hostile texts."""
    case = lively(scratch / "demo", pid=os.getpid())
    rows = [{"id": text, "text": text, text: text} for text in HOSTILE]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (case.root / "texts.jsonl").write_text(lines, encoding="utf-8")
    other = ProjectCase(scratch / "other", name="other")
    other.plan()
    for name in ("sft", "pm"):
        other.attempt(name, seconds=50)
        other.metrics(name, 10)
        other.done(name, 40)
    return case.root, other.root


def pages_of(root, others):
    key = key_of(root.resolve())
    runs = "&".join(f"run={key_of(item.resolve())}" for item in others)
    return (f"/p/{key}/data", f"/p/{key}/records/data.texts", f"/p/{key}/accuracy", f"/compare?{runs}")


@pytest.mark.parametrize(("phone", "dark"), MODES)
def test_pages_are_accessible_fit_the_screen_and_run_no_text(two, rented, dashboard_of, visit, axe, phone, dark):
    page = visit(dashboard_of(rented.parent), phone=phone, dark=dark)
    for path in (plan_page(rented), *pages_of(two[0], two)):
        page.goto(path)
        page.wait_for_function("() => !document.querySelector('[data-state=loading]')", timeout=PLANNED)
        page.evaluate("document.querySelectorAll('main details').forEach((item) => { item.open = true; })")
        assert axe(page) == [], path
        assert page.evaluate(f"window.{MARK}") is None, path
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, f"{path} is {wide} px wider than the screen"
    assert page.complaints == []


def test_hostile_records_can_be_read_and_found(two, dashboard_of, visit):
    page = visit(dashboard_of(two[0].parent))
    page.goto(pages_of(two[0], two)[1])
    assert page.get_by_text(HOSTILE[0], exact=True).first.is_visible()
    page.locator("#record-id").fill(HOSTILE[4])
    page.keyboard.press("Enter")
    page.wait_for_url("**/records/data.texts?id=*")
    assert page.locator("article").count() == 1
    assert page.evaluate(f"window.{MARK}") is None
