"""Suites on which of two answers is better: by preference models, by judges, by the reward, with simple baselines.

On pairs that humans have chosen from (`pm_accuracy`, `hhh`, `judge_agreement`, `probes`), and on what policies write
(`win_rate`, `independent_check`; `judge_win_rate`: policy and control against the model before, in both orders).
"""

import json
import math
from collections import Counter
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from charter.artifacts.draws import draw_seed
from charter.data.dataset import Pair, Turn
from charter.errors import DataError
from charter.evaluate import statistics
from charter.evaluate.bench import Bench
from charter.evaluate.figures import SHARE, Figure, difference, figure_of, mean, proportion, resampled
from charter.evaluate.judging import ONE_HALF, Contest, JudgedItem, first_option_share, invalid_note, verdict_wins
from charter.evaluate.statistics import length_controlled, sign_test, win_of
from charter.feedback.asking import LARGEST_LOG_ODDS, probability_of
from charter.feedback.inputs import role_pairs
from charter.feedback.wording import MULTIPLE_CHOICE

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
    note = f"better on {test.better} of the pairs, worse on {test.worse}; exact sign test p = {test.p_value:.3g}"
    return difference(f"pm_accuracy.{key}_over_{short}", f"{label}, less {name}", wins, baseline, seed=seed, note=note)


REWARD_UNIT = "deviations"


def win_rate(bench: Bench) -> list[Figure]:
    """Policy and control against the model they started from, by the policy's reward; and how far they moved."""
    base = bench.rewards("against")
    figures = [mean("win_rate.reward_against", "Reward of the model before", base, unit=REWARD_UNIT)]
    for role in ("policy", "control"):
        if not bench.has(role):
            continue
        mine = bench.rewards(role)
        label, gain = f"{role.title()} preferred to the model before, by the reward", f"Reward gained by the {role}"
        seed = bench.seed("win_rate", role)
        figures += [
            mean(f"win_rate.reward_{role}", f"Reward of the {role}", mine, unit=REWARD_UNIT),
            difference(f"win_rate.gain_{role}", gain, mine, base, seed=seed, unit=REWARD_UNIT),
            proportion(f"win_rate.{role}", label, _wins(mine, base), note="by the model that rewarded the policy"),
            _divergence(bench, role),
        ]
    return figures + (_control_by_its_own_reward(bench) if bench.has("control_reward") else [])


def _control_by_its_own_reward(bench: Bench) -> list[Figure]:
    """The control by the model that rewarded it: what a reward without signal rises to."""
    mine, base = (bench.rewards(role, scorer_role="control_reward") for role in ("control", "against"))
    label = "Control preferred to the model before, by its own reward"
    return [proportion("win_rate.control_own", label, _wins(mine, base), note="its reward learnt shuffled labels")]


def _wins(mine: Sequence[float], base: Sequence[float]) -> list[float]:
    return [win_of(a, b) for a, b in zip(mine, base, strict=True)]


def _divergence(bench: Bench, role: str) -> Figure:
    """KL of a model against `against`, over its own answers."""
    note = "sum over tokens of the divergence of the distributions sampled from"
    note += "; top_p is left out of them" if bench.spec.top_p < 1 else ""
    values = bench.divergences(role, "against")
    return mean(f"win_rate.kl_{role}", f"KL of the {role} from the model before", values, unit="nats/answer", note=note)


