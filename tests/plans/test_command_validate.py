"""`charter validate` and `charter validate calibrate`: the JSON that machines read, refusals, and what a user sees."""

import csv
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from charter.cli.main import app
from charter.errors import CharterError, DataError, UsageError
from charter.physics.fitted import load
from charter.validation.alarms import MEASUREMENTS


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "160"})
    if isinstance(result.exception, CharterError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def rows() -> list[dict[str, str]]:
    with MEASUREMENTS.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write(path: Path, rows: list[dict[str, str]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def renamed(rows: list[dict[str, str]], prefix: str) -> list[dict[str, str]]:
    """Rows of a source that Charter has not been fitted to."""
    return [{**row, "id": f"{prefix}-{number:04}", "config_id": ""} for number, row in enumerate(rows)]


def test_every_row_appears_once_in_order_with_a_prediction_or_a_reason(tmp_path, rows):
    timed = next(row for row in rows if row["metric"] == "step_time_s")
    chosen = [row for row in rows if row["metric"] == "oom"][:2] + rows[5::80]
    broken = {**chosen[3], "id": "ZZZ-1", "tp": "two"}
    nobody = {**chosen[3], "id": "ZZZ-2", "metric": "room_temperature"}
    unknown = {**timed, "id": "ZZZ-3", "accelerator": "Abacus-9000"}
    twice = chosen[4]
    file = write(tmp_path / "rows.csv", [*chosen, broken, nobody, unknown, twice])
    report = json.loads(run("validate", file, "--json"))
    added = ["ZZZ-1", "ZZZ-2", "ZZZ-3", twice["id"]]
    assert [item["id"] for item in report["rows"]] == [*(row["id"] for row in chosen), *added]
    for item in report["rows"]:
        assert {"id", "metric", "unit", "measured", "predicted", "p10", "p90", "refused"} <= set(item)
        assert (item["predicted"] is None) == (item["refused"] is not None)
        if item["metric"] == "oom":
            assert isinstance(item["predicted"], bool)
        elif item["predicted"] is not None:
            assert item["p10"] < item["predicted"] < item["p90"]
    reasons = {item["id"]: item["refused"] for item in report["rows"]}
    assert "column tp" in reasons["ZZZ-1"]
    assert "room_temperature" in reasons["ZZZ-2"]
    assert "Abacus-9000" in reasons["ZZZ-3"]
    assert set(report["sources"]) == {row["id"][:3] for row in chosen} | {"ZZZ"}


def test_units_are_those_of_the_row(tmp_path, rows):
    """The same run as seconds, per device and per machine: one prediction, three units."""
    row = next(row for row in rows if row["id"].startswith("NEM") and row["metric"] == "tokens_per_s_per_gpu")
    seconds = float(row["gbs"]) * float(row["seq"]) / float(row["value"]) / float(row["gpus"])
    forms = [
        {**row, "id": "NEM-a"},
        {**row, "id": "NEM-b", "metric": "tokens_per_s_total", "value": str(float(row["value"]) * float(row["gpus"]))},
        {**row, "id": "NEM-c", "metric": "step_time_s", "value": str(seconds)},
    ]
    found = json.loads(run("validate", write(tmp_path / "forms.csv", forms), "--json"))["rows"]
    ratios = [item["predicted"] / item["measured"] for item in found]
    assert ratios[0] == pytest.approx(ratios[1]) == pytest.approx(1 / ratios[2])


def test_five_rows_calibrate_a_source_that_runs_slower_than_all_others(tmp_path, rows):
    own = [row for row in rows if row["id"].startswith("FND")][:40]
    slow = renamed([{**row, "value": str(0.6 * float(row["value"]))} for row in own], "SLO")
    file = write(tmp_path / "slow.csv", slow)
    before, after = (json.loads(run("validate", file, "--json", *more)) for more in ((), ("--calibrate-rows", 5)))
    assert before["total"]["bias"] > 0.4
    assert after["total"]["median_error"] < 0.25 * before["total"]["median_error"]
    used = [item["id"] for item in after["rows"] if item["calibrated_on"]]
    assert len(used) == 5
    assert after["total"]["configurations"] == 35
    assert not any(item["calibrated_on"] for item in before["rows"])


def test_leaving_sources_out_changes_what_they_taught(tmp_path, rows):
    file = write(tmp_path / "new.csv", renamed([row for row in rows if row["id"].startswith("SMX")], "NEW"))
    known, left = (json.loads(run("validate", file, "--json", *more)) for more in ((), ("--leave-out", "SMX")))
    assert left["total"]["median_error"] > known["total"]["median_error"]


def test_the_table_names_groups_and_the_worst_rows(tmp_path, rows):
    text = run("validate", write(tmp_path / "some.csv", rows[::60]), "--by", "kind", "--worst", 2)
    assert "training dense" in text
    assert "median error" in text


def test_a_file_that_is_no_table_of_measurements_is_an_error(tmp_path):
    file = tmp_path / "x.csv"
    file.write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match="expected columns id, metric, value"):
        run("validate", file)


def test_calibration_on_a_file_of_ones_own_is_stored_and_used(tmp_path, rows):
    own = renamed([row for row in rows if row["id"].startswith("SMX")], "OWN")
    slow = [{**row, "value": str(1.5 * float(row["value"]))} if row["metric"] == "step_time_s" else row for row in own]
    file, output = write(tmp_path / "own.csv", slow), tmp_path / "calibration.json"
    report = json.loads(run("validate", "calibrate", file, "--alone", "-o", output, "--json"))
    assert report["quantities"]["training step time"]["sources"] == {"OWN": 12}
    assert load(output).source == "own.csv"
    found = json.loads(run("validate", file, "--calibration", output, "--json"))
    assert found["total"]["median_error"] < 0.05


def test_calibrate_wants_one_thing(tmp_path):
    with pytest.raises(UsageError, match="give a CSV"):
        run("validate", "calibrate")
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(DataError, match="is not a calibration"):
        run("plan", "--template", "cai-8b", "--calibration", tmp_path / "bad.json")


def test_an_impossible_row_is_left_out_of_a_calibration(tmp_path, rows):
    own = renamed([row for row in rows if row["id"].startswith("KOR")][:4], "OWN")
    wrong = {**own[0], "id": "OWN-9", "value": str(float(own[0]["value"]) / 20)}
    texts = []
    for name, chosen in (("sound", own), ("wrong", [*own, wrong])):
        file, output = write(tmp_path / "own.csv", chosen), tmp_path / f"{name}.json"
        texts.append(run("validate", "calibrate", file, "-o", output))
    assert "left out OWN-9: the implied MFU" in texts[1]
    assert "left out" not in texts[0]
    assert load(tmp_path / "sound.json").quantities == load(tmp_path / "wrong.json").quantities
    with pytest.raises(UsageError, match="OWN-9: the implied MFU"):
        run("validate", "calibrate", write(tmp_path / "one.csv", [wrong]), "-o", tmp_path / "none.json")


def test_a_file_of_refused_rows_fails_with_a_hint(tmp_path):
    (tmp_path / "m.csv").write_text("id,metric,value,kind,model,gpu,gpus\nA-1,step_tme_s,3,sft,gpt2,H100,8\n")
    done = CliRunner().invoke(app, ["validate", str(tmp_path / "m.csv")])
    assert "nothing predicts step_tme_s of kind sft; did you mean step_time_s?" in " ".join(done.output.split())
    assert done.exception.exit_code == 8
