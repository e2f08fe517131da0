"""Data, records, accuracy and compare pages: shown as text whatever they hold."""

import html
import json
import re
import time

import pytest
from dashboard_case import ProjectCase
from direct_work import work_directly
from hostile_texts import HOSTILE

from charter.dashboard.reading import key_of

CONSTITUTION = """
schema: charter.constitution/v1
name: two
principles:
  - {id: truthful, critique: Name what is wrong., revision: Say what is right., compare: "Which is truer?", weight: 3}
  - {id: kind, critique: Name what is rude., revision: Be kind., compare: "Which is kinder?<b>"}
"""


@pytest.fixture(autouse=True)
def _direct(client):
    work_directly(client)


@pytest.fixture
def judged(settings):
    """A project whose label stage is done, with three records and one that was set aside."""
    case = ProjectCase(settings.roots[0] / "judged")
    path = case.root / "charter.yaml"
    text = path.read_text().replace(
        "pipeline:\n", "pipeline:\n  label: {kind: label, judge: sft, candidates: [pairs]}\n"
    )
    path.write_text(text.replace("data:\n", "constitution: constitution.yaml\ndata:\n", 1))
    (case.root / "constitution.yaml").write_text(CONSTITUTION)
    case = Judged(case.root)
    case.publish([record(number) for number in range(3)])
    return case


class Judged(ProjectCase):
    """The same project, read again with its label stage."""

    def __init__(self, root):
        from charter.engines.project import load_project
        from charter.run.graph import build_pipeline

        self.root, self.run = root, root / "run"
        self.project = load_project(root / "charter.yaml")
        self.stages = dict(build_pipeline(self.project, root).stages)

    def publish(self, records):
        outputs = self.directory("label") / "outputs"
        outputs.mkdir(exist_ok=True)
        lines = [json.dumps(item) + "\n" for item in records]
        (outputs / "records.jsonl").write_text("".join(lines), encoding="utf-8")
        (outputs / "set_aside.jsonl").write_text(json.dumps({"id": "bad", "reason": "refused", "reply": "No."}) + "\n")
        summary = {"invalid_judgements": 1, "set_aside": 1, "principle/truthful": 3}
        (outputs / "summary.json").write_text(json.dumps(summary))
        self.done("label", 3)


def record(number, **more):
    return {
        "id": f"pair-{number}",
        "prompt": [{"role": "user", "content": "Is tea hot?"}],
        "chosen": [{"role": "assistant", "content": f"Often, {number}."}],
        "rejected": [{"role": "assistant", "content": "Never."}],
        "chosen_probability": 0.8,
        "principle": "truthful",
        "principles": ["truthful"],
        "both_orders": {"log_odds_chosen": [1, 1], "chosen_shown_first": True, "agree": True},
        "judgements": [{"chosen_shown_first": True, "log_odds_chosen": 1.0, "how": "votes", "attempts": 1}],
        "judge_model": "a judge",
        "seed": 7,
    } | more


def address(case, path):
    return f"/p/{key_of(case.root.resolve())}/{path}"


def text_of(page):
    return html.unescape(re.sub(r"<[^>]+>", " ", page))


