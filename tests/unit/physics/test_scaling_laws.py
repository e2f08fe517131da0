import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charter.errors import UsageError
from charter.physics.scaling.laws import (
    BESIROGLU_2024,
    HOFFMANN_2022,
    KAPLAN_2020,
    PUBLISHED,
    effective_tokens,
    published,
    serving_aware,
    tokens_for_loss,
)
from charter.plan.scaling_plan import (
    PUBLISHED_RUNS,
    critical_batch_tokens,
    deepseek_batch_tokens,
    deepseek_learning_rate,
    rules,
)

LAWS = (HOFFMANN_2022, BESIROGLU_2024, KAPLAN_2020)


def test_chinchilla_law_at_its_own_budget():
    """Hoffmann et al. train 70 B parameters on 1.4 T tokens with 5.76e23 operations; approach 3 predicts 1.94."""
    assert HOFFMANN_2022.loss(70e9, 1.4e12) == pytest.approx(1.94, abs=0.01)


def test_the_refit_agrees_with_chinchilla_itself():
    """Besiroglu et al. 2024, section 4: their optimum for Chinchilla's budget is about 20 tokens per parameter."""
    parameters, tokens = BESIROGLU_2024.optimal(5.76e23)
    assert parameters / 1e9 == pytest.approx(70, rel=0.05)
    assert tokens / parameters == pytest.approx(20, rel=0.1)


@given(st.floats(1e18, 1e26), st.sampled_from(LAWS))
def test_the_optimum_spends_its_budget_and_neighbours_are_worse(budget, law):
    parameters, tokens = law.optimal(budget)
    assert 6 * parameters * tokens == pytest.approx(budget)
    best = law.loss(parameters, tokens)
    assert law.loss(parameters * 1.2, tokens / 1.2) > best
    assert law.loss(parameters / 1.2, tokens * 1.2) > best


def test_kaplan_limits():
    """Equations 1.1 and 1.2: with data or size without end the other one alone decides."""
    assert KAPLAN_2020.loss(1e9, 1e30) == pytest.approx((8.8e13 / 1e9) ** 0.076)
    assert KAPLAN_2020.loss(1e30, 1e9) == pytest.approx((5.4e13 / 1e9) ** 0.095)
    assert critical_batch_tokens(1.0) == 2e8


def test_four_epochs_are_nearly_as_good_as_new_data_and_forty_are_not():
    """Muennighoff et al. 2023, abstract and figure 1: up to 4 epochs change little, at 40 repeats are worthless."""
    assert effective_tokens(4e11, 1e11) / 4e11 == pytest.approx(0.93, abs=0.01)
    fortieth = effective_tokens(41e11, 1e11) - effective_tokens(40e11, 1e11)
    assert fortieth < 0.1 * 1e11


@given(st.floats(1e6, 1e13), st.floats(1.0, 1e4))
def test_repeats_never_beat_new_tokens_and_never_hurt(unique, epochs):
    worth = effective_tokens(unique * epochs, unique)
    assert worth <= unique * epochs * (1 + 1e-9)
    assert worth >= unique * (1 - 1e-9)
    assert effective_tokens(unique * epochs * 1.5, unique) >= worth
    assert worth <= unique * (1 + 15.39)


@given(st.sampled_from(LAWS), st.floats(1e8, 1e11), st.floats(1e10, 1e13))
def test_tokens_for_a_loss_invert_the_law(law, parameters, tokens):
    assert tokens_for_loss(law, parameters, law.loss(parameters, tokens)) == pytest.approx(tokens, rel=1e-4)


def test_a_loss_that_a_size_never_reaches_takes_endless_tokens():
    assert math.isinf(tokens_for_loss(HOFFMANN_2022, 1e6, 1.9))


def test_extrapolation_is_told_and_the_fitted_range_is_quiet():
    law = published("besiroglu2024")
    assert law.predict(1e9, 2e10).warnings == ()
    assert "an extrapolation" in law.predict(16e9, 4e11).warnings[0]
    far = law.predict(405e9, 15e12)
    assert "no more than a direction" in far.warnings[0]
    assert len(far.warnings) == 3
    assert far.extrapolation == pytest.approx(6 * 405e9 * 15e12 / 3e21)
    assert any("passes" in warning for warning in law.predict(1e9, 2e10, unique_tokens=2e9).warnings)


