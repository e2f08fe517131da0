"""Buttons in a real browser: a stage is approved beside its samples, a run started and stopped; a viewer has none."""

import json
import os

from counted_project import project, shows
from dashboard_case import lively
from playwright.sync_api import expect

from charter.artifacts.sample_prompts import append_samples
from charter.dashboard.app import BUTTONS
from charter.dashboard.reading import key_of
from charter.engines.project import load_project

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


def cleaned(scratch, more=""):
    """A project of one stage that runs in a moment."""
    root = scratch / "cleaned"
    root.mkdir()
    (root / "charter.yaml").write_text(CLEAN + more)
    (root / "raw.jsonl").write_text('{"text": "A kettle boils at one hundred degrees."}\n' * 3)
    return root


def test_a_run_is_started(scratch, dashboard_of, visit):
    root = cleaned(scratch)
    page = visit(dashboard_of(scratch))
    page.goto(f"/p/{key_of(root.resolve())}")
    page.get_by_role("button", name="Run").click()
    shows(page, "done")
    expect(page.get_by_text("started by")).to_be_visible()


def test_a_budget_is_raised(scratch, dashboard_of, visit, axe):
    case = lively(scratch / "demo", pid=os.getpid())
    page = visit(dashboard_of(scratch))
    page.goto(f"/p/{key_of(case.root.resolve())}")
    page.get_by_text("Raise the budget").click()
    assert axe(page) == []
    page.get_by_label("New limit").fill("$5k")
    page.get_by_role("button", name="Raise").click()
    expect(page.get_by_text("of $5,000").first).to_be_visible()
    expect(page.get_by_text("budget raised from")).to_be_visible()
    assert load_project(case.root).budget.limit == 5000


def test_a_stage_is_run_again(scratch, dashboard_of, visit):
    root = cleaned(scratch)
    page = visit(dashboard_of(scratch))
    address = f"/p/{key_of(root.resolve())}"
    page.goto(address)
    page.get_by_role("button", name="Run").click()
    shows(page, "done")
    page.goto(f"{address}/stage/clean")
    page.get_by_text("Run this stage again").click()
    page.get_by_role("button", name="Run clean again").click()
    expect(page.get_by_text("to run again")).to_be_visible()
    shows(page, "done")
    assert len(list((root / "run" / "stages").glob("clean-*"))) == 2, "the first result is set aside"


def test_a_sweep_is_started(scratch, dashboard_of, visit):
    root = cleaned(scratch, "sweeps: {lengths: {over: {pipeline.clean.max_characters: [100, 200]}}}\n")
    page = visit(dashboard_of(scratch))
    page.goto(f"/p/{key_of(root.resolve())}")
    page.get_by_label("Sweep", exact=True).select_option("lengths")
    page.get_by_role("button", name="Start sweep").click()
    expect(page.get_by_text("sweep lengths started by")).to_be_visible()
    expect(page.get_by_text("run finished").first).to_be_visible()


def test_a_sample_is_flagged(scratch, dashboard_of, visit, axe):
    case = lively(scratch / "demo", pid=os.getpid())
    append_samples(case.directory("ppo"), 5, [("p1", ({"role": "user", "content": "Hello?"},), "Go away.")])
    page = visit(dashboard_of(scratch))
    page.goto(f"/p/{key_of(case.root.resolve())}/samples")
    page.get_by_text("Flag or note").click()
    page.get_by_role("checkbox", name="flag", exact=True).check()
    page.get_by_label("Note").fill("rude")
    assert axe(page) == []
    page.get_by_role("button", name="Keep").click()
    expect(page.get_by_text("rude")).to_be_visible()
    page.get_by_role("checkbox", name="flagged").check()
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_text("Go away.")).to_be_visible()


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
    refused = page.evaluate(
        """async ([address, csrf, buttons]) => Promise.all(buttons.map(async (button) => (await fetch(
           address + "/do/" + button, {method: "POST", headers: {"x-charter-csrf": csrf}, body: ""})).status))""",
        [address, csrf, sorted(BUTTONS)],
    )
    assert refused == [403] * len(BUTTONS)
    assert not [line for line in (case.run / "events.jsonl").read_text().splitlines() if "stop_requested" in line]
