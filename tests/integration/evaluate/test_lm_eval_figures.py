"""How metrics of the harness become figures; the harness itself is in the nightly tests."""

import pytest

torch = pytest.importorskip("torch")

from charter.errors import MissingExtraError
from charter.evaluate import questions
from charter.evaluate.questions import figure_of_metric

pytestmark = pytest.mark.torch


def test_right_and_wrong_rows_have_wilson_s_interval():
    (found,) = figure_of_metric("k", "l", 0.75, [1.0, 1.0, 1.0, 0.0], None)
    assert (found.value, found.n, found.method, found.unit) == (0.75, 4, "Wilson score", "share")


def test_numbers_whose_mean_it_is_have_the_interval_of_a_mean():
    (found,) = figure_of_metric("k", "l", 2.0, [1.0, 3.0], None)
    assert (found.value, found.method) == (2.0, "normal, s/sqrt(n)")


def test_other_metrics_keep_the_harness_s_standard_error():
    (found,) = figure_of_metric("k", "l", 12.0, [(1, 2), (3, 4)], 0.5)
    assert (found.low, found.high) == pytest.approx((12 - 0.98, 12 + 0.98), abs=1e-3)


@pytest.mark.parametrize(("rows", "error"), [([1.0], None), ([(1, 2), (3, 4)], "N/A"), ([(1, 2), (3, 4)], None)])
def test_what_has_no_interval_is_left_out_and_told(rows, error, capsys):
    assert figure_of_metric("k", "l", 1.0, rows, error) == []
    assert "k: 1.0" in capsys.readouterr().out


def test_the_suite_says_what_to_install(monkeypatch):
    monkeypatch.setattr(questions, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="pip install lm-eval"):
        questions.check_library()
