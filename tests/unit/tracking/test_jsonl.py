"""Metrics as JSON lines: what was logged is read, torn ends are survived, broken middles are said."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from charter.artifacts import durable
from charter.errors import DataError
from charter.tracking.base import read_metrics, series


@settings(deadline=None)
@given(
    st.lists(
        st.dictionaries(st.sampled_from(["loss", "kl"]), st.floats(allow_nan=False, allow_infinity=False)),
        max_size=8,
    )
)
def test_what_was_logged_is_read_back(tmp_path_factory, steps):
    path = tmp_path_factory.mktemp("m") / "metrics.jsonl"
    for step, values in enumerate(steps):
        durable.append_line(path, {"step": step, "time": 100.0, **values})
    assert [(point.step, dict(point.values)) for point in read_metrics(path)] == list(enumerate(steps))
    assert all(point.time == 100.0 for point in read_metrics(path))


def test_a_torn_last_line_is_left_out(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "lo')
    assert [point.step for point in read_metrics(path)] == [1]


def test_a_broken_line_in_the_middle_is_named(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\nnonsense\n{"step": 2}\n')
    with pytest.raises(DataError, match=r"metrics\.jsonl:2"):
        read_metrics(path)


def test_redone_steps_count_once_as_they_were_done_last(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "loss": 3}\n{"step": 2, "loss": 2}\n{"step": 1, "loss": 5}\n')
    assert list(series(read_metrics(path), "loss")) == [(1, 5.0), (2, 2.0)]


def test_a_loss_that_is_not_a_number_is_a_gap(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "loss": NaN, "kl": 0.5}\n')
    assert [dict(point.values) for point in read_metrics(path)] == [{"kl": 0.5}]


def test_a_missing_file_has_no_points(tmp_path):
    assert read_metrics(tmp_path / "none.jsonl") == ()
