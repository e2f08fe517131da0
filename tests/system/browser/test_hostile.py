"""Hostile texts in a real browser: nothing of them runs, nothing is asked of elsewhere; an export opens as files."""

import json
import os

from dashboard_case import ProjectCase, lively
from hostile_texts import HOSTILE, MARK

from charter.dashboard.app import PAGES, export_pages
from charter.dashboard.reading import key_of
from charter.dashboard.site import Settings

INJECT = """() => {
  const script = document.createElement("script"), box = document.createElement("div");
  script.textContent = "window.MARK = 1";
  box.innerHTML = '<img src=x onerror="window.MARK = 2">';
  document.body.append(script, box);
}"""
READ = """async (address) => {
  try { return await (await fetch(address, {credentials: "include"})).text(); } catch (error) { return "refused"; }
}"""
SEND = """async (address) => {
  const how = {method: "POST", mode: "no-cors", credentials: "include"};
  try { return (await fetch(address, how)).type; } catch (error) { return "refused"; }
}"""


def hostile(root):
    """All texts at once, in every place that a run can put a text into."""
    text = "\n".join(HOSTILE)
    case = ProjectCase(root, owner=json.dumps(HOSTILE[0]))
    path = root / "charter.yaml"
    tags = ", ".join(f'"t{number}": {json.dumps(words)}' for number, words in enumerate(HOSTILE))
    path.write_text(
        path.read_text()
        .replace('team: alignment, goal: "safe"', tags)
        .replace("name: demo", f"name: {json.dumps(HOSTILE[4])}")
    )
    for words in HOSTILE:
        case.event("stage_failed", stage=words, message=words, reason=words)
        case.event(words, message=words)
        case.attempt("sft", seconds=5, outcome="failed", note=words)
    case.failed("sft", text)
    case.metrics("sft", 5, **{words: 1.0 for words in HOSTILE})
    (case.directory("sft") / "log.txt").write_text(text, encoding="utf-8")
    return case


def test_nothing_runs_and_nothing_is_asked_of_elsewhere(scratch, dashboard_of, visit):
    case = hostile(scratch / "demo")
    dashboard = dashboard_of(scratch)
    page = visit(dashboard)
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    key = key_of(case.root.resolve())
    for item in PAGES:
        path = item.path.replace("{project}", key).replace("{stage}", "sft")
        if "{" in path:
            continue
        page.goto(path)
        page.locator("#live").wait_for()
        page.mouse.move(400, 400)
        case.event("budget_warning", message=HOSTILE[0])
        page.wait_for_function("() => document.documentElement.dataset.renewed")
        assert page.evaluate(f"window.{MARK}") is None, item.name
        assert page.locator("iframe, object, embed, base, main script, [style*=expression]").count() == 0
    assert [url for url in asked if not url.startswith((dashboard.home, "data:"))] == []
    assert page.complaints == []


def test_the_policy_stops_a_script_even_if_escaping_failed(scratch, dashboard_of, visit, until):
    lively(scratch / "demo", pid=os.getpid())
    page = visit(dashboard_of(scratch))
    page.evaluate(INJECT.replace("MARK", MARK))
    for what in ("inline script", "inline event handler"):
        until(page, lambda: any(what in words and "Content Security Policy" in words for words in page.complaints))  # noqa: B023
    assert page.evaluate(f"window.{MARK}") is None


def test_another_site_cannot_show_or_read_it(scratch, dashboard_of, visit):
    lively(scratch / "demo", pid=os.getpid())
    dashboard = dashboard_of(scratch)
    page = visit(dashboard)
    other = page.context.new_page()
    other.route("http://other.example/*", lambda route: route.fulfill(body="<p>other</p>", content_type="text/html"))
    other.goto("http://other.example/")
    assert other.evaluate(READ, dashboard.home + "/") == "refused"
    assert other.evaluate(SEND, dashboard.home + "/sign-out") in ("opaque", "refused")
    page.reload()
    assert page.locator("h1").inner_text() == "Projects", "the session is still there"


def test_an_export_opens_as_files(scratch, chromium):
    from playwright.sync_api import expect

    case = lively(scratch / "demo", pid=os.getpid())
    out = scratch / "out"
    export_pages(Settings(roots=(case.root,), token="x" * 32), out)
    context = chromium.new_context()
    page = context.new_page()
    complaints = []
    page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
    page.goto((out / "index.html").as_uri())
    page.get_by_role("link", name="demo").first.click()
    expect(page.locator("h1")).to_have_text("demo")
    page.locator("#stages").get_by_role("link", name="sft").click()
    page.locator("#curves canvas").first.wait_for()
    page.wait_for_load_state()  # scripts are deferred: the canvas is there before them
    page.wait_for_function("() => window.Chart && Chart.getChart(document.querySelector('#curves canvas'))")
    assert page.evaluate("getComputedStyle(document.querySelector('.stats')).display") == "grid"
    assert complaints == []
    context.close()
