import json
import math
import random
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from charter.errors import DataError, MissingExtraError
from charter.physics.scaling.fit import SmallRun, envelope, fit_kaplan, fit_parametric, read_runs
from charter.physics.scaling.laws import BESIROGLU_2024, HOFFMANN_2022, KAPLAN_2020, ParametricLaw
from charter.physics.scaling.study import CurveRun, learning_curve, read_law, study, study_json

NOISE = 0.001


def isoflop_runs(law, *, noise=0.0, seed=0, budgets=(1e17, 1e18, 1e19), sizes=7):
    """Runs of a law at a few budgets, sizes from a fifth to five times the best."""
    draw = np.random.default_rng(seed)
    found = []
    for budget in budgets:
        best, _ = law.optimal(budget)
        for ratio in np.geomspace(0.2, 5, sizes).tolist():
            size, tokens = best * ratio, budget / 6 / (best * ratio)
            loss = law.loss(size, tokens) * math.exp(noise * draw.standard_normal())
            found.append(SmallRun(num_parameters=size, num_tokens=tokens, loss=loss))
    return found


@pytest.mark.parametrize("law", [HOFFMANN_2022, BESIROGLU_2024])
def test_a_fit_recovers_the_law_that_made_the_runs(law):
    found, _ = fit_parametric(isoflop_runs(law))
    assert found.size_exponent == pytest.approx(law.size_exponent, abs=1e-5)
    assert found.data_exponent == pytest.approx(law.data_exponent, abs=1e-5)
    assert found.irreducible_loss == pytest.approx(law.irreducible_loss, rel=1e-4)
    assert found.loss(70e9, 1.4e12) == pytest.approx(law.loss(70e9, 1.4e12), rel=1e-4)


@settings(max_examples=12, deadline=None)
@given(
    st.floats(0.25, 0.5),
    st.floats(0.25, 0.5),
    st.floats(1.2, 2.2),
    st.floats(0.3, 1.0),
    st.floats(0.3, 1.0),
    st.integers(0, 99),
)
def test_a_fit_recovers_exponents_under_noise(alpha, beta, irreducible, size_part, data_part, seed):
    """Noise of 0.1 % per run: exponents within 0.06, the loss of a run a hundred times larger within 2 %.

    The parts are what size and data add to the loss in the middle of the runs, so that both can be seen.
    """
    law = ParametricLaw(
        irreducible_loss=irreducible,
        size_coefficient=size_part * 1e8**alpha,
        size_exponent=alpha,
        data_coefficient=data_part * 1.7e9**beta,
        data_exponent=beta,
        source="drawn",
    )
    runs = [
        SmallRun(num_parameters=n, num_tokens=d, loss=law.loss(n, d) * math.exp(noise))
        for (n, d), noise in zip(
            [(n, d) for n in np.geomspace(1e7, 1e9, 6).tolist() for d in np.geomspace(2e8, 2e10, 6).tolist()],
            NOISE * np.random.default_rng(seed).standard_normal(36),
            strict=True,
        )
    ]
    found, _ = fit_parametric(runs)
    assert found.size_exponent == pytest.approx(alpha, abs=0.06)
    assert found.data_exponent == pytest.approx(beta, abs=0.06)
    assert found.loss(1e10, 2e11) == pytest.approx(law.loss(1e10, 2e11), rel=0.02)


def test_a_kaplan_fit_recovers_kaplan():
    found, _ = fit_kaplan(isoflop_runs(KAPLAN_2020))
    assert found.size_exponent == pytest.approx(0.076, abs=1e-3)
    assert found.data_exponent == pytest.approx(0.095, abs=1e-3)


def test_one_wild_run_moves_the_fit_little():
    """The Huber loss: a run that diverged to twice its loss."""
    runs = isoflop_runs(BESIROGLU_2024)
    spoiled = [*runs[:-1], SmallRun(num_parameters=2e9, num_tokens=1e10, loss=7.0)]
    found, _ = fit_parametric(spoiled)
    assert found.size_exponent == pytest.approx(BESIROGLU_2024.size_exponent, abs=0.01)
    assert found.loss(1e10, 2e11) == pytest.approx(BESIROGLU_2024.loss(1e10, 2e11), rel=0.005)


def test_repeated_tokens_are_counted_for_what_they_are_worth():
    once = isoflop_runs(BESIROGLU_2024)
    repeated = [
        SmallRun(
            num_parameters=run.num_parameters, num_tokens=4 * run.num_tokens, unique_tokens=run.num_tokens, loss=0.0
        )
        for run in once
    ]
    told = [
        SmallRun(
            num_parameters=run.num_parameters,
            num_tokens=run.num_tokens,
            unique_tokens=run.unique_tokens,
            loss=BESIROGLU_2024.loss(run.num_parameters, run.worth_tokens),
        )
        for run in repeated
    ]
    assert fit_parametric(told)[0].data_exponent == pytest.approx(BESIROGLU_2024.data_exponent, abs=1e-4)


def test_the_envelope_finds_the_growth_of_the_best_size():
    """a = beta / (alpha + beta); symmetric exponents, so that the parabola is unbiased to a few per cent."""
    found = envelope(isoflop_runs(BESIROGLU_2024))
    expected = BESIROGLU_2024.data_exponent / (BESIROGLU_2024.size_exponent + BESIROGLU_2024.data_exponent)
    assert found.size_exponent == pytest.approx(expected, abs=0.01)
    assert len(found.valleys) == 3
    size, tokens = found.optimal(1e20)
    assert size == pytest.approx(BESIROGLU_2024.optimal(1e20)[0], rel=0.1)
    assert 6 * size * tokens == pytest.approx(1e20)


