"""SIGKILL at every boundary, one after the other in one run; what comes out is the undisturbed run, bit for bit.

A resume that restores anything wrongly cannot be mended by the next one, so one chain tests every boundary.
"""

import pytest
from bench import KILLED, UNITS, boundaries, result_of

pytestmark = [pytest.mark.torch, pytest.mark.slow]
LAYOUTS = {
    "one process": {},
    "DDP of two": {"world_size": 2},
    "FSDP2 of two": {"world_size": 2, "zero": 3},
}


def test_ppo_has_48_places_of_a_checkpoint(undisturbed):
    assert len(undisturbed("ppo").chain) == UNITS["ppo"]


@pytest.mark.parametrize("kind", sorted(UNITS))
def test_a_second_undisturbed_run_is_the_same(bench, undisturbed, kind):
    directory = bench.stage(kind, f"again-{kind}")
    assert bench.finish(directory) == 0
    assert result_of(directory) == undisturbed(kind)


@pytest.mark.parametrize("kind", sorted(UNITS))
def test_killed_at_every_boundary(bench, undisturbed, kind):
    directory = bench.stage(kind, f"chain-{kind}")
    for place, when in boundaries(kind):
        code = bench.finish(directory, CHARTER_KILL=f"{kind}:checkpoint:{place}:{when}")
        assert code == KILLED, f"{kind} was not killed {when} {place}: {(directory / 'log.txt').read_text()}"
    assert bench.finish(directory) == 0, (directory / "log.txt").read_text()
    assert result_of(directory) == undisturbed(kind)


@pytest.mark.parametrize("name", ["DDP of two", "FSDP2 of two"])
@pytest.mark.parametrize("kind", ["sft", "ppo"])
def test_several_processes_killed_at_boundaries(bench, undisturbed, kind, name):
    layout = LAYOUTS[name]
    directory = bench.stage(kind, f"chain-{kind}-{name.replace(' ', '-')}", **layout)
    places = boundaries(kind)
    for number, (place, when) in enumerate(places[:: max(1, len(places) // 8)]):
        environment = {"CHARTER_KILL": f"{kind}:checkpoint:{place}:{when}"}
        code = bench.finish(directory, **environment)
        assert code == KILLED, f"kill {number}: {(directory / 'log.txt').read_text()}"
    assert bench.finish(directory) == 0, (directory / "log.txt").read_text()
    assert result_of(directory) == undisturbed(kind, **layout)
