"""What a label stage reports of its judge: certainty, agreement, and what it favours besides the better answer."""

from collections import Counter
from collections.abc import Mapping, Sequence

from charter.feedback.comparing import Comparison
from charter.feedback.verdicts import BY_VOTES, Invalid, Verdict
from charter.feedback.wording import MULTIPLE_CHOICE

PRINCIPLE, INVALID = "principle/", "invalid/"
"""How the counts of each principle, and of each reason why there is no judgement, begin."""


def label_totals(comparisons: Sequence[Comparison], verdicts: Sequence[Verdict | Invalid]) -> dict[str, float]:
    """Sums over a batch from which agreement and biases follow."""
    found = [
        (item, verdict) for item, verdict in zip(comparisons, verdicts, strict=True) if isinstance(verdict, Verdict)
    ]
    asked = [judgement for _, verdict in found for judgement in verdict.judgements]
    shown_first = [-item.log_odds if item.is_swapped else item.log_odds for item in asked]
    invalid = Counter(INVALID + verdict.reason for verdict in verdicts if isinstance(verdict, Invalid))
    principles = Counter(PRINCIPLE + principle.id for item, _ in found for principle in item.principles)
    return {
        "compared": len(comparisons),
        "invalid": len(verdicts) - len(found),
        "orders_agree": sum(verdict.orders_agree for _, verdict in found),
        "ties": sum(verdict.probability_first == 0.5 for _, verdict in found),
        "certainty": sum(max(verdict.probability_first, 1 - verdict.probability_first) for _, verdict in found),
        "chosen_longer": sum(_is_chosen_longer(item, verdict) for item, verdict in found),
        "questions": len(asked),
        "asked_again": sum(item.attempts > 1 for item in asked),
        "bounded": sum(item.is_bounded for item in asked),
        "by_votes": sum(item.how == BY_VOTES for item in asked),
        "first_option_wins": sum(0.5 if value == 0 else float(value > 0) for value in shown_first),
        "first_option_log_odds": sum(shown_first),
        **principles,
        **invalid,
    }


def _is_chosen_longer(item: Comparison, verdict: Verdict) -> float:
    """1 where the better answer has more characters, 1/2 where both or neither has."""
    if len(item.first) == len(item.second) or verdict.probability_first == 0.5:
        return 0.5
    return float((len(item.first) > len(item.second)) == (verdict.probability_first > 0.5))


def label_summary(totals: Mapping[str, float], *, format: str, both_orders: bool) -> dict[str, float]:
    """What is reported: certainty always; order effects where the question has an order.

    `position_bias` is the share of questions in which option (A) won, less one half; `longer_chosen_share` is 0.5 for
    a judge that does not look at length.
    """
    records, questions = max(totals["records"], 1), max(totals["questions"], 1)
    found = {
        "identical_answers": totals["identical"],
        "empty_answers": totals["empty"],
        "invalid_judgements": totals["invalid"],
        "invalid_share": totals["invalid"] / max(totals["compared"], 1),
        "ties": totals["ties"],
        "mean_chosen_probability": totals["certainty"] / records,
        "longer_chosen_share": totals["chosen_longer"] / records,
        "asked_again_share": totals["asked_again"] / questions,
        "bounded_share": totals["bounded"] / questions,
        "by_votes_share": totals["by_votes"] / questions,
    }
    if format == MULTIPLE_CHOICE:
        found["position_bias"] = totals["first_option_wins"] / questions - 0.5
        found["position_log_odds"] = totals["first_option_log_odds"] / questions
        if both_orders:
            found["orders_agree"] = totals["orders_agree"] / records
    counts = {name: value for name, value in sorted(totals.items()) if name.startswith((PRINCIPLE, INVALID))}
    return {**found, **counts}
