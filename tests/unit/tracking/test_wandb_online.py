"""W&B online with its library replaced, to lose what it had not sent: the server ends with every row once."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from charter.spec.sections import WandbSettings
from charter.tracking.base import MetricRow, RunFacts
from charter.tracking.run_facts import Followed, SweptPoint, point_facts, sweep_facts, sweep_group
from charter.tracking.trackers import WandbDestination

FACTS = RunFacts(key="k-sft-01", name="sft", parameters={"steps": "9"}, tags={"charter.kind": "sft", "team": "safety"})


class Server:
    """What has arrived, by run: a row whose step is not above the last one is dropped, as the real one does."""

    def __init__(self):
        self.rows = {}
        self.opened = []

    def arrive(self, run, step, values):
        rows = self.rows.setdefault(run, [])
        if not rows or step > rows[-1][0]:
            rows.append((step, values))


class Library:
    """One process's copy of the library: it sends what was logged when it is told to, or loses it with the process."""

    def __init__(self, server):
        self.server = server
        self.waiting = []
        self.down = False

    def Settings(self, **given):
        return given

    def init(self, **given):
        if self.down:
            raise ConnectionError("no network")
        self.server.opened.append(given)
        run = given["id"]
        rows = self.server.rows.get(run, [])
        config = SimpleNamespace(update=lambda values, allow_val_change: None)
        return SimpleNamespace(
            starting_step=rows[-1][0] + 1 if rows else 0,
            config=config,
            summary={},
            define_metric=lambda name, step_metric: None,
            log=lambda values, step: self.waiting.append((run, step, values)),
            finish=lambda exit_code: self.send(),
            dir="/nowhere/files",
        )

    def send(self, most=None):
        for run, step, values in self.waiting[:most]:
            self.server.arrive(run, step, values)
        self.waiting = []


def rows(first, last):
    return [
        MetricRow(number=number, step=number + 1, time=1.0, values={"loss": float(number)})
        for number in range(first, last)
    ]


def open_destination(server, tmp_path):
    library = Library(server)
    return library, WandbDestination(library, WandbSettings(entity="us"), project="harmless", directory=tmp_path)


@pytest.mark.parametrize("arrived", range(6))
def test_what_a_lost_process_had_not_sent_is_told_again(tmp_path, arrived):
    server = Server()
    library, first = open_destination(server, tmp_path)
    run = first.open_run(FACTS, parent="p", known=None)
    first.log(run, rows(0, 5))
    library.send(most=arrived)
    library, second = open_destination(server, tmp_path)
    second.open_run(FACTS, parent="p", known=run)
    lost = second.rows_lost_from(run, told=5, sure=0)
    assert lost == (arrived if arrived < 5 else None)
    second.log(run, rows(5 if lost is None else lost, 8))
    second.set_state(run, "finished", ended_at=2.0)
    assert [step for step, _ in server.rows[run]] == list(range(8))


def test_a_run_that_ended_in_good_order_asks_nobody(tmp_path):
    server = Server()
    library, destination = open_destination(server, tmp_path)
    library.down = True
    run = destination.open_run(FACTS, parent="p", known="charter-x")
    assert destination.rows_lost_from(run, told=5, sure=5) is None
    with pytest.raises(ConnectionError):
        destination.log(run, rows(5, 6))


def test_stages_are_runs_of_one_group_under_our_numbers(tmp_path):
    server = Server()
    _, destination = open_destination(server, tmp_path)
    parent = destination.open_run(RunFacts(key="k", name="harmless"), parent=None, known=None)
    stage = destination.open_run(FACTS, parent=parent, known=None)
    again = destination.open_run(FACTS, parent=parent, known=None)
    destination.describe(parent, RunFacts(key="k", name="harmless"))
    destination.describe(stage, FACTS)
    assert (stage, again != parent) == (again, True)
    assert [(given["id"], given["group"], given["job_type"]) for given in server.opened] == [
        (parent, parent, "pipeline"),
        (stage, parent, "sft"),
    ]
    assert server.opened[1]["tags"] == ["team:safety"]
    assert (server.opened[1]["resume"], server.opened[1]["entity"]) == ("allow", "us")


def test_a_sweep_is_one_group_with_the_values_as_labels(tmp_path):
    server = Server()
    _, destination = open_destination(server, tmp_path)
    followed = Followed(key="k", name="harmless", root="/nowhere", trackers={}, tags={"team": "safety"})
    point = SweptPoint(sweep="kl", label="x", values={"pipeline.ppo.kl_coefficient": "0.2"}, repetition=1)
    sweep = sweep_facts(followed, "kl", started_at=None)
    own = point_facts(followed, point, started_at=None)
    parent = destination.open_run(RunFacts(key="k", name="harmless"), parent=None, known=None)
    above = destination.open_run(sweep, parent=parent, known=None)
    below = destination.open_run(own, parent=above, known=None)
    destination.describe(above, sweep)
    destination.describe(below, own)
    group = sweep_group(followed, "kl")
    assert group.startswith("kl-")
    assert [(given["group"], given["job_type"]) for given in server.opened] == [(group, "sweep"), (group, "point")]
    assert "pipeline.ppo.kl_coefficient:0.2" in server.opened[1]["tags"]
    assert sweep_group(replace(followed, key="other"), "kl") != group, "a name is no identity"
