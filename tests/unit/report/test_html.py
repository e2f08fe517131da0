"""The HTML report: one file, nothing loaded, no text of a run can become markup, tables without scripts."""

import base64
import hashlib
import json
import re

import pytest

from charter.report.html import chart_data, report_html, result_panels, thinned, timeline
from charter.report.markup import esc, script_json
from charter.report.overview import overview
from charter.report.read import RunFiles, StageFiles, read_run

ATTACK = '</script><script>alert("1")</script><img src=x onerror=alert(2)>'


@pytest.fixture(scope="module")
def page(finished, parse):
    return parse(report_html(read_run(finished), now=1.8e9))


def test_nothing_is_loaded_from_anywhere(page):
    loading = {"src", "href", "srcset", "action", "data", "poster", "formaction", "background"}
    found = [(tag, name) for tag, attrs in page.elements for name in attrs if name in loading]
    assert found == []
    assert not any(tag in ("link", "iframe", "object", "embed", "base", "img") for tag, _ in page.elements)


def test_the_style_loads_nothing(finished):
    html = report_html(read_run(finished), now=1.8e9)
    style = re.search(r"<style>(.*?)</style>", html, re.DOTALL)
    assert style is not None
    assert "url(" not in style[1]
    assert "@import" not in style[1]


def test_the_policy_forbids_loading_and_allows_only_the_pages_own_scripts(page):
    policy = next(a["content"] for tag, a in page.elements if tag == "meta" and "http-equiv" in a)
    assert "default-src 'none'" in policy
    scripts = [text for attrs, text in page.scripts if attrs.get("type") != "application/json"]
    hashes = {base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts}
    assert set(re.findall(r"'sha256-([^']+)'", policy)) == hashes
    assert "unsafe-inline" not in policy.split("script-src")[1]


def test_a_script_in_a_stages_name_stays_text(fixture_run, tmp_path, parse):
    run = fixture_run.write_run(tmp_path, rename={"sft": ATTACK})
    attacked = report_html(read_run(run), now=1.8e9)
    found = parse(attacked)
    assert len(found.scripts) == 3
    assert not any("onerror" in attrs for _, attrs in found.elements)
    assert ATTACK in found.text
    assert ATTACK in found.data["stages"]


def test_scripts_in_results_assumptions_and_the_projects_name_stay_text(finished, parse):
    run = read_run(finished)
    plan = {**run.plan, "assumptions": [{"name": ATTACK, "value": ATTACK, "source": ATTACK, "as_of": ATTACK}]}
    results = {
        "figures": [dict(key="k", label=ATTACK, value=0.5, low=0.4, high=0.6, n=2, unit=ATTACK, method=ATTACK)],
        "claims": {"may": [ATTACK], "may_not": [ATTACK]},
    }
    stages = {name: files for name, files in run.stages.items() if name != "eval"}
    stages["eval"] = type(run.stages["eval"])(name="eval", results=results)
    attacked = RunFiles(project=ATTACK, plan=plan, stages=stages, accounted=run.accounted, notes=(ATTACK,))
    found = parse(report_html(attacked, now=1.8e9))
    assert len(found.scripts) == 3
    assert not any(tag == "img" for tag, _ in found.elements)
    assert found.text.count(ATTACK) >= 10


def test_every_section_of_a_run_is_there_as_text(page):
    for title in ("Results", "Stages", "Where it went", "Timeline", "Curves", "Memory", "Ledger", "Assumptions"):
        assert re.search(rf"\b{title}\b", page.text), title
    for words in ("57.7 %", "50.9 to 64.3", "This run may claim", "It may not claim", "killed", "matmul efficiency"):
        assert words in page.text


def test_every_chart_has_a_name_for_screen_readers(page):
    names = [attrs.get("aria-label") for tag, attrs in page.elements if tag == "canvas"]
    assert len(names) > 8
    assert all(names)


def test_every_chart_on_the_page_has_its_data_and_its_drawing(page):
    script = page.scripts[-1][1]
    for tag, attrs in page.elements:
        if tag == "figure":
            kind = attrs["data-chart"]
            assert f"    {kind}(" in script
            if "data-index" in attrs:
                series = page.data["results" if kind == "results" else "curves"]
                assert int(attrs["data-index"]) < len(series)


