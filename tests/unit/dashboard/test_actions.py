"""Buttons: who may press them, what they do, and the trace that they leave."""

import json
import os
import re
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from dashboard_case import lively
from starlette.testclient import TestClient

from charter.artifacts.lease import Holder, host_id, start_ticks
from charter.artifacts.sample_prompts import append_samples
from charter.dashboard.app import build_app
from charter.dashboard.guard import csrf_of
from charter.dashboard.reading import key_of
from charter.dashboard.site import Settings, check_settings
from charter.engines.project import load_project
from charter.errors import UsageError
from charter.ledger.stored import CREDIT, FEE
from charter.run import actions
from charter.run.approval import read_approval
from charter.run.events import ACTIONS
from charter.run.graph import build_pipeline

TOKEN = "correct-horse-battery-staple-0123456789"
VIEWERS = "a-viewer-may-look-and-nothing-else-0123"
PORT = 8765
HOME = f"http://127.0.0.1:{PORT}"


@pytest.fixture
def case(tmp_path):
    """A run whose evaluation waits for approval, and can be looked at."""
    case = lively(tmp_path / "work" / "demo", pid=os.getpid())
    case.done("ppo", 20)
    case.done("pm", 20)
    return case


@pytest.fixture
def enter(tmp_path, case):
    """A client with a session: `enter(token)`."""

    def entered(token, *, acts=True, viewer_token=VIEWERS):
        settings = Settings(roots=(tmp_path / "work",), token=TOKEN, viewer_token=viewer_token, port=PORT, acts=acts)
        client = TestClient(build_app(settings, PORT), base_url=HOME, raise_server_exceptions=False)
        servers.enter_context(client)  # its end ends the processes of the pages
        client.get("/", params={"token": token})
        return client

    with ExitStack() as servers:
        yield entered


def press(client, case, button, token=TOKEN, **form):
    return client.post(
        f"/p/{key_of(case.root.resolve())}/do/{button}",
        data={"csrf": csrf_of(token), **form},
        headers={"origin": HOME},
        follow_redirects=False,
    )


def events(case):
    return [json.loads(line) for line in (case.run / "events.jsonl").read_text().splitlines()]


def judged(case):
    return build_pipeline(case.project, case.root).stages["judged"]


def test_a_stage_is_approved_with_samples_beside_the_button(enter, case):
    client = enter(TOKEN)
    assert f"/p/{key_of(case.root.resolve())}/approve/judged" in client.get(f"/p/{key_of(case.root.resolve())}").text
    page = client.get(f"/p/{key_of(case.root.resolve())}/approve/judged").text
    assert "How long does rice cook?" in page
    fields = dict(re.findall(r'name="(\w+)" value="([^"]*)"', page))
    answer = press(client, case, "approve", stage="judged", fingerprint=fields["fingerprint"], note="looks right")
    assert answer.status_code == 303
    given = read_approval(judged(case), case.root)
    assert (given.note, "in the dashboard" in given.by) == ("looks right", True)
    assert events(case)[-1]["event"] == "stage_approved"
    assert "looks right" in events(case)[-1]["message"]


def test_what_changed_after_it_was_shown_is_not_approved(enter, case):
    answer = press(enter(TOKEN), case, "approve", stage="judged", fingerprint="0" * 64)
    assert answer.status_code == 409
    assert "has changed since" in answer.text
    assert read_approval(judged(case), case.root) is None


@pytest.mark.parametrize(("stage", "words"), [("nobody", "there is no stage"), ("sft", "needs no approval")])
def test_what_cannot_be_approved_is_refused_in_words(enter, case, stage, words):
    fingerprint = build_pipeline(case.project, case.root).stages["sft"].asked_fingerprint
    answer = press(enter(TOKEN), case, "approve", stage=stage, fingerprint=fingerprint)
    assert (answer.status_code, words in answer.text) == (409, True)


BUTTONS = ("approve", "stop", "start", "note", "raise", "rerun", "sweep", "tag")


