"""The journal: every result once, in an order that stays, whatever is killed, cut or written again."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charter.tracking.base import read_metrics
from charter.tracking.journal import (
    Collector,
    Journal,
    JournalPosition,
    count_rows,
    depends_on_clock,
    journal_path,
    read_rows,
)


@pytest.fixture
def stage(tmp_path):
    directory = tmp_path / "run" / "stages" / "sft-0123abcd"
    directory.mkdir(parents=True)
    return directory


def write(stage, *steps, salt=0.0, mode="w", time=100.0):
    lines = [
        json.dumps({"step": step, "time": time + step, "loss": step + salt, "seconds_save": time}) for step in steps
    ]
    with (stage / "metrics.jsonl").open(mode) as file:
        file.write("".join(f"{line}\n" for line in lines))


def rows(stage):
    found, _ = read_rows(journal_path(run_of(stage), stage.name), JournalPosition(), most=10_000)
    return [(row.step, row.values["loss"], row.again) for row in found]


def run_of(stage):
    return stage.parent.parent


def test_new_lines_become_rows_once(stage):
    collector = Collector(run_of(stage))
    write(stage, 1, 2)
    assert (collector.collect([stage]), collector.collect([stage])) == (2, 0)
    write(stage, 3, mode="a")
    assert collector.collect([stage]) == 1
    assert rows(stage) == [(1, 1.0, False), (2, 2.0, False), (3, 3.0, False)]


def test_another_process_goes_on_where_the_first_ended(stage):
    write(stage, 1, 2)
    Collector(run_of(stage)).collect([stage])
    write(stage, 3, mode="a")
    assert Collector(run_of(stage)).collect([stage]) == 1


def test_a_line_without_its_end_waits(stage):
    collector = Collector(run_of(stage))
    path = stage / "metrics.jsonl"
    path.write_text('{"step": 1, "time": 1.0, "loss": 1.0}\n{"step": 2, "ti')
    assert collector.collect([stage]) == 1
    path.write_text('{"step": 1, "time": 1.0, "loss": 1.0}\n{"step": 2, "time": 2.0, "loss": 2.0}\n')
    assert collector.collect([stage]) == 1


def test_steps_that_were_cut_and_done_again_alike_are_told_once(stage):
    collector = Collector(run_of(stage))
    write(stage, 1, 2, 3, 4)
    collector.collect([stage])
    write(stage, 1, 2)
    write(stage, 3, 4, 5, mode="a", time=900.0)
    collector.collect([stage])
    assert [step for step, _, _ in rows(stage)] == [1, 2, 3, 4, 5]


def test_steps_with_another_result_are_told_again_and_marked(stage):
    collector = Collector(run_of(stage))
    write(stage, 1, 2, 3)
    collector.collect([stage])
    write(stage, 1)
    write(stage, 2, 3, 4, mode="a", salt=0.5)
    collector.collect([stage])
    assert rows(stage)[3:] == [(2, 2.5, True), (3, 3.5, True), (4, 4.5, False)]


def test_a_row_that_a_kill_tore_is_collected_again(stage):
    write(stage, 1, 2, 3)
    Collector(run_of(stage)).collect([stage])
    path = journal_path(run_of(stage), stage.name)
    path.write_bytes(path.read_bytes()[:-7])
    Collector(run_of(stage)).collect([stage])
    assert [step for step, _, _ in rows(stage)] == [1, 2, 3]


def test_what_is_no_number_and_broken_lines_are_left_out(stage):
    (stage / "metrics.jsonl").write_text(
        '{"step": 1, "time": 1.0, "loss": NaN, "note": "x"}\nnonsense\n{"step": 2, "time": 2.0, "loss": 0.5}\n'
    )
    Collector(run_of(stage)).collect([stage])
    found, _ = read_rows(journal_path(run_of(stage), stage.name), JournalPosition(), most=10)
    assert [(row.step, row.values) for row in found] == [(1, {}), (2, {"loss": 0.5})]


def test_rows_are_read_from_any_place(stage):
    write(stage, *range(10))
    Collector(run_of(stage)).collect([stage])
    path = journal_path(run_of(stage), stage.name)
    first, place = read_rows(path, JournalPosition(), most=4)
    assert (len(first), place.rows) == (4, 4)
    second, end = read_rows(path, place, most=100)
    assert [row.number for row in (*first, *second)] == list(range(10))
    assert (end.rows, end.at_bytes, count_rows(path)) == (10, path.stat().st_size, 10)
    assert read_rows(path.with_name("none"), JournalPosition(), most=1) == ((), JournalPosition())


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(1, 5)),
        st.tuples(st.just("cut"), st.integers(0, 8)),
        st.tuples(st.just("collect"), st.booleans()),
        st.tuples(st.just("tear"), st.integers(1, 60)),
    ),
    max_size=30,
)


@given(ACTIONS)
def test_whatever_happens_every_step_is_there_once(actions):
    """A stage that computes the same steps again after each cut; a collector that is killed while it writes."""
    with TemporaryDirectory() as directory:
        stage = Path(directory) / "run" / "stages" / "sft-0123abcd"
        stage.mkdir(parents=True)
        collector, at, clock = Collector(run_of(stage)), 0, 0.0
        for action, amount in (*actions, ("collect", True)):
            clock += 1000.0
            path = journal_path(run_of(stage), stage.name)
            if action == "write":
                write(stage, *range(at + 1, at + 1 + amount), mode="a", time=clock)
                at += amount
            elif action == "cut" and at:
                at = min(at, amount)
                lines = (stage / "metrics.jsonl").read_text().splitlines(keepends=True)
                (stage / "metrics.jsonl").write_text("".join(lines[:at]))
            elif action == "tear" and path.exists():
                content = path.read_bytes()
                path.write_bytes(content[: max(content.rstrip(b"\n").rfind(b"\n") + 1, len(content) - amount)])
                collector = Collector(run_of(stage))
            elif action == "collect":
                collector = Collector(run_of(stage)) if amount else collector
                collector.collect([stage])
        told = rows(stage)
        assert len({step for step, _, _ in told}) == len(told)
        assert {point.step for point in read_metrics(stage / "metrics.jsonl")} <= {step for step, _, _ in told}
        assert not any(again for _, _, again in told)


def test_a_journal_says_how_far_every_source_is(tmp_path):
    journal = Journal(tmp_path / "rows.jsonl")
    journal.append("metrics.jsonl", 10, b"line\n", {"loss": 1.0}, step=7, time=1.0)
    again = Journal(tmp_path / "rows.jsonl")
    assert (again.rows, again.source("metrics.jsonl").end_bytes, again.source("metrics.jsonl").high_step) == (1, 10, 7)
    assert again.knows("metrics.jsonl", 7, {"loss": 1.0, "seconds_save": 3.0})
    assert not again.knows("metrics.jsonl", 7, {"loss": 1.1})


def test_a_step_farther_back_than_is_remembered_is_taken_for_told(tmp_path, monkeypatch):
    monkeypatch.setattr("charter.tracking.journal.REMEMBERED_STEPS", 2)
    journal = Journal(tmp_path / "rows.jsonl")
    for step in (1, 2, 3):
        journal.append("metrics.jsonl", 10 * step, b"line\n", {"loss": 1.0}, step=step, time=1.0)
    assert [journal.knows("metrics.jsonl", step, {"loss": 2.0}) for step in (1, 2, 3, 4)] == [True, False, False, False]


@pytest.mark.parametrize(
    "name", ["seconds_update", "tokens_per_second", "mfu", "peak_bytes", "actual_over_planned_bytes"]
)
def test_figures_of_the_clock(name):
    assert depends_on_clock(name)
    assert not depends_on_clock("reward_mean")