@given(st.sampled_from(sorted(PUBLISHED)), st.floats(1e8, 1e12), st.floats(1e9, 1e14))
def test_bands_hold_their_middle_and_widen_with_distance(name, parameters, tokens):
    law = published(name)
    loss = law.predict(parameters, tokens).loss
    assert loss.p10 < loss.p50 < loss.p90
    assert loss.p50 == pytest.approx(law.law.loss(parameters, tokens))


def test_an_unknown_law_names_the_known_ones():
    with pytest.raises(UsageError, match="kaplan2020"):
        published("chinchila")


def test_deepseek_rule_gives_the_settings_of_its_own_runs():
    """Bi et al. 2024, figure 3: 4.2e-4 and 9.2 M tokens at 7 B, 3.2e-4 and about 19 M at 67 B; 2e12 tokens each."""
    small, large = 6 * 6.5e9 * 2e12, 6 * 65e9 * 2e12
    assert deepseek_learning_rate(small) == pytest.approx(4.2e-4, rel=0.03)
    assert deepseek_batch_tokens(small) == pytest.approx(9.2e6, rel=0.03)
    assert deepseek_learning_rate(large) == pytest.approx(3.2e-4, rel=0.03)
    assert deepseek_batch_tokens(large) == pytest.approx(18.9e6, rel=0.05)


def test_rules_are_within_an_order_of_magnitude_of_what_was_used():
    for run in PUBLISHED_RUNS:
        for rule in rules(run.num_parameters, run.num_tokens, loss=1.9):
            if rule.learning_rate is not None:
                assert 0.1 < rule.learning_rate.p50 / run.learning_rate < 10
            if rule.batch_tokens is not None:
                assert 0.1 < rule.batch_tokens.p50 / run.batch_tokens < 10


def test_own_runs_come_first():
    first = rules(1e9, 2e10, loss=2.5, own_learning_rate=(0.3118, -0.125), own_batch_tokens=None)[0]
    assert first.name == "your runs"
    assert first.learning_rate.p50 == pytest.approx(deepseek_learning_rate(6 * 1e9 * 2e10))
    assert first.batch_tokens is None


def served(generated):
    size, tokens = BESIROGLU_2024.optimal(1e23)
    found = serving_aware(
        BESIROGLU_2024,
        num_parameters=size,
        num_tokens=tokens,
        generated_tokens=generated,
        training_utilisation=0.4,
    )
    return size, found


def test_with_nothing_to_serve_the_optimum_stays():
    size, found = served(1.0)
    assert found.num_parameters == pytest.approx(size, rel=0.01)
    assert abs(found.saved_share) < 1e-3


@given(st.floats(1e11, 1e14))
def test_more_to_serve_means_a_smaller_model_of_the_same_loss(generated):
    size, found = served(generated)
    _, more = served(2 * generated)
    assert found.num_parameters < size
    assert more.num_parameters < found.num_parameters
    loss = BESIROGLU_2024.loss(found.num_parameters, found.num_tokens)
    assert loss == pytest.approx(BESIROGLU_2024.loss(*BESIROGLU_2024.optimal(1e23)), rel=1e-6)
    assert 0 < found.saved_share < 1


def test_the_chosen_size_is_the_cheapest_of_all_and_its_cost_adds_up():
    """`6 N D / u_t + 2 N G / u_s`, by hand, against a grid of sizes of the same loss."""
    size, tokens = BESIROGLU_2024.optimal(1e23)
    loss, generated = BESIROGLU_2024.loss(size, tokens), 2e12
    found = serving_aware(
        BESIROGLU_2024,
        num_parameters=size,
        num_tokens=tokens,
        generated_tokens=generated,
        training_utilisation=0.4,
    )

    def cost(parameters):
        return (
            6 * parameters * tokens_for_loss(BESIROGLU_2024, parameters, loss) / 0.4 + 2 * parameters * generated / 0.15
        )

    assert found.accelerator_flops == pytest.approx(cost(found.num_parameters), rel=1e-6)
    assert found.optimal_accelerator_flops == pytest.approx(cost(size), rel=1e-6)
    assert found.accelerator_flops <= min(cost(size * share / 100) for share in range(20, 120, 5))
