"""`charter catalog prices` from the outside."""

import csv
import io
import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from typer.testing import CliRunner

from charter.cli.main import app
from charter.errors import DataError, UsageError

SKYPILOT = (
    "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region,AvailabilityZone\n"
    "p5.48xlarge,H100,8.0,192.0,2048.0,,50.0,18.0,us-east-1,use1-az2\n"
    "p5.48xlarge,H100,8.0,192.0,2048.0,,50.0,20.0,us-east-1,use1-az4\n"
)
BAD = "p5.48xlarge,H100,12.0,192.0,2048.0,,50.0,60.0,us-east-2,use2-az1\n"


def charter(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["catalog", "prices", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "vms.csv").write_text(SKYPILOT)
    return tmp_path


def test_prices_alone_and_with_an_accelerator_mean_list(project):
    assert charter() == charter("list")
    assert charter("H100", "--cloud", "aws") == charter("list", "H100", "--cloud", "aws")
    assert charter("--cloud", "aws", "--json") == charter("list", "--cloud", "aws", "--json")


def test_the_json_keeps_its_names_and_says_what_is_stale(project):
    (first, *_) = json.loads(charter("list", "H100", "--cloud", "nebius", "--json"))["offers"]
    assert first["usd_per_accelerator_hour"]["on_demand"] == 2.95
    assert first["usd_per_hour"]["spot"] == 10.0
    assert first["usd_per_hour"]["reserved_1y"] is None
    assert {"cloud", "region", "instance_type", "accelerator", "count", "as_of", "source", "stale"} <= set(first)


def test_a_slip_in_a_subcommand_is_told_as_one(project):
    result = CliRunner().invoke(app, ["catalog", "prices", "improt", "vms.csv"])
    assert isinstance(result.exception, UsageError)
    assert "'import'" in str(result.exception)


def test_an_unknown_cloud_gets_a_suggestion(project):
    with pytest.raises(UsageError, match="did you mean nebius"):
        charter("list", "--cloud", "nebus")


def test_storage_prices_are_listed(project):
    assert "Standard-IA" in charter("list", "--storage", "--cloud", "aws")
    found = json.loads(charter("--storage", "--json"))["storage"]
    assert len(found) == 63
    assert {item["unit"] for item in found} == {"GB-month", "GB", "per 1000"}
    with pytest.raises(UsageError, match="H100 is an accelerator"):
        charter("list", "H100", "--storage")


def test_an_import_is_used_by_the_list_and_keeps_what_the_snapshot_knows_of_the_machine(project):
    assert "1 offer from 2 good rows" in charter("import", "vms.csv", "--cloud", "aws")
    found = json.loads(charter("list", "H100", "--cloud", "aws", "--region", "us-east-1", "--json"))["offers"]
    offer = next(item for item in found if item["instance_type"] == "p5.48xlarge")
    assert offer["usd_per_hour"] == {"on_demand": 50.0, "spot": 19.0, "reserved_1y": None, "reserved_3y": None}
    assert not offer["stale"]
    assert offer["source"].startswith("SkyPilot catalog vms.csv, imported ")


def test_a_second_import_adds_to_the_first(project):
    charter("import", "vms.csv", "--cloud", "aws")
    (project / "contract.csv").write_text("cloud,accelerator,usd_per_accelerator_hour\nlambda,H100:8,2.35\n")
    assert "the file now holds 2" in charter("import", "contract.csv")
    found = json.loads(charter("list", "H100", "--cloud", "lambda", "--json"))["offers"]
    assert [item["usd_per_hour"]["on_demand"] for item in found if item["contract"]] == [18.8]
    assert [item["count"] for item in found if not item["contract"]] == [1], "the list price of eight is replaced"


def test_a_bad_row_stops_an_import_and_writes_nothing(project):
    (project / "vms.csv").write_text(SKYPILOT + BAD)
    with pytest.raises(UsageError) as caught:
        charter("import", "vms.csv", "--cloud", "aws")
    assert caught.value.exit_code == 2
    assert "row 4" in str(caught.value)
    assert "impossible-count" in str(caught.value)
    assert "spot-above-on-demand" in str(caught.value)
    assert not (project / "prices.csv").exists()


def test_skipped_rows_are_named(project):
    (project / "vms.csv").write_text(SKYPILOT + BAD)
    told = json.loads(charter("import", "vms.csv", "--cloud", "aws", "--skip-bad", "-o", "out.csv", "--json"))
    assert told["rows_skipped"] == [4]
    assert told["offers_written"] == 1
    assert "us-east-2" not in (project / "out.csv").read_text()
    assert "left out by --skip-bad: 1 row" in charter(
        "import", "vms.csv", "--cloud", "aws", "--skip-bad", "-o", "out.csv"
    )


def test_only_some_accelerators_may_be_imported(project):
    (project / "vms.csv").write_text(SKYPILOT + "g3,M60,1,16,122,,1.14,0.4,us-east-1,a\n")
    told = json.loads(charter("import", "vms.csv", "--cloud", "aws", "--accelerator", "H100", "--json"))
    assert told["left_out"] == {"other accelerators than asked for": 1}


def test_check_ends_with_8_where_rows_must_not_be_used(project):
    assert "errors: 0" in charter("check")
    (project / "vms.csv").write_text(SKYPILOT + BAD)
    with pytest.raises(DataError, match="row 4") as caught:
        charter("check", "vms.csv", "--cloud", "aws")
    assert caught.value.exit_code == 8


def test_a_diff_shows_old_new_ratio_and_date(project):
    charter("import", "vms.csv", "--cloud", "aws", "--as-of", "2026-11-01")
    found = json.loads(charter("diff", "bundled", "prices.csv", "--json"))
    changed = {item["market"]: item for item in found["changed"]}
    assert changed["on_demand"]["old_usd_per_hour"] == 55.04
    assert changed["on_demand"]["new_usd_per_hour"] == 50.0
    assert changed["on_demand"]["ratio"] == pytest.approx(50 / 55.04)
    assert changed["on_demand"]["new_as_of"] == "2026-11-01"
    assert "2 prices changed, 0 the same" in charter("diff", "bundled", "prices.csv")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("import", "no.csv"), "there is no file"),
        (("import", "vms.csv", "--format", "skypilod"), "did you mean skypilot"),
        (("import", "vms.csv"), "--cloud aws"),
        (("import", "vms.csv", "--cloud", "aws", "--as-of", "yesterday"), "names no date"),
        (("diff", "bundled", "no.csv"), "the word bundled"),
    ],
)
def test_errors_say_what_would_work(project, arguments, message):
    with pytest.raises(UsageError, match=message):
        charter(*arguments)


