"""What a judge is asked about a pair, and what becomes of its answers, whoever answers."""

import math

import pytest
from scripted_answers import Scripted

from charter.data.dataset import Pair, Turn
from charter.feedback.asking import ATTEMPTS, BY_VOTES, ChoiceReply, Choose, Sample, Text, probability_of
from charter.feedback.comparing import Comparison, Invalid, Rules, Verdict, comparing
from charter.feedback.constitution import Principle
from charter.feedback.records import answered
from charter.feedback.wording import REASONING_PREFILL

KIND, SHORT = (
    Principle(id=name, critique="", revision="", compare=f"Which is {name}er?") for name in ("kind", "short")
)
TURNS = (Turn("user", "Tell me about tea."),)


def comparison(id="one", principles=(KIND,), first="Tea is fine.", second="No."):
    return Comparison(id=id, turns=TURNS, first=first, second=second, principles=principles)


def asked(answerer, items=None, **rules):
    return answered(
        comparing([comparison()] if items is None else items, Rules(seed=3, stage="label", **rules)), answerer
    )


def by_odds(odds):
    return Scripted(lambda ask: ChoiceReply(log_probabilities=(odds(ask), 0.0), missing=(False, False)))


def silent(problem="no log-probabilities given", **more):
    return ChoiceReply(log_probabilities=None, problem=problem, **more)


def test_no_items_ask_nothing():
    answerer = Scripted()
    assert asked(answerer, []) == []
    assert answerer.lists == []


def test_both_orders_are_asked_and_averaged_and_a_position_bias_cancels():
    biased = by_odds(lambda ask: 2.0)
    (verdict,) = asked(biased)
    assert verdict.log_odds == (2.0, -2.0)
    assert verdict.probability_first == pytest.approx(0.5)
    assert not verdict.orders_agree
    straight, swapped = (str(ask.question) for ask in biased.asks)
    assert "(A) Tea is fine.\n(B) No." in straight
    assert "(A) No.\n(B) Tea is fine." in swapped


def test_what_the_judge_prefers_wins_in_either_place():
    (verdict,) = asked(by_odds(lambda ask: 1.0 if "(A) Tea" in ask.question else -1.0))
    assert verdict.log_odds == (1.0, 1.0)
    assert verdict.probability_first == pytest.approx(probability_of(1.0))
    assert verdict.orders_agree


def test_principles_are_averaged_in_probability_not_in_log_odds():
    (verdict,) = asked(
        by_odds(lambda ask: 4.0 if "kinder" in ask.question else -1.0),
        [comparison(principles=(KIND, SHORT))],
        both_orders=False,
    )
    assert verdict.probability_first == pytest.approx((probability_of(4.0) + probability_of(-1.0)) / 2)
    assert [item.principle for item in verdict.judgements] == ["kind", "short"]


def test_a_label_is_clamped():
    (verdict,) = asked(by_odds(lambda ask: 9.0 if "(A) Tea" in ask.question else -9.0), clamp=0.4)
    assert verdict.probability_first == 0.6
    assert verdict.log_odds == (9.0, 9.0)


def test_clamp_with_position_bias_leaves_labels_that_are_no_ties():
    (verdict,) = asked(by_odds(lambda ask: 4.0 if "(A) Tea" in ask.question else 3.0), clamp=0.4)
    assert verdict.probability_first == pytest.approx((probability_of(4.0) + probability_of(-3.0)) / 2)
    assert verdict.probability_first != 0.5


def test_chain_of_thought_precedes_choice_in_its_conversation():
    answerer = Scripted(write=lambda ask: Text(text=f"{REASONING_PREFILL} tea.", tokens=7))
    (verdict,) = asked(answerer, chain_of_thought=True, reasoning_tokens=33)
    reasons, choices = answerer.lists
    assert all(isinstance(ask, Sample) and ask.max_new_tokens == 33 for ask in reasons)
    assert len({ask.seed for ask in reasons}) == 2
    assert "(A) Tea is fine." in reasons[0].turns[0].content
    assert "better answer is (" not in reasons[0].turns[0].content
    assert [turn.role for turn in choices[0].turns] == ["user", "assistant"]
    assert choices[0].turns[1].content == f"{REASONING_PREFILL} tea."
    assert choices[0].question.lead_in.strip() == "The better answer is ("
    assert verdict.tokens == 14


