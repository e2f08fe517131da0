"""A run whose stages pay for calls, with its ledger in files: real processes, real kills."""

import pytest

pytest.importorskip("sqlalchemy")

from call_cost_contract import *  # noqa: F403
from call_cost_contract import report, run


@pytest.fixture
def paying(work):
    return work


@pytest.mark.thorough
def test_a_stage_directory_that_is_removed_keeps_what_it_cost(paying):
    import shutil

    assert run(paying).code == 0
    before = report(paying)["actual"]["micro_usd"]
    shutil.rmtree(paying.stage_dir("c"))
    assert report(paying)["actual"]["micro_usd"] == before
    assert run(paying).code == 0
    assert report(paying)["actual"]["micro_usd"] == before + before // 3
