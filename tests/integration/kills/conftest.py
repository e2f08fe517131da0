"""One bench for all kill tests, and the undisturbed run that each layout is compared with."""

import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "train"))


def pytest_report_header() -> str:
    """Say which kills these are, and how to have the same ones again."""
    from layouts import THOROUGH, TURN

    here = f"those of turn {TURN}; again: CHARTER_KILLS={TURN}; all: CHARTER_KILLS=all"
    return f"kills: {'all' if THOROUGH else here}"


@pytest.fixture(scope="session")
def bench(tmp_path_factory):
    pytest.importorskip("torch")
    from bench import Bench

    found = Bench(tmp_path_factory.mktemp("kills"))
    found.make_inputs()
    yield found
    found.close()


class Undisturbed:
    """(kind, layout) -> what a run gives to which nothing happens; each is made once."""

    def __init__(self, bench) -> None:
        self._bench, self._known = bench, {}

    def __call__(self, kind: str, **layout):
        return self._run(kind, layout)[0]

    def seconds(self, kind: str, **layout) -> float:
        """How long that run took."""
        return self._run(kind, layout)[1]

    def _run(self, kind: str, layout):
        from bench import result_of

        key = (kind, *sorted(layout.items()))
        if key not in self._known:
            name = "-".join([kind, *(f"{name}{value}" for name, value in sorted(layout.items()))])
            directory, began = self._bench.stage(kind, f"undisturbed-{name}", **layout), time.monotonic()
            assert self._bench.finish(directory) == 0, (directory / "log.txt").read_text()
            self._known[key] = result_of(directory), time.monotonic() - began
        return self._known[key]


@pytest.fixture(scope="session")
def undisturbed(bench):
    """What undisturbed runs give."""
    return Undisturbed(bench)
