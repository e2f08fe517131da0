"""Pages as a client gets them: found, not found, cached, exported; what the command line refuses."""

import json
import re
import threading
from pathlib import Path

import pytest
from dashboard_case import ProjectCase
from typer.testing import CliRunner

from charter.artifacts.sample_prompts import SamplePrompts, append_samples, write_sample_prompts
from charter.cli.main import app
from charter.dashboard import site as site_module
from charter.dashboard.app import ASSET_FILES, PAGES, asset_bytes, export_pages
from charter.dashboard.reading import ProjectReader, find_projects, key_of
from charter.dashboard.render import LiveLinks, StaticLinks
from charter.dashboard.site import ProjectSite, Settings
from charter.dashboard.snapshot import JsonFiles
from charter.dashboard.view.run_parts import stage_files
from charter.errors import CharterError, UsageError

TOKEN = "correct-horse-battery-staple-0123456789"


def test_the_pages_say_what_runs(client, at):
    home = client.get("/").text
    assert "demo" in home
    assert "now pm" in home
    run = client.get(at()).text
    for words in ("running", "10 of 20", "$36.00", "pending", "Pipeline"):
        assert words in run, words
    stage = client.get(at("stage/sft")).text
    for words in ("killed by signal 9", "Tokens per second", "40 of 40 steps"):
        assert words in stage, words
    cost = client.get(at("cost")).text
    for words in ("$1.40", "By GPU type", "H100", "alignment", "p90"):
        assert words in cost, words


def test_what_critiques_and_labels_wrote_is_a_click_away(client, case, at):
    (case.directory("sft") / "outputs").mkdir(exist_ok=True)
    (case.directory("sft") / "outputs" / "records.jsonl").write_text("{}\n")
    page = client.get(at("stage/sft")).text
    assert re.search(r'href="[^"]*samples\?stage=sft">Read what it wrote', page)
    assert "Read what it wrote" not in client.get(at("stage/pm")).text


def test_what_is_not_there_is_a_page_that_says_so(client, case, at):
    for path in ("/p/unknown", at("stage/unknown"), "/unknown", "/assets/unknown.js"):
        answer = client.get(path)
        assert answer.status_code == 404, path
        assert "All projects" in answer.text
    assert "its stages are sft, pm, ppo, judged" in client.get(at("stage/unknown")).text


def test_a_page_that_cannot_be_read_says_why(client, at, monkeypatch):
    def fail(*_):
        raise CharterError("the disk is <gone>")

    page = next(page for page in PAGES if page.name == "cost")
    monkeypatch.setattr("charter.dashboard.pages.run.cost_view", fail)
    answer = client.get(at("cost"))
    assert answer.status_code == 500
    assert "the disk is &lt;gone&gt;" in answer.text
    assert page.label


def test_a_defect_shows_no_secret(client, at, monkeypatch):
    monkeypatch.setattr("charter.dashboard.pages.run.cost_view", lambda _: 1 / 0)
    answer = client.get(at("cost"))
    assert answer.status_code == 500
    assert "ZeroDivisionError" in answer.text
    assert "Traceback" not in answer.text


def test_every_page_names_itself_in_the_navigation(client, at):
    for page in PAGES:
        if page.label and page.of_project:
            tabs = re.search(r'<nav class="tabs".*?</nav>', client.get(at(page.path[13:])).text, re.DOTALL)[0]
            assert re.findall(r'aria-current="page">([^<]*)', tabs) == [page.label]


def test_no_page_asks_anything_of_elsewhere(client, at):
    for path in ("/", at(), at("cost"), at("stage/sft")):
        page = client.get(path).text
        addresses = re.findall(r'(?:src|href|action)="([^"]*)"', page)
        assert addresses
        assert not [address for address in addresses if re.match(r"[a-z]+:|//", address)]
    for name in ASSET_FILES:
        if name != "chart.umd.min.js":
            assert not re.search(rb"https?://(?!www\.w3\.org)", asset_bytes(name)), name


