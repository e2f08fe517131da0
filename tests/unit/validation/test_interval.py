"""Intervals: an effect of the cluster and a residual, wider the less is known."""

from collections.abc import Sequence
from functools import cache
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from charter.physics.fitted import NARROWEST, WIDEST, Knowledge, Spread
from charter.physics.terms import t_quantile
from charter.validation.intervals import COVERAGE, group_of, scatter_factor, spreads, typical_errors
from charter.validation.rows.measurement import Measurement
from charter.validation.score import ScoredRow

NOMINAL = 0.8
ROWS_TRIED = 14_000
"""Synthetic rows behind one figure of coverage, whatever the number of stacks."""


@cache
def row_of(source: str, number: int) -> Measurement:
    return Measurement(id=f"{source}-{number}", metric="step_time_s", value=1.0, config_id=f"{source}{number}")


def scored(source: str, number: int, error: float, *, used: bool = False, stack: str = "s") -> ScoredRow:
    return ScoredRow(row=row_of(source, number), stack=stack, predicted=float(np.exp(error)), used=used)


def width_of(clusters: Sequence[Sequence[float]], knowledge: Knowledge = "unseen") -> float:
    """The half-width that the shipped calibration would get from the errors of these stacks."""
    rows = [
        scored(f"S{name:02}", number, float(error), stack=f"stack {name}")
        for name, errors in enumerate(clusters)
        for number, error in enumerate(errors)
    ]
    return spreads({knowledge: rows}).half_width("training dense", knowledge)


