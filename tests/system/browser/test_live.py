"""A live run in a real browser: followed from start to end without a reload, and a budget that stops it."""

import pytest
from counted_project import project, shows

from charter.dashboard.reading import key_of

SEEN = """
window.kept = "the same document";
window.seen = [];
const note = () => {
  const text = (where) => (document.querySelector(where) || {textContent: ""}).textContent.trim();
  const line = text("#head .pill") + " | " + text("#stages tbody tr:first-child .progress .small");
  if (window.seen[window.seen.length - 1] !== line) window.seen.push(line);
};
note();
new MutationObserver(note).observe(document.body, {subtree: true, childList: true, characterData: true});
"""


@pytest.mark.smoke
def test_a_run_is_followed_from_start_to_end_without_a_reload(scratch, dashboard_of, visit, counting):
    root = project(scratch / "counted")
    page = visit(dashboard_of(scratch))
    page.goto(f"/p/{key_of(root.resolve())}")
    assert page.locator("#head .pill").inner_text() == "pending"
    page.evaluate(SEEN)
    run = counting(root, seconds_per_step=0.6, held=("sft:4", "sft:8", "sft:12"))
    for number in (1, 2, 3):
        page.wait_for_function(f"() => window.seen.filter((line) => line.includes(' of 20')).length >= {number}")
        shows(page, "running")
        run.let_go()
    shows(page, "done")
    assert run.ended() == 0
    page.locator("#events").get_by_text("run finished").wait_for()
    assert page.evaluate("window.kept") == "the same document"
    assert page.locator("#stages tbody tr").count() == 2
    assert page.locator("#said").inner_text() == "The state is now: done"
    assert page.complaints == []


def test_curves_and_log_of_a_stage_grow(scratch, dashboard_of, visit, counting):
    root = project(scratch / "counted")
    page = visit(dashboard_of(scratch))
    page.goto(f"/p/{key_of(root.resolve())}/stage/sft")
    assert page.get_by_text("Curves appear with its first steps.").is_visible()
    run = counting(root, held=("sft:5",))
    page.wait_for_selector("#curves canvas")
    shows(page, "running")
    run.let_go()
    shows(page, "done")
    page.wait_for_function(
        "() => JSON.parse(document.getElementById('data').textContent).curves[0].points.length === 20"
    )
    page.wait_for_function(
        "() => Chart.getChart(document.querySelector('#curves canvas')).data.datasets[0].data.length === 20"
    )
    assert run.ended() == 0
    assert page.complaints == []


def test_a_budget_stop_shows_up(scratch, dashboard_of, visit, counting):
    """$10 a second, and a stage that waits before its fourth step until it is stopped."""
    from playwright.sync_api import expect

    root = project(scratch / "counted", price="36000", limit="$20")
    page = visit(dashboard_of(scratch))
    page.goto(f"/p/{key_of(root.resolve())}")
    run = counting(root, held=("sft:4",))
    page.wait_for_selector("#notices .notice.bad")
    assert run.ended() == 4
    expect(page.locator("#notices")).to_contain_text("The run has stopped.")
    expect(page.locator("#notices")).to_contain_text("$20")
    shows(page, "interrupted")
    assert page.complaints == []