@pytest.mark.parametrize("button", BUTTONS)
def test_a_viewer_is_refused_and_sees_no_button(enter, case, button, monkeypatch):
    monkeypatch.setattr("charter.dashboard.app.BUTTONS", dict.fromkeys(BUTTONS, lambda *_: 1 / 0))
    for client, token in ((enter(VIEWERS), VIEWERS), (enter(TOKEN, acts=False), TOKEN)):
        assert "/do/" not in client.get(f"/p/{key_of(case.root.resolve())}").text
        assert press(client, case, button, token).status_code == 403


def test_a_sample_is_flagged_with_a_note(enter, case):
    append_samples(case.directory("ppo"), 5, [("p1", ({"role": "user", "content": "Hello?"},), "Go away.")])
    client = enter(TOKEN)
    answer = press(client, case, "note", sample="p1", flagged="1", note="rude")
    assert answer.headers["location"].endswith("/samples")
    samples = f"/p/{key_of(case.root.resolve())}/samples"
    page = client.get(f"{samples}?flagged=1").text
    assert ("Go away." in page, "rude" in page) == (True, True)
    assert events(case)[-1]["event"] == "sample_noted"
    assert press(client, case, "note", sample="p1", note="").status_code == 303
    assert "Go away." not in client.get(f"{samples}?flagged=1").text
    assert press(client, case, "note", note="of nothing").status_code == 409


def test_a_run_is_tagged_and_found_by_it(enter, case):
    client, page = enter(TOKEN), f"/p/{key_of(case.root.resolve())}"
    assert press(client, case, "tag", tag="seed = 3").status_code == 303
    assert press(client, case, "tag", tag="keep").status_code == 303
    assert "seed: 3" in client.get(page).text
    assert "demo</a>" in client.get("/", params={"tag": "seed: 3"}).text
    assert "No project matches" in client.get("/", params={"tag": "seed: 4"}).text
    assert press(client, case, "tag", tag="seed", remove="1").status_code == 303
    assert "seed: 3" not in client.get("/").text
    row = client.get("/api/v1/runs", params={"tag": "keep"}).json()["runs"][0]
    assert row["tags"] == {"team": "alignment", "goal": "safe", "keep": ""}
    said = [(event["message"], "in the dashboard" in event["by"]) for event in events(case)[-3:]]
    assert [(words.partition(" by ")[0], there) for words, there in said] == [
        ("tagged seed: 3", True), ("tagged keep", True), ("tag off seed", True),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("tag", "more", "words"),
    [
        ("=3", {}, "is no tag"),
        ("seed=", {}, "is no tag"),
        ("x" * 61, {}, "at most 60"),
        ("team=red", {}, "charter.yaml has the tag team: alignment"),
        ("keep", {"remove": "1"}, "it has none"),
    ],
)
def test_what_is_no_tag_is_refused(enter, case, tag, more, words):
    answer = press(enter(TOKEN), case, "tag", tag=tag, **more)
    assert (answer.status_code, words in answer.text) == (409, True)
    assert not (case.run / "tags.json").exists()


def test_actions_name_who_and_when_however_long_ago(enter, case):
    case.event("run_started", run="demo", todo=["sft"], by="grace@node7")
    for number in range(500):
        case.event("stage_note", stage="sft", message=f"note {number}")
    client = enter(TOKEN)
    assert press(client, case, "raise", limit="$5k").status_code == 303
    page = f"/p/{key_of(case.root.resolve())}/actions"
    text = client.get(page).text
    assert ("grace@node7" in text, "budget raised" in text, "note 7" in text) == (True, True, False)
    ones = client.get(page, params={"by": "grace@node7"}).text
    assert ("1 stage to do" in ones, "budget raised" in ones) == (True, False)
    listed = client.get(f"/api/v1/runs/{key_of(case.root.resolve())}/actions").json()["actions"]
    assert listed[1]["by"] == "grace@node7"
    assert "in the dashboard" in listed[0]["by"]
    assert "budget raised" in client.get(f"/api/v1/runs/{key_of(case.root.resolve())}/actions.csv").text


def test_every_action_leaves_who_did_it():
    found = set(re.findall(r'_write_down\(\s*[\w.]+, "(\w+)"', Path(actions.__file__).read_text()))
    assert found | {"run_started", *(f"{service.lower()}_added" for service in (FEE, CREDIT))} == ACTIONS


