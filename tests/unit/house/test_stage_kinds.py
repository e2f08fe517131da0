"""The tables of stage kinds agree: what can be run has a module, what has a module can be run."""

import importlib.util
from typing import get_args

import pytest

from charter.launch.job import STAGE_MODULES
from charter.spec.stage import STAGE_KINDS, AnyStage


def test_every_kind_that_runs_has_a_module_and_no_other():
    assert set(STAGE_MODULES) == {kind for kind, stage in STAGE_KINDS.items() if stage.RUNS}


def test_the_union_and_the_table_list_the_same_kinds():
    assert set(get_args(AnyStage)) == set(STAGE_KINDS.values())


@pytest.mark.parametrize("module", STAGE_MODULES.values())
def test_the_module_of_a_kind_exists_and_has_its_entry(module):
    found = importlib.util.find_spec(module)
    assert found is not None, f"{module} does not exist"
    assert found.loader is not None
    source = found.loader.get_source(module)
    assert "def run(stage: StageDir) -> None:" in source
    assert "stage_main(run)" in source
