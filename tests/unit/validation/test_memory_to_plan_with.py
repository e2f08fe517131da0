"""Memory of training is predicted as what a plan would take: a quantile of the interval that p10 and p90 belong to."""

import json
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from charter.catalog import accelerators
from charter.cli.main import app
from charter.physics.terms import MEMORY_QUANTILE, PLANNED_BY_QUANTILE, Interval, enough_memory
from charter.plan.knowledge import Knowledge, shipped
from charter.validation.alarms import bundled_measurements
from charter.validation.intervals import group_of, make
from charter.validation.quantities.memory import TRAINING_MEMORY
from charter.validation.validate import RowVerdict, validate

GROUPS = ("training memory", "adapter memory", "rl memory", "inference memory", "training dense")


@given(st.floats(1e-3, 1e15), st.floats(0, 2), st.sampled_from(GROUPS))
def test_what_to_plan_with_lies_between_median_and_p90(p50: float, sigma: float, group: str) -> None:
    need = Interval.around(p50, sigma=sigma)
    assert need.p50 <= enough_memory(need, group) <= need.p90 * (1 + 1e-12)
    assert need.quantile(0.9) == pytest.approx(need.p90)
    assert need.probability_below(need.quantile(0.3)) == pytest.approx(0.3, abs=1e-6) or sigma < 1e-6


def test_nothing_needed_is_nothing_planned() -> None:
    assert enough_memory(Interval(p10=0.0, p50=0.0, p90=0.0), "training memory") == 0.0


@cache
def verdicts(calibrate_rows: int) -> tuple[RowVerdict, ...]:
    """A source of fine-tuning, whole and with adapters, one of answering, and one of reinforcement learning."""
    rows = [row for row in bundled_measurements() if row.metric.startswith("peak_mem")]
    return validate([row for row in rows if row.prefix in ("QFT", "DSC", "SMX")], calibrate_rows=calibrate_rows)


@pytest.mark.parametrize("calibrate_rows", [0, 5])
def test_a_published_row_is_predicted_as_its_quantile(calibrate_rows: int) -> None:
    groups = set()
    for item in verdicts(calibrate_rows):
        if item.refused is not None:
            continue
        groups.add(group := group_of(item.row))
        need = Interval(p10=float(item.p10 or 0), p50=float(item.p50 or 0), p90=float(item.p90 or 0))
        share = MEMORY_QUANTILE if group in PLANNED_BY_QUANTILE else 0.5
        assert item.predicted == pytest.approx(need.quantile(share))
        assert item.row.error_of(item.predicted) == item.error
    assert set(PLANNED_BY_QUANTILE) | {"rl memory"} <= groups


def test_five_rows_bring_the_quantile_nearer() -> None:
    def margin(item: RowVerdict) -> float:
        return float(item.predicted or 0.0) / (item.p50 or 1.0)

    pairs = zip(verdicts(0), verdicts(5), strict=True)
    trained = [(a, b) for a, b in pairs if a.refused is None and group_of(a.row) == "training memory"]
    assert all(1 < margin(after) < margin(before) for before, after in trained)


def test_a_source_alone_has_no_width_and_no_quantile() -> None:
    rows = [item.row for item in verdicts(0) if item.row.prefix == "QFT" and item.refused is None]
    alone = make([TRAINING_MEMORY], rows, source="own.csv", as_of="2026-11-29")
    for item in validate(rows, bundle=alone):
        assert item.predicted == item.p50
    known = Knowledge.of(alone)
    need, h100 = Interval.around(60.0, sigma=0.1), accelerators.get("H100")
    assert known.enough_bytes(need, "training memory", h100) == need.p50
    assert shipped().enough_bytes(need, "training memory", h100) == need.quantile(MEMORY_QUANTILE)


def test_json_has_the_estimate_beside_the_prediction(tmp_path) -> None:
    row = next(item.row for item in verdicts(0) if group_of(item.row) == "training memory")
    file = tmp_path / "rows.csv"
    cells = {name: value for name, value in vars(row).items() if value not in (None, "", ())}
    file.write_text(",".join(cells) + "\n" + ",".join(f'"{value}"' for value in cells.values()) + "\n")
    shown = json.loads(CliRunner().invoke(app, ["validate", str(file), "--json"]).stdout)["rows"][0]
    assert shown["p10"] < shown["p50"] < shown["predicted"] < shown["p90"]


def test_rows_that_ask_whether_a_job_fits_have_no_estimate() -> None:
    (verdict,) = validate([replace(next(iter(verdicts(0))).row, metric="oom", value=1.0)])
    assert verdict.refused is None
    assert verdict.p50 is None
