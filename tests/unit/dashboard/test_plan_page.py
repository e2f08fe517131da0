"""The plan page: nothing is written; what cannot be planned says why."""

import json
import os
import re

import pytest
from dashboard_case import ProjectCase
from direct_work import work_directly

from charter.dashboard.reading import key_of
from charter.units import format_seconds

FILE = """
name: rented
models:
  base: {model: meta-llama/Llama-3.1-8B}
data:
  chat: {path: chat.jsonl, rows: 40_000, mean_tokens: 300}
pipeline:
  helpful: {kind: sft, init: base, data: [chat], global_batch: 128, seq_len: 2048}
resources: {infra: aws, accelerators: [H100:8], max_nodes: 2}
budget: {limit: $900}
"""


@pytest.fixture(autouse=True)
def _direct(client, monkeypatch):
    work_directly(client)
    # Else what is known is forgotten where a span of ten minutes ends in the middle of a test.
    monkeypatch.setattr("charter.dashboard.pages.plan.FRESH_SECONDS", 10**12)


@pytest.fixture
def rented(settings):
    """A project on rented machines that has never run."""
    root = settings.roots[0] / "rented"
    root.mkdir()
    (root / "charter.yaml").write_text(FILE)
    return root


@pytest.fixture
def address(rented):
    return f"/p/{key_of(rented.resolve())}/plan"


def token_of(page):
    return re.search(r'name="csrf" content="([^"]+)"', page)[1]


@pytest.fixture
def ask(client, address):
    """Sends the controls as the page's script does."""
    csrf = token_of(client.get(address).text)

    def post(**controls):
        headers = {"origin": str(client.base_url).rstrip("/"), "x-charter-csrf": csrf}
        return client.post(f"{address}/what-if", data=controls, headers=headers)

    return post


def test_the_page_comes_at_once_and_asks_for_its_result(client, address):
    page = client.get(address).text
    assert 'data-state="loading"' in page
    assert f'data-ask="{address}/what-if"' in page
    assert 'placeholder="H100:8"' in page, "the controls show what charter.yaml says"


def test_a_reader_without_scripts_gets_the_plan_by_waiting(client, address):
    page = client.get(address, params={"wait": "1"}).text
    assert 'data-state="ready"' in page
    assert "8 x H100-SXM-80GB aws" in page or "16 x H100-SXM-80GB aws" in page


def test_a_what_if_changes_the_plan_and_says_what_changed(ask, rented):
    before = {path: path.read_bytes() for path in rented.rglob("*") if path.is_file()}
    base = ask().json()
    changed = ask(accelerators="A100-80GB:8", market="spot").json()
    assert base["state"] == changed["state"] == "ready"
    assert "A100-SXM-80GB" in changed["html"] or "A100-80GB" in changed["html"]
    assert "was " in changed["html"]
    assert changed["query"] == "accelerators=A100-80GB%3A8&market=spot"
    assert "--set" in changed["html"]
    assert base["charts"]["pareto"] != changed["charts"]["pareto"]
    assert {path: path.read_bytes() for path in rented.rglob("*") if path.is_file()} == before, "nothing is written"


def test_the_link_of_a_what_if_opens_with_it(client, ask, address):
    query = ask(deadline="2d").json()["query"]
    page = client.get(f"{address}?{query}").text
    assert 'value="2d"' in page
    assert 'data-state="ready"' in page, "it is known already"


@pytest.mark.parametrize(
    ("controls", "words"),
    [
        ({"accelerators": "Z9:8"}, "no accelerator is called &#39;Z9&#39;"),
        ({"deadline": "banana"}, "is not a duration; write it like 14d"),
        ({"nodes": "-3"}, "is not a whole number of 1 or more"),
        ({"more": "data.chat.path=/etc/passwd"}, "here can be changed"),
        ({"budget": "1" * 5000}, "a what-if takes up to 400"),
        ({"accelerators": "<script>alert(1)</script>:8"}, "&lt;script&gt;"),
    ],
)
def test_an_invalid_value_shows_the_real_error(ask, controls, words):
    found = ask(**controls).json()
    assert found["state"] == "error"
    assert words in found["html"]
    assert "<script>" not in found["html"]


def test_what_fits_nowhere_says_why(ask):
    found = ask(accelerators="T4:1", nodes="1").json()
    assert found["state"] == "error"
    assert "helpful" in found["html"]


def test_recomputing_needs_a_post_with_the_token_of_the_page(client, address):
    assert client.get(f"{address}/what-if").status_code in (404, 405)
    origin = {"origin": str(client.base_url).rstrip("/")}
    assert client.post(f"{address}/what-if", data={}, headers=origin).status_code == 403
    csrf = token_of(client.get(address).text)
    elsewhere = {"origin": "http://elsewhere.example", "x-charter-csrf": csrf}
    assert client.post(f"{address}/what-if", data={}, headers=elsewhere).status_code == 403


def test_a_change_of_the_file_is_seen(ask, rented):
    assert "16 x" not in ask(nodes="1").json()["html"]
    path = rented / "charter.yaml"
    later = path.stat().st_mtime_ns + 1_000_000_000
    path.write_text(FILE.replace("H100:8", "H200:8"))
    os.utime(path, ns=(later, later))  # the clock of a file system may tick too seldom for a quick machine
    assert "H200" in ask(nodes="1").json()["html"]


def test_a_broken_file_is_an_error_on_the_page_and_not_of_the_server(client, address, rented):
    (rented / "charter.yaml").write_text("name: rented\npipeline: {helpful: {kind: sftt}}\n")
    page = client.get(address, params={"wait": "1"})
    assert page.status_code == 200
    assert "There is no such plan" in page.text
    assert "sftt" in page.text


def test_a_run_that_has_not_started_shows_its_plan(client, address, at):
    """It had said that the time left was unknown, for want of a plan, and so of every stage."""
    run, piece = address.removesuffix("/plan"), f"{address}/piece"
    page = client.get(run).text
    assert f'data-piece="{piece}"' in page
    assert "no plan and no rate yet" not in page
    answer = client.get(piece).json()
    assert answer["state"] == "ready"
    for words in ("Budget $900", "helpful", "x H100-SXM-80GB aws", "p50 to p90"):
        assert words in answer["html"], words
    assert answer["html"] in client.get(run, params={"wait": "1"}).text, "without scripts, by waiting"
    assert "data-piece" not in client.get(at()).text, "a run that has started says what is left"


def test_a_finished_run_stands_beside_its_plan(client, settings):
    case = ProjectCase(settings.roots[0] / "finished")
    for number, name in enumerate(case.stages):
        case.done(name, 10)
        case.attempt(name, seconds=100, after=100 * number)
    total = {"seconds": {"p10": 200.0, "p50": 300.0, "p90": 450.0}, "usd": {"p10": 1.0, "p50": 2.0, "p90": 3.0}}
    (case.run / "plan.json").write_text(json.dumps({"stages": [], "total": total}))
    page = client.get(f"/p/{key_of(case.root.resolve())}").text
    assert f"planned 5 min 0 s to 7 min 30 s; {format_seconds(100.0 * len(case.stages))} of machine time" in page


def test_a_run_shows_first_the_plan_it_was_started_with(client, at, case, address):
    page = client.get(at("plan")).text
    assert page.index("The plan that this run was started with") < page.index("Planned again now")
    first = json.loads((case.root / "run" / "plan.json").read_text())["stages"][0]
    assert format_seconds(first["seconds"]["p50"]) in page
    assert "started with" not in client.get(address).text, "a project that never ran has none"
