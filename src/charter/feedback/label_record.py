"""The record of one label: the pair in the form that preference models read, and where its label came from."""

from collections.abc import Mapping
from typing import Any

from charter.artifacts.job import Job
from charter.feedback.comparing import Comparison
from charter.feedback.verdicts import Judgement, Verdict
from charter.feedback.wording import template_fingerprint
from charter.spec.stage import LabelStage


def label_record(
    job: Job, spec: LabelStage, comparison: Comparison, verdict: Verdict, source: str
) -> Mapping[str, Any]:
    """The record of a valid verdict; what it cost is in the ledger, never here."""
    first_wins = verdict.probability_first >= 0.5
    chosen, rejected = (comparison.first, comparison.second)[:: 1 if first_wins else -1]
    sign = 1 if first_wins else -1
    return {
        "id": comparison.id,
        "prompt": [{"role": turn.role, "content": turn.content} for turn in comparison.turns],
        "chosen": [{"role": "assistant", "content": chosen}],
        "rejected": [{"role": "assistant", "content": rejected}],
        "chosen_probability": max(verdict.probability_first, 1 - verdict.probability_first),
        "principle": comparison.principles[0].id,
        "principles": [principle.id for principle in comparison.principles],
        "judge": job.only("judge").fingerprint,
        "judge_model": verdict.judgements[0].model,
        "format": spec.format,
        "template": template_fingerprint(spec.format, chain_of_thought=spec.chain_of_thought),
        "both_orders": {
            "log_odds_chosen": [sign * value for value in verdict.log_odds],
            "chosen_shown_first": first_wins,
            "agree": verdict.orders_agree,
        },
        "judgements": [_judgement(item, sign, first_wins) for item in verdict.judgements],
        "source": source,
        "seed": job.seed,
        "tokens": verdict.tokens,
    }


def _judgement(item: Judgement, sign: int, first_wins: bool) -> dict[str, Any]:
    return {
        "principle": item.principle,
        "chosen_shown_first": first_wins != item.is_swapped,
        "log_odds_chosen": sign * item.log_odds,
        "how": item.how,
        "bounded": item.is_bounded,
        "attempts": item.attempts,
    }
