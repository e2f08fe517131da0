import json
from concurrent.futures import Future
from dataclasses import dataclass

import pytest

from charter.artifacts.batch_files import batch_paths, finished_batches
from charter.artifacts.job import Job, write_job
from charter.artifacts.stage_dir import StageDir
from charter.errors import DataError
from charter.feedback import records
from charter.feedback.records import BatchResult, in_batches, make_records
from charter.spec.stage import CritiqueStage


@dataclass(frozen=True)
class Item:
    number: int

    @property
    def id(self):
        return f"item-{self.number}"


ITEMS = [Item(number) for number in range(10)]


class Killed(BaseException):
    """Stands for a SIGKILL between two instructions."""


def stage_at(path, *, should_stop=lambda: False):
    if not path.exists():
        path.mkdir()
        spec = CritiqueStage(policy="p", critic="p", prompts=("d",))
        write_job(
            path,
            Job(
                run="r",
                stage="critique",
                kind="critique",
                fingerprint="f" * 64,
                seed=1,
                spec=spec,
                inputs={},
                constitution=None,
                frozen={},
                keep_last=2,
            ),
        )
    return StageDir(path, should_stop=should_stop)


def make(items):
    """Asks once for each item, and writes what was answered."""
    numbers = [item.number for item in items]
    replies = yield numbers
    return BatchResult(
        records=[{"id": n, "text": text} for n, text in zip(numbers, replies, strict=True) if n % 4],
        set_aside=[{"id": n, "reason": "fourth"} for n in numbers if n % 4 == 0],
        totals={"weight": sum(numbers) / 10},
        tokens=len(items),
    )


class Echo:
    """Answers at once, or in the order that a test wants."""

    def __init__(self, at_once=1):
        self.batches_at_once, self.pending, self.asked = at_once, [], []

    def submit(self, asks):
        future = Future()
        self.asked.append(list(asks))
        self.pending.append((future, [f"ü\u2028{ask}" for ask in asks]))
        if len(self.pending) >= self.batches_at_once or len(self.asked) >= 4:
            for waiting, replies in reversed(self.pending):
                waiting.set_result(replies)
            self.pending.clear()
        return future

    def confirm(self):
        """Nothing to look at."""

    def close(self):
        pass


def summarise(totals):
    return {"mean_weight": totals["weight"] / max(1, totals["records"])}


def outputs(path):
    return {file.name: file.read_bytes() for file in (path / "outputs").iterdir()}


def run(path, make=make, answerer=None, **more):
    make_records(stage_at(path, **more), in_batches(ITEMS, 3), make, answerer or Echo(), summarise=summarise)


@pytest.fixture
def undisturbed(tmp_path):
    run(tmp_path / "undisturbed")
    return outputs(tmp_path / "undisturbed")


def test_records_are_published_in_order_with_what_was_set_aside(undisturbed):
    rows = [json.loads(line) for line in undisturbed["records.jsonl"].decode().split("\n")[:-1]]
    assert [row["id"] for row in rows] == [1, 2, 3, 5, 6, 7, 9]
    assert [json.loads(line)["id"] for line in undisturbed["set_aside.jsonl"].splitlines()] == [0, 4, 8]
    summary = json.loads(undisturbed["summary.json"])
    assert summary == {"generated_tokens": 10, "mean_weight": 4.5 / 7, "records": 7, "set_aside": 3}


@pytest.mark.parametrize("batch", [0, 1, 2, 3])
def test_a_kill_in_any_batch_costs_that_batch_only_and_changes_no_byte(tmp_path, undisturbed, batch):
    path, made = tmp_path / "killed", []

    def make_and_note(items):
        made.append(items)
        return (yield from make(items))

    def dying_first(items):
        if items == ITEMS[3 * batch : 3 * batch + 3]:
            yield []
            raise Killed
        return (yield from make_and_note(items))

    with pytest.raises(Killed):
        run(path, dying_first)
    run(path, make_and_note)
    assert made == in_batches(ITEMS, 3)
    assert outputs(path) == undisturbed


def test_a_stop_request_gives_up_what_is_under_way_and_goes_on_later(tmp_path, undisturbed):
    path, calls = tmp_path / "stopped", []

    def stop_after_a_while():
        calls.append(1)
        return len(calls) > 5

    run(path, should_stop=stop_after_a_while)
    assert not (path / "record.json").exists()
    assert 0 < finished_batches(path) < 4
    run(path)
    assert outputs(path) == undisturbed


@pytest.mark.parametrize("at_once", [2, 3, 9])
def test_answers_in_any_order_give_the_same_bytes(tmp_path, undisturbed, at_once):
    answerer = Echo(at_once)
    run(tmp_path / "many", answerer=answerer)
    assert outputs(tmp_path / "many") == undisturbed
    assert answerer.asked == [[item.number for item in batch] for batch in in_batches(ITEMS, 3)]


