"""Suites on pairs with a better answer: preference models and judge, with simple baselines beside them."""

import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from charter.artifacts.draws import draw_seed
from charter.data.dataset import Pair, Turn
from charter.errors import DataError
from charter.evaluate import statistics
from charter.evaluate.bench import Bench
from charter.evaluate.figures import Figure, difference, proportion
from charter.evaluate.judging import Contest, invalid_note, verdict_wins
from charter.evaluate.statistics import sign_test, win_of

HELD_OUT = "held-out human pairs"
FOLDS = 5
HHH_FILE = "hhh_mini.jsonl"


def pm_accuracy(bench: Bench) -> list[Figure]:
    """Score each preference model by the share of pairs that it ranks as chosen, beside baselines on the same pairs."""
    pairs = [(pair.prompt, pair.chosen, pair.rejected) for pair in bench.pairs]
    reward_name = bench.job.only("reward").name
    words, words_note = baseline_words(bench)
    shorter = shorter_wins(bench.pairs)
    figures = []
    for name, scorer in bench.scorers.items():
        wins = bench.ranked(scorer, pairs)
        is_reward = name == reward_name
        key = "reward" if is_reward else f"also.{name}"
        label = "Preference model that rewards the policy" if is_reward else f"Preference model {name}"
        figures.append(proportion(f"pm_accuracy.{key}", label, wins, note=HELD_OUT))
        figures.append(_over(bench, key, label, wins, "words", "bag of words", words))
        figures.append(_over(bench, key, label, wins, "shorter", "the shorter-answer baseline", shorter))
    figures.append(
        proportion("pm_accuracy.shorter_answer", "Baseline: the shorter answer wins", shorter, note=HELD_OUT)
    )
    figures.append(proportion("pm_accuracy.bag_of_words", "Baseline: bag of words", words, note=words_note))
    return figures


def exact_match(bench: Bench) -> list[Figure]:
    """Share of held-out prompts that each model answers with the row's `answer`, apart from space around both."""
    truths = [prompt.columns.get("answer") for prompt in bench.prompts]
    if None in truths:
        raise DataError("the suite exact_match compares with the column `answer`, which some held-out prompts lack")
    right: dict[str, list[float]] = {}
    for role in ("policy", "against", "control"):
        if bench.has(role):
            texts = bench.answers(role).texts
            pairs = zip(texts, truths, strict=True)
            right[role] = [float(text.strip() == str(truth).strip()) for text, truth in pairs]
    figures = [
        proportion(f"exact_match.{role}", f"{role.title()} answers right", values, note="held-out prompts")
        for role, values in right.items()
    ]
    for role, key, label in (("against", "gain", "the model before"), ("control", "over_control", "the control")):
        if role in right:
            key, seed = f"exact_match.{key}", bench.seed("exact_match", key)
            words = f"Share of right answers of the policy less that of {label}"
            figures.append(difference(key, words, right["policy"], right[role], seed=seed))
    return figures


def hhh(bench: Bench) -> list[Figure]:
    """Preference models and judge on 24 pairs written for Charter: helpful, honest, harmless, other."""
    rows = hhh_rows()
    note = "24 pairs written for Charter; a smoke test, not a benchmark"
    turns = [(Turn("user", row["prompt"]),) for row in rows]
    figures = []
    reward_name = bench.job.only("reward").name if bench.has("reward") else None
    for name, scorer in bench.scorers.items():
        wins = bench.ranked(scorer, [(t, row["better"], row["worse"]) for t, row in zip(turns, rows, strict=True)])
        key = "reward" if name == reward_name else f"also.{name}"
        figures.append(proportion(f"hhh.{key}", f"Preference model {name} on HHH pairs", wins, note=note))
    if bench.has("judge"):
        comparisons = [
            Contest(id=row["id"], turns=t, first=row["better"], second=row["worse"])
            for t, row in zip(turns, rows, strict=True)
        ]
        judged = bench.judging.verdicts(comparisons)
        hhh_note = "; ".join(part for part in (note, invalid_note(len(comparisons), len(judged))) if part)
        figures.append(proportion("hhh.judge", "Judge on HHH pairs", verdict_wins(judged), note=hhh_note))
    shorter = [win_of(-len(row["better"]), -len(row["worse"])) for row in rows]
    figures.append(proportion("hhh.shorter_answer", "Baseline: the shorter answer wins", shorter, note=note))
    return figures


def hhh_rows() -> list[dict[str, Any]]:
    """The pairs that ship with Charter (original texts, CC0-1.0)."""
    text = files("charter.templates").joinpath("data", HHH_FILE).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def shorter_wins(pairs: Sequence[Pair]) -> list[float]:
    """The baseline that prefers the answer with fewer characters."""
    return [win_of(-len(pair.chosen), -len(pair.rejected)) for pair in pairs]


def baseline_words(bench: Bench) -> tuple[list[float], str]:
    """The bag-of-words baseline on the held-out pairs, and what it was trained on."""
    if bench.has("independent_pairs"):
        wins = bench.proxy.wins([pair.chosen for pair in bench.pairs], [pair.rejected for pair in bench.pairs])
        return wins, f"{HELD_OUT}; trained on {len(bench.independent_pairs)} independent human pairs"
    return cross_validated(bench.pairs, seed=bench.seed("folds")), f"{HELD_OUT}; {FOLDS}-fold cross-validation on them"


def cross_validated(pairs: Sequence[Pair], *, seed: int) -> list[float]:
    """Bag of words trained on the other folds; a pair's fold hangs on its id."""
    fold = [draw_seed(seed, pair.id) % FOLDS for pair in pairs]
    wins = [0.5] * len(pairs)
    for number in sorted(set(fold)):
        rest = [(pair.chosen, pair.rejected) for pair, mine in zip(pairs, fold, strict=True) if mine != number]
        if not rest:
            continue
        model = statistics.train(rest)
        test_rows = [index for index, mine in enumerate(fold) if mine == number]
        fold_wins = model.wins(
            [pairs[index].chosen for index in test_rows], [pairs[index].rejected for index in test_rows]
        )
        for index, win in zip(test_rows, fold_wins, strict=True):
            wins[index] = win
    return wins


def _over(
    bench: Bench, key: str, label: str, wins: Sequence[float], short: str, name: str, baseline: Sequence[float]
) -> Figure:
    """A preference model less a baseline on the same pairs, with an exact test of their difference."""
    seed = bench.seed("pm_accuracy", key)
    test = sign_test([a - b for a, b in zip(wins, baseline, strict=True)])
    note = f"better on {test.better} pairs, worse on {test.worse}; exact sign test p = {test.p_value:.3g}"
    return difference(f"pm_accuracy.{key}_over_{short}", f"{label}, less {name}", wins, baseline, seed=seed, note=note)
