"""Every page in light and dark, on a desk and on a phone: no serious violation of accessibility, nothing cut off."""

import os

import pytest
from dashboard_case import ProjectCase, lively

from charter.dashboard.app import PAGES
from charter.dashboard.reading import key_of

MODES = [
    pytest.param({"phone": phone, "dark": dark}, id=f"{'phone' if phone else 'desk'}-{'dark' if dark else 'light'}")
    for phone in (False, True)
    for dark in (False, True)
]


def addresses(root):
    """The address of every page that a project's navigation and its links lead to."""
    key = key_of(root.resolve())
    for page in PAGES:
        path = page.path.replace("{project}", key).replace("{stage}", "sft")
        if "{" not in path:
            yield page.name, path


@pytest.mark.parametrize("mode", MODES)
def test_every_page_of_a_live_run(scratch, dashboard_of, visit, axe, mode):
    case = lively(scratch / "demo", pid=os.getpid())
    case.failed("ppo", "the loss is not a number")
    page = visit(dashboard_of(scratch), **mode)
    wrong, wide = [], {}
    for name, path in addresses(case.root):
        page.goto(path)
        page.wait_for_load_state("load")
        page.locator("#live").wait_for()
        tabs = page.locator("[role=tab]")
        wrong += [(name, problem) for problem in axe(page)]
        for number in range(1, tabs.count()):
            tabs.nth(number).click()
            wrong += [(name, number, problem) for problem in axe(page)]
        wide[name] = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wrong == []
    assert max(wide.values()) <= 0, "wider than the screen"
    assert page.complaints == []


@pytest.mark.parametrize("mode", MODES[::3])
def test_empty_pages(scratch, dashboard_of, visit, axe, mode):
    """No project at all, then one that has never run, then one whose file is broken, and an address that is none."""
    empty, fresh, broken = scratch / "empty", scratch / "some" / "fresh", scratch / "some" / "broken"
    empty.mkdir()
    page = visit(dashboard_of(empty), **mode)
    assert page.get_by_text("No project here yet").is_visible()
    assert axe(page) == []
    ProjectCase(fresh)
    ProjectCase(broken)
    (broken / "charter.yaml").write_text("name: broken\npipeline: {sft: {kind: sfft}}\n")
    page = visit(dashboard_of(scratch / "some"), **mode)
    for root in (fresh, broken):
        for name, path in addresses(root):
            page.goto(path)
            assert axe(page) == [], (root.name, name)
    page.goto(f"/p/{key_of(broken.resolve())}")
    assert page.locator("#problems").is_visible()
    page.goto("/p/no-such-project")
    assert page.get_by_text("No such project").is_visible()
    assert axe(page) == []