def independent_check(bench: Bench) -> list[Figure]:
    """Wins over the model before, at equal length, by a bag of words trained on pairs that no other stage used.

    For each prompt all answers are cut to the shortest one's tokens, so that length cannot decide.
    """
    roles = [role for role in ("policy", "control", "against") if bench.has(role)]
    rows, skipped, length = equal_length_rows([bench.answers(role).tokens for role in roles])
    note = f"all answers to a prompt cut to the shortest one's tokens, {length:.1f} on average"
    note += f"; {skipped} prompts left out, where an answer was empty" if skipped else ""
    texts = {
        role: [str(bench.model(role).tokenizer.decode(row, skip_special_tokens=True)) for row in cut]
        for role, cut in zip(roles, rows, strict=True)
    }
    figures = []
    if bench.has("pairs"):
        wins = bench.proxy.wins([pair.chosen for pair in bench.pairs], [pair.rejected for pair in bench.pairs])
        trained = f"trained on {len(bench.independent_pairs)} independent human pairs"
        figures.append(
            proportion("independent_check.proxy", "The check itself, on held-out human pairs", wins, note=trained)
        )
    if not rows[0]:
        return figures
    outcome = {role: bench.proxy.wins(texts[role], texts["against"]) for role in roles if role != "against"}
    for role, wins in outcome.items():
        label = f"{role.title()} preferred to the model before, by the check"
        figures.append(proportion(f"independent_check.{role}", label, wins, note=note))
    if "control" in outcome:
        label, seed = "Win rate of the policy less that of the control, by the check", bench.seed("independent_check")
        key = "independent_check.difference"
        figures.append(difference(key, label, outcome["policy"], outcome["control"], seed=seed, note=note))
    return figures


def equal_length_rows(
    answers: Sequence[Sequence[Sequence[int]]],
) -> tuple[list[list[Sequence[int]]], int, float]:
    """Answers of several models cut, prompt by prompt, to the shortest one; prompts with an empty answer left out.

    Returns the rows by model, how many prompts were left out, and the mean length kept.

    >>> equal_length_rows([[[1, 2, 3], [4]], [[5, 6], []]])
    ([[[1, 2]], [[5, 6]]], 1, 2.0)
    """
    shortest = [min(len(row) for row in rows) for rows in zip(*answers, strict=True)]
    answered = [index for index, length in enumerate(shortest) if length]
    cut = [[rows[index][: shortest[index]] for index in answered] for rows in answers]
    mean_length = sum(shortest[index] for index in answered) / len(answered) if answered else 0.0
    return cut, len(shortest) - len(answered), mean_length


KEY = "judge_win_rate"


def judge_win_rate(bench: Bench) -> list[Figure]:
    """Wins of what was trained, raw and at equal length, with what is known of the judge's own biases."""
    roles = [role for role in ("policy", "control") if bench.has(role)]
    judged = {role: bench.judging.verdicts(_contests(bench, role)) for role in roles}
    figures = [figure for role in roles for figure in _judged_wins(bench, role, judged[role])]
    if "control" in judged:
        figures += _policy_less_control(bench, judged["policy"], judged["control"])
    return figures + _biases(bench, [item for part in judged.values() for item in part])


def _contests(bench: Bench, role: str) -> list[Contest]:
    """The role's answer first; draws are the same whichever role it is, so that roles can be compared."""
    rows = zip(bench.prompts, bench.answers(role).texts, bench.answers("against").texts, strict=True)
    return [Contest(id=prompt.id, turns=prompt.turns, first=mine, second=theirs) for prompt, mine, theirs in rows]


def _judged_wins(bench: Bench, role: str, judged: Sequence[JudgedItem]) -> list[Figure]:
    name, note = role.title(), invalid_note(len(bench.prompts), len(judged))
    mean_label = f"Judge's mean probability for the {role}"
    preferences = [item.verdict.probability_first for item in judged]
    mine = [len(bench.answers(role).tokens[item.place]) for item in judged]
    theirs = [len(bench.answers("against").tokens[item.place]) for item in judged]
    longer = [float(a - b) for a, b in zip(mine, theirs, strict=True)]
    label = f"{name} preferred to the model before"
    figures = [
        proportion(f"{KEY}.{role}", f"{label}, by the judge", verdict_wins(judged), note=note),
        mean(f"{KEY}.{role}_preference", mean_label, preferences, unit=SHARE, note=note),
        mean(f"{KEY}.{role}_longer", f"Tokens by which the {role} answers longer", longer, unit="tokens"),
    ]
    control = length_controlled(preferences, mine, theirs)
    method = "logistic regression, robust"
    at_equal = figure_of(
        f"{KEY}.{role}_length_controlled",
        f"{label}, by the judge, at equal length",
        control.win_rate,
        control.interval,
        len(judged),
        SHARE,
        method,
        "the judge's probabilities as if both answers had the same length",
    )
    weight = figure_of(
        f"{KEY}.{role}_length_weight",
        "Weight of length in the judge's preference",
        control.weight,
        control.weight_interval,
        len(judged),
        "log-odds",
        method,
        "for an answer longer by much; below 0 the judge prefers short answers",
    )
    return [*figures, at_equal, weight]


