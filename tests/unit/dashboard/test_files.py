"""Growing files are read once, however they are written; the ends of logs are plain text."""

import json
import os
import threading
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from waiting import HANGS_AFTER_SECONDS, eventually

from charter.dashboard import snapshot
from charter.dashboard.site import FIRST_BYTES, Curves, LineFile, MetricFiles
from charter.dashboard.snapshot import JsonFiles, log_tail, plain
from charter.run.events import last_events
from charter.tracking.base import MetricPoint, metric_point


def line(step, **values):
    return json.dumps({"step": step, "time": 1.0, **values}) + "\n"


def test_only_what_was_added_is_read(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    path.write_text(line(1, loss=4.0) + line(2, loss=3.0))
    files = MetricFiles()
    assert files.logged(path).steps == {1: {"time": 1.0, "loss": 4.0}, 2: {"time": 1.0, "loss": 3.0}}
    with path.open("a") as file:
        file.write(line(3, loss=2.0))
    parsed = []
    monkeypatch.setattr(
        "charter.dashboard.site.metric_point",
        lambda text: parsed.append(text) or MetricPoint(step=3, time=None, values={"loss": 2.0}),
    )
    assert list(files.logged(path).steps) == [1, 2, 3]
    assert len(parsed) == 1


def test_a_long_file_is_first_shown_by_a_sample(tmp_path, monkeypatch):
    """Imported logs have a line for every step; the page does not wait until they are parsed."""
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(line(step, loss=step / 2, tokens=10) for step in range(100_000)))
    parsed, may_go_on, whole = [], threading.Event(), LineFile.new_lines

    def counted(text):
        parsed.append(len(text) + 1)
        return metric_point(text)

    def later(self, restart):
        assert may_go_on.wait(HANGS_AFTER_SECONDS)
        return whole(self, restart)

    monkeypatch.setattr("charter.dashboard.site.metric_point", counted)
    monkeypatch.setattr(LineFile, "new_lines", later)
    files = MetricFiles()
    curves = Curves(files)
    drawn = curves.of(path)
    (loss,) = drawn.curves
    assert drawn.is_sample
    assert sum(parsed) <= FIRST_BYTES < path.stat().st_size / 4
    assert (loss.points[0][0] < 200, loss.points[-1][0], loss.tokens) == (True, 99_999, ())
    may_go_on.set()
    eventually(lambda: files.completed)
    assert len(files.logged(path).steps) == 100_000
    (loss,) = curves.of(path).curves
    assert (loss.band[0], loss.tokens[-1]) == ((0.0, 99.5), 1_000_000)


def test_pages_follow_when_a_long_file_is_read(client, case, at, monkeypatch):
    monkeypatch.setattr("charter.dashboard.site.FIRST_BYTES", 64 * 100)
    note = "A sample of the log's lines"
    case.metrics("sft", 200)
    assert note in client.get(at("stage/sft")).text
    eventually(lambda: note not in client.get(at("stage/sft")).text)
    assert note not in client.get(at("stage/pm")).text


def test_a_torn_line_waits_for_its_end(tmp_path):
    path = tmp_path / "metrics.jsonl"
    whole = line(1, loss=4.0)
    path.write_text(whole[:9])
    files = MetricFiles()
    assert files.logged(path).steps == {}
    path.write_text(whole)
    assert files.logged(path).steps[1]["loss"] == 4.0


def test_a_cut_or_replaced_file_starts_anew(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(line(step, loss=1.0) for step in range(1, 9)))
    files = MetricFiles()
    assert len(files.logged(path).steps) == 8
    os.truncate(path, len(line(1, loss=1.0)) * 3)
    assert list(files.logged(path).steps) == [1, 2, 3]
    other = tmp_path / "other"
    other.write_text("".join(line(step, loss=1.0) for step in range(1, 20)))
    other.replace(path)
    assert len(files.logged(path).steps) == 19
    path.unlink()
    assert files.logged(path).steps == {}


