"""Everything can be reached and used with the keyboard alone, and one sees where one is."""

import contextlib
import os

from dashboard_case import lively
from playwright.sync_api import TimeoutError as PatienceError

from charter.dashboard.reading import key_of

FOCUSED = """() => {
  const at = document.activeElement, style = getComputedStyle(at);
  const box = at.querySelector(":scope > g > .box");
  const seen = box ? getComputedStyle(box).strokeWidth : style.outlineWidth;
  const text = (at.getAttribute("aria-label") || at.textContent || "").trim().slice(0, 60);
  const ring = parseFloat(seen) >= 2 && (box !== null || style.outlineStyle !== "none");
  return {text, tag: at.tagName.toLowerCase(), href: at.getAttribute("href"), ring};
}"""


def walk(page, most=150):
    """What has the focus after every Tab, until it leaves the page or comes round."""
    found = []
    for _ in range(most):
        page.keyboard.press("Tab")
        at = page.evaluate(FOCUSED)
        if at["tag"] == "body" or (found and at == found[0]):
            break
        found.append(at)
    return found


def test_every_link_and_control_is_reached_in_order_and_shows_it(scratch, dashboard_of, visit):
    case = lively(scratch / "demo", pid=os.getpid())
    page = visit(dashboard_of(scratch))
    for path in ("/", f"/p/{key_of(case.root.resolve())}", f"/p/{key_of(case.root.resolve())}/cost"):
        page.goto(path)
        page.locator("#live").wait_for()
        found = walk(page)
        assert found[0]["text"] == "Skip to the content"
        hidden = [item for item in found if not item["ring"]]
        assert hidden == [], "the focus is somewhere and does not show"
        wanted = page.evaluate(
            "() => [...document.querySelectorAll('a[href], button, summary')].filter((e) => e.checkVisibility()"
            " && e.tabIndex >= 0).length"
        )
        reached = [item for item in found if item["tag"] in ("a", "button", "summary")]
        assert len(reached) == wanted


def test_a_walk_by_keys_from_the_list_to_a_stage_and_back(scratch, dashboard_of, visit):
    case = lively(scratch / "demo", pid=os.getpid())
    key = key_of(case.root.resolve())
    dashboard = dashboard_of(scratch)
    page = visit(dashboard)
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.activeElement.id === 'main'")
    until(page, "demo")
    page.keyboard.press("Enter")
    page.wait_for_url(f"{dashboard.home}/p/{key}")
    until(page, "pm preference model")
    page.keyboard.press("Enter")
    page.wait_for_url(f"{dashboard.home}/p/{key}/stage/pm")
    go(page, "c", f"{dashboard.home}/p/{key}/cost")
    until(page, "Past")
    page.keyboard.press("ArrowRight")
    assert page.locator("#now").is_visible()
    assert not page.locator("#past").is_visible()
    page.keyboard.press("End")
    assert page.locator("#forecast").is_visible()
    go(page, "h", dashboard.home + "/")


def go(page, letter, address):
    """The keys g and another one, again where a machine that stood still let more than 1.5 s pass between them."""
    for _ in range(60):
        page.keyboard.press("g")
        page.keyboard.press(letter)
        with contextlib.suppress(PatienceError):
            page.wait_for_url(address, timeout=5_000)
            return
    raise AssertionError(f"g {letter} does not lead to {address}")


def until(page, words):
    """Tab on until what has the focus begins with some words."""
    for _ in range(80):
        page.keyboard.press("Tab")
        if page.evaluate(FOCUSED)["text"].startswith(words):
            return
    raise AssertionError(f"{words!r} cannot be reached")


def test_the_theme_is_kept(scratch, dashboard_of, visit):
    lively(scratch / "demo", pid=os.getpid())
    page = visit(dashboard_of(scratch))
    for name in ("light", "dark"):
        page.get_by_role("button", name="Theme").click()
        assert page.evaluate("document.documentElement.dataset.theme") == name
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(19, 23, 27)"


def test_a_live_update_leaves_focus_scroll_and_open_details_alone(scratch, dashboard_of, visit):
    case = lively(scratch / "demo", pid=os.getpid())
    page = visit(dashboard_of(scratch))
    page.goto(f"/p/{key_of(case.root.resolve())}/stage/pm")
    page.locator("summary").first.focus()
    page.keyboard.press("Enter")
    page.evaluate("window.scrollTo(0, 300)")
    case.metrics("pm", 5, accuracy=0.9)
    case.progress("pm", 15, 20)
    page.get_by_text("15 of 20").wait_for()
    assert page.evaluate("document.activeElement.tagName") == "SUMMARY"
    assert page.evaluate("document.querySelector('#curves details').open")
    assert page.evaluate("window.scrollY") == 300
