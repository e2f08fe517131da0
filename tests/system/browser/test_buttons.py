"""Buttons in a real browser: a stage is approved beside its samples, a run started and stopped; a viewer has none."""

import json
import os

from counted_project import project, shows
from dashboard_case import lively
from playwright.sync_api import expect

from charter.dashboard.discovery import key_of

TOKEN = "browser-tests-0123456789-abcdefghij"
CLEAN = """\
name: cleaned
models: {base: gpt2}
data: {raw: raw.jsonl}
pipeline: {clean: {kind: prepare, data: raw, near_duplicates: null}}
resources: {infra: local}
"""


def test_a_stage_is_approved_beside_its_samples(scratch, dashboard_of, visit, axe):
    case = lively(scratch / "demo", pid=os.getpid())
    case.done("ppo", 20)
    case.done("pm", 20)
    page = visit(dashboard_of(scratch))
    page.goto(f"/p/{key_of(case.root.resolve())}")
    page.get_by_role("link", name="Look at samples").click()
    expect(page.get_by_text("How long does rice cook?").first).to_be_visible()
    assert axe(page) == []
    page.get_by_label("Note").fill("read by a person")
    page.get_by_role("button", name="Approve judged").click()
    expect(page.get_by_text("read by a person")).to_be_visible()
    (given,) = (case.run / "approvals").glob("judged-*.json")
    assert json.loads(given.read_text())["note"] == "read by a person"
    assert page.complaints == []


def test_a_run_is_stopped_at_a_checkpoint(scratch, dashboard_of, visit, counting):
    root = project(scratch / "counted")
    run = counting(root, seconds_per_step=0.05, held=("sft:4",))
    page = visit(dashboard_of(scratch))
    page.goto(f"/p/{key_of(root.resolve())}")
    shows(page, "running")
    page.get_by_role("button", name="Stop at a checkpoint").click()
    expect(page.get_by_text("asked to stop by")).to_be_visible()
    run.let_go()
    assert run.ended() == 6
    expect(page.get_by_role("button", name="Go on")).to_be_visible()


def test_a_run_is_started(scratch, dashboard_of, visit):
    root = scratch / "cleaned"
    root.mkdir()
    (root / "charter.yaml").write_text(CLEAN)
    (root / "raw.jsonl").write_text('{"text": "A kettle boils at one hundred degrees."}\n' * 3)
    page = visit(dashboard_of(scratch))
    page.goto(f"/p/{key_of(root.resolve())}")
    page.get_by_role("button", name="Run").click()
    shows(page, "done")
    expect(page.get_by_text("started by")).to_be_visible()


def test_the_token_is_given_in_a_form(scratch, dashboard_of, visit):
    lively(scratch / "demo", pid=os.getpid())
    page = visit(dashboard_of(scratch))
    page.context.clear_cookies()
    page.goto("/")
    page.get_by_label("token").fill(TOKEN)
    page.get_by_role("button", name="Look").click()
    expect(page.get_by_role("link", name="demo").first).to_be_visible()


def test_a_viewer_has_no_button_and_is_refused(scratch, dashboard_of, visit):
    case = lively(scratch / "demo", pid=os.getpid())
    page = visit(dashboard_of(scratch, viewer=True))
    address = f"/p/{key_of(case.root.resolve())}"
    page.goto(address)
    expect(page.locator("#head .pill")).to_be_visible()
    assert page.get_by_role("button", name="Stop").count() == 0
    csrf = page.locator('meta[name="csrf"]').get_attribute("content")
    status = page.evaluate(
        """async ([address, csrf]) => (await fetch(address + "/do/stop",
           {method: "POST", headers: {"x-charter-csrf": csrf}, body: ""})).status""",
        [address, csrf],
    )
    assert status == 403
    assert not [line for line in (case.run / "events.jsonl").read_text().splitlines() if "stop_requested" in line]