def test_a_budget_is_raised_for_the_run(enter, case):
    text = (case.root / "charter.yaml").read_text()
    before = load_project(case.root).budget.limit
    client = enter(TOKEN)
    page = f"/p/{key_of(case.root.resolve())}"
    assert "Raise the budget" in client.get(page).text
    assert press(client, case, "raise", limit="$5k").status_code == 303
    assert load_project(case.root).budget.limit == 5000
    assert (case.root / "charter.yaml").read_text() == text, "the file is the user's"
    assert "raised from" in events(case)[-1]["message"]
    assert "$5,000" in client.get(page).text
    assert press(client, case, "raise", limit="$6k").status_code == 303
    assert load_project(case.root).budget.limit == 6000, "raised twice"
    for limit, words in (("1", "is not above"), ("much", "much")):
        answer = press(client, case, "raise", limit=limit)
        assert (answer.status_code, words in answer.text) == (409, True)
    (case.root / "charter.yaml").write_text(text.replace(f"{before:g}", "7"))
    assert load_project(case.root).budget.limit == 7, "another limit in the file has the last word"
    (case.run / "budget.json").write_text("{}")
    with pytest.raises(UsageError, match="does not hold a raised budget"):
        load_project(case.root)


def test_a_stage_runs_again(enter, case, monkeypatch):
    started = []
    monkeypatch.setattr(actions, "start", lambda root, **_: started.append(root))
    directory = case.directory("ppo")
    client = enter(TOKEN)
    assert "Run ppo again" in client.get(f"/p/{key_of(case.root.resolve())}/stage/ppo").text
    assert press(client, case, "rerun", stage="ppo").status_code == 303
    assert started == [case.root]
    assert not directory.exists()
    assert [path.name for path in directory.parent.glob("ppo-*")] == [f"{directory.name}.rerun-1"]
    assert (events(case)[-1]["event"], events(case)[-1]["stage"]) == ("stage_rerun", "ppo")
    for stage, words in (("ppo", "has not run yet"), ("nobody", "no stage is called"), ("judged", "has not run yet")):
        answer = press(client, case, "rerun", stage=stage)
        assert (answer.status_code, words in answer.text) == (409, True), stage
    assert len(started) == 1


def test_a_sweep_is_started_by_its_name(enter, case, monkeypatch):
    commands = []

    class Process:
        def __init__(self, command, **_):
            commands.append(command)

        def wait(self):
            return 0

    monkeypatch.setattr(actions.subprocess, "Popen", Process)
    client = enter(TOKEN)
    assert press(client, case, "sweep", sweep="wide").status_code == 409
    with (case.root / "charter.yaml").open("a") as file:
        file.write("sweeps: {wide: {seeds: 2}}\n")
    assert press(client, case, "sweep", sweep="wide").status_code == 303
    assert commands[0][-3:] == ["--yes", "--sweep", "wide"]
    assert "sweep wide started by" in events(case)[-1]["message"]


def test_an_operators_csrf_token_is_of_no_use_to_a_viewer(enter, case):
    assert press(enter(VIEWERS), case, "stop", token=TOKEN).status_code == 403
    assert press(enter(TOKEN), case, "stop", token=VIEWERS).status_code == 403


def test_a_button_without_session_or_origin_does_nothing(enter, case):
    address = f"/p/{key_of(case.root.resolve())}/do/stop"
    assert enter("wrong" * 8).post(address, data={"csrf": csrf_of(TOKEN)}, headers={"origin": HOME}).status_code == 401
    other = {"origin": "http://elsewhere.example"}
    assert enter(TOKEN).post(address, data={"csrf": csrf_of(TOKEN)}, headers=other).status_code == 403
    assert enter(TOKEN).get(address).status_code in (404, 405)
    assert press(enter(TOKEN), case, "unknown").status_code == 404


def test_tokens_of_the_two_roles_differ(tmp_path):
    with pytest.raises(UsageError, match="same as --token"):
        check_settings(Settings(roots=(tmp_path,), token=TOKEN, viewer_token=TOKEN))
    with pytest.raises(UsageError, match="at least 32"):
        check_settings(Settings(roots=(tmp_path,), token=TOKEN, viewer_token="short"))


def hold(case, pid):
    holder = Holder(pid=pid, start_ticks=start_ticks(pid), host=host_id(), since=1.0)
    (case.run / "lease.json").write_text(json.dumps(vars(holder)))