def test_a_judge_that_will_not_reason_is_not_asked_to_choose():
    answerer = Scripted(write=lambda ask: Text(text="", tokens=1, refusal="I will not judge this"))
    (found,) = asked(answerer, chain_of_thought=True)
    assert (found.reason, found.text, found.tokens) == ("refused", "I will not judge this", 2 * ATTEMPTS)
    assert all(isinstance(ask, Sample) for ask in answerer.asks)


def test_demonstrations_are_drawn_per_pair_with_their_letter():
    pairs = tuple(Pair(f"d{n}", (Turn("user", f"q{n}"),), f"good{n}", f"bad{n}") for n in range(9))
    answerer = Scripted()
    items = [comparison(id=f"item{n}") for n in range(8)]
    asked(answerer, items, few_shot=3, demonstrations=pairs)
    shown = []
    for ask in answerer.asks:
        *examples, question = str(ask.question).split("\n\nConversation:\n")
        assert len(examples) == 3
        assert "(A) Tea is fine." in question or "(B) Tea is fine." in question
        for example in examples:
            letter = example[-2]
            assert f"({letter}) good" in example
        shown.append(tuple(example.split("q")[1][0] for example in examples))
    straight, swapped = shown[::2], shown[1::2]
    assert straight == swapped
    assert len(set(straight)) > 4
    assert all(len(set(row)) == 3 for row in straight)
    letters = [part[-2] for ask in answerer.asks for part in str(ask.question).split("\n\nConversation:\n")[:-1]]
    assert 0.2 < letters.count("A") / len(letters) < 0.8


def test_a_demonstration_never_tells_the_label_of_the_pair_itself():
    """The judged pairs may be demonstrations too: the one about the same conversation is passed over."""
    pairs = tuple(Pair(f"d{n}", (Turn("user", f"q{n}"),), f"good{n}", f"bad{n}") for n in range(3))
    items = [
        Comparison(id=pair.id, turns=pair.prompt, first=pair.rejected, second=pair.chosen, principles=(KIND,))
        for pair in pairs
    ]
    answerer = Scripted()
    asked(answerer, items, few_shot=3, demonstrations=pairs)
    for number, ask in enumerate(answerer.asks):
        assert ask.question.count("Conversation:") == 3
        assert ask.question.count(f"q{number // 2}") == 1


def test_draws_hang_on_the_id_alone():
    pairs = tuple(Pair(f"d{n}", (Turn("user", "q"),), f"good{n}", f"bad{n}") for n in range(9))
    together, alone = Scripted(), Scripted()
    rules = {"few_shot": 2, "demonstrations": pairs, "chain_of_thought": True}
    asked(together, [comparison(id="a"), comparison(id="b")], **rules)
    asked(alone, [comparison(id="b")], **rules)
    assert together.lists[0][2:] == alone.lists[0]


def test_only_invalid_answers_are_asked_again_with_another_seed():
    seen = []

    def choose(ask):
        is_first_straight = "(A) Tea" in ask.question and not seen.count(ask.question)
        seen.append(ask.question)
        return silent("none of the choices") if is_first_straight else ChoiceReply(log_probabilities=(1.0, 0.0))

    answerer = Scripted(choose)
    (verdict,) = asked(answerer)
    assert [len(asks) for asks in answerer.lists] == [2, 1]
    assert answerer.lists[1][0].seed != answerer.lists[0][0].seed
    assert [item.attempts for item in verdict.judgements] == [2, 1]


