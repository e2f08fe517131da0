"""Suites that a judge decides: `judge_agreement` and `probes` (with humans, other judges, itself) and `judge_win_rate`.

A win rate is of policy and control against the model before, in both orders of the answers.
"""

import math
from collections import Counter
from collections.abc import Sequence

from charter.artifacts.draws import draw_seed
from charter.data.dataset import Pair
from charter.evaluate import statistics
from charter.evaluate.accuracy import HELD_OUT, shorter_wins
from charter.evaluate.bench import Bench
from charter.evaluate.figures import SHARE, Figure, difference, figure_of, mean, proportion, resampled
from charter.evaluate.judging import ONE_HALF, Contest, JudgedItem, first_option_share, invalid_note, verdict_wins
from charter.evaluate.statistics import length_controlled
from charter.feedback.asking import LARGEST_LOG_ODDS, probability_of
from charter.feedback.inputs import role_pairs
from charter.feedback.wording import MULTIPLE_CHOICE

KEY = "judge_win_rate"


def judge_win_rate(bench: Bench) -> list[Figure]:
    """Wins of what was trained, raw and at equal length, with what is known of the judge's own biases."""
    roles = [role for role in ("policy", "control") if bench.has(role)]
    judged = {role: bench.judging.verdicts(_contests(bench, role)) for role in roles}
    figures = [figure for role in roles for figure in _wins(bench, role, judged[role])]
    if "control" in judged:
        figures += _policy_less_control(bench, judged["policy"], judged["control"])
    return figures + _biases(bench, [item for part in judged.values() for item in part])


def _contests(bench: Bench, role: str) -> list[Contest]:
    """The role's answer first; draws are the same whichever role it is, so that roles can be compared."""
    rows = zip(bench.prompts, bench.answers(role).texts, bench.answers("against").texts, strict=True)
    return [Contest(id=prompt.id, turns=prompt.turns, first=mine, second=theirs) for prompt, mine, theirs in rows]


def _wins(bench: Bench, role: str, judged: Sequence[JudgedItem]) -> list[Figure]:
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
