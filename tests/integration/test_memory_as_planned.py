"""Stages that really run on processors, every tensor counted, beside what is planned for them.

`tests/unit/plan/test_cpu_memory.py` holds more configurations to recorded figures; these are measured anew, so that a
change of the engine alone is seen. Within 5 %: counts of hidden states hold to a third of one, 2 % of models as
small as these, and parts of different length add what rounding leaves.
"""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from planner_case import MACHINE

pytestmark = pytest.mark.torch
BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
ALONE = {"kind": "sft", "shape": "1M", "batch": 8, "seq": 64}
SHARED = {"kind": "sft", "shape": "1M", "batch": 8, "seq": 64, "processes": 2, "zero": 3}
ASKED = {"kind": "preference_model", "shape": "1M", "batch": 8, "seq": 128}
"""The last layer leaves out all positions but the last of each row."""


@pytest.mark.parametrize("case", [ALONE, SHARED, ASKED], ids=["alone", "in parts", "asked"])
def test_a_stage_that_runs_takes_the_memory_that_is_planned(case, monkeypatch):
    """In a process of its own: what another test's stage has left in this one is not allocated again, nor counted."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from planned_against.cases import Case
    from planned_against.processes import in_child
    from planner_vs_engine import planned

    made = Case(**case)
    measured = in_child(made, "bytes", 3)
    assert isinstance(measured, dict), measured
    assert planned(made, MACHINE)["bytes"] == pytest.approx(measured["total"], rel=0.05)