@pytest.mark.parametrize("number", [1, 4])
def test_a_damaged_batch_is_noticed_and_made_again_alone(tmp_path, undisturbed, number):
    path, made = tmp_path / "damaged", []

    with pytest.raises(Killed):
        make_records(stage_at(path), in_batches(ITEMS, 3), make, Echo(), summarise=summarise, check=_killed)
    (path / "batches" / ".tmp-torn").write_text("half a batch")
    part = list(batch_paths(path))[number - 1]
    part.write_bytes(part.read_bytes().replace(b'"id": ', b'"id":  '))

    def make_and_note(items):
        made.append(items)
        return (yield from make(items))

    run(path, make_and_note)
    assert made == [in_batches(ITEMS, 3)[number - 1]]
    assert outputs(path) == undisturbed
    steps = [json.loads(line)["step"] for line in (path / "metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 2, 3, 4]
    assert not (path / "batches" / ".tmp-torn").exists()


def test_other_items_under_the_same_numbers_are_made_anew(tmp_path):
    path = tmp_path / "other"
    with pytest.raises(Killed):
        make_records(stage_at(path), in_batches(ITEMS, 3), make, Echo(), summarise=summarise, check=_killed)
    make_records(stage_at(path), in_batches(ITEMS[1:], 3), make, Echo(), summarise=summarise)
    rows = [json.loads(line) for line in outputs(path)["records.jsonl"].decode().split("\n")[:-1]]
    assert [row["id"] for row in rows] == [1, 2, 3, 5, 6, 7, 9]


def _killed(totals):
    raise Killed


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_processes_share_the_batches_and_the_first_publishes(tmp_path, undisturbed, monkeypatch, ranks):
    path, made = tmp_path / "by-two", {}
    stage_at(path)
    for rank in reversed(range(ranks)):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(ranks))

        def make_and_note(items, rank=rank):
            made.setdefault(rank, []).append(items)
            return (yield from make(items))

        run(path, make_and_note)
        assert (path / "record.json").exists() == (rank == 0)
    assert sum(map(len, made.values())) == 4
    assert outputs(path) == undisturbed


def test_sums_have_the_same_bits_whichever_batch_came_last(tmp_path):
    def make_tenths(items):
        made = yield from make(items)
        return BatchResult(records=made.records, totals={"weight": (items[0].number + 3) / 30})

    def publish(path, **more):
        make_records(stage_at(path), in_batches(ITEMS[:9], 3), make_tenths, Echo(), summarise=dict, **more)
        return outputs(path)["summary.json"]

    in_order = publish(tmp_path / "in-order")
    assert json.loads(in_order)["weight"] == (0.1 + 0.2) + 0.3 != (0.2 + 0.3) + 0.1
    with pytest.raises(Killed):
        publish(tmp_path / "killed", check=_killed)
    next(batch_paths(tmp_path / "killed")).unlink()
    assert publish(tmp_path / "killed") == in_order


@pytest.mark.parametrize("stops", [False, True])
def test_first_process_publishes_after_all_batches_are_there(tmp_path, undisturbed, monkeypatch, stops):
    path, looks = tmp_path / "waits", []
    monkeypatch.setattr(records, "WAIT_FOR_OTHERS_SECONDS", 0)
    monkeypatch.setenv("WORLD_SIZE", "2")

    def later():
        """The other process is far behind, or a stop is asked for while it works."""
        looks.append(finished_batches(path))
        if looks.count(2) == 9 and not stops:
            monkeypatch.setenv("RANK", "1")
            run(path)
            monkeypatch.setenv("RANK", "0")
        return stops and looks.count(2) >= 9

    run(path, should_stop=later)
    assert looks.count(2) >= 9
    assert (path / "record.json").exists() != stops
    assert stops or outputs(path) == undisturbed


def test_what_a_check_refuses_is_not_published(tmp_path):
    def refuse(totals):
        assert totals["records"] == 7
        raise DataError("too many")

    with pytest.raises(DataError, match="too many"):
        make_records(stage_at(tmp_path / "r"), in_batches(ITEMS, 3), make, Echo(), summarise=summarise, check=refuse)
    assert not (tmp_path / "r" / "record.json").exists()


def test_an_answerer_that_fails_ends_the_stage_with_its_error(tmp_path):
    class Failing(Echo):
        def submit(self, asks):
            future = Future()
            future.set_exception(DataError("the server is gone"))
            return future

    with pytest.raises(DataError, match="the server is gone"):
        run(tmp_path / "f", answerer=Failing())


def nothing(items):
    yield []
    return BatchResult(records=[], set_aside=[{"id": item.id, "reason": "empty"} for item in items])


def test_nothing_usable_is_an_error_that_says_so(tmp_path):
    with pytest.raises(DataError, match=r"no usable record: .*'set_aside': 10"):
        make_records(
            stage_at(tmp_path / "empty"),
            in_batches(ITEMS, 3),
            nothing,
            Echo(),
            summarise=lambda totals: {},
        )
    assert not (tmp_path / "empty" / "record.json").exists()


def test_a_kill_between_a_batch_and_its_report_loses_no_line(tmp_path, monkeypatch):
    def lines(path):
        rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        return [{key: value for key, value in row.items() if key != "time"} for row in rows]

    def kill(stage, kind, number, when):
        if (kind, number, when) == ("checkpoint", 2, "after"):
            raise KeyboardInterrupt

    run(tmp_path / "undisturbed")
    monkeypatch.setattr("charter.feedback.records.faults.boundary", kill)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "killed")
    monkeypatch.undo()
    assert [row["step"] for row in lines(tmp_path / "killed")] == [1]
    run(tmp_path / "killed")
    assert lines(tmp_path / "killed") == lines(tmp_path / "undisturbed")