def test_stop_asks_the_process_that_holds_the_run(case):
    script = "import signal; signal.signal(15, lambda *_: exit()); print('ready', flush=True); signal.pause()"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        hold(case, process.pid)
        (words,) = actions.stop(case.root, wait_seconds=60, by="ada")
        assert f"pid {process.pid}" in words
        process.wait()
    assert events(case)[-1] == {**events(case)[-1], "event": "stop_requested", "message": "asked to stop by ada"}


def test_stop_of_what_does_not_run_leaves_no_trace(case):
    before = (case.run / "events.jsonl").read_bytes()
    assert actions.stop(case.root, wait_seconds=1) == []
    assert (case.run / "events.jsonl").read_bytes() == before


def test_a_second_start_is_refused(enter, case):
    hold(case, os.getpid())
    answer = press(enter(TOKEN), case, "start")
    assert (answer.status_code, "a run is active here already" in answer.text) == (409, True)


@pytest.mark.parametrize(("age", "is_refused"), [(0.0, True), (3600.0, False)])
def test_a_holder_elsewhere_counts_while_it_gives_signs_of_life(case, monkeypatch, age, is_refused):
    """Another machine, or this one before its last boot: nobody will ever take that lease away."""
    holder = Holder(pid=7, start_ticks=1, host="n7/another boot", since=1.0)
    lease = case.run / "lease.json"
    lease.write_text(json.dumps(vars(holder)))
    os.utime(lease, (time.time() - age, time.time() - age))
    started = []
    monkeypatch.setattr(actions.subprocess, "Popen", lambda command, **more: started.append(command) or Quiet())
    monkeypatch.setattr(actions.threading, "Thread", lambda target, args, daemon: Quiet())
    if is_refused:
        with pytest.raises(UsageError, match="a run is active here already"):
            actions.start(case.root)
    else:
        actions.start(case.root)
        assert started


def test_a_start_that_fails_says_why_in_an_event(case, monkeypatch):
    waited = []
    monkeypatch.setattr(
        actions.threading, "Thread", lambda target, args, daemon: waited.append((target, args)) or Quiet()
    )
    (case.root / "charter.yaml").write_text("pipeline: {sft: {kind: sfft}}\n")
    actions.start(case.root, by="ada")
    ((target, args),) = waited
    target(*args)
    requested, failed = events(case)[-2:]
    assert (requested["event"], requested["message"]) == ("start_requested", "started by ada")
    assert failed["event"] == "start_failed"
    assert "exit code 2" in failed["message"]
    assert "sfft" in failed["message"]


class Quiet:
    def start(self):
        """Nothing: the test waits itself."""


def test_a_limit_of_an_owner_or_a_tag_is_raised_like_the_whole(tmp_path):
    (tmp_path / "charter.yaml").write_text(
        "name: p\nmodels: {base: meta-llama/Llama-3.1-8B}\ndata: {d: {path: d.jsonl, rows: 1k, mean_tokens: 10}}\n"
        "pipeline: {sft: {kind: sft, init: base, data: d}}\nowner: ann\ntags: {team: red}\n"
        "budget: {limit: 100, owners: {ann: 10}, tags: {team=red: 20}}\n"
    )
    assert actions.raise_budget(tmp_path, "15", of="budget.owners.ann") == (10.0, 15.0)
    assert actions.raise_budget(tmp_path, "30", of="budget.tags.team=red") == (20.0, 30.0)
    assert actions.raise_budget(tmp_path, "200") == (100.0, 200.0)
    budget = load_project(tmp_path).budget
    assert (budget.limit, budget.owners, budget.tags) == (200.0, {"ann": 15.0}, {"team=red": 30.0})
    with pytest.raises(UsageError, match=r"no limit budget\.owners\.bob; there are budget\.limit, budget\.owners\.ann"):
        actions.raise_budget(tmp_path, "15", of="budget.owners.bob")
    text = (tmp_path / "charter.yaml").read_text()
    (tmp_path / "charter.yaml").write_text(text.replace("{ann: 10}", "{ann: 12}"))
    assert load_project(tmp_path).budget.owners == {"ann": 12.0}, "a new limit in the file has the last word"
    assert load_project(tmp_path).budget.tags == {"team=red": 30.0}
