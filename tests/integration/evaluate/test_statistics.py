"""The statistics of the suites: against published numbers, planted truths and limiting cases."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from charter.evaluate import goodhart, statistics
from charter.evaluate.goodhart import GoodhartPoint
from charter.evaluate.run import calibration_figures
from charter.evaluate.statistics import bootstrapped, length_controlled, paired_bootstrap, resampled_means


def draws(n, seed=1):
    """Uniform numbers that depend on the seed alone."""
    return (np.random.Philox(key=seed).random_raw(n) >> np.uint64(11)) * 2.0**-53


def test_resampled_means_are_those_of_the_paired_bootstrap():
    values = draws(50)
    means = np.sort(resampled_means(values[:, None], seed=3)[:, 0])
    found = paired_bootstrap(values.tolist(), seed=3)
    assert (means[100], means[-101]) == pytest.approx((found.low, found.high), abs=1e-12)


def test_resampling_by_parts_draws_the_same(monkeypatch):
    rows = draws(120).reshape(40, 3)
    whole = resampled_means(rows, seed=5)
    monkeypatch.setattr("charter.evaluate.statistics._AT_ONCE", 1000)
    assert np.allclose(resampled_means(rows, seed=5), whole)


# 50 rows as 20, 5, 10, 15: shares alike 0.7, by chance 0.5, so kappa is 0.4 (Cohen 1960, equation 1).
def test_kappa_of_the_worked_example_with_its_interval():
    mine, theirs = [0] * 25 + [1] * 25, [0] * 20 + [1] * 5 + [0] * 10 + [1] * 15
    value, interval = bootstrapped(statistics.kappa, statistics.cells(mine, theirs), seed=1)
    assert value == pytest.approx(0.4)
    # Large-sample deviation sqrt(p_o (1 - p_o) / n) / (1 - p_e) = 0.13: the bootstrap is of the same width.
    assert interval.low == pytest.approx(0.4 - 1.96 * 0.13, abs=0.06)
    assert interval.high == pytest.approx(0.4 + 1.96 * 0.13, abs=0.06)


def test_kappa_has_no_value_where_both_always_choose_the_same():
    assert bootstrapped(statistics.kappa, statistics.cells([0] * 9, [0] * 9), seed=1) is None


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=2, max_size=40))
def test_kappa_does_not_care_who_is_first(rows):
    mine, theirs = zip(*rows, strict=True)
    one, other = (statistics.kappa(statistics.cells(*pair).mean(0)) for pair in ((mine, theirs), (theirs, mine)))
    assert np.allclose(one, other, equal_nan=True)
    assert np.isnan(one) or -1 <= one <= 1


def test_length_control_recovers_planted_win_rate_despite_bias():
    n = 4000
    mine, theirs = (50 + 60 * draws(n, 3)).astype(int), (20 + 60 * draws(n, 7)).astype(int)
    scaled = np.tanh((mine - theirs) / (mine - theirs).std())
    truth = 1 / (1 + math.exp(-0.3))
    wins = (draws(n, 11) < statistics.sigmoid(0.3 + 2.0 * scaled)).astype(float)
    found = length_controlled(wins.tolist(), mine.tolist(), theirs.tolist())
    assert wins.mean() > truth + 0.1, "the raw rate is inflated by length"
    assert found.interval.low < truth < found.interval.high
    assert found.weight_interval.low < 2.0 < found.weight_interval.high


def test_length_control_of_equal_lengths_is_the_plain_share():
    found = length_controlled([1.0, 1.0, 1.0, 0.0] * 50, [7] * 200, [7] * 200)
    assert found.win_rate == pytest.approx(0.75, abs=1e-3)
    assert found.weight == pytest.approx(0.0, abs=1e-9)


def test_winning_every_row_has_an_end():
    found = length_controlled([1.0] * 40, [5, 9] * 20, [9, 5] * 20)
    assert 0.99 < found.win_rate < 1


def test_logistic_intervals_cover_the_truth():
    columns = np.stack([np.ones(500), draws(500, 2) - 0.5], 1)
    covered = 0
    for seed in range(60):
        targets = (draws(500, 100 + seed) < statistics.sigmoid(columns @ np.array([0.2, 1.0]))).astype(float)
        found = statistics.fit(columns, targets).interval(1)
        covered += found.low < 1.0 < found.high
    assert covered >= 53  # 57 of 60 are expected; fewer than 53 has probability 0.01


def planted_margins(scale, n=3000):
    """Log-odds `scale` times too large, and what was true."""
    margins = 4 * (draws(n, 21) - 0.5)
    return (scale * margins).tolist(), (draws(n, 22) < statistics.sigmoid(margins)).astype(float).tolist()


def test_the_calibration_slope_finds_how_much_too_sure_a_model_is():
    for scale in (1.0, 3.0):
        value, ends = statistics.slope(*planted_margins(scale))
        assert ends.low < 1 / scale < ends.high
        assert value == pytest.approx(1 / scale, rel=0.15)


def test_calibration_error_is_that_of_guo_by_hand():
    confidences, right = [0.95, 0.97, 0.55, 0.52], [1.0, 0.0, 1.0, 1.0]
    by_hand = abs(0.95 + 0.97 - 1) / 4 + abs(0.55 - 1) / 4 + abs(0.52 - 1) / 4
    assert sum(statistics.gap_terms(confidences, right)) / 4 == pytest.approx(by_hand)
    assert [len(item.right) for item in statistics.bins(confidences, right)] == [1, 1, 2]


def test_a_calibrated_model_shows_the_gap_that_chance_explains():
    margins, targets = planted_margins(1.0)
    confidences, right = statistics.sides(statistics.sigmoid(np.array(margins)).tolist(), targets)
    found = sum(statistics.gap_terms(confidences, right)) / len(right)
    assert found == pytest.approx(statistics.chance_gap(confidences), rel=0.8)


def test_the_gap_of_chance_by_hand_and_where_it_is_told():
    of_bins = [0.52 * 0.48, 0.55 * 0.45, 0.95 * 0.05 + 0.97 * 0.03]
    by_hand = sum(math.sqrt(2 / math.pi) * math.sqrt(variance) for variance in of_bins) / 4
    assert statistics.chance_gap([0.95, 0.97, 0.55, 0.52]) == pytest.approx(by_hand)
    margins, targets = planted_margins(1.0, n=100)
    confidences, right = statistics.sides(statistics.sigmoid(np.array(margins)).tolist(), targets)
    ece = calibration_figures("pm", "m", margins, targets)[0]
    assert ece.value == pytest.approx(sum(statistics.gap_terms(confidences, right)) / 100, abs=1e-5)
    assert ece.note.endswith(f"would come out near {statistics.chance_gap(confidences):.3f} on so few pairs")


def test_a_margin_of_0_is_a_coin():
    assert statistics.log_losses([0.0], [1.0]) == pytest.approx([math.log(2)])
    assert statistics.log_losses([800.0, -800.0], [1.0, 0.0]) == pytest.approx([0.0, 0.0])


def test_figures_of_a_model_that_is_too_sure_of_itself():
    figures = {figure.key: figure for figure in calibration_figures("pm", "m", *planted_margins(4.0, n=400))}
    assert figures["pm.ece"].low > 0.05
    assert figures["pm.slope"].high < 1
    assert "temperature" in figures["pm.slope"].note
    points = [figure for key, figure in figures.items() if ".bin." in key]
    assert sum(point.n for point in points) == 400
    assert all(0.5 <= point.at <= 1 for point in points)


def test_equal_samples_have_no_distance_and_shifted_ones_alarm():
    before = (4 * draws(100, 1)).tolist()
    assert statistics.ks_distance(before, before)[1].low == 0
    distance, band = statistics.ks_distance([value + 1 for value in before], before)
    assert 0 < band.low < 0.25 < band.high
    # Two samples of 100: the two-sided test rejects at 5 % from D = 1.358 sqrt(2/100) = 0.192 (Smirnov 1948).
    assert band.low == pytest.approx(distance - 0.192, abs=1e-3)


def curve(rewards, qualities, n=40):
    """Points with some noise over prompts around planted means."""
    noise = draws(n, 31) - 0.5
    noise = (noise - noise.mean()).tolist()
    return [
        GoodhartPoint(
            name=f"step {index}",
            kl=tuple(index + 0.1 * value for value in noise),
            reward=tuple(reward + value for value in noise),
            quality=tuple(quality + 0.1 * value for value in noise),
        )
        for index, (reward, quality) in enumerate(zip(rewards, qualities, strict=True))
    ]


def test_over_optimisation_is_seen_and_where_it_begins():
    points = curve([0.0, 1.0, 2.0, 3.0, 4.0], [0.5, 0.7, 0.6, 0.4, 0.3])
    table = goodhart.curve_table(points)
    reward, _ = bootstrapped(goodhart.reward_slope, table, seed=1)
    quality, interval = bootstrapped(goodhart.quality_slope, table, seed=1)
    assert (reward, quality) == pytest.approx((1.0, -0.07))
    assert interval.high < 0
    assert goodhart.parting_point(points) == ("step 1", "step 2")


def test_what_rises_together_does_not_part():
    points = curve([0.0, 1.0, 2.0], [0.5, 0.6, 0.7])
    assert goodhart.parting_point(points) is None
    assert goodhart.rank_correlation(goodhart.curve_table(points).mean(0)) == pytest.approx(1.0)


def test_quality_that_stays_the_same_does_not_part():
    assert goodhart.parting_point(curve([0.0, 1.0], [0.5, 0.5])) is None


def test_equal_values_share_their_rank():
    # Ranks 0, 1.5, 1.5, 3 against 0, 1, 2, 3: correlation 9 / sqrt(4.5 * 5) = 0.949.
    means = np.array([0, 1, 2, 3, 0, 5, 5, 9, 1, 2, 3, 4], dtype=float)
    assert goodhart.rank_correlation(means) == pytest.approx(4.5 / math.sqrt(4.5 * 5))
