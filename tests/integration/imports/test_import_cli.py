"""`charter artifacts import` as a user types it: real states of TRL into ledger, curves and measurements."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from charter.artifacts.lease import Lease
from charter.cli.main import app
from charter.errors import CharterError
from charter.ledger import Ledger
from charter.tracking.base import metrics_file, read_metrics
from charter.validation.rows.measurement import read_measurements

RUNS = Path(__file__).parent / "trainer_runs"
STATE = str(RUNS / "sft_resumed.json")
ON = ("--accelerators", "H100:8", "--nodes", "2", "--usd-per-hour", "2.5", "--started-at", "2026-07-01T09:00")
WHOLE = (*ON, "--hours", "3")
SHAPE = [f"--fact={cell}" for cell in ("hidden=4096", "layers=32", "heads=32", "ffn=14336", "vocab=128256")]


@dataclass
class Called:
    code: int
    out: str
    err: str


def charter(work, *arguments):
    """One command in this process; a test calls many."""
    where = () if arguments[0] in ("validate", "ui") else ("-C", str(work.root))
    done = CliRunner().invoke(app, [*arguments, *where])
    code = done.exception.exit_code if isinstance(done.exception, CharterError) else done.exit_code
    return Called(code, done.stdout, str(done.exception or ""))


def cost(work):
    return json.loads(charter(work, "cost", "--json").out)


def test_a_run_is_counted_once_and_shown_as_imported(work):
    told = charter(work, "artifacts", "import", STATE)
    assert told.code == 0, told.err
    assert "trl, step 12 of 12, 2 processes" in told.out
    dry = charter(work, "artifacts", "import", STATE, "--as", "b", *WHOLE, "--dry-run")
    assert "would count as stage b, $120" in dry.out
    assert not list(work.root.glob("run/ledger.sqlite"))
    first = charter(work, "artifacts", "import", STATE, "--as", "b", *WHOLE)
    assert first.code == 0, first.err
    assert first.out.count("; added") == 2
    again = charter(work, "artifacts", "import", STATE, "--as", "b", *WHOLE)
    assert again.out.count("; known") == 2
    attempts = cost(work)["attempts"]
    assert [item["imported"] for item in attempts] == [True, True]
    assert [item["outcome"] for item in attempts] == ["killed", "done"]
    assert sum(item["usd"] for item in attempts) == pytest.approx(120, abs=1e-3)
    assert "Imported (charter artifacts import): 3 h 0 min, $120 of stage b" in charter(work, "cost").out
    other = charter(work, "artifacts", "import", STATE, "--as", "a", *WHOLE)
    assert other.code == 2
    assert "counted twice" in other.err


def test_a_renamed_project_counts_an_import_once(work):
    assert charter(work, "artifacts", "import", STATE, "--as", "b", *WHOLE).code == 0
    work.edit("name: count", "name: renamed")
    again = charter(work, "artifacts", "import", STATE, "--as", "b", *WHOLE)
    assert again.out.count("; known") == 2
    attempts = cost(work)["attempts"]
    assert sum(item["usd"] for item in attempts) == pytest.approx(120, abs=1e-3)
    [past] = imports(work)
    assert past["usd"] == pytest.approx(120, abs=1e-3)
    back = charter(work, "artifacts", "import", "--take-back", past["import"], "--yes")
    assert "2 attempts left the ledger" in back.out
    assert imports(work) == []


def test_a_run_that_went_on_brings_its_attempt_up_to_date(work, tmp_path):
    state = tmp_path / "trainer_state.json"
    shutil.copy(RUNS / "sft_checkpoint_5.json", state)
    assert charter(work, "artifacts", "import", str(state), "--as", "b", *ON, "--hours", "1").code == 0
    assert [item["outcome"] for item in cost(work)["attempts"]] == ["interrupted"]
    shutil.copy(STATE, state)
    grown = charter(work, "artifacts", "import", str(state), "--as", "b", *WHOLE)
    assert [word for word in ("; updated", "; added") if word in grown.out] == ["; updated", "; added"]
    attempts = cost(work)["attempts"]
    assert [(item["first_step"], item["last_step"]) for item in attempts] == [(0, 5), (5, 12)]
    assert sum(item["seconds"] for item in attempts) == pytest.approx(3 * 3600, abs=1)


def test_its_curves_stand_beside_the_stage_until_that_runs_itself(work, tmp_path):
    assert charter(work, "artifacts", "import", STATE, "--as", "a", *WHOLE).code == 0
    directory = work.stage_dir("a")
    points = read_metrics(metrics_file(directory))
    assert [point.step for point in points] == list(range(1, 13))
    assert points[0].values["loss"] == 4.607951641082764
    assert work.status()["a"]["state"] == "pending", "nothing is done by an import"
    assert charter(work, "ui", str(work.root), "--export", str(tmp_path / "pages")).code == 0
    (page,) = (tmp_path / "pages").glob("*.stage.a.html")
    assert "[1,4.607951641082764]" in page.read_text()
    assert work.run().code == 0
    assert metrics_file(directory).name == "metrics.jsonl"
    assert "of stage a\n" in charter(work, "cost").out, "Charter's own attempts are not imported"
    assert [item["imported"] for item in cost(work)["attempts"]][:3] == [True, True, False]


def test_all_missing_options_are_said_at_once(work):
    refused = charter(work, "artifacts", "import", STATE, "--as", "b")
    assert refused.code == 2
    for option in ("--accelerators H100:8", "--started-at", "--hours"):
        assert option in refused.err
    unknown = charter(work, "artifacts", "import", STATE, "--as", "nobody", *WHOLE)
    assert unknown.code == 2
    assert "no stage is called 'nobody'" in unknown.err
    assert "H1000" in charter(work, "artifacts", "import", STATE, "--as", "b", "--accelerators", "H1000:8").err
    assert "is not a time" in charter(work, "artifacts", "import", STATE, "--started-at", "noon").err
    assert "write COLUMN=VALUE" in charter(work, "artifacts", "import", STATE, "--fact", "seq").err


def test_its_pace_becomes_a_row_that_calibrate_reads(work, tmp_path):
    rows = tmp_path / "own.csv"
    missing = charter(work, "artifacts", "import", STATE, "--measurements", str(rows))
    assert missing.code == 2
    for wanted in ("--fact kind=sft", "--accelerators", "--fact seq=4096", "--fact gbs=64", "--fact model="):
        assert wanted in missing.err
    assert not rows.exists()
    given = (*WHOLE, *SHAPE, "--fact", "seq=2048", "--fact", "gbs=64", "--fact", "shard=fsdp-full_shard")
    made = charter(work, "artifacts", "import", STATE, "--as", "b", "--measurements", str(rows), *given)
    assert made.code == 0, made.err
    (row,) = read_measurements(rows)
    assert (row.kind, row.gpu, row.gpus, row.gpus_per_node, row.mbs) == ("sft", "H100-SXM-80GB", 16, 8, 4)
    assert (row.metric, row.framework, row.dtype, row.seq) == ("step_time_s", "TRL", "bf16", 2048)
    assert row.value == pytest.approx(0.5685 / 7, rel=1e-5)
    again = charter(work, "artifacts", "import", STATE, "--as", "b", "--measurements", str(rows), *given)
    assert again.code == 0, again.err
    assert len(read_measurements(rows)) == 1
    checked = json.loads(charter(work, "validate", str(rows), "--json").out)
    assert [item["refused"] for item in checked["rows"]] == [None]


def test_json_is_one_object(work):
    told = json.loads(charter(work, "artifacts", "import", STATE, "--as", "b", *WHOLE, "--json").out)
    assert told["schema"] == "charter.import/1"
    assert told["changes"] == ["added", "added"]
    assert told["usd"] == pytest.approx(120, abs=1e-3)
    assert [item["first_step"] for item in told["processes"]] == [0, 5]
    assert told["measurement"] is None


def tree(root):
    """Every file and directory below a directory with its bytes and times."""
    found = {}
    for path in [root, *sorted(root.rglob("*"))]:
        known = path.stat()
        content = path.read_bytes() if path.is_file() else None
        found[str(path.relative_to(root))] = (known.st_mtime_ns, known.st_ctime_ns, known.st_mode, content)
    return found


def test_a_dry_run_writes_nothing_where_there_is_no_run_yet(work):
    rows = str(work.root / "rows" / "own.csv")
    before = tree(work.root)
    facts = (*SHAPE, "--fact", "seq=2048", "--fact", "gbs=64", "--fact", "shard=fsdp-full_shard")
    dry = charter(work, "artifacts", "import", STATE, "--as", "b", *WHOLE, "--dry-run", "--measurements", rows, *facts)
    assert dry.code == 0, dry.err
    assert "would be a row of" in dry.out
    assert charter(work, "artifacts", "import", "--list").out == "nothing was imported\n"
    assert tree(work.root) == before


def test_a_dry_run_writes_nothing_beside_a_run_either(work):
    assert charter(work, "artifacts", "import", STATE, "--as", "b", *WHOLE).code == 0
    (work.root / "chat.jsonl").touch()
    before = tree(work.root)
    assert charter(work, "artifacts", "import", STATE, "--as", "a", *WHOLE, "--dry-run").code == 0
    assert tree(work.root) == before


def own_attempt(work):
    """As `charter run` writes one."""
    with Ledger.open(work.root / "run" / "ledger.sqlite") as ledger:
        attempt = ledger.begin(run="count", stage="b", kind="sft", fingerprint="f" * 64, at=1.0)
        ledger.end(attempt, at=61.0, outcome="killed", step=3)


def imports(work):
    return json.loads(charter(work, "artifacts", "import", "--list", "--json").out)["imports"]


def test_an_import_is_taken_back_with_all_that_it_wrote_and_may_come_again(work, tmp_path):
    rows = tmp_path / "own.csv"
    rows.write_text("id,metric,value\nOWN-1,mfu,0.4\n")
    given = (*WHOLE, *SHAPE, "--fact", "seq=2048", "--fact", "gbs=64", "--fact", "shard=fsdp-full_shard")
    command = ("artifacts", "import", STATE, "--as", "b", "--measurements", str(rows), *given)
    own_attempt(work)
    before, own = tree(work.root), cost(work)
    told = json.loads(charter(work, *command, "--json").out)
    (found,) = imports(work)
    assert (found["import"], found["stage"], found["source"], found["format"]) == (told["import"], "b", STATE, "trl")
    assert (found["attempts"], found["first_step"], found["last_step"]) == ([2, 3], 0, 12)
    assert (found["seconds"], found["usd"], found["tokens"]) == (10800, pytest.approx(120, abs=1e-3), 518)
    assert found["imported_at"] == pytest.approx(rows.stat().st_mtime, abs=3600)
    listed = charter(work, "artifacts", "import", "--list").out
    assert all(text in listed for text in (told["import"], "2, 3", "3 h 0 min", "$120", "0 to 12"))
    shown = charter(work, "artifacts", "import", "--take-back", told["import"][:6], "--dry-run")
    assert shown.code == 0, shown.err
    assert "attempt 3 leaves the ledger: steps 5 to 12" in shown.out
    assert str(work.stage_dir("b") / "imported.jsonl") in shown.out
    assert imports(work) == [found]
    done = charter(work, "artifacts", "import", "--take-back", told["import"][:6], "--yes")
    assert done.code == 0, done.err
    assert "2 attempts left the ledger" in done.out
    assert rows.read_text().splitlines()[1:] == [
        "OWN-1,mfu,0.4" + "," * (rows.read_text().splitlines()[0].count(",") - 2)
    ]
    assert cost(work) == own
    assert set(tree(work.root)) - {"run/hashes.json"} == set(before), "but for the cache of hashes of an import"
    assert imports(work) == []
    with Ledger.open(work.root / "run" / "ledger.sqlite") as ledger:
        ledger.check_sums()
    again = json.loads(charter(work, *command, "--json").out)
    assert again["changes"] == ["added", "added"]
    assert (work.stage_dir("b") / "imported.jsonl").exists()
    assert [item["imported"] for item in cost(work)["attempts"]] == [False, True, True]
    assert [item["usd"] for item in imports(work)] == [pytest.approx(120, abs=1e-3)]


def test_what_only_the_import_made_is_gone_afterwards(work):
    told = json.loads(charter(work, "artifacts", "import", STATE, "--as", "b", *WHOLE, "--json").out)
    removed = json.loads(charter(work, "artifacts", "import", "--take-back", told["import"], "--yes", "--json").out)
    assert (removed["removed_attempts"], removed["stays"]) == (2, [])
    assert [path.name for path in (work.root / "run").iterdir()] == ["ledger.sqlite"]


def test_a_directory_that_a_run_may_be_about_to_use_stays(work):
    told = json.loads(charter(work, "artifacts", "import", STATE, "--as", "b", *WHOLE, "--json").out)
    with Lease(work.root / "run", lock_name="run.lock", what="the project"):
        assert charter(work, "artifacts", "import", "--take-back", told["import"], "--yes").code == 0
    assert list(work.stage_dir("b").iterdir()) == []


def test_nothing_is_taken_back_without_a_yes(work, monkeypatch):
    told = json.loads(charter(work, "artifacts", "import", STATE, "--as", "b", *WHOLE, "--json").out)
    before = imports(work)
    unasked = charter(work, "artifacts", "import", "--take-back", told["import"])
    assert unasked.code == 2
    assert "--yes" in unasked.err
    assert charter(work, "artifacts", "import", "--take-back", told["import"], "--json").code == 2
    monkeypatch.setattr("charter.cli.import_run._is_terminal", lambda: True)
    assert charter(work, "artifacts", "import", "--take-back", told["import"], "--json").code == 2
    for answer, code, left in (("n\n", 1, before), ("y\n", 0, [])):
        command = ["artifacts", "import", "--take-back", told["import"], "-C", str(work.root)]
        assert CliRunner().invoke(app, command, input=answer).exit_code == code
        assert imports(work) == left


def test_what_an_end_has_left_half_done_is_finished(work, monkeypatch):
    told = json.loads(charter(work, "artifacts", "import", STATE, "--as", "b", *WHOLE, "--json").out)

    def stop(_path):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("charter.run.imports.importing.durable.remove_file", stop)
        CliRunner().invoke(app, ["artifacts", "import", "--take-back", told["import"], "--yes", "-C", str(work.root)])
    assert imports(work) == [{"import": told["import"], "stage": "b", "in_ledger": False}]
    assert "half taken back" in charter(work, "artifacts", "import", "--list").out
    assert charter(work, "artifacts", "import", "--take-back", told["import"], "--yes").code == 0
    assert imports(work) == []
    assert not list(work.root.rglob("imported.jsonl"))


def test_one_of_two_imports_of_a_stage_leaves_the_other_with_its_curves(work, tmp_path):
    other = tmp_path / "trainer_state.json"
    other.write_text(Path(STATE).read_text().replace("4.607951641082764", "4.25"))
    first = json.loads(charter(work, "artifacts", "import", STATE, "--as", "b", *WHOLE, "--json").out)
    second = json.loads(charter(work, "artifacts", "import", str(other), "--as", "b", *WHOLE, "--json").out)
    assert first["import"] != second["import"]
    gone = json.loads(charter(work, "artifacts", "import", "--take-back", first["import"], "--yes", "--json").out)
    assert (gone["curves"], len(gone["stays"])) == ([], 1)
    assert [item["import"] for item in imports(work)] == [second["import"]]
    (curves,) = work.root.rglob("imported.jsonl")
    assert read_metrics(curves)[0].values["loss"] == 4.25


def test_an_import_without_a_receipt_leaves_what_nobody_wrote_down(work):
    told = json.loads(charter(work, "artifacts", "import", STATE, "--as", "b", *WHOLE, "--json").out)
    shutil.rmtree(work.root / "run" / "imports")
    done = charter(work, "artifacts", "import", "--take-back", told["import"], "--yes")
    assert "nothing here says which curves" in done.out
    assert imports(work) == []
    assert len(list(work.root.rglob("imported.jsonl"))) == 1


@pytest.mark.parametrize(
    ("arguments", "found"),
    [([], "none of them"), ([STATE, "--list"], "RUN and --list"), (["--list", "--take-back", "a"], "--list and")],
)
def test_one_thing_is_asked_at_a_time(work, arguments, found):
    refused = charter(work, "artifacts", "import", *arguments)
    assert refused.code == 2
    assert f"found {found}" in refused.err
