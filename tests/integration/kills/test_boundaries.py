"""SIGKILL at every boundary, one after the other in one run; what comes out is the undisturbed run, bit for bit.

A resume that restores anything wrongly cannot be mended by the next one, so one chain tests every boundary. `make
chaos` hits all of them before and after; CI hits one of each kind in one process, and one of one kind in several.
"""

import pytest
from bench import KILLED, UNITS, boundaries, defects_in, result_of
from layouts import LAYOUTS, THOROUGH, TOGETHER, in_turn, processes
from results import Case, lost_and_doubled, record

pytestmark = [pytest.mark.torch, pytest.mark.slow]
ALONE = sorted(UNITS)


def test_ppo_has_48_places_of_a_checkpoint(undisturbed):
    assert len(undisturbed("ppo").chain) == UNITS["ppo"] == 48


@pytest.mark.skipif(THOROUGH, reason="all have their turn at once")
def test_every_boundary_comes_round():
    places = boundaries("ppo")
    assert [in_turn(places, turn) for turn in range(len(places))] == [[place] for place in places]


@pytest.mark.parametrize("kind", in_turn(["sft", "ppo"]))
def test_a_second_undisturbed_run_is_the_same(bench, undisturbed, kind):
    directory = bench.stage(kind, f"again-{kind}")
    assert bench.finish(directory) == 0
    assert result_of(directory) == undisturbed(kind)


@pytest.mark.parametrize("kind", ALONE)
def test_killed_at_every_boundary(bench, undisturbed, kind):
    killed_in_a_chain(bench, undisturbed(kind), kind, "1")


@pytest.mark.parametrize(("kind", "name"), in_turn(TOGETHER))
def test_several_processes_killed_at_boundaries(bench, undisturbed, kind, name):
    killed_in_a_chain(bench, undisturbed(kind, **LAYOUTS[name]), kind, name)


def killed_in_a_chain(bench, reference, kind: str, name: str) -> None:
    """Kill one process after another at one boundary after another, then let the run end and compare it."""
    directory = bench.stage(kind, f"chain-{kind}-{name.replace(' ', '-')}", **LAYOUTS[name])
    places = in_turn(boundaries(kind))
    for number, (place, when) in enumerate(places):
        victim = {"CHARTER_FAULT_RANK": str(number % processes(name))}
        code = bench.finish(directory, CHARTER_KILL=f"{kind}:checkpoint:{place}:{when}", **victim)
        assert code == KILLED, f"not killed {when} {place} ({victim}): {(directory / 'log.txt').read_text()}"
    assert bench.finish(directory) == 0, (directory / "log.txt").read_text()
    found = result_of(directory)
    lost, doubled = lost_and_doubled(found.metrics, reference.metrics)
    wrong = int(found != reference)
    record(
        Case(
            test="boundaries", kind=kind, layout=name, kills=len(places), runs=1,
            mismatches=wrong, lost=lost, doubled=doubled,
        )
    )  # fmt: skip
    assert found == reference
    assert defects_in(directory) == []