def test_a_plan_without_a_run_is_a_report_of_the_plan(fixture_run, parse):
    plan = fixture_run.plan_json()
    html = report_html(RunFiles(project="later", plan=plan), now=1.8e9)
    found = parse(html)
    assert "Plan report" in found.text
    assert "nothing has run yet" in found.text
    assert "micro batch 8" in found.text
    assert "pending" not in found.text
    assert "Ledger" not in found.text
    assert found.data["allocation"]["planned"] is True
    assert [row["stage"] for row in found.data["memory"]["rows"]][:2] == ["pretrain", "sft"]


def test_without_a_price_the_allocation_is_of_time(unpriced):
    run = read_run(unpriced)
    assert chart_data(run, overview(run))["allocation"]["unit"] == "seconds"


def test_the_allocation_adds_up_to_what_was_spent(finished):
    run = read_run(finished)
    view = overview(run)
    rows = chart_data(run, view)["allocation"]["rows"]
    assert sum(row["kept"] + row["lost"] for row in rows) == pytest.approx(view.actual.usd)


def test_a_budget_is_shown_as_a_bar(finished, parse):
    run = read_run(finished)
    limited = RunFiles(project="p", plan=run.plan, stages=run.stages, accounted=run.accounted, budget_limit_usd=0.01)
    found = parse(report_html(limited, now=1.8e9))
    assert any("budget exceeded" in (attrs.get("class") or "") for _, attrs in found.elements)
    assert "Budget $0.01: spent $0.027" in found.text


def test_long_pauses_are_cut_out_of_the_timeline_and_said(fixture_run, tmp_path):
    run = read_run(fixture_run.write_run(tmp_path))
    straight = timeline(run.accounted)
    late = [
        type(item)(
            attempt=type(item.attempt)(
                **{**vars(item.attempt), "started_at": item.attempt.started_at + 86400 * (n > 5)}
            ),
            cost_micro_usd=None,
            lost_milliseconds=0,
            lost_micro_usd=None,
        )
        for n, item in enumerate(run.accounted)
    ]
    squeezed = timeline(late)
    assert squeezed["cut_seconds"] == pytest.approx(86400, rel=0.01)
    assert squeezed["rows"][-1]["end"] < straight["rows"][-1]["end"] * 1.1
    assert straight["cut_seconds"] == 0


def test_thinned_curves_keep_their_mean_and_say_how_many_steps_a_point_is():
    points = [(step, float(step)) for step in range(1, 1001)]
    found = thinned(points)
    assert found["mean_of"] == 5
    assert len(found["points"]) == 200
    assert found["points"][0] == [5, 3.0]


def test_no_data_set_text_is_read_into_the_report(fixture_run, tmp_path):
    run = fixture_run.write_run(tmp_path)
    stage = next((run / "run" / "stages").glob("critique-*"))
    (stage / "outputs" / "records.jsonl").write_text('{"messages": "SECRET-SENTENCE"}\n')
    (stage / "log.txt").write_text("SECRET-SENTENCE")
    assert "SECRET-SENTENCE" not in report_html(read_run(run), now=1.8e9)


@pytest.mark.parametrize("text", ["</script>", "<!--", "&amp;", "\u2028", '"'])
def test_json_in_a_script_element_cannot_end_it(text):
    written = script_json({"a": text})
    assert not set(written) & set("<>&\u2028")
    assert json.loads(written) == {"a": text}


def test_escaping_covers_quoted_attributes():
    assert esc("'\"<>&") == "&#x27;&quot;&lt;&gt;&amp;"


def test_figures_share_an_axis_only_with_their_own_kind():
    def figure(label, unit, method="Wilson score"):
        return {"label": label, "unit": unit, "method": method, "value": 0.1, "low": 0.0, "high": 0.2}

    figures = [
        figure("kl", "nats"),
        figure("gain", "share", "paired bootstrap, 4000 resamples"),
        figure("wins", "share"),
    ]
    run = RunFiles(project="p", plan=None, stages={"e": StageFiles(name="e", results={"figures": figures})})
    panels = [(panel["unit"], panel["mark"], [row["label"] for row in panel["rows"]]) for panel in result_panels(run)]
    assert panels == [("share", 0.5, ["wins"]), ("share difference", 0.0, ["gain"]), ("nats", None, ["kl"])]