def piece(client, path):
    """What the page's script gets in the end."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        found = client.get(path).json()
        if found["state"] != "loading":
            return found
    raise AssertionError(f"{path} is still loading")


def test_the_page_asks_for_its_figures_and_gets_them(client, judged):
    page = client.get(address(judged, "data")).text
    wanted = re.findall(r'data-piece="([^"]+)"', page)
    assert address(judged, "data/stage.label") in wanted
    found = piece(client, address(judged, "data/stage.label"))
    words = text_of(found["html"])
    assert "Both orders agree" in words
    assert "The answer shown first wins" in words
    assert "Set aside: 1" in words
    assert "1 refused" in words
    assert re.search(r'data-state="ready"', client.get(address(judged, "data"), params={"x": "1"}).text)


def test_the_constitution_stands_beside_its_use(client, judged):
    page = client.get(address(judged, "data")).text
    words = text_of(page)
    assert "Name what is wrong." in words
    assert "never: kind" in words
    assert "Which is kinder?<b>" in words, "shown as text"
    assert "<b>" not in page


def test_a_data_set_that_is_not_there_says_so_and_the_others_stay(client, judged):
    (judged.root / "texts.jsonl").unlink()
    page = text_of(client.get(address(judged, "data")).text)
    assert "texts.jsonl does not exist" in page
    assert "pairs" in page


def test_a_broken_constitution_says_so(client, judged):
    (judged.root / "constitution.yaml").write_text("schema: charter.constitution/v1\nprinciples: [{id: x}]\n")
    assert "lacks critique, revision, compare" in text_of(client.get(address(judged, "data")).text)


def test_records_are_shown_with_provenance_and_found_by_id(client, judged):
    page = client.get(address(judged, "records/stage.label"))
    words = text_of(page.text)
    assert all(word in words for word in ("pair-0", "pair-2", "Is tea hot?", "chosen: assistant", "a judge", "byte"))
    one = text_of(client.get(address(judged, "records/stage.label"), params={"id": "pair-1"}).text)
    assert "Often, 1." in one
    assert "Often, 0." not in one
    missing = client.get(address(judged, "records/stage.label"), params={"id": "pair-9"})
    assert missing.status_code == 404
    assert "No record has the id 'pair-9'" in text_of(missing.text)
    aside = text_of(client.get(address(judged, "records/stage.label"), params={"aside": "1"}).text)
    assert "refused" in aside
    assert "pair-0" not in aside


def test_records_page_forth_and_back(client, judged):
    judged.publish([record(number) for number in range(45)])
    first = client.get(address(judged, "records/stage.label")).text
    following = re.search(r'rel="next" href="([^"]+)"', first)[1]
    second = client.get(html.unescape(following)).text
    assert "pair-19" in first
    assert "pair-20" not in first
    assert "pair-20" in second
    back = re.search(r'rel="prev" href="([^"]+)"', second)[1]
    assert re.findall(r"pair-\d+", client.get(html.unescape(back)).text) == re.findall(r"pair-\d+", first)


@pytest.mark.parametrize("at", ["-1", "x", "9" * 30, "5", "1e3", "%00"])
def test_any_place_that_is_asked_for_gives_a_page(client, judged, at):
    assert client.get(address(judged, "records/stage.label"), params={"at": at}).status_code == 200


@pytest.mark.parametrize("source", ["stage.none", "..%2f..%2fcharter.yaml", "data./etc/passwd", "stage.label%00", "x"])
def test_only_sources_of_the_project_can_be_looked_at(client, judged, source):
    for page in ("records", "data"):
        found = client.get(address(judged, f"{page}/{source}"))
        assert found.status_code == 404
        assert "root:" not in found.text


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_records_stay_text(client, judged, text):
    more = {"principles": [text], "principle": text, "judge_model": text, text: text, "source": text}
    rows = [record(0, id=text, prompt=[{"role": text, "content": text}], **more)]
    judged.publish(rows)
    page = client.get(address(judged, "records/stage.label")).text
    figures = piece(client, address(judged, "data/stage.label"))["html"]
    for shown in (page, figures):
        bare = re.sub(r'<script (src="[^"]*"( defer)?|type="application/json" id="data")>', "", shown)
        assert "<script" not in bare.lower()
        assert not re.search(
            r"<(img|iframe|object|embed|base|form action=java|math|style|link rel=stylesheet)\b", bare, re.I
        )
        assert not re.search(r"<[^>]+\son\w+\s*=", bare)
    words = [word for word in re.split(r"[^\x20-\x7e]+", text) if word.strip()]
    assert all(word.strip() in text_of(page).replace("&lt;", "<") or word in html.unescape(page) for word in words)


def test_accuracy_says_that_nothing_has_run_yet_and_then_how_good_the_plan_was(client, case, at):
    key = key_of(case.root.resolve())
    found = piece(client, f"/p/{key}/accuracy/piece")
    words = text_of(found["html"])
    assert "sft" in words
    assert found["charts"]["ratios"]["panels"][0]["rows"][0]["stage"] == "sft"
    assert "What the next plan will use" in words


def test_accuracy_without_a_run_is_an_empty_page(client, judged):
    assert "Nothing to compare yet" in client.get(address(judged, "accuracy")).text


def test_two_runs_are_compared(client, case, settings):
    other = ProjectCase(settings.roots[0] / "other", name="other")
    other.plan()
    other.attempt("sft", seconds=50)
    other.metrics("sft", 10)
    other.done("sft", 40)
    keys = [key_of(root.resolve()) for root in (case.root, other.root)]
    page = client.get("/compare").text
    assert all(key in page for key in keys)
    chosen = [("run", key) for key in keys]
    address = re.search(r'data-piece="([^"]+)"', client.get("/compare", params=chosen).text)[1]
    found = piece(client, html.unescape(address))
    words = text_of(found["html"])
    assert "Time, cost, waste" in words
    assert "sft: loss" in words
    assert len(found["charts"]["overlays"]["panels"][0]["lines"]) == 2


def test_compare_needs_two_runs_that_there_are(client, case):
    assert "Two runs are needed" in client.get("/compare").text
    assert client.get("/compare/piece", params={"run": "../../etc"}).status_code == 404