def test_a_new_attempt_reasons_anew():
    answers = iter([silent("none of the choices")] * 2 + [ChoiceReply(log_probabilities=(1.0, 0.0))] * 2)
    answerer = Scripted(lambda ask: next(answers))
    asked(answerer, chain_of_thought=True)
    first, again = answerer.lists[0], answerer.lists[2]
    assert {ask.seed for ask in first}.isdisjoint(ask.seed for ask in again)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (silent("none of the choices"), "none of the choices"),
        (silent("", refusal="content_filter"), "refused"),
        (ChoiceReply(log_probabilities=(0.0, -1.0), refusal="I will not"), "refused"),
    ],
)
def test_invalid_answer_stays_invalid_after_bounded_attempts(answer, reason):
    answerer = Scripted(lambda ask: answer)
    (found,) = asked(answerer)
    assert isinstance(found, Invalid)
    assert found.reason == reason
    assert len(answerer.lists) == ATTEMPTS


def test_one_order_without_an_answer_makes_the_pair_invalid():
    """The other order alone would bring the effect of the position back."""
    answerer = Scripted(
        lambda ask: silent() if "(A) No." in ask.question else ChoiceReply(log_probabilities=(5.0, 0.0))
    )
    bad, good = asked(answerer, [comparison(), comparison(id="two", second="Rain.")])
    assert isinstance(bad, Invalid)
    assert isinstance(good, Verdict)


def test_votes_replace_missing_log_probabilities_and_are_marked():
    def choose(ask):
        return ChoiceReply(log_probabilities=None, votes=(3, 1), tokens=4) if ask.votes else silent(tokens=1)

    answerer = Scripted(choose)
    (verdict,) = asked(answerer, votes=4, both_orders=False)
    assert [ask.votes for ask in answerer.asks] == [0, 4]
    (judgement,) = verdict.judgements
    assert judgement.how == BY_VOTES
    assert judgement.log_odds == pytest.approx(math.log(3.5 / 1.5))
    assert verdict.tokens == 5


def test_unanimous_votes_are_not_certainty():
    choose = lambda ask: ChoiceReply(log_probabilities=None, votes=(4, 0)) if ask.votes else silent()  # noqa: E731
    (verdict,) = asked(Scripted(choose), votes=4, both_orders=False)
    assert verdict.probability_first == pytest.approx(4.5 / 5)


def test_a_refused_question_is_not_put_to_the_vote():
    answerer = Scripted(lambda ask: silent(refusal="no"))
    asked(answerer, votes=4)
    assert all(isinstance(ask, Choose) and ask.votes == 0 for ask in answerer.asks)


def test_a_bounded_choice_is_marked():
    (verdict,) = asked(Scripted(lambda ask: ChoiceReply(log_probabilities=(-0.1, -9.0), missing=(False, True))))
    assert all(item.is_bounded for item in verdict.judgements)


def test_yes_no_asks_of_each_answer_and_compares_the_log_odds():
    answerer = by_odds(lambda ask: 2.0 if "Tea is fine" in ask.question else 0.5)
    (verdict,) = asked(answerer, format="yes_no")
    assert verdict.log_odds == (1.5,)
    assert [ask.choices for ask in answerer.asks] == [("Y", "N")] * 2


def test_the_tokens_of_every_question_count_in_a_format_with_two():
    """Valid or not: what was generated for both answers was paid for."""
    tokens = lambda ask: 5 if "Tea is fine" in str(ask.question) else 7  # noqa: E731
    valid = Scripted(lambda ask: ChoiceReply(log_probabilities=(1.0, 0.0), tokens=tokens(ask)))
    (verdict,) = asked(valid, format="yes_no")
    assert verdict.tokens == 12
    (refused,) = asked(Scripted(lambda ask: silent(refusal="no", tokens=tokens(ask))), format="yes_no")
    assert (refused.reason, refused.tokens) == ("refused", 12 * ATTEMPTS)


def test_answers_judged_one_by_one_have_own_draws():
    answerer = Scripted()
    asked(answerer, format="yes_no", chain_of_thought=True)
    seeds = [ask.seed for ask in answerer.asks if isinstance(ask, Sample)]
    assert len(set(seeds)) == len(seeds) == 2