def test_many_clients_make_a_page_once(client, at, monkeypatch):
    from charter.dashboard.pages import run

    made = []
    whole = run.run_view
    monkeypatch.setattr(run, "run_view", lambda *args, **more: made.append(1) or whole(*args, **more))
    monkeypatch.setattr("charter.dashboard.app.SAME_SECONDS", 10**12)
    threads = [threading.Thread(target=client.get, args=(at(),)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1


def test_an_export_holds_every_page_and_every_link_in_it_leads_somewhere(case, tmp_path):
    out = tmp_path / "out"
    count = export_pages(Settings(roots=(case.root,), token=TOKEN), out)
    files = {path.name for path in out.glob("*.html")}
    assert len(files) == count >= 7
    assert "index.html" in files
    for path in out.glob("*.html"):
        text = path.read_text()
        for address in re.findall(r'(?:src|href)="([^"]*)"', text):
            target = address.partition("#")[0]
            assert not target or (out / target).is_file(), (path.name, address)
        assert "/sign-" not in text
        assert "submit" not in re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL), path.name
        assert str(tmp_path) not in text, f"{path.name} tells where the project lies"


def test_an_export_replaces_an_export_and_nothing_else(case, tmp_path):
    out = tmp_path / "out"
    settings = Settings(roots=(case.root,), token=TOKEN)
    export_pages(settings, out)
    (out / "old-project.html").write_text("x")
    export_pages(settings, out)
    assert not (out / "old-project.html").exists()
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.html").write_text("x")
    with pytest.raises(UsageError, match="other files"):
        export_pages(settings, other)
    with pytest.raises(UsageError, match="is a file"):
        export_pages(settings, other / "thesis.html")
    with pytest.raises(UsageError, match="no project"):
        export_pages(Settings(roots=(other,), token=TOKEN), tmp_path / "new")


def test_links():
    live, static = LiveLinks({page.name: page.path for page in PAGES}), StaticLinks()
    assert live.page("stage", project="demo-1", stage="a/b?c") == "/p/demo-1/stage/a%2Fb%3Fc"
    assert live.page("cost", query={"tab": "a&b"}, project="demo-1") == "/p/demo-1/cost?tab=a%26b"
    assert (static.page("home"), static.page("run", project="demo-1")) == ("index.html", "demo-1.html")
    hostile = static.page("stage", project="demo-1", stage="../../x")
    assert re.fullmatch(r"[A-Za-z0-9.-]+", hostile)
    assert ".." not in hostile.replace(".html", "")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--host", "0.0.0.0"], "TLS"),
        (["--host", "192.168.0.1", "--tls-certificate", "x.pem"], "belong together"),
        (["--token", "secret-on-the-command-line"], "env:NAME"),
        (["--port", "70000"], "not a port"),
        (["/no/such/directory"], "no directory"),
    ],
)
def test_the_command_refuses_what_is_not_safe(arguments, words, tmp_path):
    result = CliRunner().invoke(app, ["ui", *([] if arguments[0].startswith("/") else [str(tmp_path)]), *arguments])
    assert isinstance(result.exception, UsageError)
    assert words in str(result.exception)