def coverage_of(stacks: int, effect: float, residual: float, *, centred: bool) -> float:
    """Probability that a row of a new stack is inside, over synthetic groups of stacks of 4 to 14 configurations.

    `centred`: constants follow the mean of the stacks at hand; otherwise they stay where the truth is.
    """
    rng, new, inside = (
        np.random.default_rng([stacks, round(100 * effect)]),
        NormalDist(0, np.hypot(effect, residual)),
        [],
    )
    for _ in range(ROWS_TRIED // (9 * stacks)):
        rows = [rng.normal(0, effect) + rng.normal(0, residual, rng.integers(4, 15)) for _ in range(stacks)]
        means = np.array([np.mean(row) for row in rows])
        others = [(means.sum() - mean) / (stacks - 1) if centred else 0.0 for mean in means]
        width = width_of([row - other for row, other in zip(rows, others, strict=True)])
        centre = float(means.mean()) if centred else 0.0
        inside.append(new.cdf(centre + width) - new.cdf(centre - width))
    return float(np.mean(inside))


@pytest.mark.parametrize("stacks", [2, 3, 5, 8, 14])
@pytest.mark.parametrize(("effect", "residual"), [(0.10, 0.02), (0.06, 0.06)])
def test_rows_of_a_new_stack_eight_in_ten_are_inside(stacks: int, effect: float, residual: float) -> None:
    assert coverage_of(stacks, effect, residual, centred=True) == pytest.approx(NOMINAL, abs=0.04)


@pytest.mark.parametrize("stacks", [1, 2, 3, 14])
def test_constants_held_by_priors_cover_no_less(stacks: int) -> None:
    assert NOMINAL - 0.03 <= coverage_of(stacks, 0.10, 0.02, centred=False) <= 0.92


def test_quantiles_of_student_are_those_of_the_tables() -> None:
    """Two-sided 80 % points, Fisher and Yates, Statistical Tables (1963), table III; the last is the normal's."""
    table = {1: 3.0777, 2: 1.8856, 4: 1.5332, 7: 1.4149, 13: 1.3502, 30: 1.3104, 1000: 1.2824}
    assert {freedom: t_quantile(COVERAGE, freedom) for freedom in table} == pytest.approx(table, abs=2e-4)
    assert t_quantile(COVERAGE, 1e9) == t_quantile(COVERAGE, 1000)


def test_two_stacks_that_disagree_say_less_than_eight() -> None:
    assert width_of([[0.1] * 9, [-0.1] * 9]) > 1.8 * width_of([[0.1] * 9, [-0.1] * 9] * 4)


def test_a_misread_row_in_twenty_widens_nothing() -> None:
    clusters = [[0.01 * (n - 9.5) + shift for n in range(20)] for shift in (-0.05, 0.05, 0.0)]
    misread = [[*errors[:-1], 1.5] for errors in clusters]
    assert width_of(misread) == pytest.approx(width_of(clusters), rel=0.1)


def test_a_stack_of_many_rows_does_not_outvote_others() -> None:
    few, many = ([[0.01] * rows, [0.3] * 10, [0.3] * 10] for rows in (10, 200))
    assert width_of(few) == pytest.approx(width_of(many), rel=0.01)


def test_configurations_measured_again_vote_once() -> None:
    rows = [scored("AAA", 0, 0.2), *[scored("AAA", 1, 0.1)] * 9, *[scored("BBB", n, -0.1) for n in range(2)]]
    once = [rows[0], rows[1], *rows[-2:]]
    assert spreads({"seen": rows}) == spreads({"seen": once})


def test_rows_that_calibrated_do_not_vote() -> None:
    rows = [scored(name, n, error) for name, error in (("AAA", 0.1), ("BBB", 0.2)) for n in range(9)]
    assert spreads({"seen": [*rows, scored("AAA", 99, 1.0, used=True)]}) == spreads({"seen": rows})


def test_one_stack_alone_says_how_far_priors_may_be_off() -> None:
    assert width_of([[0.01] * 50]) == pytest.approx(0.01 * 2**0.5 * t_quantile(COVERAGE, 1), rel=0.01)
    assert width_of([[0.01] * 50], "seen") == WIDEST / 2


def test_a_group_of_one_stack_takes_the_effect_of_all_groups() -> None:
    dense = [scored(f"S{name}", n, error, stack=f"{name}") for name, error in enumerate((0.1, -0.1)) for n in range(9)]
    rng = np.random.default_rng(5)
    memory = [
        ScoredRow(
            row=Measurement(id=f"M-{n}", metric="peak_mem_gb", value=1.0, kind="sft"),
            stack="0",
            predicted=float(np.exp(rng.normal(0.1, 0.3))),
        )
        for n in range(40)
    ]
    found = spreads({"unseen": [*dense, *memory]})
    assert found.half_width("training memory", "unseen") > 0.3
    assert found.half_width("training memory", "unseen") > found.half_width("training dense", "unseen")


def test_a_group_of_one_stack_far_from_the_priors_is_wider() -> None:
    dense = [
        scored(f"S{name}", n, error, stack=f"{name}") for name, error in enumerate((0.05, -0.05)) for n in range(9)
    ]

    def width(shift: float) -> float:
        rows = [Measurement(id=f"M-{n}", metric="peak_mem_gb", value=1.0, kind="sft") for n in range(9)]
        memory = [ScoredRow(row=row, stack="0", predicted=float(np.exp(shift))) for row in rows]
        return spreads({"unseen": [*dense, *memory]}).half_width("training memory", "unseen")

    assert width(0.2) > 1.5 * width(0.01)


def test_a_group_that_says_too_little_learns_from_no_other() -> None:
    spread = spreads({"unseen": [scored(f"S{name}", n, 0.1, stack=f"{name}") for name in range(3) for n in range(9)]})
    assert spread.half_width("rl time, lengths unknown", "unseen") == WIDEST
    assert spread.half_width("rl time", "unseen") < WIDEST


def test_more_knowledge_never_widens() -> None:
    off, near = ([scored(name, n, sign * e) for name, sign in (("A", 1), ("B", -1)) for n in range(9)]
                 for e in (0.3, 0.05))  # fmt: skip
    stacks = [ScoredRow(row=item.row, stack=item.row.prefix, predicted=item.predicted) for item in near]
    found = spreads({"unseen": stacks, "seen": off, "calibrated": near})
    assert found.half_width("training dense", "seen") == found.half_width("training dense", "unseen")
    assert found.half_width("training dense", "calibrated") <= found.half_width("training dense", "unseen")
    assert found.half_width("a group nobody measured", "unseen") == found.half_width("*", "unseen")


@given(st.floats(1e-6, 1e12), st.floats(0.05, 1.0))
def test_an_interval_holds_its_median(predicted: float, width: float) -> None:
    interval = Spread(half_widths={"*": {"unseen": width}}).interval(predicted, "x", "unseen")
    assert interval.p10 < interval.p50 == predicted < interval.p90


def test_scatter_of_the_calibrating_rows_widens_or_narrows() -> None:
    calm = [scored("AAA", n, 0.001, used=True) for n in range(5)]
    wild = [scored("AAA", n, 0.6, used=True) for n in range(5)]
    assert scatter_factor(calm, 0.2) == pytest.approx(0.7071, abs=1e-3)
    assert scatter_factor(wild, 0.2) > 2
    assert scatter_factor([], 0.2) == 1.0


def test_groups() -> None:
    def row(**cells: object) -> Measurement:
        return Measurement(id="A-1", value=1.0, **cells)  # type: ignore[arg-type]

    assert group_of(row(metric="step_time_s", kind="lora")) == "training adapter"
    assert group_of(row(metric="step_time_s", kind="sft", adapter="qlora")) == "training adapter"
    assert group_of(row(metric="peak_mem_gb", kind="dpo", adapter="lora")) == "adapter memory"
    assert group_of(row(metric="peak_mem_gb", kind="sft")) == "training memory"
    assert group_of(row(metric="wall_hours", kind="sft")) == "totals"
    assert group_of(row(metric="out_tokens_per_s", kind="inference")) == "inference time"
    assert group_of(row(metric="step_time_s", kind="ppo", osl=300)) == "rl time"
    assert group_of(row(metric="step_time_s", kind="ppo")) == "rl time, lengths unknown"
    assert group_of(row(metric="wall_hours", kind="ppo")) == "totals, lengths unknown"
    assert group_of(row(metric="ppo_weight_sync_time_s", kind="ppo")) == "weight transfer"


@pytest.mark.parametrize("knowledge", ["unseen", "seen", "calibrated", "source"])
def test_clusters_that_were_hit_exactly_get_the_least_width(knowledge: Knowledge) -> None:
    assert width_of([[0.0] * 20, [0.0] * 20], knowledge) == NARROWEST


def test_a_typical_error_is_the_mean_of_medians_of_clusters() -> None:
    few, many = ([scored(name, n, float(np.log1p(e)), stack=name) for n in range(rows)]
                 for name, e, rows in (("A", 0.1, 3), ("B", 0.3, 30)))  # fmt: skip
    found = typical_errors({"unseen": [*few, *many, scored("A", 99, 2.0, stack="A", used=True)]})
    assert found["training dense"]["unseen"] == pytest.approx(0.2, abs=1e-4)
