"""AI preference labels: a judge compares two answers under drawn principles (Bai et al. 2022, section 4).

The label is soft: the normalised probability of the judge's choice, averaged over the orders asked (Lee et al. 2023,
section 2.1). A human label that a candidate pair carries is neither used nor stored: which answer is shown first is
drawn from the text of the answers, so the rows are the same when `chosen` and `rejected` change places.
"""

from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

from charter.artifacts.draws import draw_seed
from charter.artifacts.job import Job
from charter.artifacts.stage_dir import StageDir
from charter.artifacts.stage_process import stage_main
from charter.data.dataset import Turn
from charter.errors import DataError
from charter.feedback.answering import open_answerer
from charter.feedback.asking import BY_VOTES, Ask, Invalid, Judgement, Reply, Text, Verdict, sample_of
from charter.feedback.comparing import Comparison, Rules, comparing
from charter.feedback.constitution import Constitution
from charter.feedback.inputs import PromptBatches, prompt_batches, role_constitution, role_pairs
from charter.feedback.records import BatchResult, Making, Record, in_batches, make_records
from charter.feedback.served_models import NONE_GIVEN, not_served
from charter.feedback.wording import MULTIPLE_CHOICE, YES_NO_MEAN, template_fingerprint
from charter.spec.stage import LabelStage


@dataclass(frozen=True, kw_only=True)
class Item:
    """A pair to be labelled; without answers yet, when the policy is to give them."""

    id: str
    turns: tuple[Turn, ...]
    answers: tuple[str, str] | None = None


@dataclass(frozen=True, kw_only=True)
class LabelBatches:
    """Candidates first, then pairs to be sampled; the prompts of these are read anew each time."""

    candidates: Sequence[Item]
    prompts: PromptBatches | None
    pairs: int
    size: int

    def __iter__(self) -> Iterator[Sequence[Item]]:
        yield from in_batches(self.candidates, self.size)
        if self.prompts is not None:
            items = islice(sampled_items(self.prompts), self.pairs)
            while batch := tuple(islice(items, self.size)):
                yield batch


def sampled_items(prompts: PromptBatches) -> Iterator[Item]:
    """Pairs to be sampled, without end: prompts in file order, taken round again with new draws when they run out."""
    for turn in count(1):
        for prompt in prompts.prompts():
            yield Item(id=f"{prompt.id}/pair-{turn}", turns=prompt.turns)


def label_batches(job: Job, spec: LabelStage) -> LabelBatches:
    """Return the batches to label; an empty input, and pairs that would be the same answer twice, are refused."""
    candidates: list[Item] = []
    if job.inputs.get("candidates"):
        pairs = role_pairs(job, "candidates")
        candidates = [Item(id=pair.id, turns=pair.prompt, answers=(pair.chosen, pair.rejected)) for pair in pairs]
    if not candidates and not spec.pairs:
        raise DataError(f"stage {job.stage} has nothing to label: give `candidates`, or `pairs` with `policy`")
    if spec.pairs and spec.temperature == 0:
        raise DataError(f"stage {job.stage}: at temperature 0 both answers of a pair are the same; raise temperature")
    prompts = prompt_batches(job, "prompts", size=spec.rollout_batch, limit=None) if spec.pairs else None
    return LabelBatches(candidates=candidates, prompts=prompts, pairs=spec.pairs, size=spec.rollout_batch)


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


PRINCIPLE, INVALID_SHARE = "principle/", "invalid/"
"""How the counts of each principle, and of each reason why there is no judgement, begin."""


