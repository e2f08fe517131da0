"""Processes of stages stand before their supervisor in the kernel's choice where memory runs out."""

import pytest

from charter.artifacts.stage_process import offer_to_out_of_memory_killer


@pytest.mark.parametrize(("before", "after"), [("0\n", "500"), ("-200\n", "300"), ("800\n", "1000")])
def test_a_stage_offers_itself_up_to_the_most(tmp_path, before, after):
    adjustment = tmp_path / "oom_score_adj"
    adjustment.write_text(before)
    offer_to_out_of_memory_killer(adjustment)
    assert adjustment.read_text() == after


def test_without_such_a_file_nothing_is_written(tmp_path):
    offer_to_out_of_memory_killer(tmp_path / "none" / "oom_score_adj")
    assert list(tmp_path.iterdir()) == []
