"""AI preference labels: a judge compares two answers under a drawn principle (Bai et al. 2022, section 4).

The label is soft: the normalised probability of the judge's choice, averaged over the orders asked (Lee et al. 2023,
section 3.1). A human label that a candidate pair carries is neither used nor stored: which answer is shown first is
drawn from the text of the answers, so the rows are the same when `chosen` and `rejected` change places.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from charter.artifacts.draws import draw_seed
from charter.artifacts.job import Job
from charter.artifacts.stage_dir import StageDir
from charter.artifacts.stage_process import stage_main
from charter.errors import DataError
from charter.feedback.constitution import Constitution
from charter.feedback.inputs import load_role, role_constitution, role_pairs, role_prompts
from charter.feedback.judge import (
    MULTIPLE_CHOICE,
    Comparison,
    Verdict,
    compare,
    question_limit,
    template_fingerprint,
)
from charter.feedback.records import Batch, Record, in_batches, make_records
from charter.feedback.sampling import check_context, sample
from charter.models.language_model import LanguageModel
from charter.models.runtime import configure
from charter.spec.dataset import Prompt, Turn
from charter.spec.stage import LabelStage

CANDIDATE, POLICY = "candidate", "policy"
IDENTICAL, EMPTY = "identical answers", "empty answer"
RESAMPLES = 3
"""How often a sampled pair with an empty answer or two identical ones is drawn again before it is set aside."""


@dataclass(frozen=True, kw_only=True)
class Item:
    """A pair to be labelled; without answers yet, when the policy is to give them."""

    id: str
    turns: tuple[Turn, ...]
    answers: tuple[str, str] | None = None


def unusable(first: str, second: str) -> str | None:
    """Why two answers cannot be compared, or None.

    >>> unusable("yes", "yes"), unusable("yes", " "), unusable("yes", "no")
    ('identical answers', 'empty answer', None)
    """
    if not first.strip() or not second.strip():
        return EMPTY
    return IDENTICAL if first == second else None


@dataclass(frozen=True, kw_only=True)
class Labeller:
    """The judge, the policy, the constitution and the seed of one label stage."""

    judge: LanguageModel
    judge_fingerprint: str
    policy: LanguageModel | None
    constitution: Constitution
    spec: LabelStage
    seed: int
    stage: str

    def make(self, items: Sequence[Item]) -> Batch:
        """Labels of one batch."""
        sampled = items[0].answers is None
        pairs, tokens = self._sampled_pairs(items) if sampled else ([item.answers or ("", "") for item in items], 0)
        source = POLICY if sampled else CANDIDATE
        reasons = [unusable(*pair) for pair in pairs]
        usable = [(item, pair) for item, pair, reason in zip(items, pairs, reasons, strict=True) if reason is None]
        comparisons = [self._comparison(item, pair) for item, pair in usable]
        verdicts = self._verdicts(comparisons)
        return Batch(
            records=[
                self._record(item, comparison, verdict, source)
                for (item, _), comparison, verdict in zip(usable, comparisons, verdicts, strict=True)
            ],
            set_aside=[
                {"id": item.id, "reason": reason, "source": source}
                for item, reason in zip(items, reasons, strict=True)
                if reason is not None
            ],
            totals=_totals(verdicts) | {"identical": reasons.count(IDENTICAL), "empty": reasons.count(EMPTY)},
            tokens=tokens,
        )

    def _sampled_pairs(self, items: Sequence[Item]) -> tuple[list[tuple[str, str]], int]:
        """Two answers of the policy to each prompt; unusable ones are drawn again, the whole batch at a time."""
        first, tokens = self._sample(items, "first", 0)
        second, more = self._sample(items, "second", 0)
        tokens += more
        for attempt in range(1, RESAMPLES + 1):
            if any(not text for text in first):
                again, more = self._sample(items, "first", attempt)
                first, tokens = [old or new for old, new in zip(first, again, strict=True)], tokens + more
            if any(unusable(a, b) for a, b in zip(first, second, strict=True)):
                again, more = self._sample(items, "second", attempt)
                tokens += more
                second = [new if unusable(a, b) else b for a, b, new in zip(first, second, again, strict=True)]
        return list(zip(first, second, strict=True)), tokens

    def _sample(self, items: Sequence[Item], which: str, attempt: int) -> tuple[list[str], int]:
        assert self.policy is not None
        seeds = [draw_seed(self.seed, self.stage, item.id, "answer", which, attempt) for item in items]
        found = sample(self.policy, [item.turns for item in items], seeds=seeds, spec=self.spec)
        return list(found.texts), found.tokens

    def _comparison(self, item: Item, pair: tuple[str, str]) -> Comparison:
        """The pair in drawn order, with a drawn principle; neither draw sees which answer humans chose."""
        first, second = sorted(pair, key=lambda answer: draw_seed(self.seed, self.stage, item.id, "order", answer))
        principle = self.constitution.draw(self.seed, self.stage, item.id)
        return Comparison(turns=item.turns, first=first, second=second, principle=principle)

    def _verdicts(self, comparisons: Sequence[Comparison]) -> list[Verdict]:
        if not comparisons:
            return []
        return compare(
            self.judge,
            comparisons,
            format=self.spec.format,
            both_orders=self.spec.both_orders,
            max_tokens=question_limit(self.judge),
        )

    def _record(self, item: Item, comparison: Comparison, verdict: Verdict, source: str) -> Record:
        first_wins = verdict.probability_first >= 0.5
        chosen, rejected = (comparison.first, comparison.second)[:: 1 if first_wins else -1]
        sign = 1 if first_wins else -1
        return {
            "id": item.id,
            "prompt": [{"role": turn.role, "content": turn.content} for turn in item.turns],
            "chosen": [{"role": "assistant", "content": chosen}],
            "rejected": [{"role": "assistant", "content": rejected}],
            "chosen_probability": max(verdict.probability_first, 1 - verdict.probability_first),
            "principle": comparison.principle.id,
            "judge": self.judge_fingerprint,
            "format": self.spec.format,
            "template": template_fingerprint(self.spec.format),
            "both_orders": {
                "log_odds_chosen": [sign * value for value in verdict.log_odds],
                "chosen_shown_first": first_wins,
                "agree": verdict.orders_agree,
            },
            "source": source,
            "seed": self.seed,
        }


def _totals(verdicts: Sequence[Verdict]) -> dict[str, float]:
    """Sums over a batch from which agreement and position bias follow."""
    asked = [verdict.log_odds for verdict in verdicts]
    shown_first = [value if order == 0 else -value for odds in asked for order, value in enumerate(odds)]
    return {
        "orders_agree": sum(verdict.orders_agree for verdict in verdicts),
        "ties": sum(verdict.probability_first == 0.5 for verdict in verdicts),
        "certainty": sum(max(verdict.probability_first, 1 - verdict.probability_first) for verdict in verdicts),
        "questions": len(shown_first),
        "first_option_wins": sum(0.5 if value == 0 else float(value > 0) for value in shown_first),
        "first_option_log_odds": sum(shown_first),
    }


def summary(totals: Mapping[str, float], *, format: str, both_orders: bool) -> dict[str, float]:
    """What is reported: certainty always; order effects where the question has an order.

    `position_bias` is the share of questions in which option (A) won, less one half.
    """
    records, questions = max(totals["records"], 1), max(totals["questions"], 1)
    found = {
        "identical_answers": totals["identical"],
        "empty_answers": totals["empty"],
        "ties": totals["ties"],
        "mean_chosen_probability": totals["certainty"] / records,
    }
    if format == MULTIPLE_CHOICE:
        found["position_bias"] = totals["first_option_wins"] / questions - 0.5
        found["position_log_odds"] = totals["first_option_log_odds"] / questions
        if both_orders:
            found["orders_agree"] = totals["orders_agree"] / records
    return found


def sampled_items(prompts: Sequence[Prompt], pairs: int) -> list[Item]:
    """`pairs` pairs to be sampled: prompts in file order, taken round again with new draws when they run out."""
    return [
        Item(id=f"{prompts[k % len(prompts)].id}/pair-{k // len(prompts) + 1}", turns=prompts[k % len(prompts)].turns)
        for k in range(pairs)
    ]


def label_batches(job: Job, spec: LabelStage) -> list[Sequence[Item]]:
    """What is to be labelled, in fixed batches: candidates first, then pairs to be sampled; never mixed."""
    candidates, sampled = [], []
    if job.inputs.get("candidates"):
        pairs = role_pairs(job, "candidates")
        candidates = [Item(id=pair.id, turns=pair.prompt, answers=(pair.chosen, pair.rejected)) for pair in pairs]
    if spec.pairs:
        sampled = sampled_items(role_prompts(job, "prompts", limit=None), spec.pairs)
    if not candidates and not sampled:
        raise DataError(f"stage {job.stage} has nothing to label: give `candidates`, or `pairs` with `policy`")
    if sampled and spec.temperature == 0:
        raise DataError(f"stage {job.stage}: at temperature 0 both answers of a pair are the same; raise temperature")
    return in_batches(candidates, spec.rollout_batch) + in_batches(sampled, spec.rollout_batch)


def run(stage: StageDir) -> None:
    """Make the records of a label stage."""
    job, spec = stage.job, stage.job.spec
    assert isinstance(spec, LabelStage)
    device = configure(job.frozen)
    batches = label_batches(job, spec)
    policy = load_role(job, "policy", device) if spec.pairs else None
    if policy is not None:
        check_context(policy, spec, role="policy")
    labeller = Labeller(
        judge=load_role(job, "judge", device),
        judge_fingerprint=job.only("judge").fingerprint,
        policy=policy,
        constitution=role_constitution(job),
        spec=spec,
        seed=job.seed,
        stage=job.stage,
    )

    def summarise(totals: Mapping[str, float]) -> Mapping[str, float]:
        return summary(totals, format=spec.format, both_orders=spec.both_orders)

    make_records(stage, batches, labeller.make, summarise=summarise)


if __name__ == "__main__":
    stage_main(run)