def _policy_less_control(bench: Bench, policy: Sequence[JudgedItem], control: Sequence[JudgedItem]) -> list[Figure]:
    """On the prompts on which both have a verdict."""
    wins = [dict(zip((item.place for item in part), verdict_wins(part), strict=True)) for part in (policy, control)]
    both = [place for place in wins[0] if place in wins[1]]
    if not both:
        return []
    mine, theirs = ([part[place] for place in both] for part in wins)
    label, seed = "Win rate of the policy less that of the control, by the judge", bench.seed(KEY)
    return [difference(f"{KEY}.difference", label, mine, theirs, seed=seed)]


def _biases(bench: Bench, judged: Sequence[JudgedItem]) -> list[Figure]:
    """Return the effect of the order of the answers; nothing in formats without an order."""
    if bench.spec.judge_format != MULTIPLE_CHOICE:
        return []
    agree = [float(item.verdict.orders_agree) for item in judged]
    first = [first_option_share(item.verdict) for item in judged]
    return [
        proportion(f"{KEY}.orders_agree", "Same verdict in both orders", agree),
        proportion(f"{KEY}.first_option", "Option (A) preferred", first, note=ONE_HALF),
    ]


KAPPA = "kappa"
MIN_OF_PRINCIPLE = 5
"""Pairs below which a principle gets no figure: its interval would span most of what is possible."""


def judge_agreement(bench: Bench) -> list[Figure]:
    """Return how often each judge prefers the choice of humans, and how often the judges choose alike."""
    contests = contests_of(bench.pairs)
    by_judge = {name: bench.judging.verdicts(contests, role=role) for name, role in bench.judging.roles.items()}
    name, *others = by_judge
    figures = _judge(bench, by_judge[name])
    for other in others:
        label = f"Judge {other} agrees with the human label"
        figures.append(_with_humans(f"also.{other}", label, by_judge[other], bench))
        figures += _between(bench, name, by_judge[name], other, by_judge[other])
    return figures


def probes(bench: Bench) -> list[Figure]:
    """Compare the judge's answers to fixed pairs with those of the day when their `chosen_probability` was written."""
    pairs = role_pairs(bench.job, "probes")
    judged = bench.judging.verdicts(contests_of(pairs))
    before = [pairs[item.place].chosen_probability for item in judged]
    now = [item.verdict.probability_first for item in judged]
    same = [float(statistics.choice_of(a) == statistics.choice_of(b)) for a, b in zip(before, now, strict=True)]
    moved = [abs(a - b) for a, b in zip(before, now, strict=True)]
    note = invalid_note(len(pairs), len(judged))
    figures = [
        proportion("probes.same_verdict", "Judge decides the probes as before", same, note=note),
        mean("probes.moved", "Mean change of the judge's probability", moved, unit="probability", note=note),
    ]
    if all(value in (0.0, 1.0) for value in before):
        return figures  # hard labels: what the judge's probabilities were is not known
    distance, band = statistics.ks_distance(_log_odds(now), _log_odds(before))
    label = "Largest difference of the distributions of log-odds"
    method = "Kolmogorov-Smirnov band"
    return [*figures, figure_of("probes.ks", label, distance, band, len(now), "distance", method, note)]


def contests_of(pairs: Sequence[Pair]) -> list[Contest]:
    """Pairs as contests, the chosen answer first: both orders are asked, so the judge cannot tell."""
    return [Contest(id=pair.id, turns=pair.prompt, first=pair.chosen, second=pair.rejected) for pair in pairs]