def test_a_bottom_outside_the_sizes_is_not_used():
    more = isoflop_runs(BESIROGLU_2024, sizes=20)
    one_sided = [run for run in more if run.num_parameters > BESIROGLU_2024.optimal(run.compute_flops)[0] * 1.1]
    found = envelope(one_sided)
    assert found.valleys
    assert not any(valley.inside for valley in found.valleys)
    assert found.size_exponent is None
    assert found.optimal(1e20) is None


def test_a_study_tests_itself_on_the_largest_runs_and_is_the_same_twice():
    runs = isoflop_runs(BESIROGLU_2024, noise=NOISE, budgets=(1e17, 3e17, 1e18, 3e18, 1e19), sizes=5)
    found = study(runs, draws=10)
    assert len(found.held_back) == 5
    assert {item.run.compute_flops for item in found.held_back} == {run.compute_flops for run in runs[-5:]}
    assert all(abs(item.error) < 0.01 for item in found.held_back)
    assert all(item.extrapolation == pytest.approx(1e19 / 3e18) for item in found.held_back)
    assert found.fitted.noise == pytest.approx(NOISE, rel=0.5)
    assert study(runs, draws=10) == found
    assert study(runs, draws=10, seed=1).fitted.draws != found.fitted.draws
    band = found.fitted.predict(7e10, 1.4e12).loss
    near = found.fitted.predict(1e8, 2e9).loss
    assert band.p90 / band.p10 > near.p90 / near.p10
    assert band.p10 < BESIROGLU_2024.loss(7e10, 1.4e12) < band.p90


def test_a_law_survives_its_file():
    found = study(isoflop_runs(BESIROGLU_2024, noise=NOISE), draws=5)
    text = json.dumps(study_json(found, source="test"))
    law = read_law(text, "law.json")
    assert law.predict(7e10, 1.4e12) == found.fitted.predict(7e10, 1.4e12)
    assert law.law.source == "test"
    with pytest.raises(DataError, match="schema"):
        read_law(text.replace("scaling-law/1", "scaling-law/9"), "law.json")
    with pytest.raises(DataError, match="is not a scaling law"):
        read_law("{}", "law.json")
    with pytest.raises(DataError, match=r"law\.json is not a scaling law"):
        read_law(b"\xff{}", "law.json")
    with pytest.raises(DataError, match="too large"):
        read_law(json.dumps({**json.loads(text), "draws": [[int("9" * 400)] * 5]}), "law.json")


def test_every_problem_of_a_file_is_told_at_once_with_its_line():
    text = "parameters,tokens,loss,epochs\n1e7,1e9,x,1\n\n,2e9,3,\n1e8,-1,nan,\n1e8,1e9,3,1\n"
    with pytest.raises(DataError) as caught:
        read_runs(text, "runs.csv")
    lines = str(caught.value).splitlines()
    assert [line.split(": ")[0] for line in lines] == ["runs.csv:2", "runs.csv:4", "runs.csv:5", "runs.csv:5"]
    with pytest.raises(DataError, match="no column tokens, loss"):
        read_runs("parameters\n1e7\n", "runs.csv")


def run(parameters, tokens, loss):
    return SmallRun(num_parameters=parameters, num_tokens=tokens, loss=loss)


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        (isoflop_runs(HOFFMANN_2022)[:5], "at least 6"),
        ([run(1e7, 1e9 * i, 3.0) for i in range(1, 8)], "3 sizes"),
        ([run(1e7 * i, 2e8 * i, 3 / i) for i in range(1, 8)], "same tokens"),
        ([run(r.num_parameters, r.num_tokens, 10 - r.loss) for r in isoflop_runs(HOFFMANN_2022)], "must fall"),
    ],
)
def test_runs_that_cannot_tell_the_terms_apart_are_refused(runs, message):
    with pytest.raises(DataError, match=message):
        fit_parametric(runs)


def test_without_scipy_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(MissingExtraError, match=r"\.\[scale\]") as caught:
        fit_parametric(isoflop_runs(HOFFMANN_2022))
    assert caught.value.exit_code == 7


@pytest.mark.parametrize("scale", ["plain", "odds"])
def test_a_gain_beyond_the_runs_is_covered_as_often_as_said(scale):
    draws, covered = random.Random(3), 0
    for _ in range(400):
        runs = [CurveRun(size=size, value=_figure(size, scale, draws)) for size in (100, 200, 400)]
        _, low, high = learning_curve(runs, scale).gain(400, 800, level=0.8)
        covered += low <= _figure(800, scale) - _figure(400, scale) <= high
    assert covered / 400 == pytest.approx(0.8, abs=0.06)


def _figure(size, scale, draws=None):
    """A share that grows with the logarithm of the size, or of which the odds do, with the noise of a run."""
    noise = draws.gauss(0.0, 0.02) if draws else 0.0
    if scale == "plain":
        return 0.1 * math.log(size) + noise
    return 1 / (1 + math.exp(-(0.3 * math.log(size) - 1.5 + 4 * noise)))


def test_a_curve_is_no_surer_than_its_evaluations():
    exact = [CurveRun(size=size, value=0.1 * math.log(size), half_width=0.05) for size in (100, 200, 400)]
    gain, low, high = learning_curve(exact, "plain").gain(400, 800, level=0.95)
    assert gain == pytest.approx(0.1 * math.log(2))
    assert high - low == pytest.approx(2 * 0.05 / math.sqrt(2), rel=0.01)


def test_a_curve_needs_three_sizes_and_figures_that_have_odds():
    with pytest.raises(DataError, match="2 sizes were run; a curve needs 3"):
        learning_curve([CurveRun(size=size, value=0.5) for size in (1, 2, 2)], "plain")
    with pytest.raises(DataError, match="a figure of 1 has no odds"):
        learning_curve([CurveRun(size=size, value=1.0) for size in (1, 2, 4)], "odds")
