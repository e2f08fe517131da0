"""SIGKILL before, in and after every durable action; what comes out is the undisturbed run, bit for bit.

CI hits one action of a run of each kind, in one of three ways, and one of the start that comes after. `make chaos` hits
every action of an undisturbed run in each way, in a run of its own; and one start after another at the next action, in
turn before, in the middle (torn) and after it, until no start has so many.
"""

from dataclasses import replace

import pytest
from bench import KILLED, KINDS, result_of
from layouts import THOROUGH, TURN, in_turn
from results import Case, lost_and_doubled, record

pytestmark = [pytest.mark.torch, pytest.mark.slow]
WAYS = ("before", "torn", "after")
SHORT = {
    "sft": replace(KINDS["sft"].spec, steps=2),
    "ppo": replace(KINDS["ppo"].spec, episodes=16, ppo_epochs=1),
}
RECOVERS = 8
"""Actions at the beginning of a start that makes good what a kill has left."""
KEPT = 2
WAITS = {"CHARTER_SAVE": "sync"}
"""A save in the background would make the order of actions a matter of chance."""


@pytest.fixture(scope="module")
def whole(bench, tmp_path_factory):
    """(kind) -> the result of an undisturbed run that keeps all, and the durable actions of one that keeps two."""
    known = {}

    def run(kind: str):
        if kind not in known:
            everything, log = stage(bench, kind, "all", keep_last=1000), tmp_path_factory.mktemp(kind) / "actions"
            assert bench.finish(everything, **WAITS) == 0
            directory = stage(bench, kind, "whole")
            assert bench.finish(directory, CHARTER_FAULT_LOG=str(log), **WAITS) == 0
            names = [line.split(maxsplit=2)[2] for line in log.read_text().splitlines()]
            known[kind] = result_of(everything), names
        return known[kind]

    return run


def stage(bench, kind: str, name: str, *, keep_last: int = KEPT):
    """A fresh directory, by default of a stage that removes old checkpoints."""
    return bench.stage(kind, f"actions-{kind}-{name}", spec=SHORT[kind], keep_last=keep_last)


def test_a_run_writes_flushes_publishes_and_removes(whole):
    _, names = whole("ppo")
    assert {name.split()[0] for name in names} >= {"append", "make", "fill", "sync", "manifest", "rename", "remove"}
    assert names[-1] == "rename record.json"


@pytest.mark.parametrize("kind", sorted(SHORT))
@pytest.mark.skipif(not THOROUGH, reason="make chaos")
def test_starts_killed_at_one_action_after_the_other(bench, whole, kind):
    reference, names = whole(kind)
    kills = runs = 0
    number = 1
    while number <= len(names):
        directory = stage(bench, kind, "chain")
        runs += 1
        while (code := attempt(bench, directory, number)) == KILLED:
            kills, number = kills + 1, number + 1
        assert code == 0, (directory / "log.txt").read_text()
        compare(directory, reference, kind=kind, kills=0, runs=1)
        number += 1
    assert kills > len(names) // 2
    record(Case(test="actions", kind=kind, layout="1", kills=kills, runs=0, mismatches=0, lost=0, doubled=0))


@pytest.mark.parametrize("kind", sorted(SHORT))
def test_a_run_killed_at_an_action_ends_the_same(bench, whole, kind):
    reference, names = whole(kind)
    actions = [(number, name, way) for number, name in enumerate(names, 1) for way in WAYS]
    for number, name, way in in_turn(actions):
        directory = stage(bench, kind, "each")
        code = bench.finish(directory, CHARTER_FAULT_AT=f"{number}:{way}", **WAITS)
        assert code == KILLED, f"not killed {way} action {number}, {name}: {(directory / 'log.txt').read_text()}"
        again = attempt(bench, directory, 1 + (TURN + number) % RECOVERS)
        if again == KILLED:
            again = bench.finish(directory, **WAITS)
        assert again == 0, (directory / "log.txt").read_text()
        compare(directory, reference, kind=kind, kills=2, runs=1)


def attempt(bench, directory, number: int) -> int:
    return bench.finish(directory, CHARTER_FAULT_AT=f"{number}:{WAYS[number % len(WAYS)]}", **WAITS)


def compare(directory, reference, *, kind: str, kills: int, runs: int) -> None:
    """The bits of what is left: outputs, metrics, and the checkpoints that are kept, the newest among them.

    A kill before an old one is removed may leave it there.
    """
    found = result_of(directory)
    lost, doubled = lost_and_doubled(found.metrics, reference.metrics)
    newest = {name: reference.chain[name] for name in sorted(reference.chain)[-KEPT:]}
    chain = {name: reference.chain.get(name) for name in found.chain} | newest
    expected = replace(reference, chain=chain)
    wrong = int(found != expected)
    record(
        Case(
            test="actions", kind=kind, layout="1", kills=kills, runs=runs,
            mismatches=wrong, lost=lost, doubled=doubled,
        )
    )  # fmt: skip
    assert found == expected