@pytest.mark.parametrize("option", [(), ("-C",)])
def test_the_command_writes_an_export(case, tmp_path, option):
    result = CliRunner().invoke(app, ["ui", *option, str(case.root), "--export", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert Path(tmp_path / "out" / "index.html").is_file()


def test_a_key_is_looked_up(settings, case):
    site = ProjectSite(settings)
    (reader,) = site.readers()
    assert site.reader(reader.found.key) is reader
    for key in ("", "..", "../demo", str(case.root), "demo", reader.found.key + "/"):
        assert site.reader(key) is None


def test_the_first_page_does_not_wait_for_every_project(client, case, monkeypatch):
    """What was read in time is shown, the rest is read beside it, and the page's version changes when it is."""
    may_read, is_read, starts = threading.Event(), threading.Event(), []
    catch_up = ProjectSite._catch_up

    def held(site, unread):
        starts.append(unread)
        may_read.wait()
        catch_up(site, unread)
        is_read.set()

    monkeypatch.setattr(site_module, "FIRST_SECONDS", -1.0)
    monkeypatch.setattr(ProjectSite, "_catch_up", held)
    first, again = client.get("/"), client.get("/")
    for page in (first, again):
        assert "1 more project being read" in page.text
        assert "No project here yet" not in page.text
        assert case.project.name not in page.text
    may_read.set()
    is_read.wait()
    assert len(starts) == 1, "two requests start one reading"
    page = client.get("/?sort=name")  # a page that was not stored a moment ago
    assert "being read" not in page.text
    assert f">{case.project.name}</a>" in page.text


def test_an_evaluation_says_whether_its_policy_is_better(client, case, at):
    case.results("judged", key="exact_match.gain", label="right answers")
    answers = {"sft": "Never.", "policy": "About twelve minutes."}
    sample = {"id": "p1", "prompt": [{"role": "user", "content": "How long?"}], "answers": answers}
    (case.directory("judged") / "samples.jsonl").write_text(json.dumps(sample) + "\n")
    case.done("judged", 1)
    assert "Better than before?" in client.get(at()).text
    stage = client.get(at("stage/judged")).text
    for words in ("right answers", "40.0 to +60.0 points", "An evaluation has no curves"):
        assert words in stage, words
    for query, expected in (
        ("", True),
        ("?text=TWELVE", True),
        ("?stage=judged&disagreeing=1", True),
        ("?text=x", False),
    ):
        assert ("About twelve minutes." in client.get(at("samples") + query).text) is expected, query
    assert client.get(at("samples") + "?shown=abc&stage=unknown").status_code == 200


def test_answers_in_training_stand_side_by_side(client, case, at):
    asked = ({"role": "user", "content": "How long?"},)
    for stage, text in (("sft", "Never."), ("ppo", "Twelve minutes.")):
        append_samples(case.directory(stage), 5, [("p1", asked, text)])
        write_sample_prompts(case.directory(stage), SamplePrompts(prompts=(), seed=1, max_new_tokens=1, share=0.01))
    page = client.get(at("samples") + "?view=sides&order=changed").text
    for words in ("sft, step 5", "ppo, step 5", "Twelve minutes.", "changed most"):
        assert words in page, words
    api = f"/api/v1/runs/{key_of(case.root.resolve())}/samples"
    (row,) = client.get(f"{api}?view=sides").json()["samples"]
    assert row["parts"] == {"sft, step 5": "Never.", "ppo, step 5": "Twelve minutes."}
    assert client.get(f"{api}.csv?stage=ppo").text.splitlines()[1].startswith("ppo,p1,How long?")


def test_a_stage_that_failed_has_no_time_left(client, case, at):
    case.failed("ppo", "the reward is not a number")
    page = client.get(at("stage/ppo")).text
    assert "Time left" not in page
    assert page.count("the reward is not a number") == 1, "told once"
    assert "waits for ppo, which failed" in client.get(at("stage/judged")).text
    run = client.get(at()).text
    assert "until the failed stage is run again" in run
    assert "broken off); pale: when the plan put" in run, "the colour of an attempt that did not end is explained"


def test_a_failure_that_ends_a_run_is_one_notice(client, case, at):
    case.failed("ppo", "the reward is not a number")
    case.event("stage_failed", stage="ppo", message="the reward is not a number\n  lower it", reason="it would again")
    case.event(
        "run_stopped", label="stage", message="stage ppo: the reward is not a number\n  given up: it would again"
    )
    notices = client.get(at()).text.split('id="notices"')[1].split("</dl>")[0]
    assert notices.count("the reward is not a number") == 1
    assert "failed, and the run has stopped" in notices
    assert "given up: it would again" in notices
    happened = client.get(at()).text.split('id="events-title"')[1]
    assert happened.count("the reward is not a number; lower it (it would again)") == 1
    assert happened.count("the reward is not a number") == 1
    assert "the run has stopped" in happened


def test_a_metric_that_never_changed_is_named(client, case, at):
    case.metrics("pm", 1, peak_bytes=11 * 2.0**20)
    assert "Never changed: Peak memory of tensors 1.0 MiB" in client.get(at("stage/pm")).text


def test_the_interface_for_scripts_says_what_the_pages_say(client, case, at):
    table = client.get("/api/v1/runs").json()
    (row,) = table["runs"]
    assert (row["name"], row["state"], table["pages"]) == ("demo", "running", 1)
    one = client.get(f"/api/v1/runs/{row['key']}").json()
    assert {stage["name"]: stage["state"] for stage in one["stages"]}["pm"] == "running"
    assert one["spent_usd"] == row["spent_usd"] == pytest.approx(1.4)
    rows = client.get(f"/api/v1/runs/{row['key']}/stages/sft/metrics").json()["metrics"]
    assert rows[0]["step"] == 1
    later = client.get(f"/api/v1/runs/{row['key']}/stages/sft/metrics?after={rows[0]['step']}").json()["metrics"]
    assert later == rows[1:]
    lines = client.get(f"/api/v1/runs/{row['key']}/stages/sft/metrics.csv").text.splitlines()
    assert lines[0].startswith("step,time,")
    assert len(lines) == len(rows) + 1
    assert client.get("/api/v1/runs.csv").text.splitlines()[1].startswith(row["key"])
    for path in ("runs/unknown", f"runs/{row['key']}/stages/unknown/metrics", "runs/unknown.csv"):
        answer = client.get(f"/api/v1/{path}")
        assert answer.status_code == 404
        assert "error" in answer.json()


def test_the_interface_describes_itself(client):
    document = client.get("/api/v1/openapi.json").json()
    assert document["openapi"] == "3.1.0"
    names = {"{run}": "x", "{stage}": "y"}
    for path in document["paths"]:
        for name, value in names.items():
            path = path.replace(name, value)
        assert client.get(path).status_code in (200, 404), path
    assert len(document["paths"]) == 12


def test_the_log_of_a_stage_is_searched(client, case, at):
    (case.directory("judged") / "log.txt").write_text("one\n<b>Two</b>\nthree\n")
    found = client.get(at("stage/judged") + "?log=two").text
    assert "2: &lt;b&gt;Two&lt;/b&gt;" in found
    assert "three" not in found.partition('id="log"')[2]
    assert "three" in client.get(at("stage/judged")).text
    assert "No line with “absent”" in client.get(at("stage/judged") + "?log=absent").text


def test_other_runs_lie_over_the_curves_of_a_stage(client, case, settings, at):
    other, gone = (ProjectCase(settings.roots[0] / name, tag="mild") for name in ("other", "gone"))
    other.metrics("sft", 8)
    page = client.get(at("stage/sft")).text
    assert "Other runs over these curves" in page
    assert 'name="with"' not in page, "nobody asked for the other runs, which cost a look at each"
    choice = client.get(at("stage/sft"), params={"beside": "1"}).text
    keys = [key_of(item.root.resolve()) for item in (other, gone)]
    assert f'name="with" value="{keys[0]}"' in choice
    assert keys[1] not in choice, "its stage has not started"
    both = client.get(at("stage/sft"), params={"with": keys[0]}).text
    drawn = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', both, re.DOTALL)[1])
    loss = next(curve for curve in drawn["curves"] if curve["metric"] == "loss")
    assert [(line["label"], len(line["points"])) for line in loss["others"]] == [("other", 8)]
    assert "demo (this run)" in both
    assert "checked><span>other" in both
    assert client.get(at("stage/sft"), params={"with": "nobody"}).status_code == 200


def test_a_file_is_followed_to_where_it_began(client, case, at):
    case.directory("pm")
    rows = client.get(f"/api/v1/runs/{key_of(case.root.resolve())}/files").json()["files"]
    (weights,) = [row for row in rows if row["stage"] == "sft"]
    assert (weights["path"], weights["size_bytes"]) == ("model/weights", 1000)
    page = client.get(at("files")).text
    assert weights["sha256"][:16] in page
    assert re.search(r"Began with</dt><dd>.*?pairs.*?texts.*?, through sft", page, re.DOTALL)
    assert re.search(r"init:</span> <a [^>]*>sft</a>", page), "in which role it is read"
    assert "earlier one" not in page
    assert ("<details><summary>1 file<" in page, "<details open>" in page) == (True, False)
    found = client.get(at("files"), params={"q": weights["sha256"][:10]}).text
    assert ("model/weights" in found, "It has published no file" in found) == (True, False)
    assert "<details open>" in found, "what was searched for is in sight"
    assert "No file matches" in client.get(at("files"), params={"q": "ffff0000ffff"}).text
    job = case.directory("pm") / "job.json"
    job.write_text(job.read_text().replace(case.stages["sft"].fingerprint, "0" * 64))
    (case.directory("sft") / "outputs" / "model" / "weights").unlink()
    later = stage_files(ProjectReader(find_projects((case.root,))[0]).snapshot(), JsonFiles().read)
    assert [item.is_now for item in later[1].reads if item.source == "stage"] == [False]
    assert later[0].files[0].size_bytes is None