def test_a_diff_with_what_is_no_price_list_names_its_header(project):
    (project / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(UsageError, match="the header is a, b"):
        charter("diff", "other.csv", "bundled")


def test_a_list_cannot_be_written_over_a_directory(project):
    with pytest.raises(UsageError, match="is a directory"):
        charter("import", "vms.csv", "--cloud", "aws", "--as-of", "2026-11-01", "-o", str(project))


@contextmanager
def served(files):
    """A web server of some texts, by path."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            body = files.get(self.path)
            self.send_response(200 if body is not None else 404)
            self.send_header("Content-Type", "text/plain")
            self.end_headers()
            self.wfile.write((body or "").encode())

        def log_message(self, *_):
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_prices_are_refreshed_from_addresses_and_catalogs(project):
    for cloud in ("aws", "gcp"):
        (project / "catalog" / cloud).mkdir(parents=True)
        (project / "catalog" / cloud / "vms.csv").write_text(SKYPILOT + BAD)
    rows = list(csv.DictReader(io.StringIO(SKYPILOT)))
    with served({"/vms.csv": SKYPILOT, "/vms.json": json.dumps(rows)}) as address:
        for name in ("vms.csv", "vms.json"):
            text = charter("refresh", f"{address}/{name}", "--cloud", "aws", "--as-of", "2026-11-20")
            assert text.startswith(f"{address}/{name}: 1 offers\n")
            assert "it now holds 1 offers, those above as of 2026-11-20" in text
    both = json.loads(charter("refresh", "catalog", "--json"))
    assert [(item["cloud"], item["offers"], item["rows_that_fail_a_check"]) for item in both["lists"]] == [
        ("aws", 1, 1),
        ("gcp", 1, 1),
    ]
    assert both["offers_total"] == 2
    offers = json.loads(charter("list", "H100", "--cloud", "gcp", "--json"))["offers"]
    assert [offer["instance_type"] for offer in offers if not offer["stale"]] == ["p5.48xlarge"]


def test_a_list_that_is_none_changes_nothing(project):
    with served({"/page": "<html></html>", "/list.json": "{}"}) as address:
        for path, message in (
            ("page", "no known layout"),
            ("list.json", "no array of objects"),
            ("gone", "cannot be read"),
        ):
            with pytest.raises((DataError, UsageError), match=message):
                charter("refresh", f"{address}/{path}", "--cloud", "aws")
    with pytest.raises(UsageError, match="holds no CLOUD"):
        charter("refresh", ".")
    with pytest.raises(UsageError, match="name one list or more"):
        charter("refresh")
    assert not (project / "prices.csv").exists()
