"""One bench for all kill tests, and the undisturbed run that each layout is compared with."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "train"))


@pytest.fixture(scope="session")
def bench(tmp_path_factory):
    pytest.importorskip("torch")
    from bench import Bench

    found = Bench(tmp_path_factory.mktemp("kills"))
    found.make_inputs()
    yield found
    found.close()


@pytest.fixture(scope="session")
def undisturbed(bench):
    """(kind, layout) -> what a run gives to which nothing happens; each is made once."""
    from bench import result_of

    known = {}

    def run(kind: str, **layout):
        key = (kind, *sorted(layout.items()))
        if key not in known:
            directory = bench.stage(kind, "undisturbed-" + "-".join(map(str, key)).replace("'", ""), **layout)
            assert bench.finish(directory) == 0, (directory / "log.txt").read_text()
            known[key] = result_of(directory)
        return known[key]

    return run