def label_totals(comparisons: Sequence[Comparison], verdicts: Sequence[Verdict | Invalid]) -> dict[str, float]:
    """Sums over a batch from which agreement and biases follow."""
    valid_verdicts = [
        (item, verdict) for item, verdict in zip(comparisons, verdicts, strict=True) if isinstance(verdict, Verdict)
    ]
    judgements = [judgement for _, verdict in valid_verdicts for judgement in verdict.judgements]
    shown_first = [-item.log_odds if item.is_swapped else item.log_odds for item in judgements]
    invalid = Counter(INVALID_SHARE + verdict.reason for verdict in verdicts if isinstance(verdict, Invalid))
    principles = Counter(PRINCIPLE + principle.id for item, _ in valid_verdicts for principle in item.principles)
    return {
        "compared": len(comparisons),
        "invalid": len(verdicts) - len(valid_verdicts),
        "orders_agree": sum(verdict.orders_agree for _, verdict in valid_verdicts),
        "ties": sum(verdict.probability_first == 0.5 for _, verdict in valid_verdicts),
        "certainty": sum(
            max(verdict.probability_first, 1 - verdict.probability_first) for _, verdict in valid_verdicts
        ),
        "chosen_longer": sum(_is_chosen_longer(item, verdict) for item, verdict in valid_verdicts),
        "questions": len(judgements),
        "asked_again": sum(item.attempts > 1 for item in judgements),
        "bounded": sum(item.is_bounded for item in judgements),
        "by_votes": sum(item.how == BY_VOTES for item in judgements),
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
    """Return the reported figures: certainty always; order effects where the question has an order.

    `position_bias` is the share of questions in which option (A) won, less one half; `longer_chosen_share` is 0.5 for
    a judge that does not look at length.
    """
    records, questions = max(totals["records"], 1), max(totals["questions"], 1)
    figures = {
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
        figures["position_bias"] = totals["first_option_wins"] / questions - 0.5
        figures["position_log_odds"] = totals["first_option_log_odds"] / questions
        if both_orders:
            figures["orders_agree"] = totals["orders_agree"] / records
    counts = {name: value for name, value in sorted(totals.items()) if name.startswith((PRINCIPLE, INVALID_SHARE))}
    return {**figures, **counts}


CANDIDATE, POLICY = "candidate", "policy"
IDENTICAL, EMPTY, INVALID = "identical answers", "empty answer", "invalid judgement"
VOTES_NEEDED = "add `votes: 5` to the stage, so that sampled answers stand in"
RESAMPLES = 3
"""How often a sampled pair with an empty answer or two identical ones is drawn again before it is set aside."""


def unusable(first: str, second: str) -> str | None:
    """Return the reason why two answers cannot be compared, or None.

    >>> unusable("yes", "yes"), unusable("yes", " "), unusable("yes", "no")
    ('identical answers', 'empty answer', None)
    """
    if not first.strip() or not second.strip():
        return EMPTY
    return IDENTICAL if first == second else None


@dataclass(frozen=True, kw_only=True)
class Labeller:
    """The constitution, the settings and the rules of one label stage."""

    job: Job
    spec: LabelStage
    constitution: Constitution
    rules: Rules

    def make(self, items: Sequence[Item]) -> Making[BatchResult]:
        """Labels of one batch."""
        if items[0].answers is None:
            source = POLICY
            pairs, tokens = yield from self._sampled_pairs(items)
        else:
            source = CANDIDATE
            pairs, tokens = [item.answers or ("", "") for item in items], 0
        reasons = [unusable(*pair) for pair in pairs]
        comparisons = [
            self._comparison(item, pair)
            for item, pair, reason in zip(items, pairs, reasons, strict=True)
            if reason is None
        ]
        verdicts = yield from comparing(comparisons, self.rules)
        self._check_server(verdicts)
        set_aside: list[Record] = [
            {"id": item.id, "reason": reason, "source": source}
            for item, reason in zip(items, reasons, strict=True)
            if reason is not None
        ]
        set_aside += [
            {"id": item.id, "reason": INVALID, "why": verdict.reason, "text": verdict.text, "source": source}
            for item, verdict in zip(comparisons, verdicts, strict=True)
            if isinstance(verdict, Invalid)
        ]
        judged = [
            (item, verdict) for item, verdict in zip(comparisons, verdicts, strict=True) if isinstance(verdict, Verdict)
        ]
        return BatchResult(
            records=[label_record(self.job, self.spec, item, verdict, source) for item, verdict in judged],
            set_aside=set_aside,
            totals=label_totals(comparisons, verdicts)
            | {"identical": reasons.count(IDENTICAL), "empty": reasons.count(EMPTY)},
            tokens=tokens + sum(verdict.tokens for verdict in verdicts),
        )

    def _sampled_pairs(self, items: Sequence[Item]) -> Making[tuple[list[tuple[str, str]], int]]:
        """Two answers of the policy to each prompt; unusable ones are drawn again, the whole batch at a time."""
        first, tokens = yield from self._sample(items, "first", 0)
        second, more = yield from self._sample(items, "second", 0)
        tokens += more
        for attempt in range(1, RESAMPLES + 1):
            if any(not text for text in first):
                again, more = yield from self._sample(items, "first", attempt)
                first, tokens = [old or new for old, new in zip(first, again, strict=True)], tokens + more
            if any(unusable(a, b) for a, b in zip(first, second, strict=True)):
                again, more = yield from self._sample(items, "second", attempt)
                tokens += more
                second = [new if unusable(a, b) else b for a, b, new in zip(first, second, again, strict=True)]
        return list(zip(first, second, strict=True)), tokens

    def _sample(
        self, items: Sequence[Item], which: str, attempt: int
    ) -> Generator[Sequence[Ask], list[Reply], tuple[list[str], int]]:
        job = self.job
        seeds = [draw_seed(job.seed, job.stage, item.id, "answer", which, attempt) for item in items]
        replies = yield [
            sample_of(self.spec, "policy", item.turns, seed=seed) for item, seed in zip(items, seeds, strict=True)
        ]
        texts = [reply for reply in replies if isinstance(reply, Text)]
        return [text.text for text in texts], sum(text.tokens for text in texts)

    def _comparison(self, item: Item, pair: tuple[str, str]) -> Comparison:
        """The pair in drawn order, with a drawn principle; neither draw sees which answer humans chose."""
        job = self.job
        first, second = sorted(pair, key=lambda answer: draw_seed(job.seed, job.stage, item.id, "order", answer))
        principles = self.constitution.draw_many(self.spec.principles_per_pair, job.seed, job.stage, item.id)
        return Comparison(id=item.id, turns=item.turns, first=first, second=second, principles=principles)

    def _check_server(self, verdicts: Sequence[Verdict | Invalid]) -> None:
        """Refuse to go on, and to pay, when a server gives nothing that labels can be made of."""
        silent = [item for item in verdicts if isinstance(item, Invalid) and item.reason == NONE_GIVEN]
        if silent and len(silent) == len(verdicts):
            raise DataError(
                f"stage {self.job.stage}: the judge gives log-probabilities for none of {len(silent)} pairs\n"
                f"  {VOTES_NEEDED}"
            )


def check_judge(job: Job, spec: LabelStage) -> None:
    """Refuse what a served judge cannot do, before the policy's answers are paid for."""
    name = job.only("judge").name
    serving = job.serving.get(name)
    if serving is None:
        return
    if spec.format == YES_NO_MEAN:
        raise DataError(not_served(name))
    if not serving.gives_log_probabilities and not spec.votes:
        raise DataError(f"stage {job.stage}: the server of {name} gives no log-probabilities\n  {VOTES_NEEDED}")


def rules_of(job: Job, spec: LabelStage) -> Rules:
    """Return the rules by which the judge of a label stage is asked."""
    return Rules(
        seed=job.seed,
        stage=job.stage,
        format=spec.format,
        both_orders=spec.both_orders,
        chain_of_thought=spec.chain_of_thought,
        reasoning_tokens=spec.reasoning_tokens,
        clamp=spec.clamp,
        votes=spec.votes,
        few_shot=spec.few_shot,
        demonstrations=role_pairs(job, "demonstrations") if spec.few_shot else (),
    )


def run(stage: StageDir) -> None:
    """Make the records of a label stage."""
    job, spec = stage.job, stage.job.spec_as(LabelStage)
    batches = label_batches(job, spec)
    check_judge(job, spec)
    labeller = Labeller(job=job, spec=spec, constitution=role_constitution(job), rules=rules_of(job, spec))

    labeller.constitution.draw_many(spec.principles_per_pair, job.seed)  # refuses now what it would refuse later

    def summarise(totals: Mapping[str, float]) -> Mapping[str, float]:
        return label_summary(totals, format=spec.format, both_orders=spec.both_orders)

    def check(totals: Mapping[str, float]) -> None:
        share = totals["invalid"] / max(totals["compared"], 1)
        if share > spec.max_invalid_share:
            raise DataError(
                f"{totals['invalid']:.0f} of {totals['compared']:.0f} pairs have no valid judgement "
                f"({share:.1%}); max_invalid_share is {spec.max_invalid_share:.1%}\n"
                "  the batches under `batches/` say why; raise max_invalid_share to go on from what is there, or take "
                "another judge"
            )

    with open_answerer(stage, ("judge", "policy") if spec.pairs else ("judge",)) as answerer:
        make_records(stage, batches, labeller.make, answerer, summarise=summarise, check=check)


if __name__ == "__main__":
    stage_main(run)