def test_a_file_that_was_cut_and_has_grown_past_its_old_end_starts_anew(tmp_path):
    """A stage that was killed went back to a checkpoint and on again before anybody looked."""
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(line(step, loss=1.0) for step in range(1, 9)))
    files = MetricFiles()
    files.logged(path)
    os.truncate(path, len(line(1, loss=1.0)) * 3)
    with path.open("a") as file:
        file.write("".join(line(step, loss=0.25) for step in range(4, 20)))
    assert {step: values["loss"] for step, values in files.logged(path).steps.items()} == {
        step: 1.0 if step <= 3 else 0.25 for step in range(1, 20)
    }


def test_steps_done_again_count_once_in_order(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(line(1, loss=9.0) + line(2, loss=8.0) + line(3, loss=7.0) + line(2, loss=1.0))
    found = MetricFiles().logged(path).steps
    assert list(found) == [1, 2, 3]
    assert found[2]["loss"] == 1.0


@pytest.mark.parametrize("bad", ["nonsense", "[1]", '{"step": "x"}', "{}", '{"step": 2, "loss": NaN, "text": "x"}'])
def test_strange_lines_are_left_out(tmp_path, bad):
    path = tmp_path / "metrics.jsonl"
    path.write_text(line(1, loss=4.0) + bad + "\n" + line(3, loss=2.0))
    found = MetricFiles().logged(path).steps
    assert found[1]["loss"] == 4.0
    assert found[3]["loss"] == 2.0
    assert "loss" not in found.get(2, {})


@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=5))
def test_pieces_give_the_lines_of_the_whole(tmp_path_factory, content, cuts):
    path = tmp_path_factory.mktemp("grow") / "file"
    reader, found = LineFile(path), []
    edges = sorted({min(cut, len(content)) for cut in cuts} | {0, len(content)})
    for start, end in pairwise(edges):
        with path.open("ab") as file:
            file.write(content[start:end])
        found += reader.new_lines(lambda: pytest.fail("nothing was cut"))
    assert found == content.split(b"\n")[:-1]


def test_the_least_used_are_forgotten(tmp_path):
    files = MetricFiles(most=2)
    for name in "abc":
        (tmp_path / name).write_text(line(1, loss=1.0))
        files.logged(tmp_path / name)
    assert len(files._kept) == 2


def test_the_end_of_a_log(tmp_path, monkeypatch):
    path = tmp_path / "log.txt"
    path.write_text("".join(f"line {number}\n" for number in range(10_000)))
    monkeypatch.setattr(snapshot, "LOG_BYTES", 1000)
    tail = log_tail(path)
    assert not tail.whole
    assert tail.lines[-1] == "line 9999"
    assert tail.lines[0].startswith("line ")
    assert log_tail(tmp_path / "none").lines == ()
    path.write_text("GET https://ghr_AAAAbbbb1111CCCC2222@host/v1\nstep 1\n")
    assert log_tail(path).lines == ("GET https://(hidden)@host/v1", "step 1")


@given(st.text())
def test_a_plain_line_has_no_control_characters(text):
    found = plain(text.replace("\n", " "))
    assert not any(ord(letter) < 32 and letter != "\t" for letter in found)
    assert "\x1b" not in found
    assert "\u202e" not in found


def test_events_survive_torn_and_strange_lines(tmp_path):
    path = tmp_path / "events.jsonl"
    good = json.dumps({"time": 1.0, "event": "run_started"})
    path.write_text(f'{good}\nnonsense\n[1]\n{{"event": "no time"}}\n{good}\n{{"time": 2.0, "ev')
    assert len(last_events(path)) == 2
    path.write_text((good + "\n") * 9000)
    assert len(last_events(path)) == 400


def test_a_json_file_is_read_again_when_it_changes(tmp_path):
    path, files = tmp_path / "x.json", JsonFiles()
    assert files.read(path) == {}
    path.write_text('{"a": 1}')
    first = files.read(path)
    assert files.read(path) is first
    path.write_text('{"a": 22}')
    assert files.read(path) == {"a": 22}
    path.write_text('{"a": ')
    assert files.read(path) == {}