def _judge(bench: Bench, judged: Sequence[JudgedItem]) -> list[Figure]:
    """The figures of the judge itself."""
    wins, shorter = verdict_wins(judged), shorter_wins([bench.pairs[item.place] for item in judged])
    seed = bench.seed("judge_agreement")
    figures = [
        _with_humans("judge", "Judge agrees with the human label", judged, bench),
        proportion("judge_agreement.shorter_answer", "Baseline: the shorter answer wins", shorter, note=HELD_OUT),
        difference("judge_agreement.over_shorter", "Judge less the shorter-answer baseline", wins, shorter, seed=seed),
    ]
    if bench.has("independent_pairs"):
        others = contests_of(bench.independent_pairs)
        more = wins + verdict_wins(bench.judging.verdicts(others))
        label, note = "Judge agrees, independent pairs too", "held-out and independent pairs; the judge saw neither"
        figures.append(proportion("judge_agreement.all_unseen", label, more, note=note))
    figures += _by_principle(judged)
    if bench.spec.judge_format == MULTIPLE_CHOICE:
        agree = [float(item.verdict.orders_agree) for item in judged]
        figures.append(proportion("judge_agreement.orders_agree", "Same verdict in both orders", agree))
        bias = [first_option_share(item.verdict) for item in judged]
        figures.append(proportion("judge_agreement.first_option", "Option (A) preferred", bias, note=ONE_HALF))
    return figures


def _with_humans(key: str, label: str, judged: Sequence[JudgedItem], bench: Bench) -> Figure:
    parts = (HELD_OUT, invalid_note(len(bench.pairs), len(judged)))
    return proportion(
        f"judge_agreement.{key}", label, verdict_wins(judged), note="; ".join(part for part in parts if part)
    )


def _by_principle(judged: Sequence[JudgedItem]) -> list[Figure]:
    """Agreement with humans under each principle that was drawn often enough, where more than one was drawn."""
    drawn = Counter(item.principle for item in judged)
    names = sorted(name for name, count in drawn.items() if count >= MIN_OF_PRINCIPLE)
    wins = {name: verdict_wins([item for item in judged if item.principle == name]) for name in names}
    return [
        proportion(f"judge_agreement.principle.{name}", f"Judge agrees under the principle {name}", wins[name])
        for name in (names if len(drawn) > 1 else ())
    ]


def _between(
    bench: Bench, name: str, mine: Sequence[JudgedItem], other: str, theirs: Sequence[JudgedItem]
) -> list[Figure]:
    """Agreement of two judges on the pairs on which both have a verdict.

    Which answer counts as the first one is drawn by the pair's id: were it always the chosen one, two good judges
    would choose alike by that alone, and kappa would be 0 for them.
    """
    verdicts = {item.place: item.verdict.probability_first for item in theirs}
    rows = [(item.place, item.verdict.probability_first) for item in mine if item.place in verdicts]
    turned = [draw_seed(bench.seed("orientation"), bench.pairs[place].id) % 2 == 1 for place, _ in rows]
    ours = [statistics.choice_of(1 - p if turn else p) for (_, p), turn in zip(rows, turned, strict=True)]
    others = [
        statistics.choice_of(1 - verdicts[place] if turn else verdicts[place])
        for (place, _), turn in zip(rows, turned, strict=True)
    ]
    alike = [float(a == b) for a, b in zip(ours, others, strict=True)]
    key, note = f"judge_agreement.with.{other}", f"judges {name} and {other}"
    return [
        proportion(f"{key}.share", f"Same choice as judge {other}", alike, note=note),
        *resampled(
            f"{key}.kappa",
            f"Agreement with judge {other} beyond chance",
            statistics.kappa,
            statistics.cells(ours, others),
            seed=bench.seed("judge_agreement", other),
            unit=KAPPA,
            note=note,
        ),
    ]


def _log_odds(probabilities: Sequence[float]) -> list[float]:
    """Probabilities as log-odds, on the scale that judges answer on."""
    least = probability_of(-LARGEST_LOG_ODDS)
    clipped = [min(max(value, least), 1 - 2**-53) for value in probabilities]
    return [math.log(value / (1 - value)) for value in clipped]
