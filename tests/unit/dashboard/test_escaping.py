"""Whatever a run holds stays text: names, owners, tags, logs, notes, failures, events."""

import html
import json
import re
from html.parser import HTMLParser

import pytest
from dashboard_case import ProjectCase
from hostile_texts import HOSTILE, MARK
from starlette.testclient import TestClient

from charter.dashboard.app import PAGES, build_app
from charter.dashboard.reading import key_of
from charter.dashboard.render import environment
from charter.dashboard.site import Settings
from charter.dashboard.snapshot import plain

TOKEN = "correct-horse-battery-staple-0123456789"
OURS = {"theme.js", "chart.umd.min.js", "charts.js", "app.js", "more_charts.js", "what_if.js", "pieces.js"}


class Elements(HTMLParser):
    """Every element of a page with its attributes, and the text of its scripts."""

    def __init__(self):
        super().__init__()
        self.found = []
        self.scripts = []
        self._in_script = False

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))
        self._in_script = tag == "script"

    def handle_endtag(self, tag):
        self._in_script = False

    def handle_data(self, data):
        if self._in_script and data.strip():
            self.scripts.append(data)


def elements(page):
    parser = Elements()
    parser.feed(page)
    return parser


def hostile_project(root, text):
    case = ProjectCase(root, owner=json.dumps(text), tag="x")
    path = root / "charter.yaml"
    path.write_text(
        path.read_text()
        .replace('goal: "x"', f"goal: {json.dumps(text)}")
        .replace("name: demo", f"name: {json.dumps(text)}")
    )
    case.plan()
    case.event("run_started", run=text, todo=[text])
    case.event("stage_failed", stage=text, message=text, reason=text)
    case.event("budget_warning", message=text)
    case.event(text, message=text, stage=text)
    case.attempt("sft", seconds=5, outcome="failed", note=text)
    case.failed("sft", text)
    case.metrics("sft", 5, **{text: 1.0})
    case.progress("sft", 3, 40, unit=text)
    (case.directory("sft") / "log.txt").write_text(f"before\n{text}\nafter\n", encoding="utf-8")
    sample = {"id": text, "prompt": text, "answers": {text: text, "policy": text}, "principle": text}
    (case.directory("judged") / "samples.jsonl").write_text(json.dumps(sample) + "\n")
    case.results("judged", key="exact_match.gain", label=text, note=text, unit=text)
    case.done("judged", 1)
    return case


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_text_stays_text_on_every_page(tmp_path, text):
    case = hostile_project(tmp_path / "demo", text)
    key = key_of(case.root.resolve())
    with TestClient(
        build_app(Settings(roots=(tmp_path,), token=TOKEN), 8765), base_url="http://127.0.0.1:8765"
    ) as client:
        client.get("/", params={"token": TOKEN})
        pages = [page for page in PAGES if set(names_in(page.path)) <= {"project", "stage"}]
        for page in pages:
            answer = client.get(page.path.replace("{project}", key).replace("{stage}", "sft"))
            assert answer.status_code == 200, (page.name, answer.text[:2000])
            check(answer.text)
        log = html.unescape(client.get(f"/p/{key}/stage/sft").text)
        assert plain(text.splitlines()[0]) in log, "it is shown, not dropped"


def names_in(path):
    return [part[1:-1] for part in path.split("/") if part.startswith("{")]


def check(page):
    found = elements(page)
    for tag, attributes in found.found:
        assert tag not in ("iframe", "object", "embed", "base", "math", "animate"), tag
        assert not [name for name in attributes if name.startswith("on") or name in ("style", "srcdoc")], attributes
        for name in ("href", "src", "action"):
            address = (attributes.get(name) or "").strip().lower()
            assert not address.startswith(("javascript:", "data:", "http:", "//")), attributes
        if tag == "script" and attributes.get("type") != "application/json":
            assert (attributes.get("src") or "").rpartition("/")[2] in OURS, attributes
    assert len(found.scripts) == 1, "the page's data is its only inline script, and it is not run"
    assert MARK not in found.scripts[0] or "<" not in found.scripts[0]
    json.loads(found.scripts[0])


def test_every_template_is_escaped_unless_it_says_otherwise():
    made = environment()
    assert made.autoescape is True or made.autoescape("run.html")
    for name in made.list_templates():
        source = made.loader.get_source(made, name)[0]
        assert not re.search(r"""(?<!['"])\s*\|\s*safe""", source), f"{name}: only a constant of its own may be safe"
        assert "autoescape" not in source, name


def test_a_template_cannot_be_made_from_data():
    assert environment().from_string("{{ x }}").render(x="{{ 7 * 7 }}<b>") == "{{ 7 * 7 }}&lt;b&gt;"


def test_the_check_sees_what_it_should():
    for bad in ("<script>x</script>", "<img onerror=x>", "<a href='javascript:x'>", "<p style='x'>", "<iframe>"):
        with pytest.raises(AssertionError):
            check(bad)
