"""Curves, logs and long parts in a real browser: other axes, parts of the range, lines searched for, what is folded."""

import json
import os

import pytest
from dashboard_case import lively

from charter.dashboard.reading import key_of

SHOWN = "() => Chart.getChart(document.querySelector('#curves canvas')).data.datasets[0].data.map((point) => point.x)"


@pytest.fixture
def page(scratch, dashboard_of, visit):
    case = lively(scratch / "demo", pid=os.getpid())
    metrics = case.directory("sft") / "metrics.jsonl"
    lines = [json.loads(line) | {"tokens": 128} for line in metrics.read_text().splitlines()]
    metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (case.directory("sft") / "log.txt").write_text("loading\nstep 1\nstep 2\n")
    lively(scratch / "second", pid=os.getpid())
    opened = visit(dashboard_of(scratch))
    opened.goto(f"/p/{key_of(case.root.resolve())}/stage/sft")
    opened.wait_for_selector("#curves canvas")
    return opened


def test_curves_have_other_axes_and_parts(page):
    steps = page.evaluate(SHOWN)
    assert len(steps) == 40
    page.select_option("#curve-axis", "seconds")
    seconds = page.evaluate(SHOWN)
    assert (len(seconds), seconds[0]) == (40, 0)
    page.select_option("#curve-axis", "tokens")
    assert page.evaluate(SHOWN) == sorted(page.evaluate(SHOWN))
    page.select_option("#curve-axis", "")
    page.select_option("#curve-range", "0.5 1")
    last = page.evaluate(SHOWN)
    assert last == [step for step in steps if step >= (steps[0] + steps[-1]) / 2]
    page.select_option("#curve-range", "")
    assert page.evaluate(SHOWN) == steps
    assert page.complaints == []


def test_a_part_is_marked_with_the_mouse(page):
    steps = page.evaluate(SHOWN)
    box = page.locator("#curves canvas").first.bounding_box()
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 0.4 * box["width"], middle)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.7 * box["width"], middle)
    page.mouse.up()
    marked = page.evaluate(SHOWN)
    assert 1 < len(marked) < len(steps)
    assert set(marked) < set(steps)
    assert page.locator("#curve-range option:checked").inner_text() == "as marked"
    page.select_option("#curve-range", "")
    assert page.evaluate(SHOWN) == steps


def test_a_log_is_searched(page):
    page.fill("#log-search", "STEP")
    page.press("#log-search", "Enter")
    page.wait_for_selector("#log >> text=2 lines with")
    assert "2: step 1" in page.locator("#log pre").inner_text()
    page.click("text=The end of the log")
    assert "loading" in page.locator("#log pre").inner_text()
    assert page.complaints == []


def test_a_link_shows_other_runs_as_they_were_chosen(page):
    page.select_option("#curve-smoothing", "0.9")
    page.select_option("#curve-range", "0.5 1")
    page.click("text=Other runs over these curves")
    page.check("#beside input >> nth=0")
    page.click("#beside button")
    page.wait_for_selector("#curves .legend")
    assert page.evaluate("location.search").count("with=") == 1
    page.goto(page.url)
    page.wait_for_selector("#curves canvas")
    labels = (
        "() => Chart.getChart(document.querySelector('#curves canvas')).data.datasets.map((set) => set.label ?? '')"
    )
    assert [label for label in page.evaluate(labels) if label] == ["this run", "second"]
    chosen = "document.getElementById('curve-{}').value"
    assert (page.evaluate(chosen.format("smoothing")), page.evaluate(chosen.format("range"))) == ("0.9", "0.5 1")
    assert page.complaints == []


def test_runs_are_tagged_grouped_and_a_view_is_saved(scratch, dashboard_of, visit, axe):
    case = lively(scratch / "demo", pid=os.getpid())
    lively(scratch / "second", pid=os.getpid())
    page = visit(dashboard_of(scratch))
    page.goto(f"/p/{key_of(case.root.resolve())}")
    page.get_by_text("Tags", exact=True).click()
    page.get_by_label("A word, or name=value").fill("seed=3")
    page.get_by_role("button", name="Add tag").click()
    page.locator("#head .tag", has_text="seed: 3").wait_for()
    page.goto("/")
    page.get_by_label("Grouped by").select_option("seed")
    page.get_by_role("button", name="Show").click()
    page.locator("tr.group").first.wait_for()
    assert [text.split()[0] for text in page.locator("tr.group").all_inner_texts()] == ["3", "none"]
    page.get_by_label("Name of this view").fill("By seed")
    page.get_by_role("button", name="Save").click()
    assert axe(page) == []
    page.goto("/")
    page.get_by_role("link", name="By seed").click()
    page.locator("tr.group").first.wait_for()
    page.get_by_role("link", name="seed: 3").click()
    page.wait_for_url("**tag=seed**")
    assert page.locator("tr.project").count() == 1
    page.get_by_role("button", name="Forget the view By seed").click()
    assert page.get_by_role("link", name="By seed").count() == 0
    assert page.complaints == []


@pytest.mark.parametrize("phone", [True, False])
def test_long_parts_are_folded_on_a_phone(scratch, dashboard_of, visit, phone):
    case = lively(scratch / "demo", pid=os.getpid())
    case.done("ppo", 20)
    figure = {"label": "Accuracy", "value": 0.5, "low": 0.4, "high": 0.6, "n": 200, "unit": "share", "note": "held out"}
    case.results("judged", key="accuracy")
    results = {"schema": "charter.results/1", "figures": [{**figure, "key": f"accuracy.{n}"} for n in range(40)]}
    (case.directory("judged") / "outputs" / "results.json").write_text(json.dumps(results))
    case.done("judged", 1)
    opened = visit(dashboard_of(scratch), phone=phone)
    opened.goto(f"/p/{key_of(case.root.resolve())}/stage/judged")
    last, summary = opened.locator("#results tbody tr").last, opened.locator("#results summary")
    assert (last.is_visible(), summary.is_visible()) == (not phone, phone)
    assert (opened.evaluate("document.documentElement.scrollHeight") < 3 * 760) == phone
    if phone:
        summary.click()
        assert last.is_visible()
    assert opened.complaints == []
